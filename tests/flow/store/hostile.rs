//! Nonsense in the lanes of a store, beside clients with manners.

use kvrail_ring::Status;
use kvrail_tests::{Op, bytes_of, key_of, length_of};

use super::{number, seat, seed, small_store};
use crate::rig::{Sidecar, Told, VOLUME};

/// Blocks of the client with manners.
const KEYS: u64 = 200;
const CAPACITY: u32 = 300 << 10;

/// Slots of chance, lying checks, false reports and floods of holds, for some seconds: others find
/// all their blocks, right, and the sidecar lives.
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
    let mut gets = 0;
    for round in 0..number("KVRAIL_STORE_ROUNDS", 1) {
        let noise = |which: u64| {
            let dice = (seed ^ which << 20 ^ round).to_string();
            Told::start(&["noise", socket, VOLUME, &format!("bad {which}"), &dice])
        };
        let mut noises: Vec<Told> = (0..3).map(noise).collect();
        for noise in &mut noises {
            noise.expect("running");
        }
        for number in (0..KEYS).cycle().take(5 * usize::try_from(KEYS).expect("few")) {
            let (key, capacity) = (key_of(number), CAPACITY);
            let end = seat.one(Op::Get { key, capacity }).expect("the sidecar stays");
            assert_eq!(end.status, Status::Ok, "{number}: {end:?}");
            let found = seat.verified(0, capacity, key, &end);
            assert_eq!(found, Some(bytes_of(number, 1, length_of(number, 1))), "{number}");
            gets += 1;
        }
        for noise in &mut noises {
            println!("hostile: {}", noise.hear());
        }
    }
    println!("hostile: {gets} gets of others were right");
    sidecar.assert_alive();
    sidecar.stop();
}
