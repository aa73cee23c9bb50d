//! SIGTERM at any moment of a start: while devices are tried and claimed, while a store recovers,
//! and while it serves before recovery is complete.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::rig::{Place, Sidecar, StoreShape, VOLUME, actor_program, eventually, rounds, run};

/// Blocks of the store.
const BLOCKS: u64 = 6000;
/// Moments at which a start is stopped, within this time.
const STOPS: u32 = 14;
const WITHIN: Duration = Duration::from_millis(420);
/// Starts that are killed.
const KILLS: u32 = 20;

fn blocks(sidecar: &Sidecar) -> u64 {
    sidecar.status().shards.iter().map(|shard| shard.blocks).sum()
}

/// What a supervisor makes of a sidecar that is killed again and again: the next one serves.
#[test]
fn a_sidecar_that_is_killed_twenty_times_is_well_afterwards() {
    let place = Place::with_store(2, 64 << 20);
    let sidecar = Sidecar::start(&place);
    let socket = place.socket();
    let socket = socket.to_str().expect("a plain path");
    let mut fill = Command::new(actor_program());
    run(fill.args(["fill", socket, VOLUME, "a", "0", "500", "4096"])).expect(0, &[]);
    eventually("all blocks are shown", || blocks(&sidecar) == 500);
    sidecar.stop();
    for kill in 0..KILLS {
        let sidecar = Sidecar::launch(&place, place.serve());
        std::thread::sleep(WITHIN / KILLS * kill);
        sidecar.kill();
    }
    let sidecar = Sidecar::start(&place);
    eventually("all blocks are there again", || blocks(&sidecar) == 500);
    eventually("all is well", || sidecar.status().troubles.is_empty());
    sidecar.stop();
}

#[test]
fn a_stop_at_any_moment_of_a_start_loses_nothing() {
    let shape =
        StoreShape { member_bytes: 256 << 20, segment_bytes: 4 << 20, block_mean: 16 << 10 };
    let place = Place::with_shaped_store(2, &shape);
    let sidecar = Sidecar::start(&place);
    let socket = place.socket();
    let socket = socket.to_str().expect("a plain path");
    let count = BLOCKS.to_string();
    let mut fill = Command::new(actor_program());
    run(fill.args(["fill", socket, VOLUME, "a", "0", &count, "4096"])).expect(0, &[]);
    eventually("all blocks are shown", || blocks(&sidecar) == BLOCKS);
    sidecar.stop();

    let (mut drained, mut early) = (0, 0);
    let stops = rounds(STOPS, STOPS / 2);
    for stop in 0..stops {
        let before = std::fs::read_to_string(place.path("log")).unwrap().len();
        let mut sidecar = Sidecar::launch(&place, place.serve());
        std::thread::sleep(WITHIN / stops * stop);
        sidecar.signal(Signal::TERM);
        let status = sidecar.wait();
        let log = sidecar.stderr().split_off(before);
        // One clear line at its end.
        if status.success() && log.trim_end().ends_with("stopped before it served") {
            early += 1;
        } else if status.success() {
            assert!(log.trim_end().ends_with("drained and stopped"), "{log}");
            drained += 1;
        } else {
            // Before it had read anything.
            assert_eq!(status.code(), None, "{status}: {log}");
            assert!(log.is_empty(), "{log}");
            early += 1;
        }
        assert!(!log.contains("ERROR") && !log.contains("panicked"), "{log}");
    }
    println!("starts: {drained} drained, {early} ended before they had begun");
    assert!(drained > 0);
    let sidecar = Sidecar::start(&place);
    eventually("all blocks are there again", || blocks(&sidecar) == BLOCKS);
    sidecar.stop();
}
