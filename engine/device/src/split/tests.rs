//! Cutting, continuing and joining, by example and by chance.

use std::collections::VecDeque;

use kvrail_ring::limits::ENTRY_BYTES;
use kvrail_ring::{Opcode, Status};
use proptest::prelude::*;

use super::{DeviceLimits, Flights, Outcome, Settled, Taken};
use crate::contract::{BufferIndex, Durability, Finished, Operation, WINDOW_BYTES};
use crate::slots::SlotId;

const LIMITS: DeviceLimits = DeviceLimits {
    transfer_bytes_max: 4096,
    paged_bytes_max: u32::MAX,
    granule: 512,
    depth: 4,
    pieces: 8,
};

fn read(tag: u64, offset: u64, length: u32, buffer_offset: u64) -> Operation {
    let durability = Durability::Visible;
    let (opcode, buffer) = (Opcode::Read, BufferIndex(0));
    Operation { tag, opcode, durability, offset, length, buffer, buffer_offset }
}

fn issue(flights: &mut Flights, operation: Operation) -> Vec<SlotId> {
    match flights.take(operation).expect("there is room") {
        Taken::Whole(id) => vec![id],
        Taken::Parts => std::iter::from_fn(|| flights.cut()).collect(),
    }
}

fn ended(settled: Settled) -> Finished {
    match settled {
        Settled::Ended(finished, buffer) => {
            assert_eq!(buffer, Some(BufferIndex(0)));
            finished
        }
        other => panic!("not ended: {other:?}"),
    }
}

/// The kernel's driver counts a segment for each page a range touches and refuses (passthrough) or
/// splits (then nothing polls it) what has more than the queue takes.
#[test]
fn no_piece_touches_more_pages_than_a_request_has_segments() {
    let limits = DeviceLimits { transfer_bytes_max: 32 << 10, paged_bytes_max: 4 * 4096, ..LIMITS };
    for buffer_offset in [0, 512, 4096, 4096 + 3584, 5 * 4096] {
        let mut flights = Flights::new(limits);
        let ids = issue(&mut flights, read(1, 0, 40 << 10, buffer_offset));
        let mut total = 0;
        for id in &ids {
            let piece = flights.piece(*id);
            let end = piece.buffer_offset + u64::from(piece.length);
            let pages = end.div_ceil(4096) - piece.buffer_offset / 4096;
            assert!(pages <= 4, "{piece:?} touches {pages} pages");
            total += piece.length;
        }
        assert_eq!(total, 40 << 10);
        assert_eq!(
            flights.piece(ids[0]).length,
            (4 * 4096) - u32::try_from(buffer_offset % 4096).unwrap()
        );
    }
}

#[test]
fn what_may_pass_is_tried_a_few_times_and_then_fails_with_its_own_status() {
    let mut flights = Flights::new(LIMITS);
    let id = issue(&mut flights, read(1, 0, 4096, 0))[0];
    let outcome = Outcome::Transient(Status::DeviceDegraded);
    // Repetitions at the device's request are not counted.
    for repeat in [Outcome::Again, Outcome::Later].repeat(super::TRANSIENT_MAX.into()) {
        assert_eq!(flights.settle(id, repeat), Settled::Reissue);
    }
    for _ in 0..super::TRANSIENT_MAX {
        assert_eq!(flights.settle(id, outcome), Settled::Reissue);
        assert_eq!((flights.piece(id).offset, flights.piece(id).length), (0, 4096));
    }
    assert_eq!(ended(flights.settle(id, outcome)).status, Status::DeviceDegraded);
}

#[test]
fn pieces_end_at_the_transfer_limit_and_at_entry_borders() {
    let mut flights = Flights::new(LIMITS);
    let ids = issue(&mut flights, read(1, 0, 10_240, ENTRY_BYTES - 512));
    let cuts: Vec<_> = ids
        .iter()
        .map(|id| flights.piece(*id))
        .map(|piece| (piece.offset, piece.length, piece.buffer_offset))
        .collect();
    let border = ENTRY_BYTES;
    let expected = vec![
        (0, 512, border - 512),
        (512, 4096, border),
        (4608, 4096, border + 4096),
        (8704, 1536, border + 8192),
    ];
    assert_eq!(cuts, expected);
    assert_eq!((flights.in_flight(), flights.pieces()), (1, 4));
    for id in &ids[..3] {
        let length = flights.piece(*id).length;
        assert_eq!(flights.settle(*id, Outcome::Moved(length)), Settled::Open);
    }
    let last = ended(flights.settle(ids[3], Outcome::Moved(1536)));
    assert_eq!(last, Finished { tag: 1, status: Status::Ok, bytes: 10_240 });
    assert_eq!((flights.in_flight(), flights.pieces()), (0, 0));
}

