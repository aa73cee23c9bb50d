//! Puts of keys that may name other bytes than before.

use std::time::Duration;

use kvrail_ring::slot::{FLAG_DURABLE, FLAG_MORE, FLAG_PRESENT};
use kvrail_ring::{Completion, Opcode, Request as Slot, Status};

use super::blocks::{bytes_of, check, declined, end, ended, goes_on, key, rig, taken};
use super::rig::Rig;
use crate::block_request::BlockRequest;
use crate::done::{BlockNote, Decline};

const MIB: usize = 1 << 20;

/// The answer to a put of a key that has a block with this check.
fn present(rig: &mut Rig, slot: &Slot, check: u64) {
    let there = end(slot, Status::Ok, slot.length);
    rig.sidecar.complete(0, Completion { flags: FLAG_PRESENT, checksum: check, ..there });
}

/// A replacing put of a block of two parts with all that it may have beside.
fn replace(rig: &mut Rig) -> Slot {
    let put = BlockRequest::put(&rig.space(3), key(), rig.lease(72 * MIB)).crc(1).tag(4);
    let put = put.metadata(b"parent").depth(7).deadline(Duration::from_secs(9)).replacing();
    rig.queue.submit(put).unwrap();
    taken(rig)
}

#[test]
fn a_replacing_put_drops_other_bytes_for_good_before_it_begins_anew() {
    let mut rig = Rig::with_store(1, 8, 80 * MIB);
    let first = replace(&mut rig);
    present(&mut rig, &first, 99);
    let drop = goes_on(&mut rig);
    assert_eq!((drop.opcode, drop.flags, drop.checksum), (Opcode::Drop as u8, FLAG_DURABLE, 99));
    let nothing = [drop.length, drop.region, drop.layout_block, drop.reserved_b];
    assert_eq!((nothing, drop.reserved_a, drop.region_offset), ([0; 4], 0, 0), "the block alone");
    rig.sidecar.complete(0, end(&drop, Status::Ok, 0));
    let anew = goes_on(&mut rig);
    assert_eq!(Slot { user_data: first.user_data, ..anew }, first, "all of it once more");
    let more = Completion { flags: FLAG_MORE, ..end(&anew, Status::Ok, anew.length) };
    rig.sidecar.complete(0, more);
    // Another one was put between its parts.
    let second = goes_on(&mut rig);
    present(&mut rig, &second, 98);
    let drop = goes_on(&mut rig);
    assert_eq!((drop.opcode, drop.checksum), (Opcode::Drop as u8, 98));
    rig.sidecar.complete(0, end(&drop, Status::Miss, 0));
    for flags in [FLAG_MORE, 0] {
        let part = goes_on(&mut rig);
        rig.sidecar.complete(0, Completion { flags, ..end(&part, Status::Ok, part.length) });
    }
    let done = ended(&mut rig);
    assert_eq!((done.status, done.note, done.tag), (Status::Ok, BlockNote::None, 4));
    assert_eq!(done.bytes, 72 << 20);
}

#[test]
fn a_replacing_put_of_the_same_bytes_writes_nothing() {
    let mut rig = rig();
    let mut lease = rig.lease(4096);
    lease.copy_from_slice(&bytes_of(4096));
    rig.queue.submit(BlockRequest::put(&rig.space(3), key(), lease).replacing()).unwrap();
    let slot = taken(&mut rig);
    present(&mut rig, &slot, check(&bytes_of(4096)));
    let done = ended(&mut rig);
    assert_eq!((done.status, done.note), (Status::Ok, BlockNote::Present));
    // A put that does not replace takes what is there for good, whatever its bytes are.
    rig.queue.submit(BlockRequest::put(&rig.space(3), key(), rig.lease(4096))).unwrap();
    let slot = taken(&mut rig);
    present(&mut rig, &slot, 99);
    assert_eq!(ended(&mut rig).note, BlockNote::Present);
}

#[test]
fn a_replacing_put_never_says_ok_of_other_bytes() {
    // What keeps the drop from its end keeps the put from its.
    let refusals = [
        (Status::Declined, 4, Status::Declined, declined(Decline::ReadOnly)),
        (Status::Stale, 0, Status::Declined, BlockNote::Stale),
        (Status::Denied, 0, Status::Denied, BlockNote::None),
    ];
    for (told, bytes, status, note) in refusals {
        let mut rig = Rig::with_store(1, 8, 80 * MIB);
        let slot = replace(&mut rig);
        present(&mut rig, &slot, 99);
        let drop = goes_on(&mut rig);
        rig.sidecar.complete(0, end(&drop, told, bytes));
        let done = ended(&mut rig);
        assert_eq!((done.status, done.note, done.bytes), (status, note, 0));
    }
    // Others put their bytes again and again: that has an end.
    let mut rig = Rig::with_store(1, 8, 80 * MIB);
    let mut slot = replace(&mut rig);
    for other in 0..8 {
        present(&mut rig, &slot, 90 + other);
        let drop = goes_on(&mut rig);
        assert_eq!((drop.opcode, drop.checksum), (Opcode::Drop as u8, 90 + other));
        rig.sidecar.complete(0, end(&drop, Status::Ok, 0));
        slot = goes_on(&mut rig);
    }
    present(&mut rig, &slot, 98);
    let done = ended(&mut rig);
    assert_eq!((done.status, done.note), (Status::Declined, declined(Decline::GivenUp)));
}
