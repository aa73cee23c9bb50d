//! Blocks by key, against a sidecar that errs, lies and dies.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvrail_crc::crc64;
use kvrail_memory::{load, store};
use kvrail_ring::slot::{FLAG_MORE, FLAG_NOTICE, FLAG_PART, FLAG_SIDE};
use kvrail_ring::{CHAIN_BEGINS, CHAIN_DEPTH_MAX, Completion, Opcode, Request as Slot, Status};
use kvrail_store::{Chain, Priority};

use super::rig::{ARENA_BYTES, LONG, Rig, UID};
use crate::block_op::TAIL_BYTES;
use crate::block_request::BlockRequest;
use crate::client::Client;
use crate::done::{BlockNote, Completed, Decline};
use crate::error::ClientError;
use crate::key::BlockKey;
use crate::lookup::Found;
use crate::submit_error_kind::SubmitErrorKind;

const MIB: usize = 1 << 20;

pub(super) fn rig() -> Rig {
    Rig::with_store(1, 8, ARENA_BYTES)
}

pub(super) fn key() -> BlockKey {
    BlockKey::of(b"a key")
}

/// The check of these bytes under `key`.
pub(super) fn check(bytes: &[u8]) -> u64 {
    key().check(crc64(bytes), UID, u32::try_from(bytes.len()).unwrap())
}

pub(super) fn bytes_of(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from(at % 251).unwrap() | 1).collect()
}

pub(super) fn end(slot: &Slot, status: Status, bytes: u32) -> Completion {
    let status = status.number();
    Completion { user_data: slot.user_data, status, bytes, ..Completion::default() }
}

/// The only request there is.
pub(super) fn taken(rig: &mut Rig) -> Slot {
    let all = rig.sidecar.take();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].1
}

/// Has the program wait, which sends what an operation asks next; nothing ends.
pub(super) fn goes_on(rig: &mut Rig) -> Slot {
    assert!(rig.queue.wait(Duration::from_millis(1)).unwrap().is_none(), "it has not ended");
    taken(rig)
}

pub(super) fn ended(rig: &mut Rig) -> Completed {
    rig.queue.wait(LONG).unwrap().expect("one is in flight")
}

/// A get into memory of 0x5a.
fn get(rig: &mut Rig, room: usize) -> Slot {
    let mut lease = rig.lease(room);
    lease.fill(0x5a);
    let request = BlockRequest::get(&rig.space(3), key(), lease).tag(9);
    rig.queue.submit(request).unwrap();
    taken(rig)
}

/// Answers a get with all bytes of a block of whole logical blocks.
fn serve(rig: &mut Rig, slot: &Slot, bytes: &[u8], check: u64) {
    let place = usize::try_from(slot.region_offset).unwrap();
    store(rig.sidecar.arena.as_ref(), place, bytes);
    let ok = end(slot, Status::Ok, u32::try_from(bytes.len()).unwrap());
    rig.sidecar.complete(0, Completion { checksum: check, ..ok });
}

/// What a lie leads to: INTERNAL, no byte behind the memory touched, and the queue says so.
fn is_internal(rig: &mut Rig) {
    let done = ended(rig);
    assert_eq!((done.status, done.bytes, done.note), (Status::Internal, 0, BlockNote::None));
    assert!(done.lease.is_some(), "the hardware is done");
    assert_eq!(rig.queue.outstanding(), 0);
    let error = rig.queue.wait(LONG).unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
}

#[test]
fn wrong_bytes_are_read_once_more_then_missed_and_reported() {
    let (mut rig, right) = (rig(), bytes_of(4096));
    let slot = get(&mut rig, 4096);
    serve(&mut rig, &slot, &bytes_of(512), check(&right));
    let again = goes_on(&mut rig);
    assert_eq!((again.opcode, again.length), (Opcode::Get as u8, 4096));
    serve(&mut rig, &again, &bytes_of(512), check(&right));
    let told = goes_on(&mut rig);
    assert_eq!((told.opcode, told.checksum), (Opcode::Suspect as u8, check(&right)));
    assert_eq!([told.length, told.region, told.layout_block], [0; 3], "it names the block alone");
    rig.sidecar.complete(0, end(&told, Status::Ok, 0));
    let done = ended(&mut rig);
    assert_eq!((done.status, done.note, done.tag), (Status::Miss, BlockNote::Wrong, 9));
    assert!(done.lease.is_some());
    let verified = rig.queue.verified();
    assert_eq!([verified.right, verified.reread, verified.wrong], [0, 1, 1]);
}

