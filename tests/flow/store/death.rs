//! Owners that die with holds.

use std::time::Instant;

use kvrail_tests::{Op, bytes_of, key_of};

use super::{number, seat, seed, shards, small_store};
use crate::rig::{Sidecar, Told, VOLUME, eventually};

/// Keys that are there to be held.
const KEYS: u64 = 512;

/// Holds of a killed process end with it, however often; nothing of it stays.
#[test]
fn holds_end_with_their_owner() {
    seed("death");
    let rounds = number("KVRAIL_STORE_ROUNDS", 5);
    let place = small_store(64 << 20);
    let sidecar = Sidecar::start(&place);
    {
        let mut seat = seat(&sidecar, "death");
        for number in 0..KEYS {
            let block = bytes_of(number, 1, 700);
            seat.one(Op::put(key_of(number), &block)).expect("the sidecar stays");
        }
    }
    let (socket, keys) = (place.socket(), KEYS.to_string());
    let words = ["hold", socket.to_str().expect("a path"), VOLUME, "death", &keys];
    let before = sidecar.belongings();
    let holds = || shards(&sidecar).iter().map(|shard| u64::from(shard.holds)).sum::<u64>();
    let mut longest = 0;
    for round in 0..rounds {
        let mut owners: Vec<Told> = (0..2).map(|_| Told::start(&words)).collect();
        for owner in &mut owners {
            assert_eq!(owner.hear(), KEYS.to_string(), "all are held");
        }
        eventually("they are counted", || holds() == 2 * KEYS);
        owners.remove(0).kill();
        let since = Instant::now();
        eventually("one owner's holds are gone", || holds() == KEYS);
        longest = longest.max(since.elapsed().as_millis());
        owners.remove(0).kill();
        eventually("all holds are gone", || holds() == 0);
        if round % 100 == 99 {
            println!("death: round {round}");
        }
    }
    println!("death: {rounds} rounds of 2 owners; holds were gone after {longest} ms at most");
    sidecar.wait_for_belongings(&before);
    sidecar.stop();
}
