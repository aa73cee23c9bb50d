//! Hostile processes together with a well-behaved one: the sidecar lives, and the good one's data
//! is right.

use kvrail_tests::span_bytes;

use crate::rig::{Actor, Place, Sidecar, hostile};

const THREADS: u32 = 4;

/// How long an attack lasts.
const SECONDS: f64 = 1.5;

/// Two attackers of one kind together with verified traffic.
fn beside_good_traffic(kind: &str) {
    // The last stripe is the attackers': they write there only.
    let place = Place::with_volume(1, span_bytes(THREADS) + (1 << 20));
    let mut sidecar = Sidecar::start(&place);
    let before = sidecar.belongings();
    let mut good = Actor::traffic(&sidecar, 0, THREADS, SECONDS + 0.5);
    assert!(good.wait_until_running());
    let attackers = [hostile(&sidecar, kind, SECONDS), hostile(&sidecar, kind, SECONDS)];
    for attacker in attackers {
        println!("{kind}: {}", attacker.finish().trim());
    }
    let tally = good.tally();
    sidecar.assert_alive();
    tally.assert_right();
    assert_eq!(tally.count("OK"), tally.ended, "{:?}", tally.statuses);
    let client = sidecar.attach();
    kvrail_tests::verify(&client, "kv", &tally.acknowledged).unwrap().assert_right();
    drop(client);
    sidecar.wait_for_belongings(&before);
    let stderr = sidecar.stop();
    assert!(!stderr.contains("panicked"), "{stderr}");
}

#[test]
fn garbage_on_the_socket() {
    beside_good_traffic("noise");
}

#[test]
fn garbage_in_lane_slots() {
    beside_good_traffic("slots");
}

#[test]
fn garbage_in_lane_indices() {
    beside_good_traffic("indices");
}

#[test]
fn never_reading_completions() {
    beside_good_traffic("deaf");
}

#[test]
fn hoarding_beyond_every_quota() {
    beside_good_traffic("hoard");
}

#[test]
fn unsealed_wrong_and_surplus_descriptors() {
    beside_good_traffic("descriptors");
}

#[test]
fn holes_punched_into_memory_in_use() {
    beside_good_traffic("holes");
}

#[test]
fn truncating_shared_memory_fails_by_its_seals() {
    beside_good_traffic("truncate");
}

#[test]
fn blocking_and_full_bells() {
    beside_good_traffic("bells");
}

#[test]
fn thousands_of_watchers_on_a_bell() {
    beside_good_traffic("watchers");
}

#[test]
fn flooding_the_doorbells() {
    beside_good_traffic("flood");
}
