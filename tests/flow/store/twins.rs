//! Several processes put the same keys at once.

use kvrail_ring::Status;
use kvrail_ring::slot::{FLAG_PENDING, FLAG_PRESENT};
use kvrail_tests::{Op, TwinTally, bytes_of, key_of};

use super::{counter, number, seat, seed, small_store};
use crate::rig::{Place, Sidecar, VOLUME, Worker, eventually};

/// Keys of a round.
const KEYS: u64 = 500;

/// 8 processes, one write for each key, the right bytes for all.
#[test]
fn twins_write_once() {
    seed("twins");
    let place = small_store(256 << 20);
    let sidecar = Sidecar::start(&place);
    for round in 0..number("KVRAIL_STORE_ROUNDS", 1) {
        let puts = counter(&sidecar, "puts");
        let wrote = put_by_all(&place, &format!("twins {round}"));
        let counted = counter(&sidecar, "puts") - puts;
        assert_eq!((wrote, counted), (KEYS, KEYS), "one write for each key");
    }
    sidecar.stop();
}

/// All put the same keys and find them. Returns how many puts wrote.
fn put_by_all(place: &Place, space: &str) -> u64 {
    let (socket, keys) = (place.socket(), KEYS.to_string());
    let arguments = ["twin", socket.to_str().expect("a path"), VOLUME, space, &keys];
    let mut twins: Vec<Worker> = (0..8).map(|_| Worker::start(&arguments)).collect();
    for twin in &mut twins {
        twin.expect("ready");
    }
    for twin in &mut twins {
        twin.send_line("go");
    }
    let mut wrote = 0;
    for twin in &mut twins {
        let tally: TwinTally = serde_json::from_str(&twin.next_line()).expect("a tally");
        println!("twins: {tally:?}");
        assert!(tally.wrong.is_empty(), "{:?}", tally.wrong);
        assert_eq!(tally.right, KEYS);
        wrote += tally.wrote;
    }
    wrote
}

/// A process dies between two parts of a block; the next one's put succeeds.
#[test]
fn a_writer_that_dies_in_the_middle_is_no_obstacle() {
    seed("twins, dead");
    let place = small_store(64 << 20);
    let sidecar = Sidecar::start(&place);
    let socket = place.socket();
    let socket = socket.to_str().expect("a path");
    let mut seat = seat(&sidecar, "twins");
    for number in 0..3 {
        let words = ["half", socket, VOLUME, "twins", &number.to_string()];
        let mut writer = Worker::start(&words);
        writer.expect("half");
        let (key, block) = (key_of(number), bytes_of(number, 1, 64 << 10));
        let end = seat.one(Op::put(key, &block)).expect("the sidecar stays");
        assert_eq!((end.status, end.flags & FLAG_PENDING), (Status::Ok, FLAG_PENDING), "{end:?}");
        writer.kill();
        eventually("the next put writes", || {
            let end = seat.one(Op::put(key, &block)).expect("the sidecar stays");
            assert_eq!(end.status, Status::Ok, "{end:?}");
            end.flags & (FLAG_PENDING | FLAG_PRESENT) == 0
        });
        let capacity = 64 << 10;
        let end = seat.one(Op::Get { key, capacity }).expect("the sidecar stays");
        assert_eq!(seat.verified(0, capacity, key, &end), Some(block));
    }
    sidecar.stop();
}
