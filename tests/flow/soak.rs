//! All kinds of traffic together: two processes, 64 threads, mixed sizes, both operations.

use std::time::Instant;

use kvrail_tests::span_bytes;

use crate::rig::{Actor, Place, Sidecar, kill_at_random, soak_seconds};

/// Threads of each of the two processes.
const THREADS: u32 = 32;

fn place() -> Place {
    Place::with_volume(1, span_bytes(2 * THREADS))
}

#[test]
fn everything_once_everything_right() {
    let place = place();
    let sidecar = Sidecar::start(&place);
    let before = sidecar.belongings();
    let seconds = soak_seconds();
    let actors = [0, THREADS].map(|first| Actor::traffic(&sidecar, first, THREADS, seconds));
    let mut all = kvrail_tests::Tally::default();
    for actor in actors {
        let tally = actor.tally();
        tally.assert_right();
        assert_eq!(tally.count("OK"), tally.ended, "{:?}", tally.statuses);
        all.add(tally);
    }
    assert!(all.verified > u64::from(2 * THREADS), "only {} reads compared", all.verified);
    let status = sidecar.status();
    let device = &status.devices[0];
    assert_eq!(device.counters.errors, Some(0));
    println!("{} requests, {} bytes, {} verified", all.ended, all.bytes, all.verified);
    let client = sidecar.attach();
    kvrail_tests::verify(&client, "kv", &all.acknowledged).unwrap().assert_right();
    drop(client);
    sidecar.wait_for_belongings(&before);
    assert!(
        status.pollers.iter().all(|poller| poller.counters.allocations == Some(0)),
        "{:?}",
        status.pollers
    );
    sidecar.stop();
}

#[test]
fn clients_killed_at_random_harm_no_other_client_and_leave_nothing() {
    let place = place();
    let mut sidecar = Sidecar::start(&place);
    let before = sidecar.belongings();
    let seconds = soak_seconds();
    let steady = Actor::traffic(&sidecar, 0, THREADS, seconds);
    let watcher = sidecar.attach();
    let (start, mut killed) = (Instant::now(), 0);
    let mut dice = fastrand::Rng::with_seed(40);
    while start.elapsed().as_secs_f64() < seconds {
        // Two victims with blocks of their own; the first dies at any moment from its start on.
        let victims = [0, 16].map(|more| Actor::traffic(&sidecar, THREADS + more, 16, 60.0));
        killed += victims.len();
        kill_at_random(victims, &mut dice, &watcher);
    }
    let tally = steady.tally();
    tally.assert_right();
    assert_eq!(tally.count("OK"), tally.ended, "{:?}", tally.statuses);
    println!("{killed} clients killed, {} requests of the other", tally.ended);
    // Every sector that the dead left is whole and at its place: the next process checks them.
    let heir = Actor::traffic(&sidecar, THREADS, THREADS, 0.5);
    heir.tally().assert_right();
    drop(watcher);
    sidecar.assert_alive();
    sidecar.wait_for_belongings(&before);
    sidecar.stop();
}
