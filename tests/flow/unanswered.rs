//! A client's file whose FLUSH is never answered: each close of it blocks, even that of a process
//! that ends. The sidecar never holds one. Another process than this one opens the file: this one
//! answers for the file system and could not end otherwise.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use kvrail_client::Pages;
use kvrail_tests::{Fuse, FuseRequest};
use rustix::process::Signal;

use crate::rig::{LONG, Place, Sidecar, eventually, hostile_with};

#[test]
fn a_file_that_cannot_be_closed_blocks_no_other_client() {
    let place = Place::with_volume(1, 8 << 20);
    let content = place.data_path("content");
    File::create(&content).unwrap().set_len(1 << 20).unwrap();
    let at = place.path("mount");
    fs::create_dir(&at).unwrap();
    let mut sidecar = Sidecar::start(&place);
    let actor;
    // Dropped first in every case: its end answers all waiting requests.
    let fuse = match Fuse::mount(&at, File::open(&content).unwrap()) {
        Ok(fuse) => fuse,
        Err(why) => return println!("skipped: FUSE: {why}"),
    };
    fuse.withhold_answers(FuseRequest::Flush);
    actor = hostile_with(&sidecar, "fuse-arena", 60.0, &fuse.file());
    eventually("a close waits", || fuse.unanswered() > 0);

    let client = sidecar.attach();
    client.create_arena(1 << 20, Pages::Base).unwrap();
    client.status().unwrap();
    assert!(fuse.unanswered() > 0, "others are served while the close waits");
    drop(client);
    sidecar.signal(Signal::TERM);
    let start = Instant::now();
    let ended = loop {
        match sidecar.ended() {
            None if start.elapsed() < LONG => std::thread::sleep(Duration::from_millis(10)),
            ended => break ended,
        }
    };
    let waiting = fuse.unanswered();
    drop(fuse);
    drop(actor);
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}: {}", sidecar.stderr());
    assert!(waiting > 0, "no request waits for the file system");
}
