//! Splitting at stripe borders and joining the pieces.

use kvrail_memory::{load, store};
use kvrail_ring::{Opcode, Status};
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

use super::rig::{ARENA_BYTES, LONG, Rig, geometry};
use crate::request::Request;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever the geometry and however the pieces come back: each is one legal request in the
    /// lane of its poller, together they cover the range, and one end comes with the lease, the
    /// sum of the bytes and the worst status.
    #[test]
    fn pieces_cover_the_range_and_join_into_one_end(
        members in 1_u16..5,
        blocks in 1_u64..9,
        pollers in 1_u16..4,
        from in 0_u64..1000,
        count in 1_u64..40,
        order in any::<u64>(),
        bad in proptest::option::of(0_usize..40),
    ) {
        let mut rig = Rig::new(members, blocks * 512, pollers.min(members), 64);
        let capacity = rig.volume.capacity() / 512;
        let from = from % capacity;
        let count = count.min(capacity - from);
        let (offset, length) = (from * 512, count * 512);
        let mut lease = rig.lease(usize::try_from(length).unwrap());
        for (block, bytes) in (from..).zip(lease.chunks_mut(512)) {
            bytes.fill(u8::try_from(block % 251).unwrap());
        }
        let (lease_offset, write) = (lease.offset(), Request::write(&rig.volume, offset, lease));
        let ticket = rig.queue.submit(write.tag(77)).unwrap();
        let mut pieces = rig.sidecar.take();
        let mut covered = vec![false; usize::try_from(count).unwrap()];
        for (lane, slot) in &pieces {
            prop_assert_eq!((slot.opcode, slot.region), (Opcode::Write as u8, 9));
            let extent = rig.volume.geometry()
                .locate(slot.volume_offset, u64::from(slot.length)).unwrap();
            prop_assert_eq!(usize::from(extent.member % pollers.min(members)), *lane);
            let at = slot.volume_offset - offset;
            prop_assert_eq!(slot.region_offset, lease_offset as u64 + at);
            let mut bytes = vec![0; slot.length as usize];
            let place = usize::try_from(slot.region_offset).unwrap();
            load(rig.sidecar.arena.as_ref(), place, &mut bytes);
            for (block, bytes) in (at / 512..).zip(bytes.chunks(512)) {
                let expected = u8::try_from((from + block) % 251).unwrap();
                prop_assert!(bytes.iter().all(|byte| *byte == expected));
                let seen = &mut covered[usize::try_from(block).unwrap()];
                prop_assert!(!std::mem::replace(seen, true), "covered twice");
            }
        }
        prop_assert!(covered.into_iter().all(|block| block), "a hole");
        prop_assert_eq!(rig.queue.outstanding(), pieces.len());
        let failing = bad.filter(|bad| *bad < pieces.len());
        let mut moved = length;
        let mut done = Vec::new();
        for left in (1..=pieces.len()).rev() {
            let total = u64::try_from(left).unwrap();
            let piece = pieces.swap_remove(usize::try_from(order % total).unwrap());
            prop_assert_eq!(rig.queue.poll(&mut done), 0, "ended before its last piece");
            let bytes = u64::from(piece.1.length);
            if failing == Some(left - 1) {
                moved -= bytes;
                rig.sidecar.answer(piece, Status::IoError);
            } else {
                rig.sidecar.answer(piece, Status::Ok);
            }
        }
        prop_assert_eq!(rig.queue.poll(&mut done), 1);
        let done = done.pop().unwrap();
        prop_assert_eq!((done.ticket, done.tag, done.bytes), (ticket, 77, moved));
        let worst = if failing.is_some() { Status::IoError } else { Status::Ok };
        prop_assert_eq!(done.status, worst);
        prop_assert_eq!(done.lease.unwrap().offset(), lease_offset);
        prop_assert_eq!(rig.queue.outstanding(), 0);
    }

    /// Many requests of all sizes in flight, completed in any order: each ticket ends once.
    #[test]
    fn every_ticket_ends_once(
        sizes in proptest::collection::vec((0_u64..30, 1_u64..12), 1..60),
        picks in proptest::collection::vec(any::<usize>(), 400),
    ) {
        let mut rig = Rig::new(3, 4 * 512, 2, 32);
        let (mut flying, mut ended, mut done) = (Vec::new(), Vec::new(), Vec::new());
        let mut tickets = Vec::new();
        let mut picks = picks.into_iter().cycle();
        let mut sizes = sizes.into_iter().peekable();
        while sizes.peek().is_some() || !flying.is_empty() {
            if let Some((from, count)) = sizes.peek().copied() {
                let lease = rig.lease(usize::try_from(count * 512).unwrap());
                match rig.queue.submit(Request::read(&rig.volume, from * 512, lease)) {
                    Ok(ticket) => {
                        tickets.push(ticket);
                        sizes.next();
                    }
                    Err(refused) => prop_assert!(refused.into_lease().is_some()),
                }
            }
            flying.append(&mut rig.sidecar.take());
            for _ in 0..picks.next().unwrap() % 4 {
                if !flying.is_empty() {
                    let pick = picks.next().unwrap() % flying.len();
                    rig.sidecar.answer(flying.swap_remove(pick), Status::Ok);
                }
            }
            rig.queue.poll(&mut done);
            ended.extend(done.drain(..).map(|done| done.ticket));
        }
        rig.queue.poll(&mut done);
        ended.extend(done.drain(..).map(|done| done.ticket));
        ended.sort_unstable();
        prop_assert_eq!(ended, tickets);
        prop_assert_eq!(rig.arena.free_bytes(), ARENA_BYTES);
    }
}