#[test]
fn a_short_piece_goes_on_behind_its_last_whole_block() {
    let mut flights = Flights::new(LIMITS);
    let id = issue(&mut flights, read(9, 8192, 4096, 0))[0];
    assert_eq!(flights.settle(id, Outcome::Moved(1500)), Settled::Reissue);
    let rest = *flights.piece(id);
    assert_eq!((rest.offset, rest.length, rest.buffer_offset), (8192 + 1024, 3072, 1024));
    assert_eq!(ended(flights.settle(id, Outcome::Moved(3072))).bytes, 4096);
}

#[test]
fn no_progress_is_an_error_never_ok_and_never_a_loop() {
    for moved in [0, 511] {
        let mut flights = Flights::new(LIMITS);
        let id = issue(&mut flights, read(9, 0, 4096, 0))[0];
        assert_eq!(flights.settle(id, Outcome::Moved(1024)), Settled::Reissue);
        let finished = ended(flights.settle(id, Outcome::Moved(moved)));
        assert_eq!((finished.status, finished.bytes), (Status::IoError, 1024));
    }
}

#[test]
fn trying_again_for_ever_is_an_error() {
    let mut flights = Flights::new(LIMITS);
    let id = issue(&mut flights, read(9, 0, 4096, 0))[0];
    for _ in 0..super::RETRIES_MAX {
        assert_eq!(flights.settle(id, Outcome::Again), Settled::Reissue);
    }
    assert_eq!(ended(flights.settle(id, Outcome::Again)).status, Status::IoError);
}

#[test]
fn a_failed_piece_ends_the_cutting_and_reports_the_contiguous_beginning() {
    let mut flights = Flights::new(DeviceLimits { depth: 2, pieces: 3, ..LIMITS });
    let ids = issue(&mut flights, read(5, 0, 64 << 10, 0));
    assert_eq!(ids.len(), 3);
    let other = read(6, 0, 512, 0);
    assert_eq!(flights.take(other), Err(other), "nothing is taken while one is being cut");
    assert_eq!(flights.settle(ids[2], Outcome::Failed(Status::IoError)), Settled::Open);
    assert_eq!(flights.cut(), None);
    assert_eq!(flights.settle(ids[1], Outcome::Moved(512)), Settled::Reissue);
    assert_eq!(flights.settle(ids[1], Outcome::Failed(Status::NoSpace)), Settled::Open);
    let finished = ended(flights.settle(ids[0], Outcome::Moved(4096)));
    assert_eq!(finished, Finished { tag: 5, status: Status::NoSpace, bytes: 4608 });
    assert!(flights.take(other).is_ok());
}

/// Whatever the transfer limit: the hardware has no more of a long operation than its window, and
/// other operations go beside it.
#[test]
fn a_long_operation_goes_window_by_window() {
    for transfer_bytes_max in [128 << 10, 1 << 20, 64 << 20] {
        let limits = DeviceLimits { transfer_bytes_max, pieces: 127, ..LIMITS };
        let mut flights = Flights::new(limits);
        let length = 64 << 20;
        let mut issued: VecDeque<_> = issue(&mut flights, read(1, 0, length, 0)).into();
        let beside = issue(&mut flights, read(2, 1 << 30, 512, 0))[0];
        assert_eq!(ended(flights.settle(beside, Outcome::Moved(512))).tag, 2);
        let mut moved = 0;
        while let Some(id) = issued.pop_front() {
            let open = |id: &SlotId| flights.piece(*id).length;
            let in_flight = open(&id) + issued.iter().map(open).sum::<u32>();
            assert!(in_flight <= WINDOW_BYTES, "{in_flight} of {transfer_bytes_max}");
            let left = length - moved;
            assert!(in_flight >= left.min(WINDOW_BYTES / 2), "{in_flight} of {left}");
            let bytes = flights.piece(id).length;
            moved += bytes;
            match flights.settle(id, Outcome::Moved(bytes)) {
                Settled::Open => issued.extend(std::iter::from_fn(|| flights.cut())),
                settled => assert_eq!(ended(settled).bytes, length),
            }
        }
        assert_eq!((moved, flights.in_flight(), flights.pieces()), (length, 0, 0));
    }
}

