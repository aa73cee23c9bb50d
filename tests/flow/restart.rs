//! The sidecar dies: every request is reported once, and acknowledged data are there.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use kvrail_client::{AttachOptions, Client, ClientError, Pages, Request, Status};
use kvrail_tests::{Tally, span_bytes, verify};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::rig::{Actor, LONG, Place, Sidecar, eventually};

const THREADS: u32 = 8;

#[test]
fn a_killed_sidecar_reports_each_request_once_and_loses_nothing_acknowledged() {
    let place = Place::with_volume(2, span_bytes(2 * THREADS));
    for round in 0..3 {
        let sidecar = Sidecar::start(&place);
        let epoch = sidecar.status().sidecar.epoch;
        let mut actors = [0, THREADS].map(|first| Actor::traffic(&sidecar, first, THREADS, 120.0));
        for actor in &mut actors {
            assert!(actor.wait_until_running(), "traffic before the kill");
        }
        eventually("every device writes", || {
            sidecar.status().devices.iter().all(|device| device.writes.operations > 100)
        });
        sidecar.kill();
        let mut all = Tally::default();
        for actor in actors {
            let tally = actor.tally();
            tally.assert_right();
            assert!(tally.count("RESTARTED") > 0, "round {round}: {:?}", tally.statuses);
            all.add(tally);
        }
        assert!(all.count("OK") > 0 && !all.acknowledged.is_empty());
        let sidecar = Sidecar::start(&place);
        let client = sidecar.attach();
        assert!(client.epoch().0 > epoch, "a new life has a new number");
        let verified = verify(&client, "kv", &all.acknowledged).unwrap();
        verified.assert_right();
        // Traffic continues with the next sidecar.
        drop(client);
        Actor::traffic(&sidecar, 0, 2 * THREADS, 0.5).tally().assert_right();
        sidecar.stop();
    }
}

/// Also while it has reads of a device in flight, which go on behind its end.
#[test]
fn a_watch_on_transfers_hangs_up_behind_a_kill() {
    let hangs_up = |pipe: &OwnedFd, within: Duration| {
        let within = Timespec::try_from(within).unwrap();
        let mut ends = [PollFd::new(pipe, PollFlags::empty())];
        poll(&mut ends, Some(&within)).unwrap() > 0
    };
    let place = Place::with_volume(2, 32 << 20);
    let sidecar = Sidecar::start(&place);
    let client = sidecar.attach();
    let watches = [(); 2].map(|()| client.watch_transfers().unwrap().expect("of this release"));
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(16 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(64).unwrap();
    for at in 0..4 {
        let lease = arena.lease(4 << 20).unwrap();
        queue.submit(Request::read(&volume, at * (4 << 20), lease)).unwrap();
    }
    assert!(!hangs_up(&watches[0], Duration::ZERO), "the sidecar lives");
    // Nobody but the sidecar and its rings has the other end.
    drop(queue);
    drop(client);
    assert!(!hangs_up(&watches[0], Duration::from_millis(50)), "the sidecar lives");
    sidecar.kill();
    assert!(watches.iter().all(|pipe| hangs_up(pipe, LONG)));
    // A stop has the same end.
    let sidecar = Sidecar::start(&place);
    let watch = sidecar.attach().watch_transfers().unwrap().expect("of this release");
    sidecar.stop();
    assert!(hangs_up(&watch, LONG));
}

#[test]
fn a_client_learns_of_the_death_once_and_can_attach_again() {
    let place = Place::with_volume(1, 8 << 20);
    let sidecar = Sidecar::start(&place);
    let client = sidecar.attach();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(64 << 10, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    queue.submit(Request::write(&volume, 0, arena.lease(4096).unwrap())).unwrap();
    assert_eq!(queue.wait(LONG).unwrap().unwrap().status, Status::Ok);
    sidecar.kill();
    // Nothing was in flight: nothing is reported, and new requests are refused.
    let start = Instant::now();
    loop {
        let request = Request::read(&volume, 0, arena.lease(4096).unwrap());
        match queue.submit(request) {
            Err(refused) => {
                assert!(refused.to_string().contains("attach again"), "{refused}");
                break;
            }
            // Submitted before the death was seen: it comes back, once.
            Ok(_) => {
                let done = queue.wait(LONG).unwrap().unwrap();
                assert_eq!(done.status, Status::Restarted);
                assert!(queue.wait(LONG).unwrap().is_none(), "reported once");
            }
        }
        assert!(start.elapsed() < LONG, "the death was never seen");
    }
    assert!(matches!(client.status(), Err(ClientError::SidecarGone { .. })));
    assert!(matches!(Client::attach(place.socket()), Err(ClientError::NoSidecar { .. })));
    // A client with a timeout attaches as soon as a sidecar runs, and waits no longer than that.
    let waits = |wait| AttachOptions { wait, ..AttachOptions::default() };
    let brief = Duration::from_millis(50);
    let start = Instant::now();
    let refused = Client::attach_with(place.socket(), &waits(brief));
    assert!(matches!(refused, Err(ClientError::NoSidecar { .. })) && start.elapsed() >= brief);
    let socket = place.socket();
    let waiting = std::thread::spawn(move || Client::attach_with(socket, &waits(LONG)));
    let sidecar = Sidecar::start(&place);
    let attached = waiting.join().unwrap().unwrap();
    assert!(attached.epoch() > client.epoch());
    sidecar.stop();
    let sidecar = Sidecar::start(&place);
    assert_eq!(sidecar.attach().volume("kv").unwrap().uuid(), volume.uuid());
    sidecar.stop();
}
