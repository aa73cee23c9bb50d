//! Puts that are acknowledged from the memory tier and written later.

use std::collections::{HashMap, HashSet};

use kvrail_device::{Device, Events, Fault, Rule, SimOptions};
use kvrail_poller::{IN_MEMORY, PollerCommand, StoreAsk, StoreCall, StoreFound, TickOutcome};
use kvrail_ring::slot::{FLAG_DURABLE, FLAG_PENDING, FLAG_PRESENT};
use kvrail_ring::{Class, Opcode, Request, Side, Status, keys_slot};
use kvrail_store::{Cursor, Gone, Key, SpaceId, Status as Ending, check};

use super::rig::{Asked, Client, HANDLE, Rig, block, config, crc, drop_slot, keyed};

const MIB: u64 = 1 << 20;
const TIER: usize = 8 << 20;

fn rig() -> Rig {
    Rig::late(config(4096, 120 * MIB, 8 * MIB), SimOptions::default(), TIER)
}

fn key(number: u64) -> Key {
    Key::of(number, number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl Rig {
    /// Blocks of the tier that are not on the device.
    fn late_blocks(&mut self) -> u64 {
        self.pass(20_000_000); // counters are shown
        self.stats.devices[0].store.counters.serving.late_blocks.get()
    }

    fn counted(&self) -> (u64, u64, u64) {
        let serving = &self.stats.devices[0].store.counters.serving;
        (serving.late_puts.get(), serving.late_written.get(), serving.late_dropped.get())
    }

    /// Stops the poller, which writes what it has.
    fn stop(&mut self) {
        self.mailbox.send(PollerCommand::Stop).unwrap();
        for _ in 0..500_000 {
            if self.tick() == TickOutcome::Stopped {
                return;
            }
        }
        panic!("the poller never stopped");
    }

    /// The device goes at a write, and another store begins on it.
    fn lose_device(&mut self, client: &mut Client) {
        let gone = Rule::once(Fault::Error(Status::DeviceGone)).on(Opcode::Write);
        self.own.sim.borrow_mut().plan().add(gone);
        let durable = self.put_request(client, key(99), &block(99, 9000), (0, 0));
        self.ask_one(client, Request { flags: FLAG_DURABLE, ..durable });
        self.until(|rig| rig.phase() == 5);
        self.begin_anew();
    }

    fn finds(&mut self, client: &mut Client, number: u64, bytes: &[u8]) {
        let (done, got) = self.get(client, key(number), 2 << 20);
        assert_eq!((done.status(), got == bytes), (Status::Ok, true), "block {number}");
    }
}

#[test]
fn a_put_is_acknowledged_and_found_before_the_device_has_it() {
    let mut rig = rig();
    let mut client = rig.client(0);
    // The device writes nothing of a client's; a put that waited for it would never end.
    rig.own
        .sim
        .borrow_mut()
        .plan()
        .add(Rule::always(Fault::Error(Status::IoError)).on(Opcode::Write));
    let lengths = [1, 4095, 4096, 100_001, 1 << 20];
    for (number, length) in (1..).zip(lengths) {
        let put = rig.put(&mut client, key(number), &block(number, length));
        assert_eq!((put.status(), put.bytes as usize, put.flags), (Status::Ok, length, 0));
        let again = rig.put(&mut client, key(number), &block(number + 100, length));
        assert_eq!((again.status(), again.flags), (Status::Ok, FLAG_PRESENT));
        let sum =
            check(crc(&block(number, length)), 1_000, key(number), u32::try_from(length).unwrap());
        assert_eq!(again.checksum, sum, "the first one stays");
    }
    let lows: Vec<u64> = (1..=5).map(|number| key(number).lo()).collect();
    assert_eq!(rig.lookup(&mut client, 0, &lows) & 0xff, 0b11111);
    assert_eq!(rig.late_blocks(), 5);
    assert_eq!(rig.counted(), (5, 0, 0));
}

#[test]
fn a_get_that_comes_to_the_sidecar_has_its_block_written_first() {
    for logical_block in [512, 4096] {
        let mut rig =
            Rig::late(config(logical_block, 120 * MIB, 8 * MIB), SimOptions::default(), TIER);
        let mut client = rig.client(0);
        let lengths = [1, 511, 4096, 5000, 100_001, 1 << 20];
        for (number, length) in (1..).zip(lengths) {
            let put = rig.put(&mut client, key(number), &block(number, length));
            assert_eq!(put.status(), Status::Ok);
        }
        assert_eq!(rig.late_blocks(), 6);
        for (number, length) in (1..).zip(lengths) {
            rig.finds(&mut client, number, &block(number, length));
            let small = rig.get(&mut client, key(number), 0);
            assert_ne!(small.0.status(), Status::Ok);
        }
        assert_eq!((rig.late_blocks(), rig.counted()), (0, (6, 6, 0)));
    }
}

/// A get that waits for its block's write counts as what it became, once.
#[test]
fn a_get_that_waits_counts_once() {
    let mut rig = rig();
    let mut client = rig.client(0);
    let gets = |rig: &mut Rig| {
        rig.pass(20_000_000); // counters are shown
        let store = &rig.stats.devices[0].store.counters.store;
        (store.hits.get(), store.misses.get())
    };
    (1..=2).for_each(|number| {
        assert_eq!(rig.put(&mut client, key(number), &block(number, 9000)).status(), Status::Ok);
    });
    rig.finds(&mut client, 1, &block(1, 9000));
    assert_eq!(gets(&mut rig), (1, 0));
    rig.finds(&mut client, 1, &block(1, 9000));
    assert_eq!(gets(&mut rig), (2, 0));
    assert_eq!(rig.get(&mut client, key(3), 9000).0.status(), Status::Miss);
    assert_eq!(gets(&mut rig), (2, 1));
    // One for which the block has no room, and one of which the write fails.
    assert_eq!(rig.get(&mut client, key(2), 0).0.status(), Status::TooSmall);
    assert_eq!(gets(&mut rig), (2, 2));
    assert_eq!(rig.put(&mut client, key(4), &block(4, 9000)).status(), Status::Ok);
    let failing = Rule::once(Fault::Error(Status::IoError)).on(Opcode::Write);
    rig.own.sim.borrow_mut().plan().add(failing);
    assert_eq!(rig.get(&mut client, key(4), 9000).0.status(), Status::Miss);
    assert_eq!(gets(&mut rig), (2, 3));
    // One that looks at everything counts nothing.
    assert_eq!(rig.put(&mut client, key(5), &block(5, 9000)).status(), Status::Ok);
    let get = keyed(&client, key(5), (9000, 0), (1 << 20, 9)).slot(Opcode::Get);
    let get = Request { class: Class::Background as u8, ..get };
    assert_eq!(rig.ask_one(&mut client, get).status(), Status::Ok);
    assert_eq!(gets(&mut rig), (2, 3));
}

#[test]
fn a_drop_and_a_clear_take_a_late_block_away_and_a_durable_put_has_it_written() {
    let mut rig = rig();
    let mut client = rig.client(0);
    let put = |rig: &mut Rig, client: &mut Client, number: u64| {
        assert_eq!(rig.put(client, key(number), &block(number, 9000)).status(), Status::Ok);
    };
    (1..=3).for_each(|number| put(&mut rig, &mut client, number));
    let wrong = rig.ask_one(&mut client, drop_slot(Opcode::Drop, key(1), 12345));
    assert_eq!(wrong.status(), Status::Miss);
    let drop = drop_slot(Opcode::Drop, key(1), 0);
    let dropped = rig.ask_one(&mut client, drop);
    assert_eq!((dropped.status(), dropped.bytes), (Status::Ok, 9000));
    assert_eq!(rig.ask_one(&mut client, drop).status(), Status::Miss);
    assert_eq!(rig.get(&mut client, key(1), 9000).0.status(), Status::Miss);
    assert_eq!(rig.lookup(&mut client, 0, &[key(1).lo(), key(2).lo()]), 0b10);
    put(&mut rig, &mut client, 1);
    rig.finds(&mut client, 1, &block(1, 9000));
    // Whatever bytes a put has that is to be durable: what is there stays, and is found meanwhile.
    let durable = rig.put_request(&client, key(2), &block(22, 9000), (0, 0));
    let request = Request { flags: FLAG_DURABLE, ..durable };
    client.post(&Asked { request, side: None });
    let mut ends = Vec::new();
    rig.until(|rig| {
        assert!(rig.shows(key(2)), "it is there all the time");
        ends.extend(client.collect());
        !ends.is_empty()
    });
    let sum = check(crc(&block(2, 9000)), 1_000, key(2), 9000);
    let end = (ends[0].status(), ends[0].flags, ends[0].checksum);
    assert_eq!(end, (Status::Ok, FLAG_PRESENT, sum));
    rig.finds(&mut client, 2, &block(2, 9000));
    assert_eq!(rig.late_blocks(), 1);
    let (space, _) = rig.space("first");
    rig.call(StoreAsk::Clear { space, uid: 2_000 });
    let (space, _) = rig.space("first");
    rig.grant(client.session, HANDLE, space);
    assert_eq!(rig.lookup(&mut client, 0, &[key(3).lo()]), 0);
    assert_eq!(rig.get(&mut client, key(3), 9000).0.status(), Status::Miss);
}

#[test]
fn what_changes_while_a_block_is_copied_counts() {
    let mut rig = rig();
    let mut client = rig.client(0);
    rig.own.is_copier_slow = true;
    for number in 1..=3 {
        let at = (16_384 * number, u32::try_from(number).unwrap());
        let request = rig.put_request(&client, key(number), &block(number, 9000), at);
        client.post(&Asked { request, side: None });
    }
    rig.pass(1_000_000);
    assert!(client.collect().is_empty(), "nothing is copied");
    assert_eq!(rig.lookup(&mut client, 0, &[key(1).lo()]), 0, "it is not there yet");
    let twice = rig.put_request(&client, key(1), &block(1, 9000), (0, 0));
    let pending = rig.ask_one(&mut client, twice);
    assert_eq!((pending.status(), pending.flags), (Status::Ok, FLAG_PENDING));
    assert_eq!(rig.get(&mut client, key(1), 9000).0.status(), Status::Miss);
    let dropped = rig.ask_one(&mut client, drop_slot(Opcode::Drop, key(2), 0));
    assert_eq!(dropped.status(), Status::Ok, "it had begun");
    rig.own.is_copier_slow = false;
    let mut ends = Vec::new();
    rig.until(|_| {
        ends.extend(client.collect());
        ends.len() == 3
    });
    ends.sort_by_key(|end| end.user_data);
    let ends: Vec<_> = ends.iter().map(|end| end.status()).collect();
    assert_eq!(ends, [Status::Ok, Status::Declined, Status::Ok]);
    assert_eq!(rig.late_blocks(), 2);
    rig.finds(&mut client, 3, &block(3, 9000));
    assert_eq!(rig.get(&mut client, key(2), 9000).0.status(), Status::Miss);
}

#[test]
fn a_crash_forgets_late_blocks_and_a_stop_writes_them() {
    let mut rig = rig();
    let mut client = rig.client(0);
    (1..=30).for_each(|number| {
        let put = rig.put(&mut client, key(number), &block(number, 70_001));
        assert_eq!(put.status(), Status::Ok);
    });
    rig.finds(&mut client, 7, &block(7, 70_001));
    rig.pass(200_000_000);
    let mut rig = rig.restart();
    let mut client = rig.client(0);
    for number in 1..=30 {
        match number {
            7 => rig.finds(&mut client, 7, &block(7, 70_001)),
            _ => {
                let lost = rig.get(&mut client, key(number), 70_001).0;
                assert_eq!(lost.status(), Status::Miss, "block {number}");
                let put = rig.put(&mut client, key(number), &block(number, 70_001));
                assert_eq!(put.status(), Status::Ok);
            }
        }
    }
    rig.stop();
    let mut rig = rig.restart();
    let mut client = rig.client(0);
    (1..=30).for_each(|number| rig.finds(&mut client, number, &block(number, 70_001)));
}

/// The device fails a write of a stop: what was acknowledged and is lost is named.
#[test]
fn a_stop_names_the_blocks_that_it_could_not_write() {
    let mut rig = rig();
    let mut client = rig.client(0);
    (1..=20).for_each(|number| {
        let put = rig.put(&mut client, key(number), &block(number, 70_001));
        assert_eq!(put.status(), Status::Ok);
    });
    // While it serves, what is not written is no loss of a stop.
    let failing = || Rule::once(Fault::Error(Status::IoError)).on(Opcode::Write);
    rig.own.sim.borrow_mut().plan().add(failing());
    let get = keyed(&client, key(1), (70_001, 0), (1 << 20, 9)).slot(Opcode::Get);
    assert_eq!(rig.ask_one(&mut client, get).status(), Status::Miss);
    rig.pass(2_000_000_000); // writes are tried again
    assert_eq!(rig.counted().2, 1);
    assert!(rig.mailbox.next_loss().is_none());
    rig.own.sim.borrow_mut().plan().add(failing());
    rig.stop();
    let losses: Vec<_> = std::iter::from_fn(|| rig.mailbox.next_loss()).collect();
    let blocks: u64 = losses.iter().map(|loss| loss.blocks).sum();
    assert!(blocks > 0 && losses.iter().all(|loss| loss.namespace() == b"first"), "{losses:?}");
    assert!(losses.iter().any(|loss| loss.why == Ending::Failed(Status::IoError.number())));
    assert_eq!(losses.iter().map(|loss| loss.bytes).sum::<u64>(), blocks * 70_001);
    let mut rig = rig.restart();
    let mut client = rig.client(0);
    let there = (2..=20).filter(|number| {
        let (done, _) = rig.get(&mut client, key(*number), 70_001);
        done.status() == Status::Ok
    });
    assert_eq!(there.count() as u64, 19 - blocks, "all others are found again");
}

/// The device goes at a write of a stop: what it takes with it is named, written or not begun.
#[test]
fn a_stop_names_the_blocks_that_go_with_a_device() {
    let mut rig = rig();
    let mut client = rig.client(0);
    (1..=100).for_each(|number| {
        let put = rig.put(&mut client, key(number), &block(number, 9000));
        assert_eq!(put.status(), Status::Ok);
    });
    let gone = Rule::once(Fault::Error(Status::DeviceGone)).on(Opcode::Write);
    rig.own.sim.borrow_mut().plan().add(gone);
    rig.stop();
    let losses: Vec<_> = std::iter::from_fn(|| rig.mailbox.next_loss()).collect();
    let blocks: u64 = losses.iter().map(|loss| loss.blocks).sum();
    rig.late_blocks(); // counters are shown
    let (puts, written, _) = rig.counted();
    assert_eq!((puts, blocks), (100, 100 - written), "{losses:?}");
    let why = Ending::Failed(Status::DeviceGone.number());
    assert!(blocks > 50 && losses.iter().all(|loss| loss.why == why), "{losses:?}");
    assert_eq!(losses.iter().map(|loss| loss.bytes).sum::<u64>(), blocks * 9000);
}

/// Blocks of a namespace that was cleared are not to be written, and so not lost.
#[test]
fn a_stop_after_a_clear_loses_nothing() {
    for is_gone in [false, true] {
        let mut rig = rig();
        let mut client = rig.client(0);
        (1..=20).for_each(|number| {
            let put = rig.put(&mut client, key(number), &block(number, 9000));
            assert_eq!(put.status(), Status::Ok);
        });
        let (space, _) = rig.space("first");
        rig.call(StoreAsk::Clear { space, uid: 2_000 });
        assert!(rig.late_blocks() > 0, "the tier does not look through all at a clear");
        if is_gone {
            let gone = Rule::always(Fault::Error(Status::DeviceGone)).on(Opcode::Write);
            rig.own.sim.borrow_mut().plan().add(gone);
        }
        rig.stop();
        let losses: Vec<_> = std::iter::from_fn(|| rig.mailbox.next_loss()).collect();
        assert!(losses.is_empty(), "{losses:?}");
    }
}

#[test]
fn puts_that_outrun_the_tier_are_written_at_once_and_none_is_lost_unseen() {
    let mut rig = rig();
    let mut client = rig.client(0);
    for number in 1..=600 {
        let put = rig.put(&mut client, key(number), &block(number, 60_000));
        assert_eq!(put.status(), Status::Ok, "{number}");
    }
    let (puts, written, dropped) = rig.counted();
    assert!(puts > 100, "{puts} puts were late");
    let late = rig.late_blocks();
    let (mut found, mut missed) = (0, 0);
    for number in 1..=600 {
        let (done, got) = rig.get(&mut client, key(number), 60_000);
        match done.status() {
            Status::Ok => {
                assert!(got == block(number, 60_000), "block {number}");
                found += 1;
            }
            Status::Miss => missed += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!(found + missed, 600);
    let (_, _, dropped_since) = rig.counted();
    assert_eq!(missed, dropped_since, "what is missing was dropped, and counted");
    assert!(dropped <= dropped_since && written + late > 0);
}

/// There are four of them for each block of the store's mean length, and none leaves for its pages.
#[test]
fn short_blocks_are_late_as_long_as_the_directory_has_entries() {
    const PUTS: u64 = 3000;
    let mut rig = rig();
    let mut client = rig.client(0);
    let mut at = Vec::new();
    for number in 1..=PUTS {
        let put = rig.put(&mut client, key(number), &block(number, 4000));
        assert_eq!(put.status(), Status::Ok, "{number}");
        if number % 500 == 0 {
            rig.pass(20_000_000); // counters are shown
            at.push(rig.counted().0);
        }
    }
    let refused = rig.stats.devices[0].store.counters.serving.tier_refused.get();
    assert_eq!(at[5] + refused, PUTS, "what is not late is counted");
    assert!(at[0] >= 450, "nearly all of the first 500: {at:?}");
    assert!(at.is_sorted_by(|one, next| one + 100 < *next), "late writing goes on: {at:?}");
}

#[test]
fn metadata_and_the_place_in_a_chain_go_to_the_device_with_a_late_block() {
    let mut rig = rig();
    let mut client = rig.client(0);
    let side = Some(Side { block_bytes: 8192, metadata: b"an engine's key", ..Side::default() });
    let request = rig.put_request(&client, key(1), &block(1, 8192), (0, 0));
    assert_eq!(rig.ask(&mut client, &[Asked { request, side }])[0].status(), Status::Ok);
    assert_eq!(rig.late_blocks(), 1);
    let (space, _) = rig.space("first");
    let StoreFound::Key { memory_age_s, .. } =
        rig.call(StoreAsk::Explain { space, key: key(1) }).found
    else {
        panic!("a key is explained")
    };
    assert_eq!(memory_age_s, Some(0));
    rig.finds(&mut client, 1, &block(1, 8192));
    rig.pass(100_000_000); // its record is written
    let call = rig.call_with(StoreCall::new(0, StoreAsk::List { space, from: Cursor::default() }));
    let StoreFound::Blocks(rows) = &call.found else { panic!("{call:?}") };
    let rows: Vec<_> = rows.iter().map(|(row, metadata)| (row.key, metadata.to_vec())).collect();
    assert_eq!(rows, [(key(1), b"an engine's key".to_vec())]);
}

/// All keys of a namespace, each with its place, in pages.
fn listed(rig: &mut Rig, space: SpaceId) -> Vec<(Key, u64, Vec<u8>)> {
    let (mut all, mut next) = (Vec::new(), Some(Cursor::default()));
    while let Some(from) = next {
        let call = rig.call_with(StoreCall::new(0, StoreAsk::List { space, from }));
        let StoreFound::Blocks(rows) = &call.found else { panic!("{call:?}") };
        all.extend(rows.iter().map(|(row, metadata)| {
            assert!(row.length == 8192 && row.check != 0);
            (row.key, row.offset, metadata.to_vec())
        }));
        next = rows.next;
    }
    all
}

/// A listing has each block once while nothing changes, wherever it is, and none of others.
#[test]
fn a_listing_has_what_is_in_memory_and_what_is_written() {
    // Its directory has several pages.
    let options = SimOptions::default();
    let mut rig = Rig::late(config(4096, 120 * MIB, 8 * MIB), options, 8 * TIER);
    let mut client = rig.client(0);
    assert_eq!(rig.make_space("second", 2_000), Ending::Ok);
    let (space, _) = rig.space("first");
    let (second, _) = rig.space("second");
    assert!(listed(&mut rig, space).is_empty());
    let metadata = |number: u64| vec![7_u8; usize::try_from(number * 5 % 1025).unwrap()];
    for number in 1..=300 {
        let words = metadata(number);
        let side = Some(Side { block_bytes: 8192, metadata: &words, ..Side::default() });
        let request = rig.put_request(&client, key(number), &block(number, 8192), (0, 0));
        assert_eq!(rig.ask(&mut client, &[Asked { request, side }])[0].status(), Status::Ok);
    }
    (1..=100).for_each(|number| rig.finds(&mut client, number, &block(number, 8192)));
    assert_eq!(rig.late_blocks(), 200);
    rig.pass(100_000_000); // records are written
    let mut all = listed(&mut rig, space);
    all.sort_unstable_by_key(|(key, ..)| key.hi());
    assert_eq!(all.len(), 300);
    for (number, (found, offset, words)) in (1..).zip(all) {
        assert_eq!((found, words), (key(number), metadata(number)));
        assert_eq!(offset == IN_MEMORY, number > 100, "block {number}");
    }
    assert!(listed(&mut rig, second).is_empty());
}

/// Blocks in memory hide no clear: its reader is not to take a page without blocks for the end.
#[test]
fn a_listing_of_a_namespace_that_was_cleared_fails() {
    let mut rig = rig();
    let mut client = rig.client(0);
    (1..=5).for_each(|number| {
        assert_eq!(rig.put(&mut client, key(number), &block(number, 9000)).status(), Status::Ok);
    });
    let (space, _) = rig.space("first");
    rig.call(StoreAsk::Clear { space, uid: 2_000 });
    assert!(rig.late_blocks() > 0, "memory has them for now");
    let list = StoreAsk::List { space, from: Cursor::default() };
    let call = rig.call_with(StoreCall::new(0, list));
    assert!(matches!(call.status, Ending::Invalid(_)), "{call:?}");
}

#[test]
fn a_device_that_goes_ends_what_is_copied_and_what_waits_for_a_write() {
    let mut rig = rig();
    let mut client = rig.client(0);
    for number in 1..=4 {
        assert_eq!(rig.put(&mut client, key(number), &block(number, 9000)).status(), Status::Ok);
    }
    rig.own.is_copier_slow = true;
    let copying = rig.put_request(&client, key(9), &block(9, 9000), (0, 0));
    client.post(&Asked { request: copying, side: None });
    let gone = Rule::once(Fault::Error(Status::DeviceGone)).on(Opcode::Write);
    rig.own.sim.borrow_mut().plan().add(gone);
    let get = keyed(&client, key(1), (9000, 0), (32 << 20, 3)).slot(Opcode::Get);
    client.post(&Asked { request: get, side: None });
    rig.pass(5_000_000);
    rig.own.is_copier_slow = false;
    let mut ends = Vec::new();
    rig.until(|_| {
        ends.extend(client.collect());
        ends.len() == 2
    });
    ends.sort_by_key(|end| end.user_data);
    let [put, get] = [0, 1].map(|at| ends[at].status());
    assert_eq!(put, Status::DeviceGone);
    assert!(matches!(get, Status::DeviceGone | Status::Miss), "{get}");
    rig.until(|rig| rig.phase() == 5);
    rig.begin_anew();
    let lookup = rig.lookup(&mut client, 0, &[key(1).lo(), key(4).lo(), key(9).lo()]);
    assert_eq!(lookup, 0, "what was not written is lost");
    assert_eq!(rig.put(&mut client, key(1), &block(11, 9000)).status(), Status::Ok);
    rig.finds(&mut client, 1, &block(11, 9000));
}

/// What a device takes with it is in the feed, row for row, and waits to be written no more.
#[test]
fn late_blocks_of_a_device_that_goes_are_in_the_feed_and_in_no_gauge() {
    // Its directory is cleared in several steps.
    let mut rig = Rig::late(config(4096, 120 * MIB, 8 * MIB), SimOptions::default(), 4 * TIER);
    rig.mailbox.lend_batches();
    let mut client = rig.client(0);
    let mut left: HashSet<_> = (1..=300).map(key).collect();
    for number in 1..=300 {
        assert_eq!(rig.put(&mut client, key(number), &block(number, 9000)).status(), Status::Ok);
    }
    assert_eq!(rig.late_blocks(), 300);
    let gone = Rule::once(Fault::Error(Status::DeviceGone)).on(Opcode::Write);
    rig.own.sim.borrow_mut().plan().add(gone);
    let get = keyed(&client, key(7), (9000, 0), (32 << 20, 3)).slot(Opcode::Get);
    rig.ask_one(&mut client, get);
    for _ in 0..10_000 {
        rig.tick();
        while let Some(batch) = rig.mailbox.next_gone() {
            for (row, _) in batch.iter() {
                assert_eq!((row.uid, row.length, row.why), (1_000, 9000, Gone::Evicted));
                assert!(left.remove(&row.key), "each block goes once");
            }
            assert_eq!(batch.lost, 0);
            rig.mailbox.return_batch(batch);
        }
    }
    assert_eq!(left.len(), 0, "all of them are gone");
    assert_eq!((rig.late_blocks(), rig.counted()), (0, (300, 0, 300)));
    let serving = &rig.stats.devices[0].store.counters.serving;
    assert_eq!(serving.late_bytes.get(), 0);
    assert_eq!(serving.late_dropped_bytes.get(), 300 * 12_288);
    rig.begin_anew();
    assert_eq!(rig.put(&mut client, key(1), &block(11, 9000)).status(), Status::Ok);
    rig.finds(&mut client, 1, &block(11, 9000));
    assert_eq!(rig.counted().2, 300, "and once");
}

/// Requests beside each other: what one of them does to a block must not cost another its end.
#[test]
fn what_happens_to_a_block_that_others_wait_for_ends_them_too() {
    let mut rig = rig();
    let mut client = rig.client(0);
    let other = |number: u64| (16_384 * number, u32::try_from(number).unwrap());
    // A report of a block that is being copied.
    let put = rig.put_request(&client, key(1), &block(1, 9000), other(1));
    let report = drop_slot(Opcode::Suspect, key(1), put.checksum);
    let asked = [put, report].map(|request| Asked { request, side: None });
    let ends = rig.ask(&mut client, &asked);
    assert_eq!(ends[0].status(), Status::Ok);
    assert_eq!(ends[1].status(), Status::Miss, "nothing is there to be wrong");
    assert_eq!(rig.late_blocks(), 1);
    // A get waits for the write, and the block goes by another way.
    let get = keyed(&client, key(1), (9000, 0), other(12)).slot(Opcode::Get);
    let durable = rig.put_request(&client, key(1), &block(2, 9000), other(2));
    let takes_away =
        [drop_slot(Opcode::Drop, key(1), 0), Request { flags: FLAG_DURABLE, ..durable }];
    for taken in takes_away {
        let asked = [get, taken].map(|request| Asked { request, side: None });
        let ends = rig.ask(&mut client, &asked);
        assert!(matches!(ends[0].status(), Status::Ok | Status::Miss), "{ends:?}");
        assert_eq!(ends[1].status(), Status::Ok, "{ends:?}");
        rig.ask_one(&mut client, drop_slot(Opcode::Drop, key(1), 0));
        assert_eq!(rig.put(&mut client, key(1), &block(1, 9000)).status(), Status::Ok);
    }
    rig.finds(&mut client, 1, &block(1, 9000));
    rig.stop();
}

/// A block that is being written is there, and can be dropped: by its check too, as a client does
/// that replaces it.
#[test]
fn a_block_that_is_being_written_is_present_and_dropped_for_good() {
    let options = SimOptions { latency_ns: 20_000_000, ..SimOptions::default() };
    let mut rig = Rig::late(config(4096, 120 * MIB, 8 * MIB), options, TIER);
    let mut client = rig.client(0);
    let sum = |version: u64| check(crc(&block(version, 9000)), 1_000, key(1), 9000);
    for version in 1..=3 {
        let put = rig.put(&mut client, key(1), &block(version, 9000));
        assert_eq!((put.status(), put.flags), (Status::Ok, 0));
        let get = keyed(&client, key(1), (9000, 0), (1 << 20, 9)).slot(Opcode::Get);
        client.post(&Asked { request: get, side: None });
        rig.pass(5_000_000); // its write is under way
        let again = rig.put_request(&client, key(1), &block(9, 9000), (2 << 20, 8));
        let only = drop_slot(Opcode::Drop, key(1), sum(version));
        let asked = [again, only].map(|request| Asked { request, side: None });
        asked.iter().for_each(|one| client.post(one));
        let mut ends = Vec::new();
        rig.until(|_| {
            ends.extend(client.collect());
            ends.len() == 3
        });
        ends.sort_by_key(|end| end.user_data);
        let [got, present, dropped] = [0, 1, 2].map(|at| ends[at]);
        assert!(matches!(got.status(), Status::Ok | Status::Miss), "{got:?}");
        assert_eq!((present.flags, present.checksum), (FLAG_PRESENT, sum(version)));
        assert_eq!(dropped.status(), Status::Ok);
        rig.pass(200_000_000);
        assert_eq!(rig.get(&mut client, key(1), 9000).0.status(), Status::Miss);
    }
    rig.stop();
    let mut rig = rig.restart();
    let mut client = rig.client(0);
    assert_eq!(rig.get(&mut client, key(1), 9000).0.status(), Status::Miss);
}

/// A put that is to be durable, of a key that the sidecar is just writing, or has just written:
/// it is answered when a crash would not lose the block.
#[test]
fn a_durable_put_of_a_block_that_is_being_written_waits_for_it() {
    let options = SimOptions { latency_ns: 20_000_000, ..SimOptions::default() };
    for after_ns in [0, 5_000_000, 25_000_000, 45_000_000] {
        let mut rig = Rig::late(config(4096, 120 * MIB, 8 * MIB), options.clone(), TIER);
        let mut client = rig.client(0);
        let put = rig.put(&mut client, key(1), &block(1, 9000));
        assert_eq!((put.status(), put.flags), (Status::Ok, 0));
        let get = keyed(&client, key(1), (9000, 0), (1 << 20, 9)).slot(Opcode::Get);
        client.post(&Asked { request: get, side: None });
        rig.pass(after_ns); // its write is under way, or ends
        let again = rig.put_request(&client, key(1), &block(1, 9000), (2 << 20, 8));
        let again = Request { flags: FLAG_DURABLE, ..again };
        client.post(&Asked { request: again, side: None });
        let mut ends = Vec::new();
        rig.until(|_| {
            ends.extend(client.collect());
            ends.len() == 2
        });
        ends.sort_by_key(|end| end.user_data);
        let durable = ends[1];
        assert_eq!(durable.status(), Status::Ok, "{after_ns}: {durable:?}");
        assert_ne!(durable.flags, FLAG_PENDING, "{after_ns}");
        rig.clock.advance(100_000_000);
        // What is at the device ends there; nothing more is begun.
        while rig.own.sim.borrow().in_flight() > 0 {
            rig.own.sim.borrow_mut().reap(&mut Events::new());
        }
        let mut rig = rig.restart();
        let mut client = rig.client(0);
        rig.finds(&mut client, 1, &block(1, 9000));
    }
}

/// It waits in its session's line, and is tried again with each turn: that counts nothing.
#[test]
fn a_durable_put_that_waits_for_a_late_write_is_no_pending_one() {
    let options = SimOptions { latency_ns: 20_000_000, ..SimOptions::default() };
    let mut rig = Rig::late(config(4096, 120 * MIB, 8 * MIB), options, TIER);
    let mut client = rig.client(0);
    assert_eq!(rig.put(&mut client, key(1), &block(1, 9000)).status(), Status::Ok);
    let get = keyed(&client, key(1), (9000, 0), (1 << 20, 9)).slot(Opcode::Get);
    client.post(&Asked { request: get, side: None });
    rig.pass(5_000_000); // its write is under way
    let durable = rig.put_request(&client, key(1), &block(1, 9000), (2 << 20, 8));
    let request = Request { flags: FLAG_DURABLE, ..durable };
    client.post(&Asked { request, side: None });
    let mut ends = 0;
    rig.until(|_| {
        ends += client.collect().len();
        ends == 2
    });
    rig.pass(20_000_000); // counters are shown
    let counted = &rig.stats.devices[0].store.counters.store;
    let counted = [&counted.pending, &counted.present, &counted.declined];
    assert_eq!(counted.map(|counter| counter.get()), [0, 1, 0]);
}

#[test]
fn a_report_of_a_late_block_drops_nothing_unread() {
    let mut rig = rig();
    let mut client = rig.client(0);
    let put = rig.put_request(&client, key(1), &block(1, 9000), (0, 0));
    assert_eq!(rig.ask_one(&mut client, put).status(), Status::Ok);
    let wrong = drop_slot(Opcode::Suspect, key(1), put.checksum ^ 1);
    assert_eq!(rig.ask_one(&mut client, wrong).status(), Status::Miss, "of another block");
    assert_eq!(rig.late_blocks(), 1);
    let report = drop_slot(Opcode::Suspect, key(1), put.checksum);
    assert_eq!(rig.ask_one(&mut client, report).status(), Status::Ok);
    assert_eq!(rig.late_blocks(), 0, "it is written, so that it can be looked at");
    rig.finds(&mut client, 1, &block(1, 9000));
}

/// More blocks are to be written than can be at once, and the device goes.
#[test]
fn a_device_that_goes_takes_all_that_is_queued_with_it() {
    let options = SimOptions { latency_ns: 5_000_000, ..SimOptions::default() };
    // Its directory is cleared in several steps.
    let mut rig = Rig::late(config(4096, 120 * MIB, 8 * MIB), options, 4 * TIER);
    let mut client = rig.client(0);
    for number in 1..=600 {
        assert_eq!(rig.put(&mut client, key(number), &block(number, 28_000)).status(), Status::Ok);
    }
    let gone = Rule::once(Fault::Error(Status::DeviceGone)).on(Opcode::Write);
    rig.own.sim.borrow_mut().plan().add(gone);
    let get = keyed(&client, key(600), (28_000, 0), (0, 0)).slot(Opcode::Get);
    rig.ask_one(&mut client, get);
    rig.until(|rig| rig.phase() == 5);
    rig.begin_anew();
    for number in 1..=600 {
        let (done, got) = rig.get(&mut client, key(number), 28_000);
        let right = done.status() == Status::Miss || got == block(number, 28_000);
        assert!(right, "block {number}: {done:?}");
    }
    assert_eq!(rig.put(&mut client, key(200), &block(200, 9000)).status(), Status::Ok);
    rig.finds(&mut client, 200, &block(200, 9000));
    rig.stop();
}

/// Batches of requests beside each other, with a copier that stands still now and then, and devices
/// that go: all end, no block has bytes that were not put, and what is shown is there.
#[test]
fn many_requests_beside_each_other_all_end() {
    'seeds: for seed in 0..8 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut rig = rig();
        let mut client = rig.client(0);
        let length = |number: u64| usize::try_from(5_000 + number * 1_001).unwrap();
        let mut versions: HashMap<u64, Vec<u64>> = HashMap::new();
        for round in 0..150_u64 {
            let mut asked = Vec::new();
            for slot in 0..random.u64(2..16) {
                let number = random.u64(1..30);
                let place = (65_536 * slot, u32::try_from(slot).unwrap());
                let bytes = u32::try_from(length(number)).unwrap();
                let version = number << 32 | round << 8 | slot;
                let request = match random.u8(..10) {
                    0..5 => {
                        versions.entry(number).or_default().push(version);
                        let bytes = block(version, length(number));
                        let put = rig.put_request(&client, key(number), &bytes, place);
                        let flags = if random.u8(..8) == 0 { FLAG_DURABLE } else { 0 };
                        Request { flags, ..put }
                    }
                    5..8 => keyed(&client, key(number), (bytes, 0), place).slot(Opcode::Get),
                    8 => drop_slot(Opcode::Drop, key(number), 0),
                    _ => {
                        let version = versions.get(&number).map_or(0, |all| all[all.len() - 1]);
                        let sum = crc(&block(version, length(number)));
                        let sum = check(sum, 1_000, key(number), bytes);
                        drop_slot(Opcode::Suspect, key(number), sum)
                    }
                };
                asked.push((number, place, Asked { request, side: None }));
            }
            rig.own.is_copier_slow = random.bool();
            asked.iter().for_each(|(.., one)| client.post(one));
            rig.pass(random.u64(..200_000));
            rig.own.is_copier_slow = false;
            let mut ends = Vec::new();
            rig.until(|_| {
                ends.extend(client.collect());
                ends.len() == asked.len()
            });
            ends.sort_by_key(|end| end.user_data);
            for (end, (number, place, one)) in ends.iter().zip(&asked) {
                if one.request.opcode == Opcode::Get as u8 && end.status() == Status::Ok {
                    let got = rig.bytes(&client, *place, end.bytes);
                    let all = versions.get(number).map_or(&[][..], |all| all);
                    let known = |version: &u64| got == block(*version, length(*number));
                    assert!(all.iter().rev().any(known), "seed {seed}, block {number}");
                }
            }
            if random.u16(..600) == 0 {
                rig.lose_device(&mut client);
                continue 'seeds; // its table is another one
            }
        }
        for number in 1..30 {
            let found = rig.lookup(&mut client, 0, &[key(number).lo()]) & 1 == 1;
            assert_eq!(rig.shows(key(number)), found, "seed {seed}, block {number}");
        }
        for number in 1..30 {
            rig.ask_one(&mut client, drop_slot(Opcode::Drop, key(number), 0));
            assert!(!rig.shows(key(number)), "seed {seed}: nothing is left of block {number}");
        }
        rig.stop();
    }
}

/// Checks of versions of a block.
fn checks(versions: &[u64], number: u64, length: usize) -> Vec<u64> {
    let bytes = u32::try_from(length).unwrap();
    let of = |version: &u64| check(crc(&block(*version, length)), 1_000, key(number), bytes);
    versions.iter().map(of).collect()
}

/// Whatever happens in whatever order, on a device that fails now and then: a block is what was
/// put last, or a miss; and every request ends once.
#[test]
fn a_late_block_is_what_was_put_or_a_miss() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut rig = rig();
        let mut client = rig.client(0);
        // What each block may be: what was put last, and puts since that were declined.
        let mut model: HashMap<u64, Vec<u64>> = HashMap::new();
        for round in 0..600_u64 {
            let number = random.u64(1..60);
            let length = usize::try_from(20_000 + number * 3_001).unwrap();
            match random.u8(..12) {
                0..5 => {
                    let version = number << 32 | round;
                    let bytes = block(version, length);
                    let request = rig.put_request(&client, key(number), &bytes, (0, 0));
                    let flags = if random.u8(..8) == 0 { FLAG_DURABLE } else { 0 };
                    let put = rig.ask_one(&mut client, Request { flags, ..request });
                    match (put.status(), put.flags) {
                        (Status::Ok, 0) => {
                            model.insert(number, vec![version]);
                        }
                        (Status::Ok, FLAG_PRESENT) => {
                            let there = model.get(&number).expect("something is there");
                            assert!(checks(there, number, length).contains(&put.checksum));
                        }
                        (Status::Declined | Status::IoError, _) => {
                            model.entry(number).or_default().push(version);
                        }
                        other => panic!("{other:?}"),
                    }
                }
                5..9 => {
                    let (done, got) = rig.get(&mut client, key(number), 1 << 20);
                    match done.status() {
                        Status::Ok => {
                            let there = model.get(&number).expect("it was put");
                            let is_it = |version: &u64| got == block(*version, length);
                            assert!(there.iter().any(is_it), "seed {seed}, block {number}");
                        }
                        Status::Miss | Status::IoError => {}
                        other => panic!("{other}"),
                    }
                }
                9 => {
                    let drop = drop_slot(Opcode::Drop, key(number), 0);
                    let done = rig.ask_one(&mut client, drop);
                    if done.status() == Status::Declined {
                        continue; // the device refuses writes
                    }
                    assert!(matches!(done.status(), Status::Ok | Status::Miss), "{done:?}");
                    model.remove(&number);
                    let found = rig.lookup(&mut client, 0, &[key(number).lo()]);
                    assert_eq!(found, 0, "seed {seed}, block {number}");
                }
                10 => {
                    let lows = [key(number).lo(), key(number + 1).lo()];
                    let done =
                        rig.ask_one(&mut client, keys_slot(Opcode::Lookup, HANDLE, 0, &lows));
                    for (bit, number) in (0..).zip([number, number + 1]) {
                        let found = done.bytes >> bit & 1 == 1;
                        assert!(!found || model.contains_key(&number), "seed {seed}, {number}");
                    }
                }
                _ => {
                    let failing = Rule::once(Fault::Error(Status::IoError)).on(Opcode::Write);
                    rig.own.sim.borrow_mut().plan().add(failing);
                }
            }
        }
        rig.stop();
    }
}
