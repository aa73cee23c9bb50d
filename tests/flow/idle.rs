//! A sidecar without work sleeps.

use std::time::Duration;

use kvrail_client::{Pages, Request, Status};
use kvrail_protocol::PollerReport;

use crate::rig::{LONG, Place, Sidecar, eventually};

/// Looks at an idle poller; and its wake-ups between two of them: for its heartbeat, for the status
/// request, and for work that was left.
const LOOKS: u64 = 20;

#[test]
fn an_idle_sidecar_sleeps_and_wakes() {
    let place = Place::with_volume(1, 4 << 20);
    let sidecar = Sidecar::start(&place);
    let client = sidecar.attach();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(64 << 10, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    let mut round = || {
        queue.submit(Request::write(&volume, 0, arena.lease(4096).unwrap())).unwrap();
        assert_eq!(queue.wait(LONG).unwrap().unwrap().status, Status::Ok);
    };
    round();
    let look = || client.status().unwrap().pollers[0].clone();
    let before = look();
    for _ in 0..LOOKS {
        std::thread::sleep(Duration::from_millis(50));
        look();
    }
    let after = look();
    let ticks = |poller: &PollerReport| poller.counters.ticks.unwrap();
    // A poller that spun would tick a million times in this second.
    assert!(ticks(&after) - ticks(&before) < 50 * LOOKS, "{before:?} {after:?}");
    assert_eq!(after.lanes, 1);
    // It sleeps while a client is attached, and takes the next request.
    let asleep = look().counters.sleeps;
    round();
    eventually("it sleeps again", || look().counters.sleeps > asleep);
    assert_eq!(look().counters.allocations, Some(0));
    drop(queue);
    sidecar.stop();
}
