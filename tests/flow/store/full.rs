//! More than the capacity: more bytes than the store has, and more blocks than its index is made
//! for.

use kvrail_ring::Status;
use kvrail_tests::{Op, Seat, bytes_of, key_of};

use super::{counter, seat, seed};
use crate::rig::{Place, Sidecar, StoreShape, eventually};

/// Puts blocks in batches; declined puts are repeated. Returns the number of repetitions.
fn fill(seat: &mut Seat, numbers: std::ops::Range<u64>, length: u32) -> u64 {
    let mut declined = 0;
    for first in numbers.clone().step_by(32) {
        let batch: Vec<u64> = (first..numbers.end.min(first + 32)).collect();
        let blocks: Vec<Vec<u8>> =
            batch.iter().map(|number| bytes_of(*number, 1, length)).collect();
        let mut open: Vec<usize> = (0..batch.len()).collect();
        let mut rounds = 0;
        while !open.is_empty() {
            let op = |at: &usize| Op::put(key_of(batch[*at]), &blocks[*at]);
            let ends = seat.batch(&open.iter().map(op).collect::<Vec<_>>()).expect("it stays");
            let mut left = Vec::new();
            for (at, end) in open.iter().zip(ends) {
                match end.status {
                    Status::Ok => {}
                    Status::Declined => left.push(*at),
                    other => panic!("put of {} ended {other}", batch[*at]),
                }
            }
            declined += left.len() as u64;
            open = left;
            rounds += 1;
            assert!(rounds < 10_000, "puts are declined for ever");
            if !open.is_empty() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
    declined
}

fn verify(seat: &mut Seat, numbers: std::ops::Range<u64>, length: u32) -> u64 {
    let mut found = 0;
    for number in numbers {
        let (key, capacity) = (key_of(number), length);
        let end = seat.one(Op::Get { key, capacity }).expect("the sidecar stays");
        match end.status {
            Status::Ok => {
                let bytes = seat.verified(0, capacity, key, &end);
                assert_eq!(bytes, Some(bytes_of(number, 1, length)), "{number}");
                found += 1;
            }
            Status::Miss => {}
            other => panic!("get of {number} ended {other}"),
        }
    }
    found
}

/// Three times the capacity: every put ends, the newest are there, the oldest are not.
#[test]
fn three_laps_of_the_ring() {
    seed("full");
    let shape = StoreShape { member_bytes: 40 << 20, segment_bytes: 2 << 20, block_mean: 64 << 10 };
    let place = Place::with_shaped_store(1, &shape);
    let sidecar = Sidecar::start(&place);
    let mut seat = seat(&sidecar, "full");
    let (count, length) = (2000, 60_000);
    let declined = fill(&mut seat, 0..count, length);
    let newest = verify(&mut seat, count - 100..count, length);
    let all = verify(&mut seat, 0..count, length);
    println!("full: {declined} declined, {all} of {count} there, {newest} of the newest 100");
    assert!(newest == 100 && all < count, "{newest} of the newest, {all} in all");
    assert!(counter(&sidecar, "reclaimed") > 10 && counter(&sidecar, "evicted") > 0);
    sidecar.stop();
}

/// Blocks much smaller than planned: the index is full long before the medium is.
#[test]
fn more_blocks_than_the_index_takes() {
    seed("full, index");
    let shape = StoreShape { member_bytes: 64 << 20, segment_bytes: 2 << 20, block_mean: 64 << 10 };
    let place = Place::with_shaped_store(1, &shape);
    let sidecar = Sidecar::start(&place);
    let mut seat = seat(&sidecar, "full");
    let declined = fill(&mut seat, 0..6000, 1500);
    let found = verify(&mut seat, 0..6000, 1500);
    println!("full, index: {declined} declined, {found} of 6000 there");
    assert!(found > 100 && found < 6000, "{found}");
    let words = "made for 65536; older ones are evicted early, and puts may be declined. A new \
                 store with --block-mean 1";
    eventually("the log has the reason", || sidecar.stderr().contains(words));
    sidecar.stop();
}
