//! Lengths of every kind, and no byte written outside of them.

use kvrail_ring::Status;
use kvrail_ring::slot::FLAG_MORE;
use kvrail_tests::{Op, Seat, SeatOptions, bytes_of, key_of};

use super::{options, seed};
use crate::rig::{Place, Sidecar, StoreShape};

/// Bytes of one request at most, in this test.
const PLACE_BYTES: u32 = 40 << 20;

const LENGTHS: [u32; 20] = [
    1,
    2,
    3,
    511,
    512,
    513,
    4095,
    4096,
    4097,
    8191,
    65_535,
    65_537,
    640_256,
    1_124_352,
    48_068 * 16,
    1 << 20,
    (1 << 20) + 1,
    5 << 20,
    33_000_001,
    72 << 20,
];

/// Puts a block in the smallest number of parts that memory allows.
fn put(seat: &mut Seat, number: u64, block: &[u8], metadata: &[u8]) {
    let length = u32::try_from(block.len()).expect("small");
    let mut at = 0;
    while at < length {
        let (key, bytes) = (key_of(number), PLACE_BYTES.min(length - at));
        let metadata = if at == 0 { metadata } else { &[] };
        let op = Op::Put { key, block, at, bytes, metadata, flags: 0 };
        let end = seat.one(op).expect("the sidecar stays");
        assert_eq!(end.status, Status::Ok, "{length} at {at}: {end:?}");
        at += bytes;
        assert_eq!(end.flags & FLAG_MORE != 0, at < length, "{length} at {at}: {end:?}");
    }
}

/// Gets it in the same way; the guards around each part are checked.
fn get(seat: &mut Seat, number: u64, length: u32) -> Vec<u8> {
    let key = key_of(number);
    if length <= PLACE_BYTES {
        let end = seat.one(Op::Get { key, capacity: length }).expect("the sidecar stays");
        assert_eq!((end.status, end.bytes), (Status::Ok, length));
        return seat.verified(0, length, key, &end).expect("the check of these bytes");
    }
    let mut all = Vec::new();
    let mut at = 0;
    while at < length {
        let bytes = PLACE_BYTES.min(length - at);
        let end = seat.one(Op::GetPart { key, at, bytes }).expect("the sidecar stays");
        assert_eq!((end.status, end.bytes), (Status::Ok, bytes), "{length} at {at}");
        all.extend(seat.bytes(0, bytes, bytes));
        at += bytes;
        if at == length {
            assert_eq!(seat.check(key, &all), end.checksum, "{length}");
        }
    }
    all
}

/// Every length is found with its bytes, after a restart too; memory that is too small is not
/// written.
#[test]
fn lengths_of_every_kind() {
    let seed = seed("odd");
    let shape = StoreShape { member_bytes: 2 << 30, segment_bytes: 256 << 20, block_mean: 1 << 20 };
    let place = Place::with_shaped_store(1, &shape);
    let mut sidecar = Sidecar::start(&place);
    let with = |sidecar: &Sidecar| {
        let place_bytes = PLACE_BYTES as usize;
        Seat::attach(&SeatOptions { places: 1, place_bytes, ..options(sidecar, "odd") })
    };
    let mut dice = fastrand::Rng::with_seed(seed);
    let random = (0..20).map(|_| dice.u32(1..300_000)).collect::<Vec<_>>();
    let lengths: Vec<u32> = LENGTHS.into_iter().chain(random).collect();
    for life in 0..2 {
        let mut seat = with(&sidecar).expect("a session");
        println!("odd: logical blocks of {} bytes", seat.logical_block());
        for (number, &length) in (0..).zip(&lengths) {
            let block = bytes_of(number, 1, length);
            if life == 0 {
                let metadata = vec![7; usize::try_from(number * 53 % 1025).expect("small")];
                put(&mut seat, number, &block, &metadata);
            }
            assert!(get(&mut seat, number, length) == block, "{length} bytes differ");
            if length > 1 && length <= PLACE_BYTES {
                let capacity = length - 1;
                let op = Op::Get { key: key_of(number), capacity };
                let end = seat.one(op).expect("the sidecar stays");
                assert_eq!((end.status, end.bytes), (Status::TooSmall, length));
                assert!(seat.bytes(0, capacity, 0).is_empty());
            }
        }
        drop(seat);
        sidecar.stop();
        sidecar = Sidecar::start(&place);
    }
    sidecar.stop();
}
