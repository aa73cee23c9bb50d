//! Processes of a store's clients with one task each.

use std::time::{Duration, Instant};

use fastrand::Rng;
use kvrail_protocol::ControlRequest;
use kvrail_ring::Status;
use kvrail_ring::slot::{FLAG_MORE, FLAG_PENDING, FLAG_PRESENT};
use serde::{Deserialize, Serialize};

use super::content::{bytes_of, key_of, length_of};
use super::seat::{Gone, Op, Seat, SeatOptions};

/// Requests in flight.
const PLACES: u32 = 64;
/// Bytes of the largest block.
const BLOCK_BYTES: u32 = 300 << 10;

/// What a twin saw.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TwinTally {
    /// Puts that wrote.
    pub wrote: u64,
    /// Puts of keys that were there.
    pub present: u64,
    /// Puts of keys that another process was putting.
    pub pending: u64,
    /// Blocks found with their bytes.
    pub right: u64,
    /// All faults.
    pub wrong: Vec<String>,
}

/// The seat of such a process.
#[must_use]
pub fn role_seat(socket: &std::path::Path, volume: &str, space: &str) -> SeatOptions {
    SeatOptions {
        socket: socket.to_owned(),
        volume: volume.into(),
        space: space.into(),
        identity: format!(r#"{{"model":"{space}"}}"#),
        places: PLACES,
        place_bytes: BLOCK_BYTES as usize,
    }
}

/// Puts keys that others put at the same time, then gets them until all are there.
///
/// # Errors
/// When the session ends.
pub fn twin(options: &SeatOptions, keys: u64, begin: impl FnOnce()) -> Result<TwinTally, Gone> {
    let mut seat = Seat::attach(options)?;
    let mut tally = TwinTally::default();
    begin();
    for first in (0..keys).step_by(PLACES as usize) {
        let numbers: Vec<u64> = (first..keys.min(first + u64::from(PLACES))).collect();
        let block = |number: &u64| bytes_of(*number, 1, length_of(*number, 1));
        let blocks: Vec<Vec<u8>> = numbers.iter().map(block).collect();
        let puts =
            numbers.iter().zip(&blocks).map(|(number, block)| Op::put(key_of(*number), block));
        let puts: Vec<Op<'_>> = puts.collect();
        for (number, end) in numbers.iter().zip(seat.batch(&puts)?) {
            match (end.status, end.flags & (FLAG_PENDING | FLAG_PRESENT)) {
                (Status::Ok, 0) => tally.wrote += 1,
                (Status::Ok, FLAG_PENDING) => tally.pending += 1,
                (Status::Ok, FLAG_PRESENT) => tally.present += 1,
                // The other process's put will succeed: only if all puts were declined would the
                // key stay absent.
                (Status::Declined, _) => {}
                other => tally.wrong.push(format!("put of {number}: {other:?}")),
            }
        }
        let start = Instant::now();
        let mut open = numbers;
        while !open.is_empty() && start.elapsed() < Duration::from_secs(10) {
            open = find(&mut seat, &open, &mut tally)?;
        }
        tally.wrong.extend(open.iter().map(|number| format!("{number} does not appear")));
    }
    Ok(tally)
}

/// Gets keys; returns those that are not there.
fn find(seat: &mut Seat, numbers: &[u64], tally: &mut TwinTally) -> Result<Vec<u64>, Gone> {
    let get = |number: &u64| Op::Get { key: key_of(*number), capacity: BLOCK_BYTES };
    let ends = seat.batch(&numbers.iter().map(get).collect::<Vec<_>>())?;
    let mut missing = Vec::new();
    for (place, (&number, end)) in numbers.iter().zip(&ends).enumerate() {
        if end.status != Status::Ok {
            missing.push(number);
            continue;
        }
        let bytes = seat.verified(place, BLOCK_BYTES, key_of(number), end);
        if bytes == Some(bytes_of(number, 1, length_of(number, 1))) {
            tally.right += 1;
        } else {
            tally.wrong.push(format!("{number} has other bytes"));
        }
    }
    Ok(missing)
}

/// Holds this number of keys, all there are, for a minute. Returns how many it holds.
///
/// # Errors
/// When the session ends.
pub fn hold(seat: &mut Seat, keys: u64) -> Result<u64, Gone> {
    let mut held = 0;
    for first in (0..keys).step_by(PLACES as usize) {
        let numbers = first..keys.min(first + u64::from(PLACES));
        let op = |number: u64| Op::Lookup { key: key_of(number), hold_ms: 60_000 };
        let ends = seat.batch(&numbers.map(op).collect::<Vec<_>>())?;
        held += ends.iter().map(|end| u64::from(end.bytes >> 8 & 1)).sum::<u64>();
    }
    Ok(held)
}

/// Puts the first of a block's two parts, and no more.
///
/// # Errors
/// When the session ends, or the part is not taken.
pub fn half(seat: &mut Seat, number: u64, block: &[u8]) -> Result<(), Gone> {
    let bytes = u32::try_from(block.len() / 2).expect("small");
    let bytes = bytes - bytes % 4096;
    let op = Op::Put { key: key_of(number), block, at: 0, bytes, metadata: &[], flags: 0 };
    let end = seat.one(op)?;
    if end.status != Status::Ok || end.flags & FLAG_MORE == 0 {
        return Err(Gone(format!("the first part ended {end:?}")));
    }
    Ok(())
}

/// Malformed requests, false reports and floods of holds, in a namespace of its own. Returns the
/// number of requests.
///
/// # Errors
/// When the session ends: malformed requests in a lane must not end it.
pub fn noise(options: &SeatOptions, seconds: f64, seed: u64) -> Result<u64, Gone> {
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let mut dice = Rng::with_seed(seed);
    let mut seat = Seat::attach(options)?;
    let mut rounds = 0;
    while Instant::now() < until {
        let block = bytes_of(dice.u64(..50), 1, dice.u32(1..20_000));
        let mut raw = Vec::new();
        for _ in 0..PLACES {
            raw.push(garbage(&mut dice, seat.handle(), &block));
        }
        rounds += raw.len() as u64;
        seat.raw(&raw)?;
        if dice.u8(..16) == 0 {
            let key = key_of(dice.u64(..50));
            seat.batch(&[Op::put(key, &block), Op::Suspect { key, check: dice.u64(..) }])?;
            let true_check = seat.check(key, &block);
            seat.one(Op::Suspect { key, check: true_check })?;
            hold(&mut seat, 50)?;
            seat.ask(ControlRequest::Status)?;
        }
    }
    Ok(rounds)
}

/// A slot of a request to a store with a random error.
fn garbage(dice: &mut Rng, handle: u16, block: &[u8]) -> kvrail_ring::Request {
    let mut request = kvrail_ring::Request {
        opcode: dice.u8(5..11),
        flags: dice.u8(..) & dice.u8(..),
        class: dice.u8(..4),
        region: dice.u32(..4),
        volume: handle,
        reserved_a: dice.u16(..),
        length: u32::try_from(block.len()).expect("small"),
        volume_offset: dice.u64(..),
        region_offset: 512 * dice.u64(..64),
        checksum: dice.u64(..),
        deadline_ns: dice.u64(..),
        layout_block: dice.u32(..4),
        ..kvrail_ring::Request::default()
    };
    match dice.u8(..8) {
        // Never the handle of another namespace of this session: it has one only.
        0 => request.volume = dice.u16(..),
        1 => request.length = dice.u32(..),
        2 => request.region = dice.u32(..),
        3 => request.region_offset = dice.u64(..),
        4 => request.layout_block = dice.u32(..),
        5 => request.opcode = dice.u8(..),
        6 => request.reserved_b = dice.u32(..),
        _ => {}
    }
    // Raw volumes are not this process's business.
    if matches!(request.opcode, 1..=4) {
        request.opcode = 0;
    }
    request
}
