//! Whatever clients do, descriptors, memory and slots come back. Alone in its process: open
//! descriptors and mappings are counted.

mod common;

use std::os::fd::{AsFd, OwnedFd};

use common::{Sidecar, eventually, open_fds};
use kvrail_client::{Client, Pages};
use kvrail_protocol::{Ask, Channel, ClientMessage};

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("kvrail-")).count()
}

#[test]
fn two_hundred_clients_leave_nothing_behind() {
    let sidecar = Sidecar::start();
    let watcher = Client::attach(sidecar.socket()).unwrap();
    let quiet = || {
        let report = watcher.status().unwrap();
        report.sessions.len() == 1 && report.regions.arenas == 0 && report.regions.bytes == 0
    };
    let (fds, maps) = (open_fds(), mappings());
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let fds = fds + 1;
    for round in 0..200 {
        let client = Client::attach(sidecar.socket()).unwrap();
        let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
        let queue = client.open_queue(4).unwrap();
        match round % 4 {
            0 => arena.detach().unwrap(),
            1 => drop(queue),
            2 => {
                // Leaves in the middle of a word, with descriptors that nobody wants.
                let rude = Channel::connect(&sidecar.socket()).unwrap();
                let ask = Ask::BringArena { bytes: 1 };
                rude.send(&ClientMessage { seq: 1, ask }, &vec![null.as_fd(); 40]).unwrap();
            }
            _ => assert!(client.create_arena(1 << 40, Pages::Base).is_err()),
        }
    }
    eventually("all reclaimed", quiet);
    eventually("all descriptors closed", || open_fds() == fds);
    eventually("all memory unmapped", || mappings() == maps);
}
