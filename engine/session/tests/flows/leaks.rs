//! Whatever clients do, descriptors, memory and slots come back.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use crate::sidecar::{Sidecar, eventually};
use kvrail_client::{Client, Pages};
use kvrail_protocol::{Channel, ClientMessage, ControlRequest};

/// Set in the process that counts.
const ALONE: &str = "KVRAIL_TEST_ALONE";

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("kvrail-")).count()
}

/// Descriptors and mappings belong to a process, so this runs in one without other tests.
#[test]
fn two_hundred_clients_leave_nothing_behind() {
    if std::env::var_os(ALONE).is_some() {
        return come_and_go();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "leaks::two_hundred_clients_leave_nothing_behind", "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && words.contains("1 passed"), "{output:?}");
}

fn come_and_go() {
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
                // Leaves in the middle of a message, with unrequested descriptors.
                let rude = Channel::connect(&sidecar.socket()).unwrap();
                let ask = ControlRequest::ImportArena { bytes: 1 };
                rude.send(&ClientMessage { seq: 1, ask }, &[null.as_fd(); 40]).unwrap();
            }
            _ => assert!(client.create_arena(1 << 40, Pages::Base).is_err()),
        }
    }
    eventually("all reclaimed", quiet);
    eventually("all descriptors closed", || open_fds() == fds);
    eventually("all memory unmapped", || mappings() == maps);
}
