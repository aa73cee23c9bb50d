//! A member that is missing at the start, and comes back.

use std::fs;

use kvrail_ring::Status;
use kvrail_tests::{Op, Seat, bytes_of, key_of};

use super::{seat, seed, shape};
use crate::rig::{Place, Sidecar};

const KEYS: u64 = 300;

/// Which keys are there; those that are have the right bytes.
fn found(seat: &mut Seat) -> Vec<u64> {
    let there = |number: &u64| {
        let (key, capacity) = (key_of(*number), 2000);
        let end = seat.one(Op::Get { key, capacity }).expect("the sidecar stays");
        if end.status == Status::Miss {
            return false;
        }
        assert_eq!(end.status, Status::Ok, "{number}: {end:?}");
        let bytes = seat.verified(0, capacity, key, &end);
        assert_eq!(bytes, Some(bytes_of(*number, 1, 2000)), "{number}");
        true
    };
    (0..KEYS).filter(there).collect()
}

/// A member whose content is another store's, or was put back from long ago, never gives wrong
/// bytes: it is refused by name, or its keys are misses.
#[test]
fn a_member_of_yesterday_is_no_danger() {
    seed("lost-member");
    let place = Place::with_shaped_store(2, &shape(64 << 20));
    let sidecar = Sidecar::start(&place);
    {
        let mut seat = seat(&sidecar, "lost");
        for number in 0..KEYS {
            let block = bytes_of(number, 1, 2000);
            let end = seat.one(Op::put_durable(key_of(number), &block)).expect("it stays");
            assert_eq!(end.status, Status::Ok);
        }
        assert_eq!(found(&mut seat).len() as u64, KEYS);
    }
    sidecar.stop();
    // Without its member the store is refused, or serves what the other one has.
    let (member, away) = (&place.members[1], place.data_path("away"));
    fs::rename(member, &away).expect("our own file");
    let mut alone = Sidecar::launch(&place, place.serve());
    let ended = alone.wait_or_serve();
    println!("lost-member: without it: {}", if ended { "refused" } else { "served" });
    if ended {
        let said = alone.said();
        assert!(said.contains("member-1"), "the missing member is not named: {said}");
    } else {
        let mut seat = seat(&alone, "lost");
        let some = found(&mut seat).len() as u64;
        assert!(some > 0 && some < KEYS, "{some}");
        drop(seat);
        alone.stop();
    }
    fs::rename(&away, member).expect("our own file");
    let sidecar = Sidecar::start(&place);
    let mut seat = seat(&sidecar, "lost");
    let back = found(&mut seat).len() as u64;
    println!("lost-member: {back} of {KEYS} keys are found when it is back");
    assert!(if ended { back == KEYS } else { back > 0 });
    sidecar.stop();
}