/// Gets a wrong block to its end; how often it was read.
fn get_wrong(rig: &mut Rig) -> u32 {
    let (right, mut reads) = (bytes_of(4096), 1);
    let mut slot = get(rig, 4096);
    loop {
        serve(rig, &slot, &bytes_of(512), check(&right));
        slot = goes_on(rig);
        if slot.opcode == Opcode::Suspect as u8 {
            break;
        }
        reads += 1;
    }
    rig.sidecar.complete(0, end(&slot, Status::Ok, 0));
    assert_eq!(ended(rig).note, BlockNote::Wrong);
    reads
}

/// Each is reported all the same, and right blocks in between make second reads worth it again.
#[test]
fn blocks_behind_the_first_wrong_ones_are_not_read_twice() {
    let mut rig = rig();
    let reads: Vec<u32> = (0..8).map(|_| get_wrong(&mut rig)).collect();
    assert_eq!(reads, [2, 2, 2, 2, 1, 1, 1, 1]);
    let verified = rig.queue.verified();
    assert_eq!([verified.right, verified.reread, verified.wrong], [0, 4, 8]);
    let right = bytes_of(4096);
    let slot = get(&mut rig, 4096);
    serve(&mut rig, &slot, &right, check(&right));
    assert_eq!(ended(&mut rig).status, Status::Ok);
    assert_eq!(get_wrong(&mut rig), 2);
    assert_eq!(get_wrong(&mut rig), 1);
}

#[test]
fn bytes_that_the_program_verifies_come_with_what_they_must_be() {
    let (mut rig, right) = (rig(), bytes_of(4096));
    let request = BlockRequest::get(&rig.space(3), key(), rig.lease(8192)).unverified();
    rig.queue.submit(request).unwrap();
    let slot = taken(&mut rig);
    serve(&mut rig, &slot, &[9; 4096], check(&right));
    let done = ended(&mut rig);
    assert_eq!((done.status, done.bytes, done.checksum), (Status::Ok, 4096, crc64(&right)));
    assert_eq!(rig.queue.verified().right, 0, "nobody has looked");
    let put = BlockRequest::put(&rig.space(3), key(), rig.lease(4096)).unverified();
    let refused = rig.queue.submit(put).unwrap_err();
    assert!(matches!(refused.reason, SubmitErrorKind::Unfit { option: "unverified", .. }));
}

#[test]
fn bytes_that_are_right_at_the_second_look_are_handed_out() {
    let (mut rig, right) = (rig(), bytes_of(4096));
    let slot = get(&mut rig, 8192);
    serve(&mut rig, &slot, &bytes_of(512), check(&right));
    let again = goes_on(&mut rig);
    serve(&mut rig, &again, &right, check(&right));
    let done = ended(&mut rig);
    assert_eq!((done.status, done.bytes), (Status::Ok, 4096));
    let lease = done.lease.unwrap();
    assert!(lease[..4096] == right[..] && lease[4096..].iter().all(|byte| *byte == 0x5a));
    assert_eq!(rig.queue.verified().reread, 1);
}

#[test]
fn a_get_of_another_key_or_length_is_wrong() {
    let (mut rig, right) = (rig(), bytes_of(4096));
    let other = BlockKey::of(b"other").check(crc64(&right), UID, 4096);
    for (length, check) in [(4096, other), (2048, check(&right))] {
        let slot = get(&mut rig, 4096);
        serve(&mut rig, &slot, &right[..length], check);
        assert_eq!(goes_on(&mut rig).opcode, Opcode::Get as u8);
        drop(std::mem::replace(&mut rig, self::rig()));
    }
}

