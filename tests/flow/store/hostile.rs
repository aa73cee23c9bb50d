//! Malformed requests in the lanes of a store, while well-behaved clients work.

use std::time::{Duration, Instant};

use kvrail_ring::Status;
use kvrail_tests::{Op, Seat, bytes_of, half, key_of, length_of};

use super::{number, seat, seed, small_store};
use crate::rig::{Sidecar, VOLUME, Worker};

/// Blocks of the well-behaved client.
const KEYS: u64 = 200;
const CAPACITY: u32 = 300 << 10;

/// Gets all keys this number of times, and checks all bytes. Returns the time of each get, sorted.
fn get_all(seat: &mut Seat, times: usize) -> Vec<Duration> {
    let mut took = Vec::new();
    for number in (0..times).flat_map(|_| 0..KEYS) {
        let (key, capacity) = (key_of(number), CAPACITY);
        let begin = Instant::now();
        let end = seat.one(Op::Get { key, capacity }).expect("the sidecar stays");
        took.push(begin.elapsed());
        assert_eq!(end.status, Status::Ok, "{number}: {end:?}");
        let found = seat.verified(0, capacity, key, &end);
        assert_eq!(found, Some(bytes_of(number, 1, length_of(number, 1))), "{number}");
    }
    took.sort_unstable();
    took
}

/// The times are only printed, because they depend on the machine's load; the test is that each get
/// ends.
fn report(when: &str, took: &[Duration]) {
    let at = |percent: usize| took[(took.len() - 1) * percent / 100];
    println!("hostile: {} gets {when}: p50 {:?}, p99 {:?}", took.len(), at(50), at(99));
}

/// Random slots, wrong checks, false reports and floods of holds, for some seconds: other clients
/// find all their blocks, right, and the sidecar lives.
#[test]
fn others_keep_their_blocks() {
    let seed = seed("hostile");
    let place = small_store(512 << 20);
    let mut sidecar = Sidecar::start(&place);
    let mut seat = seat(&sidecar, "good");
    for number in 0..KEYS {
        let block = bytes_of(number, 1, length_of(number, 1));
        let end = seat.one(Op::put_durable(key_of(number), &block)).expect("the sidecar stays");
        assert_eq!(end.status, Status::Ok, "{end:?}");
    }
    let socket = place.socket();
    let socket = socket.to_str().expect("a path");
    report("alone", &get_all(&mut seat, 2));
    let mut took = Vec::new();
    for round in 0..number("KVRAIL_STORE_ROUNDS", 1) {
        let noise = |which: u64| {
            let dice = (seed ^ which << 20 ^ round).to_string();
            Worker::start(&["noise", socket, VOLUME, &format!("bad {which}"), &dice])
        };
        let mut noises: Vec<Worker> = (0..3).map(noise).collect();
        for noise in &mut noises {
            noise.expect("running");
        }
        took.extend(get_all(&mut seat, 5));
        for noise in &mut noises {
            println!("hostile: {}", noise.next_line());
        }
    }
    took.sort_unstable();
    report("with hostile clients", &took);
    sidecar.assert_alive();
    sidecar.stop();
}

/// A session has only the handles that it was granted: under no other handle does it find, hold or
/// drop a block.
#[test]
fn handles_of_others_mean_nothing() {
    seed("hostile, handles");
    let place = small_store(64 << 20);
    let sidecar = Sidecar::start(&place);
    let mut good = seat(&sidecar, "good");
    let block = bytes_of(1, 1, 5000);
    good.one(Op::put_durable(key_of(1), &block)).expect("the sidecar stays");
    let mut bad = seat(&sidecar, "bad");
    let own = bad.handle();
    let key = key_of(1);
    for handle in (0..2048).chain([4096, 1 << 15, u16::MAX]).filter(|handle| *handle != own) {
        bad.pretend(handle);
        for op in [
            Op::Get { key, capacity: 8192 },
            Op::Lookup { key, hold_ms: 1000 },
            Op::put(key, &block),
            Op::Drop { key },
            Op::Suspect { key, check: good.check(key, &block) },
        ] {
            let end = bad.one(op).expect("one wrong handle ends no session");
            assert_eq!(end.status, Status::Invalid, "{handle}: {op:?} ended {end:?}");
        }
    }
    let end = good.one(Op::Get { key, capacity: 8192 }).expect("the sidecar stays");
    assert_eq!(good.verified(0, 8192, key, &end), Some(block));
    sidecar.stop();
}

/// Blocks without their last part occupy places for puts. Whatever number one client begins, the
/// puts of another, into a pool of its own, find places.
#[test]
fn half_begun_blocks_leave_places_to_others() {
    seed("hostile, halves");
    let mut place = small_store(256 << 20);
    place.configure_volume(
        "pool = [{ name = \"good\", namespaces = \"good\", minimum = \"128MiB\" }]",
    );
    let sidecar = Sidecar::start(&place);
    let (mut bad, mut good) = (seat(&sidecar, "bad"), seat(&sidecar, "good"));
    let block = bytes_of(0, 1, 64 << 10);
    let begun = (0..10_000).take_while(|number| half(&mut bad, *number, &block).is_ok()).count();
    println!("hostile: {begun} blocks are begun and stay so");
    assert!((100..10_000).contains(&begun), "{begun}");
    for number in 0..KEYS {
        let end = good.one(Op::put(key_of(number), &block)).expect("the sidecar stays");
        assert_eq!(end.status, Status::Ok, "put {number} with {begun} halves: {end:?}");
    }
    sidecar.stop();
}