#[test]
fn the_worst_status_wins_whatever_comes_first() {
    for statuses in [
        [Status::Draining, Status::IoError, Status::Ok],
        [Status::IoError, Status::Ok, Status::Draining],
        [Status::Ok, Status::Draining, Status::IoError],
    ] {
        let mut rig = Rig::new(3, 4096, 1, 8);
        let lease = rig.lease(3 * 4096);
        rig.queue.submit(Request::read(&rig.volume, 0, lease)).unwrap();
        for (request, status) in rig.sidecar.take().into_iter().zip(statuses) {
            rig.sidecar.answer(request, status);
        }
        let done = rig.queue.wait(LONG).unwrap().unwrap();
        assert_eq!((done.status, done.bytes, done.device_ns > 0), (Status::IoError, 4096, true));
    }
}

#[test]
fn a_flush_goes_to_every_member_and_a_nop_to_one_poller() {
    let mut rig = Rig::new(5, 4096, 2, 8);
    rig.queue.submit(Request::flush(&rig.volume)).unwrap();
    let flushes = rig.sidecar.take();
    let mut members: Vec<_> = flushes
        .iter()
        .map(|(lane, slot)| {
            assert_eq!((slot.opcode, slot.length), (Opcode::Flush as u8, 0));
            let extent = rig.volume.geometry().locate(slot.volume_offset, 512).unwrap();
            assert_eq!(*lane, usize::from(extent.member % 2));
            extent.member
        })
        .collect();
    members.sort_unstable();
    assert_eq!(members, [0, 1, 2, 3, 4]);
    flushes.into_iter().for_each(|flush| rig.sidecar.answer(flush, Status::Ok));
    let done = rig.queue.wait(LONG).unwrap().unwrap();
    assert_eq!((done.status, done.bytes, done.lease.is_none()), (Status::Ok, 0, true));

    rig.queue.submit(rig.client.nop_to(kvrail_ring::PollerIndex(1))).unwrap();
    rig.queue.submit(Request::nop(&rig.volume)).unwrap();
    let lanes: Vec<_> = rig.sidecar.take().iter().map(|(lane, _)| *lane).collect();
    assert_eq!(lanes, [0, 1]);
}

#[test]
fn a_request_longer_than_a_slot_can_say_is_cut() {
    let most = kvrail_ring::limits::REQUEST_LENGTH_MAX;
    let mut shape = geometry(1, u64::from(most) * 4);
    shape.member_bytes = shape.stripe_bytes;
    let mut rig = Rig::spinning(shape, 1, 8, 0);
    let length = u64::from(most) * 2 + 512;
    rig.queue.submit(Request::discard(&rig.volume, 512, length)).unwrap();
    let pieces: Vec<_> =
        rig.sidecar.take().iter().map(|(_, slot)| (slot.volume_offset, slot.length)).collect();
    let border = u64::from(most);
    assert_eq!(pieces, [(512, most), (512 + border, most), (512 + 2 * border, 512)]);
}

#[test]
fn a_read_brings_the_bytes_that_the_sidecar_put_there() {
    let mut rig = Rig::new(2, 4096, 2, 8);
    let lease = rig.lease(3 * 4096);
    rig.queue.submit(Request::read(&rig.volume, 4096, lease)).unwrap();
    for (lane, slot) in rig.sidecar.take() {
        let at = usize::try_from(slot.region_offset).unwrap();
        let mark = u8::try_from(slot.volume_offset / 4096).unwrap();
        store(rig.sidecar.arena.as_ref(), at, &vec![mark; slot.length as usize]);
        rig.sidecar.answer((lane, slot), Status::Ok);
    }
    let lease = rig.queue.wait(LONG).unwrap().unwrap().lease.unwrap();
    let marks: Vec<_> = lease.chunks(4096).map(|chunk| (chunk[0], chunk[4095])).collect();
    assert_eq!(marks, [(1, 1), (2, 2), (3, 3)]);
}
