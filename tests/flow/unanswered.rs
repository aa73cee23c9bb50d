//! Files whose close waits for a file system that does not answer, and cannot be interrupted: the
//! sidecar serves on, and ends when it is told to.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use kvrail_client::Pages;
use kvrail_protocol::{Ask, Channel, ClientMessage, Hello, Version};
use kvrail_ring::limits::LANE_VERSION;
use rustix::process::Signal;

use crate::rig::fuse::Fuse;
use crate::rig::{Place, Sidecar};

/// For ever is what it would be otherwise.
const SOON: Duration = Duration::from_secs(10);

fn say(channel: &Channel, ask: Ask, file: Option<&File>) {
    let fds: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
    channel.send(&ClientMessage { seq: 1, ask }, &fds).expect("the sidecar reads");
}

fn attached(sidecar: &Sidecar) -> Channel {
    let channel = Channel::connect(sidecar.socket()).expect("a sidecar");
    let (protocol, lane_version) = (Version::CURRENT, LANE_VERSION);
    let hello = Hello { protocol, lane_version, name: "rude".into(), library: "rude 1".into() };
    say(&channel, Ask::Hello(hello), None);
    channel
}

fn serves_at_once(sidecar: &Sidecar) {
    let start = Instant::now();
    let client = sidecar.attach();
    client.status().expect("an answer");
    client.create_arena(1 << 20, Pages::Base).expect("an arena").detach().expect("detached");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

/// One `FUSE` file sent in this way; then the sidecar is told to end, once.
fn survives(what: &str, send: impl Fn(&Sidecar, &File) -> Channel) {
    let place = Place::with_volume(1, 16 << 20);
    let mut fuse = match Fuse::mount(place.path("fuse")) {
        Ok(fuse) => fuse,
        Err(why) => return println!("skipped: {what}: no file system in user space here: {why}"),
    };
    let file = fuse.open();
    let mut sidecar = Sidecar::start(&place);
    let _channels = [(); 3].map(|()| {
        let channel = send(&sidecar, &file);
        serves_at_once(&sidecar);
        channel
    });
    let start = Instant::now();
    sidecar.signal(Signal::TERM);
    while sidecar.ended().is_none() && start.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(5));
    }
    let ended = sidecar.ended();
    // What waits ends now, so that nothing of this test is left.
    fuse.end();
    assert!(ended.is_some_and(|status| status.success()), "{what}: {ended:?} {}", sidecar.said());
}

#[test]
fn sent_before_the_hello() {
    survives("a file before the hello", |sidecar, file| {
        let channel = Channel::connect(sidecar.socket()).expect("a sidecar");
        say(&channel, Ask::Status, Some(file));
        channel
    });
}

#[test]
fn brought_as_an_arena() {
    survives("a file as an arena", |sidecar, file| {
        let channel = attached(sidecar);
        say(&channel, Ask::BringArena { bytes: 4096 }, Some(file));
        channel
    });
}

#[test]
fn sent_with_what_takes_none() {
    survives("a surplus file", |sidecar, file| {
        let channel = attached(sidecar);
        say(&channel, Ask::Status, Some(file));
        channel
    });
}