#[test]
fn tails_go_through_a_page_and_not_beyond_the_block() {
    let (mut rig, right) = (rig(), bytes_of(5000));
    let mut lease = rig.lease(5000);
    lease.copy_from_slice(&right);
    let put = BlockRequest::put(&rig.space(3), key(), lease).metadata(b"parent").depth(7);
    rig.queue.submit(put).unwrap();
    let slot = taken(&mut rig);
    assert_eq!((slot.length, slot.reserved_a, slot.volume), (5000, 7, 3));
    assert_eq!((slot.checksum, slot.flags & FLAG_SIDE), (check(&right), FLAG_SIDE));
    rig.sidecar.complete(0, end(&slot, Status::Ok, 5000));
    assert_eq!(ended(&mut rig).status, Status::Ok);

    // The sidecar writes whole logical blocks to the memory, the rest to the page.
    let slot = get(&mut rig, 6000);
    let (place, page) = (usize::try_from(slot.region_offset).unwrap(), slot.layout_block as usize);
    store(rig.sidecar.arena.as_ref(), place, &right[..4608]);
    store(rig.sidecar.tails.as_ref().unwrap().as_ref(), page * TAIL_BYTES, &right[4608..]);
    rig.sidecar.complete(0, Completion { checksum: check(&right), ..end(&slot, Status::Ok, 5000) });
    let done = ended(&mut rig);
    assert_eq!((done.status, done.bytes), (Status::Ok, 5000));
    let lease = done.lease.unwrap();
    assert!(lease[..5000] == right[..] && lease[5000..].iter().all(|byte| *byte == 0x5a));
}

#[test]
fn a_put_says_where_in_which_chain_its_block_is() {
    let put = |rig: &mut Rig| BlockRequest::put(&rig.space(3), key(), rig.lease(512));
    let mut rig = rig();
    let cases = [
        (put(&mut rig), 0),
        (put(&mut rig).chain(Chain::Begins).depth(7), CHAIN_BEGINS | 7),
        (put(&mut rig).depth(7).chain(Chain::Begins), CHAIN_BEGINS | 7),
        (put(&mut rig).chain(Chain::Begins).chain(Chain::Extends).depth(1), 1),
        (put(&mut rig).depth(u16::MAX), CHAIN_DEPTH_MAX),
    ];
    for (request, place) in cases {
        rig.queue.submit(request).unwrap();
        let slot = taken(&mut rig);
        assert_eq!(slot.reserved_a, place);
        rig.sidecar.complete(0, end(&slot, Status::Ok, 512));
        assert_eq!(ended(&mut rig).status, Status::Ok);
    }
}

/// The worth of a put and its end, in whole seconds, lie beside the slot.
#[test]
fn a_put_says_what_its_block_is_worth() {
    let put = |rig: &mut Rig| BlockRequest::put(&rig.space(3), key(), rig.lease(512));
    let mut rig = rig();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let (before, long) = (now.as_secs(), Duration::from_secs(u64::MAX));
    let cases = [
        (put(&mut rig), None),
        (put(&mut rig).worth(Priority::Normal), None),
        (put(&mut rig).worth(Priority::Low), Some((1, 0))),
        (put(&mut rig).worth(Priority::High).ttl(Duration::from_millis(9500)), Some((2, 10))),
        (put(&mut rig).ttl(Duration::ZERO), Some((0, 1))),
        (put(&mut rig).ttl(long), Some((0, u64::from(u32::MAX) - before))),
    ];
    for (request, wanted) in cases {
        rig.queue.submit(request).unwrap();
        let (slot, side) = rig.sidecar.take_sided(0);
        assert_eq!(side.is_some(), wanted.is_some());
        for ((worth, after), side) in wanted.into_iter().zip(&side) {
            let side = side.side();
            assert_eq!((side.block_bytes, side.worth), (512, worth));
            let until = u64::from(side.until);
            let near = if after == 0 { 0..=0 } else { before + after - 1..=before + after + 9 };
            assert!(near.contains(&until), "{until} for {after} after {before}");
        }
        rig.sidecar.complete(0, end(&slot, Status::Ok, 512));
        assert_eq!(ended(&mut rig).status, Status::Ok);
    }
    let get = BlockRequest::get(&rig.space(3), key(), rig.lease(512)).worth(Priority::High);
    let refused = rig.queue.submit(get).unwrap_err();
    assert!(refused.to_string().contains("a worth or time to live"), "{refused}");
}

