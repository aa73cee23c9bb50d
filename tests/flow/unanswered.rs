//! A client's file whose FLUSH is never answered: each close of it waits, even that of a process
//! that ends. The sidecar never has one. The file is opened by another process than this one, which
//! answers for the file system and could not end itself otherwise.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use kvrail_client::Pages;
use kvrail_tests::{Fuse, FuseRequest};
use rustix::process::Signal;

use crate::rig::{LONG, Place, Sidecar, eventually, hostile_with};

#[test]
fn a_file_that_cannot_be_closed_holds_nobody_up() {
    let place = Place::with_volume(1, 8 << 20);
    let content = place.data_path("content");
    File::create(&content).unwrap().set_len(1 << 20).unwrap();
    let at = place.path("mount");
    fs::create_dir(&at).unwrap();
    let mut sidecar = Sidecar::start(&place);
    let actor;
    // Dropped first, whatever happens: then all that waits for an answer has one.
    let fuse = match Fuse::mount(&at, File::open(&content).unwrap()) {
        Ok(fuse) => fuse,
        Err(why) => return println!("skipped: FUSE: {why}"),
    };
    fuse.drain_doorbell(FuseRequest::Flush);
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
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}: {}", sidecar.said());
    assert!(waiting > 0, "the file system still owed its answers");
}
