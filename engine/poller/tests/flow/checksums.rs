//! Checksums: right, and nobody else's time.

use crc_fast::{CrcAlgorithm, checksum};
use kvrail_poller::{Command, Notice, TickOutcome};
use kvrail_ring::slot::{FLAG_CHECKSUM, FLAG_VERIFY};
use kvrail_ring::{Opcode, Request, Status};

use crate::rig::{ARENA_BYTES, Client, Rig};

const LARGE: u32 = 1 << 20;

/// What a tick may add up, and the request that it ends with.
const TICK_BYTES: u64 = (64 << 10) + LARGE as u64;

/// The checksum of memory nobody wrote.
fn of_zeroes(length: u32) -> u64 {
    checksum(CrcAlgorithm::Crc64Nvme, &vec![0; length as usize])
}

fn tick(rig: &mut Rig) -> TickOutcome {
    rig.clock.advance(1_000);
    rig.poller.tick()
}

/// Reads, or writes, of all of a client's arena, with checksums.
fn large(client: &Client, opcode: Opcode, flag: u8) -> Vec<Request> {
    let request = |at| Request {
        opcode: opcode as u8,
        flags: flag,
        region_offset: at * u64::from(LARGE),
        checksum: of_zeroes(LARGE),
        ..client.read(at, LARGE)
    };
    (0..ARENA_BYTES as u64 / u64::from(LARGE)).map(request).collect()
}

/// One session has 16 MiB of reads ended at once, with checksums, and another reads 4 KiB again and
/// again. Holds as well where pollers compute none.
#[test]
fn nobody_waits_for_the_checksums_of_another_session() {
    for flag in [FLAG_CHECKSUM, FLAG_VERIFY] {
        let mut rig = Rig::new(64);
        let (mut greedy, mut small) = (rig.client(0, 64), rig.client(1, 8));
        greedy.post(&large(&greedy, Opcode::Read, flag));
        rig.settle();
        while !rig.shelf.borrow().held.is_empty() {
            rig.shelf.borrow_mut().finish(0, Status::Ok);
        }
        let mut ends = 0;
        for round in 0..1_000 {
            small.post(&[small.read(round, 4096)]);
            tick(&mut rig);
            rig.shelf.borrow_mut().finish(0, Status::Ok);
            tick(&mut rig);
            assert_eq!(small.collect().len(), 1, "as soon as its device is done");
            let done = greedy.collect();
            ends += done.len();
            assert!(done.iter().all(|done| done.status() == Status::Ok), "{done:?}");
            let summed = done.iter().filter(|done| done.checksum != 0);
            let summed: u64 = summed.map(|done| u64::from(done.bytes)).sum();
            assert!(summed <= 2 * TICK_BYTES, "{summed} bytes added up in two ticks");
        }
        assert_eq!(ends, 16, "and all of them end");
    }
}

#[test]
fn a_write_goes_to_its_device_with_the_right_checksum_only_and_keeps_nobody() {
    let mut rig = Rig::new(64);
    let (mut greedy, mut small) = (rig.client(0, 64), rig.client(1, 8));
    let mut writes = large(&greedy, Opcode::Write, FLAG_VERIFY);
    writes[3].checksum ^= 1;
    greedy.post(&writes);
    small.post(&[small.read(1, 4096)]);
    tick(&mut rig);
    assert_eq!(rig.shelf.borrow().held.len(), 1, "the other session's read, and no write yet");
    rig.settle();
    let mut lengths: Vec<u32> = rig.shelf.borrow().held.iter().map(|one| one.length).collect();
    lengths.sort_unstable();
    assert_eq!((lengths.len(), lengths[0], lengths[15]), (16, 4096, LARGE));
    let done = greedy.collect();
    assert_eq!((done.len(), done[0].user_data, done[0].status()), (1, 3, Status::Corrupt));
    rig.shelf.borrow_mut().prompt = true;
    while !rig.shelf.borrow().held.is_empty() {
        rig.shelf.borrow_mut().finish(0, Status::Ok);
    }
    rig.settle();
    let done = greedy.collect();
    assert_eq!(done.len(), 15);
    for done in done {
        assert_eq!((done.status(), done.bytes), (Status::Ok, LARGE));
        assert_eq!(done.checksum, of_zeroes(LARGE));
    }
}

#[test]
fn a_read_has_the_sum_of_its_bytes_and_the_time_of_its_device() {
    let mut rig = Rig::new(8);
    let mut client = rig.client(0, 8);
    kvrail_memory::store(&*client.arena, 512, b"kv");
    let mut bytes = vec![0; LARGE as usize];
    bytes[512..514].copy_from_slice(b"kv");
    let right = checksum(CrcAlgorithm::Crc64Nvme, &bytes);
    let read =
        |user_data, flags, checksum| Request { flags, checksum, ..client.read(user_data, LARGE) };
    let reads =
        [read(1, FLAG_CHECKSUM, 0), read(2, FLAG_VERIFY, right), read(3, FLAG_VERIFY, right ^ 1)];
    client.post(&reads);
    tick(&mut rig);
    (0..3).for_each(|_| rig.shelf.borrow_mut().finish(0, Status::Ok));
    tick(&mut rig);
    rig.settle();
    let done = client.collect();
    let ends: Vec<_> = done.iter().map(|done| (done.user_data, done.status())).collect();
    assert_eq!(ends, [(1, Status::Ok), (2, Status::Ok), (3, Status::Corrupt)]);
    for done in done {
        assert_eq!((done.checksum, done.bytes), (right, LARGE));
        assert!(done.device_ns <= 3_000, "the time of {} ns is not the device's", done.device_ns);
    }
}

#[test]
fn a_session_leaves_in_the_middle_of_its_checksums() {
    let mut rig = Rig::new(64);
    let mut client = rig.client(0, 64);
    client.post(&large(&client, Opcode::Read, FLAG_CHECKSUM));
    rig.settle();
    client.post(&large(&client, Opcode::Write, FLAG_CHECKSUM));
    while !rig.shelf.borrow().held.is_empty() {
        rig.shelf.borrow_mut().finish(0, Status::Ok);
    }
    (0..20).for_each(|_| assert_eq!(tick(&mut rig), TickOutcome::Busy));
    rig.tell(Command::CloseSession(client.session));
    while !rig.shelf.borrow().held.is_empty() {
        rig.shelf.borrow_mut().finish(0, Status::Ok);
        rig.settle();
    }
    let notices = rig.notices();
    assert!(matches!(notices.last(), Some(Notice::SessionClosed(_))), "{notices:?}");
    assert_eq!(client.collect().len(), 32, "each ends once");
}