/// A sidecar of minor 6 refuses slots with hints: puts go without them, and each is counted once.
#[test]
fn a_sidecar_without_hints_gets_puts_without_them() {
    for (minor, dropped) in [(6, 2), (7, 0)] {
        let mut rig = Rig::of_minor(minor, 1, 8, ARENA_BYTES);
        let put = |rig: &mut Rig| BlockRequest::put(&rig.space(3), key(), rig.lease(512));
        let plain = put(&mut rig).depth(4);
        rig.queue.submit(plain).unwrap();
        let (plain, side) = rig.sidecar.take_sided(0);
        assert!(side.is_none());
        rig.sidecar.complete(0, end(&plain, Status::Ok, 512));
        assert_eq!(ended(&mut rig).status, Status::Ok);
        let hinted = [
            put(&mut rig).depth(4).worth(Priority::High),
            put(&mut rig).depth(4).ttl(Duration::from_secs(9)),
        ];
        for request in hinted {
            rig.queue.submit(request).unwrap();
            let (slot, side) = rig.sidecar.take_sided(0);
            assert_eq!(side.is_some(), minor == 7);
            if minor == 6 {
                let same = Slot { user_data: plain.user_data, ..slot };
                assert_eq!(Slot { region_offset: plain.region_offset, ..same }, plain);
            }
            rig.sidecar.complete(0, end(&slot, Status::Ok, 512));
            assert_eq!(ended(&mut rig).status, Status::Ok);
        }
        assert_eq!(rig.client.dropped_hints(), dropped);
    }
}

#[test]
fn a_chain_extends_from_its_half_on() {
    let found = |prefix, keys| Found { prefix, keys, ..Found::default() }.chain();
    assert_eq!([found(0, 1), found(4, 9), found(49, 100)], [Chain::Begins; 3]);
    assert_eq!([found(0, 0), found(1, 1), found(5, 9), found(50, 100)], [Chain::Extends; 4]);
    let warming = Found { keys: 9, warming: 1, ..Found::default() };
    assert_eq!(warming.chain(), Chain::Extends, "nobody knows");
}

#[test]
fn more_bytes_than_asked_for_are_internal_and_nothing_is_touched() {
    for moved in [4097, 0, u32::MAX] {
        let mut rig = rig();
        let slot = get(&mut rig, 4096);
        rig.sidecar.complete(0, end(&slot, Status::Ok, moved));
        is_internal(&mut rig);
        let mut behind = [0; 4096];
        load(rig.sidecar.arena.as_ref(), 4096, &mut behind);
        assert_eq!(behind, [0; 4096]);
    }
    // A block that would fit is not too large.
    let mut rig = rig();
    let slot = get(&mut rig, 4096);
    rig.sidecar.complete(0, end(&slot, Status::TooSmall, 4096));
    is_internal(&mut rig);
}

