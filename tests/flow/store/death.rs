//! Owners that die with holds.

use std::time::Instant;

use kvrail_ring::Status;
use kvrail_tests::{Op, bytes_of, key_of};

use super::{number, seat, seed, shards, small_store};
use crate::rig::{Sidecar, VOLUME, Worker, eventually};

/// Keys to hold: the limit of one owner.
const KEYS: u64 = 4096;
/// Time in milliseconds within which the holds of a process are gone after its end, in most rounds:
/// the machine may be busy in some.
const GONE_WITHIN_MS: u128 = 100;

/// Holds of a killed process end with it, in every round; no resource of it stays.
#[test]
fn holds_end_with_their_owner() {
    seed("death");
    let rounds = number("KVRAIL_STORE_ROUNDS", 5);
    let place = small_store(64 << 20);
    let sidecar = Sidecar::start(&place);
    {
        let mut seat = seat(&sidecar, "death");
        let blocks: Vec<Vec<u8>> = (0..KEYS).map(|number| bytes_of(number, 1, 700)).collect();
        let numbers: Vec<u64> = (0..KEYS).collect();
        for some in numbers.chunks(64) {
            let put = |number: &u64| {
                Op::put(key_of(*number), &blocks[usize::try_from(*number).expect("few")])
            };
            let ends = seat.batch(&some.iter().map(put).collect::<Vec<_>>()).expect("it stays");
            assert!(ends.iter().all(|end| end.status == Status::Ok), "{ends:?}");
        }
    }
    let (socket, keys) = (place.socket(), KEYS.to_string());
    let words = ["hold", socket.to_str().expect("a path"), VOLUME, "death", &keys];
    let before = sidecar.belongings();
    let holds = || shards(&sidecar).iter().map(|shard| u64::from(shard.holds)).sum::<u64>();
    let mut times = Vec::new();
    for round in 0..rounds {
        let mut owners: Vec<Worker> = (0..2).map(|_| Worker::start(&words)).collect();
        for owner in &mut owners {
            assert_eq!(owner.next_line(), KEYS.to_string(), "all are held");
        }
        eventually("they are counted", || holds() == 2 * KEYS);
        owners.remove(0).kill();
        let since = Instant::now();
        eventually("one owner's holds are gone", || holds() == KEYS);
        times.push(since.elapsed().as_millis());
        owners.remove(0).kill();
        eventually("all holds are gone", || holds() == 0);
        if round % 100 == 99 {
            println!("death: round {round}");
        }
    }
    times.sort_unstable();
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    println!("death: {rounds} rounds of 2 owners; holds were gone after {median}, {longest} ms");
    assert!(median <= GONE_WITHIN_MS, "{times:?}");
    sidecar.wait_for_belongings(&before);
    sidecar.stop();
}
