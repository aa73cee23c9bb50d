//! The log's reader stops reading: clients and operators see nothing of it.

use std::io::pipe;
use std::process::Stdio;
use std::time::Instant;

use kvrail_client::{Client, Pages, Request};
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{LONG, Place, eventually};

/// Sessions that come and go, each of which is logged: more than a pipe of 64 KiB takes.
const SESSIONS: usize = 600;

#[test]
fn a_log_that_nobody_reads_keeps_nobody_waiting() {
    let place = Place::with_volume(1, 4 << 20);
    let (reader, writer) = pipe().unwrap();
    let mut command = place.serve();
    command.args(["--set", "sidecar.log=debug"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
    let mut sidecar = command.spawn().unwrap();
    drop(command);
    eventually("it serves", || Client::attach(place.socket()).is_ok());
    // Nobody reads, until the pipe is full and long after.
    let start = Instant::now();
    for _ in 0..SESSIONS {
        let client = Client::attach(place.socket()).expect("it answers");
        let volume = client.volume("kv").unwrap();
        let arena = client.create_arena(4096, Pages::Base).unwrap();
        let mut queue = client.open_queue(8).unwrap();
        queue.submit(Request::write(&volume, 0, arena.lease(4096).unwrap())).unwrap();
        assert!(queue.wait(LONG).unwrap().is_some());
    }
    println!("{SESSIONS} sessions in {:?}", start.elapsed());
    let full = rustix::io::ioctl_fionread(&reader).unwrap();
    assert!(full > 60_000, "{full} bytes: the pipe is not full, so nothing was shown");
    // Nor does its end wait for a reader.
    kill_process(Pid::from_child(&sidecar), Signal::TERM).unwrap();
    let start = Instant::now();
    assert!(sidecar.wait().unwrap().success());
    assert!(start.elapsed() < LONG / 3, "{:?}", start.elapsed());
    drop(reader);
}