#[test]
fn a_put_is_whole_or_it_is_internal() {
    let put = |rig: &mut Rig, length: usize| {
        let request = BlockRequest::put(&rig.space(3), key(), rig.lease(length)).crc(1);
        rig.queue.submit(request).unwrap();
        taken(rig)
    };
    // Fewer bytes; more parts than there are.
    for (bytes, flags) in [(512, 0), (8192, 0), (4096, FLAG_MORE)] {
        let mut rig = rig();
        let slot = put(&mut rig, 4096);
        rig.sidecar.complete(0, Completion { flags, ..end(&slot, Status::Ok, bytes) });
        is_internal(&mut rig);
    }
    // OK for the first of two parts, as if it were the last.
    let mut rig = Rig::with_store(1, 8, 80 * MIB);
    let slot = put(&mut rig, 72 * MIB);
    assert_eq!(slot.length as usize, 64 * MIB);
    rig.sidecar.complete(0, end(&slot, Status::Ok, slot.length));
    is_internal(&mut rig);
    // Both parts, the last of which says that more are missing, for ever.
    let mut rig = Rig::with_store(1, 8, 80 * MIB);
    let slot = put(&mut rig, 72 * MIB);
    let more = |slot: &Slot| Completion { flags: FLAG_MORE, ..end(slot, Status::Ok, slot.length) };
    rig.sidecar.complete(0, more(&slot));
    let last = goes_on(&mut rig);
    assert_eq!(last.length as usize, 8 * MIB);
    assert_eq!(last.region_offset - slot.region_offset, 64 << 20);
    rig.sidecar.complete(0, more(&last));
    is_internal(&mut rig);
}

#[test]
fn what_is_staged_is_on_its_way_before_many_bytes_more_are_summed() {
    let mut rig = rig();
    let space = rig.space(3);
    let short = 64 << 10;
    let long_ones = [(MIB, 0), (4096, 1), (MIB, 1), (4096, 1)];
    // A poller is woken for three of 64 KiB together.
    for (length, there) in long_ones.into_iter().chain([0, 0, 3, 0].map(|it| (short, it))) {
        let lease = rig.lease(length);
        rig.queue.stage(BlockRequest::put(&space, key(), lease)).unwrap();
        assert_eq!(rig.sidecar.take().len(), there, "{length}");
    }
    rig.queue.publish();
    assert_eq!(rig.sidecar.take().len(), 2);
}

#[test]
fn a_large_block_is_got_part_by_part() {
    let mut rig = Rig::with_store(1, 8, 80 * MIB);
    let block = 72 << 20;
    let slot = get(&mut rig, 72 * MIB);
    assert_eq!((slot.length, slot.flags & FLAG_PART), (64 << 20, 0));
    rig.sidecar.complete(0, end(&slot, Status::TooSmall, block));
    let first = goes_on(&mut rig);
    assert_eq!((first.length, first.flags, first.checksum), (64 << 20, FLAG_PART, 0));
    rig.sidecar.complete(0, end(&first, Status::Ok, first.length));
    let second = goes_on(&mut rig);
    assert_eq!((second.length, second.checksum), (8 << 20, 64 << 20));
    assert_eq!(second.region_offset, first.region_offset + (64 << 20));
    // The block is another one since: from the start, once.
    rig.sidecar.complete(0, end(&second, Status::Invalid, 0));
    let anew = goes_on(&mut rig);
    assert_eq!((anew.length, anew.flags), (64 << 20, 0));
    rig.sidecar.complete(0, end(&anew, Status::TooSmall, block));
    let first = goes_on(&mut rig);
    rig.sidecar.complete(0, end(&first, Status::TooSmall, block));
    let done = ended(&mut rig);
    assert_eq!((done.status, done.bytes), (Status::Miss, 0));
    assert_eq!(rig.queue.outstanding(), 0);
}

#[test]
fn a_part_of_the_wrong_length_is_internal() {
    let mut rig = Rig::with_store(1, 8, 80 * MIB);
    let slot = get(&mut rig, 72 * MIB);
    rig.sidecar.complete(0, end(&slot, Status::TooSmall, 72 << 20));
    let part = goes_on(&mut rig);
    rig.sidecar.complete(0, end(&part, Status::Ok, part.length - 1));
    is_internal(&mut rig);
}

#[test]
fn too_small_says_what_is_needed() {
    let (mut rig, right) = (rig(), bytes_of(4096));
    let slot = get(&mut rig, 512);
    rig.sidecar.complete(0, end(&slot, Status::TooSmall, 4096));
    let done = ended(&mut rig);
    assert_eq!((done.status, done.bytes), (Status::TooSmall, 4096));
    assert!(done.lease.unwrap().iter().all(|byte| *byte == 0x5a));
    let slot = get(&mut rig, 4096);
    serve(&mut rig, &slot, &right, check(&right));
    assert_eq!(ended(&mut rig).status, Status::Ok);
}

