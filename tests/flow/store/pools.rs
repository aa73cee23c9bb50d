//! Pools by the program itself: one team floods a store, and no block of the other one is evicted;
//! a kill, a restart and another configuration in between.

use kvrail_protocol::PoolReport;
use kvrail_ring::Status;
use kvrail_tests::{Op, Seat, bytes_of, key_of};
use rustix::process::Signal;

use super::{number, seat, seed, shards};
use crate::rig::{Place, Sidecar, StoreShape, eventually, kvrail, rounds, run};

const LENGTH: u32 = 60_000;
/// At least 39 segments of 1 MiB.
const SHAPE: StoreShape =
    StoreShape { member_bytes: 40 << 20, segment_bytes: 1 << 20, block_mean: 32 << 10 };
const KEPT: &str = "{ name = \"kept\", namespaces = \"team a *\", minimum = \"20MiB\" }";

fn pool(sidecar: &Sidecar, name: &str) -> PoolReport {
    let pools = shards(sidecar).swap_remove(0).pools;
    let found = pools.iter().find(|pool| pool.name == name).cloned();
    found.unwrap_or_else(|| panic!("no pool {name} in {pools:?}"))
}

/// Puts blocks one after the other, each again while the store is busy.
fn put_all(seat: &mut Seat, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let block = bytes_of(number, 1, LENGTH);
        eventually("a put is taken", || {
            let end = seat.one(Op::put(key_of(number), &block)).expect("it stays");
            match end.status {
                Status::Ok => true,
                Status::Declined => false,
                other => panic!("put of {number} ended {other}"),
            }
        });
    }
}

/// Every block is there with its bytes.
fn got_all(seat: &mut Seat, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let key = key_of(number);
        let end = seat.one(Op::Get { key, capacity: LENGTH }).expect("it stays");
        assert_eq!(end.status, Status::Ok, "block {number} is gone");
        let bytes = seat.verified(0, LENGTH, key, &end);
        assert_eq!(bytes, Some(bytes_of(number, 1, LENGTH)), "block {number}");
    }
}

#[test]
fn a_flood_into_one_pool_evicts_nothing_of_another() {
    seed("pools");
    let mut place = Place::with_shaped_store(1, &SHAPE);
    place.configure_volume(&format!("pool = [{KEPT}]"));
    let mut sidecar = Sidecar::start(&place);
    // 16 of the pool's 20 segments, of 16 blocks each.
    let kept = 0..250;
    put_all(&mut seat(&sidecar, "team a kv"), kept.clone());
    let mut next = 10_000;
    for round in 0..number("KVRAIL_STORE_ROUNDS", rounds(3, 2)) {
        // Two laps of the whole store.
        put_all(&mut seat(&sidecar, "team b kv"), next..next + 1300);
        next += 1300;
        got_all(&mut seat(&sidecar, "team a kv"), kept.clone());
        let (own, others) = (pool(&sidecar, "kept"), pool(&sidecar, "default"));
        assert_eq!((own.blocks, own.counters.evicted), (250, Some(0)), "{own:?}");
        assert!(others.counters.evicted > Some(500), "{others:?}");
        assert!(others.segment_bytes <= SHAPE.member_bytes - (20 << 20), "{others:?}");
        if round % 2 == 0 {
            // It may lose the last puts of the other pool: the kept ones are old.
            sidecar.kill();
        } else {
            sidecar.stop();
        }
        sidecar = Sidecar::start(&place);
        eventually("it serves", || shards(&sidecar)[0].state == "serving");
        got_all(&mut seat(&sidecar, "team a kv"), kept.clone());
    }
    for (command, head) in [("pools", "CONFIGURED"), ("status", "MEMBER")] {
        let outcome = run(kvrail().args(["store", command, "--socket"]).arg(sidecar.socket()));
        outcome.expect(0, &[]);
        for words in ["POOL", "kept", "default", "20.00 MiB", head] {
            assert!(outcome.stdout.contains(words), "{words}: {outcome:?}");
        }
    }
    sidecar.stop();
}

#[test]
fn a_pool_shrinks_by_sighup_and_stays_without_its_rule() {
    let mut place = Place::with_shaped_store(1, &SHAPE);
    place.configure_volume(&format!("pool = [{KEPT}]"));
    let sidecar = Sidecar::start(&place);
    let mut team = seat(&sidecar, "team a kv");
    put_all(&mut team, 0..400);
    let before = pool(&sidecar, "kept");
    assert!(before.segment_bytes > 20 << 20, "{before:?}");
    let small = KEPT.replace("minimum = \"20MiB\"", "maximum = \"10MiB\"");
    place.configure_volume(&format!("pool = [{small}]"));
    place.configuration();
    sidecar.signal(Signal::HUP);
    eventually("it shrinks", || pool(&sidecar, "kept").segment_bytes <= 10 << 20);
    // The newest stay, and new puts are taken.
    put_all(&mut team, 400..440);
    got_all(&mut team, 380..440);
    drop(team);
    sidecar.stop();

    // Without its rule the pool keeps its blocks.
    place.configure_volume("");
    let sidecar = Sidecar::start(&place);
    eventually("it serves", || shards(&sidecar)[0].state == "serving");
    got_all(&mut seat(&sidecar, "team a kv"), 380..440);
    let after = pool(&sidecar, "kept");
    assert!(!after.configured && after.minimum_bytes == 0, "{after:?}");
    sidecar.stop();
}

#[test]
fn pools_that_do_not_fit_are_refused_with_the_limit() {
    let mut place = Place::with_shaped_store(1, &SHAPE);
    place.configure_volume(&format!(
        "pool = [{KEPT}, {{ name = \"b\", namespaces = \"b\", minimum = \"60%\" }}]"
    ));
    let refused = run(kvrail().arg("serve").arg("--config").arg(place.configuration()));
    assert_ne!(refused.code, Some(0), "{refused:?}");
    for words in ["the minimums take", "segments", "[[volume.pool]]"] {
        assert!(refused.stderr.contains(words), "{words}: {refused:?}");
    }
}