#[test]
fn flushes_are_never_cut_and_count_as_whole() {
    let mut flights = Flights::new(LIMITS);
    let flush = Operation { opcode: Opcode::Flush, ..read(3, 0, 0, 0) };
    let discard = Operation { opcode: Opcode::Discard, ..read(4, 0, 1 << 30, 0) };
    for (operation, bytes) in [(flush, 0), (discard, 1 << 30)] {
        let Ok(Taken::Whole(id)) = flights.take(operation) else { panic!("cut a flush") };
        let settled = flights.settle(id, Outcome::Moved(0));
        let finished = Finished { tag: operation.tag, status: Status::Ok, bytes };
        assert_eq!(settled, Settled::Ended(finished, None));
    }
}

#[test]
#[should_panic(expected = "invariant 1: a completion for nothing in flight")]
fn a_second_completion_for_the_same_piece_is_caught() {
    let mut flights = Flights::new(LIMITS);
    let id = issue(&mut flights, read(1, 0, 512, 0))[0];
    flights.settle(id, Outcome::Moved(512));
    flights.settle(id, Outcome::Moved(512));
}

proptest! {
    /// For any answers of the device, every operation ends once, OK only with every byte, and the
    /// bytes of the device's pieces are exactly the operation's, in order and without holes.
    #[test]
    fn every_operation_ends_once_with_the_truth(
        lengths in prop::collection::vec(1_u32..80, 1..12),
        answers in prop::collection::vec(0_u8..=255, 400),
    ) {
        let mut flights = Flights::new(LIMITS);
        let mut waiting: VecDeque<Operation> = lengths
            .iter()
            .zip(0_u64..)
            .map(|(blocks, tag)| read(tag, tag << 30, blocks * 512, 0))
            .collect();
        let mut issued: VecDeque<SlotId> = VecDeque::new();
        let mut endings = vec![0_u32; lengths.len()];
        let mut failed = vec![false; lengths.len()];
        let mut answers = answers.into_iter().chain(std::iter::repeat(0));
        loop {
            while let Some(operation) = waiting.pop_front() {
                match flights.take(operation) {
                    Ok(Taken::Whole(id)) => issued.push_back(id),
                    Ok(Taken::Parts) => {}
                    Err(back) => {
                        prop_assert_eq!(back, operation);
                        waiting.push_front(back);
                        break;
                    }
                }
                issued.extend(std::iter::from_fn(|| flights.cut()));
            }
            issued.extend(std::iter::from_fn(|| flights.cut()));
            let Some(id) = issued.pop_front() else { break };
            let piece = *flights.piece(id);
            let tag = usize::try_from(piece.tag).unwrap();
            prop_assert!(piece.length <= 4096 && piece.offset >> 30 == piece.tag);
            let outcome = match answers.next().unwrap() {
                0..160 => Outcome::Moved(piece.length),
                160..220 => Outcome::Moved(piece.length / 2),
                220..240 => Outcome::Again,
                _ => Outcome::Failed(Status::IoError),
            };
            match flights.settle(id, outcome) {
                Settled::Reissue => issued.push_back(id),
                Settled::Open => failed[tag] |= matches!(outcome, Outcome::Failed(_)),
                Settled::Ended(finished, _) => {
                    endings[tag] += 1;
                    let ok = finished.status == Status::Ok;
                    prop_assert_eq!(ok, finished.bytes == lengths[tag] * 512);
                    prop_assert!(!(ok && failed[tag]));
                }
            }
        }
        prop_assert!(endings.iter().all(|count| *count == 1), "{:?}", endings);
        prop_assert_eq!((flights.in_flight(), flights.pieces()), (0, 0));
    }
}