#[test]
fn statuses_become_notes() {
    let cases = [
        (Opcode::Get, Status::Stale, 0, Status::Miss, BlockNote::Stale),
        (Opcode::Put, Status::Stale, 0, Status::Declined, BlockNote::Stale),
        (Opcode::Drop, Status::Stale, 0, Status::Miss, BlockNote::Stale),
        (Opcode::Put, Status::Declined, 4, Status::Declined, declined(Decline::ReadOnly)),
        (Opcode::Put, Status::Declined, 8, Status::Declined, declined(Decline::Refused)),
        (Opcode::Put, Status::Declined, 99, Status::Declined, declined(Decline::Other(99))),
        (Opcode::Get, Status::IoError, 0, Status::IoError, BlockNote::None),
        (Opcode::Drop, Status::Miss, 0, Status::Miss, BlockNote::None),
    ];
    let mut rig = rig();
    for (opcode, told, bytes, status, note) in cases {
        let (space, lease) = (rig.space(3), rig.lease(4096));
        let request = match opcode {
            Opcode::Put => BlockRequest::put(&space, key(), lease),
            Opcode::Get => BlockRequest::get(&space, key(), lease),
            _ => BlockRequest::drop_block(&space, key()),
        };
        rig.queue.submit(request).unwrap();
        let slot = taken(&mut rig);
        rig.sidecar.complete(0, end(&slot, told, bytes));
        let done = ended(&mut rig);
        assert_eq!((done.status, done.note, done.bytes), (status, note, 0), "{opcode:?} {told}");
    }
}

pub(super) fn declined(why: Decline) -> BlockNote {
    BlockNote::Declined(why)
}

#[test]
fn a_lost_session_ends_each_once_and_keeps_pages_that_may_be_written() {
    let mut rig = rig();
    let space = rig.space(3);
    let mut tickets = HashSet::new();
    for at in 0..3 {
        let lease = rig.lease(5000);
        let request = match at {
            0 => BlockRequest::put(&space, key(), lease),
            1 => BlockRequest::get(&space, key(), lease),
            _ => BlockRequest::drop_block(&space, key()),
        };
        tickets.insert(rig.queue.submit(request).unwrap());
    }
    assert_eq!(rig.sidecar.take().len(), 3);
    rig.sidecar.die();
    for _ in 0..3 {
        let done = ended(&mut rig);
        assert!(tickets.remove(&done.ticket), "{done:?}");
        assert_eq!((done.status, done.note), (Status::Restarted, BlockNote::None));
    }
    assert!(rig.queue.wait(LONG).unwrap().is_none());
    // The get's memory, and the page of each.
    let pages = 3 * TAIL_BYTES as u64;
    assert_eq!(rig.client.quarantined_bytes(), 5000 + pages);
    let refused = rig.queue.submit(BlockRequest::drop_block(&space, key())).unwrap_err();
    assert_eq!(refused.reason, SubmitErrorKind::SidecarGone);
}

#[test]
fn a_deadline_is_noticed_once_over_all_parts() {
    let mut rig = Rig::with_store(1, 8, 80 * MIB);
    let put = BlockRequest::put(&rig.space(3), key(), rig.lease(72 * MIB)).crc(1).tag(4);
    let ticket = rig.queue.submit(put.deadline(Duration::from_millis(2))).unwrap();
    let late = |slot: &Slot| Completion { flags: FLAG_NOTICE, ..end(slot, Status::Late, 0) };
    let first = taken(&mut rig);
    assert_eq!(first.reserved_b, 2000, "in microseconds");
    rig.sidecar.notify(0, late(&first));
    let notice = ended(&mut rig);
    assert!(notice.is_notice() && notice.lease.is_none());
    assert_eq!((notice.ticket, notice.tag), (ticket, 4));
    let more = Completion { flags: FLAG_MORE, ..end(&first, Status::Ok, first.length) };
    rig.sidecar.complete(0, more);
    let second = goes_on(&mut rig);
    rig.sidecar.notify(0, late(&second));
    assert!(rig.queue.wait(Duration::from_millis(1)).unwrap().is_none(), "one notice");
    rig.sidecar.complete(0, end(&second, Status::Ok, second.length));
    assert_eq!((ended(&mut rig).status, rig.queue.outstanding()), (Status::Ok, 0));
}

#[test]
fn what_cannot_be_is_refused_with_its_memory() {
    let mut rig = rig();
    let (space, foreign) = (rig.space(3), self::rig());
    let lease = |bytes| rig.arena.lease(bytes).unwrap();
    let put = || BlockRequest::put(&space, key(), lease(512));
    let get = || BlockRequest::get(&space, key(), lease(512));
    let unfit = |option, opcode| SubmitErrorKind::Unfit { option, opcode };
    let second = Duration::from_secs(1);
    let cases = [
        (put().metadata(&[1; 1025]), SubmitErrorKind::MetadataTooLong { bytes: 1025 }),
        (put().length(0), SubmitErrorKind::Empty),
        (put().length(513), SubmitErrorKind::LeaseTooShort { length: 513, lease: 512 }),
        (get().durable(), unfit("durable", Opcode::Get)),
        (get().metadata(b"a"), unfit("metadata", Opcode::Get)),
        (get().depth(1), unfit("a depth or chain", Opcode::Get)),
        (get().chain(Chain::Begins), unfit("a depth or chain", Opcode::Get)),
        (get().crc(1), unfit("a checksum", Opcode::Get)),
        (get().replacing(), unfit("replacing", Opcode::Get)),
        (
            BlockRequest::drop_block(&space, key()).deadline(second),
            unfit("a deadline", Opcode::Drop),
        ),
        (
            BlockRequest::get(&foreign.space(3), key(), foreign.lease(512)),
            SubmitErrorKind::Foreign { what: "namespace" },
        ),
        (
            BlockRequest::get(&space, key(), foreign.lease(512)),
            SubmitErrorKind::Foreign { what: "lease" },
        ),
    ];
    for (request, reason) in cases {
        let had = request.lease.is_some();
        let refused = rig.queue.submit(request).unwrap_err();
        assert_eq!(refused.reason, reason);
        assert_eq!(refused.request.into_lease().is_some(), had);
    }
    rig.queue.submit(put().metadata(&[1; 1024])).unwrap();
    let mut full = 1;
    let reason = loop {
        match rig.queue.submit(get()) {
            Ok(_) => full += 1,
            Err(refused) => break refused.reason,
        }
    };
    assert_eq!((full, reason), (8, SubmitErrorKind::Full { outstanding: 8, capacity: 8 }));
    assert_eq!(rig.sidecar.take().len(), 8);
}

#[test]
fn a_poll_brings_all_long_gets_that_have_ended_and_a_wait_the_next() {
    let (mut rig, right) = (rig(), bytes_of(64 << 10));
    let ended = |rig: &mut Rig, count: usize| {
        for _ in 0..count {
            let slot = get(rig, right.len());
            serve(rig, &slot, &right, check(&right));
        }
    };
    let mut done = Vec::new();
    ended(&mut rig, 4);
    assert_eq!(rig.queue.poll(&mut done), 4);
    ended(&mut rig, 4);
    assert_eq!(rig.queue.poll_some(&mut done), 1, "its program can ask for more");
    assert_eq!(rig.queue.wait_for(1, &mut done, LONG).unwrap(), 1);
    assert_eq!(rig.queue.verified().right, 6, "nobody has looked at the others");
    assert_eq!(rig.queue.wait_for(2, &mut done, LONG).unwrap(), 2);
    assert!(done.iter().all(|end| end.status == Status::Ok));
}

#[test]
fn a_volume_without_keys_is_no_store() {
    let rig = Rig::new(1, 4096, 1, 4);
    let client: &Client = &rig.client;
    let refused = client.store("kv").unwrap_err();
    assert!(refused.to_string().contains("--kind store"), "{refused}");
}
