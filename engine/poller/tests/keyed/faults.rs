//! Devices that fail, go, and come back; blocks that readers report.

use kvrail_device::{Device, Fault, Rule, SimOptions};
use kvrail_poller::{Counter, Notice, PollerCommand, StoreAsk, StoreCall};
use kvrail_ring::slot::{FLAG_PRESENT, FLAG_TOUCH};
use kvrail_ring::{Opcode, Request, Status, keys_slot};
use kvrail_store::{Budget, Cursor, Key, Status as Ending, Store, StoreConfig, check};

use super::rig::{Asked, HANDLE, Rig, block, config, crc, drop_slot, keyed, open};

#[test]
fn an_error_of_body_or_tail_fails_the_request_and_leaves_no_block() {
    for (skip, length) in [(0, 10_000), (1, 10_000), (0, 100), (0, 8192)] {
        let mut rig = Rig::new(4096);
        let mut client = rig.client(0);
        let key = Key::of(1, 1);
        let failing = Rule::once(Fault::Error(Status::IoError)).on(Opcode::Write).after(skip);
        rig.own.sim.borrow_mut().plan().add(failing);
        let put = rig.put(&mut client, key, &block(1, length));
        assert_eq!(put.status(), Status::IoError, "{skip} {length}");
        assert_eq!(rig.lookup(&mut client, 0, &[1]), 0);
        assert_eq!(rig.put(&mut client, key, &block(1, length)).status(), Status::Ok);
        let failing = Rule::once(Fault::Error(Status::IoError)).on(Opcode::Read).after(skip);
        rig.own.sim.borrow_mut().plan().add(failing);
        let failed = rig.get(&mut client, key, 10_000).0;
        let end = (failed.status(), failed.bytes, failed.checksum);
        assert_eq!(end, (Status::IoError, 0, 0));
        assert_eq!(rig.get(&mut client, key, 10_000).1, block(1, length));
    }
}

#[test]
fn a_reported_block_is_looked_at_before_it_goes() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    let (right, wrong) = (Key::of(1, 1), Key::of(2, 2));
    let bytes = block(1, 300_001);
    let sum = |key| check(crc(&bytes), 1_000, key, 300_001);
    assert_eq!(rig.put(&mut client, right, &bytes).status(), Status::Ok);
    let corrupt = Rule::once(Fault::Corrupt).on(Opcode::Write);
    rig.own.sim.borrow_mut().plan().add(corrupt);
    assert_eq!(rig.put(&mut client, wrong, &bytes).status(), Status::Ok);
    for key in [right, wrong] {
        let report = drop_slot(Opcode::Suspect, key, sum(key));
        assert_eq!(rig.ask_one(&mut client, report).status(), Status::Ok);
        let other = drop_slot(Opcode::Suspect, key, sum(key) ^ 1);
        assert_eq!(rig.ask_one(&mut client, other).status(), Status::Miss);
    }
    rig.pass(20_000_000);
    assert_eq!(rig.lookup(&mut client, 0, &[1, 2]), 0b01);
    let store = &rig.stats.devices[0].store.counters;
    let [good, corrupt] = [&store.serving.verified_good, &store.serving.corrupt].map(Counter::get);
    assert_eq!((good, corrupt, store.store.suspects.get()), (1, 1, 2));
    assert_eq!(rig.stats.sessions[0].false_reports.get(), 1);
    // The log gets to know which one, and where it lay.
    let told = rig.mailbox.next_corrupt().expect("it is told");
    assert_eq!((told.device, told.key), (0, wrong));
    assert!(
        !told.namespace().is_empty() && told.offset >= 1 << 20 && told.offset.is_multiple_of(512)
    );
    assert_eq!(rig.mailbox.next_corrupt(), None);
}

/// A reader drops nothing: neither by a key that differs where an entry of the index has no room
/// for it, nor by that of a block which really is wrong.
#[test]
fn reports_of_who_may_not_write_are_counted_and_those_of_another_key_find_nothing() {
    let mut rig = Rig::new(512);
    let (mut writer, mut reader) = (rig.client(0), rig.client(1));
    let (space, _) = rig.space("first");
    assert_eq!(rig.grant_reading(reader.session, HANDLE, space), Ending::Ok);
    let (right, wrong, bytes) = (Key::of(1, 1), Key::of(2, 2), block(1, 30_001));
    let sum = |key| check(crc(&bytes), 1_000, key, 30_001);
    assert_eq!(rig.put(&mut writer, right, &bytes).status(), Status::Ok);
    rig.own.sim.borrow_mut().plan().add(Rule::once(Fault::Corrupt).on(Opcode::Write));
    assert_eq!(rig.put(&mut writer, wrong, &bytes).status(), Status::Ok);
    for bit in 40..64 {
        let twin = Key::of(1 ^ 1 << bit, 1);
        let report = drop_slot(Opcode::Suspect, twin, sum(right));
        assert_eq!(rig.ask_one(&mut writer, report).status(), Status::Miss);
        assert_eq!(rig.ask_one(&mut reader, report).status(), Status::Ok);
        assert_eq!(rig.get(&mut writer, twin, 32_768).0.status(), Status::Miss);
    }
    let report = drop_slot(Opcode::Suspect, wrong, sum(wrong));
    assert_eq!(rig.ask_one(&mut reader, report).status(), Status::Ok);
    rig.pass(20_000_000);
    assert_eq!(rig.lookup(&mut writer, 0, &[1, 2]), 0b11);
    let store = &rig.stats.devices[0].store.counters;
    let [ignored, corrupt] = [&store.serving.ignored, &store.serving.corrupt].map(Counter::get);
    assert_eq!((ignored, store.store.suspects.get(), corrupt), (25, 0, 0));
    assert_eq!(rig.mailbox.next_corrupt(), None);
    assert_eq!(rig.ask_one(&mut writer, report).status(), Status::Ok);
    rig.pass(20_000_000);
    assert_eq!(rig.lookup(&mut writer, 0, &[1, 2]), 0b01);
}

/// From the report on, so that an engine stores anew what it has computed; a block that is right is
/// found again.
#[test]
fn a_reported_block_is_not_found_until_the_sidecar_has_read_it() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    let (right, wrong, bytes) = (Key::of(1, 1), Key::of(2, 2), block(1, 30_001));
    let sum = |key| check(crc(&bytes), 1_000, key, 30_001);
    assert_eq!(rig.put(&mut client, right, &bytes).status(), Status::Ok);
    rig.own.sim.borrow_mut().plan().add(Rule::once(Fault::Corrupt).on(Opcode::Write));
    assert_eq!(rig.put(&mut client, wrong, &bytes).status(), Status::Ok);
    assert_eq!(rig.lookup(&mut client, 0, &[1, 2, 3]), 0b11);
    rig.own.sim.borrow_mut().plan().add(Rule::once(Fault::Hang).on(Opcode::Read));
    for key in [right, wrong] {
        let report = drop_slot(Opcode::Suspect, key, sum(key));
        assert_eq!(rig.ask_one(&mut client, report).status(), Status::Ok);
    }
    rig.pass(20_000_000);
    assert_eq!(rig.lookup(&mut client, 0, &[1, 2, 3]), 0, "nobody knows yet");
    let sim = rig.own.sim.borrow().control();
    sim.release();
    rig.pass(20_000_000);
    assert_eq!(rig.lookup(&mut client, 0, &[1, 2, 3]), 0b01, "one was right");
}

/// What an engine has computed instead of a reported block is there at once, and stays: it is not
/// PRESENT for a block that goes a moment later, and the look at that one leaves it alone.
#[test]
fn a_reported_block_is_replaced_by_a_put_while_the_sidecar_reads_it() {
    for (read, drops) in [(0, false), (2, false), (0, true), (2, true)] {
        let mut rig = Rig::new(512);
        let mut client = rig.client(0);
        let (key, bytes) = (Key::of(1, 1), block(1, 300_001));
        rig.own.sim.borrow_mut().plan().add(Rule::once(Fault::Corrupt).on(Opcode::Write));
        assert_eq!(rig.put(&mut client, key, &bytes).status(), Status::Ok);
        let hang = Rule::once(Fault::Hang).on(Opcode::Read).after(read);
        rig.own.sim.borrow_mut().plan().add(hang);
        let sum = check(crc(&bytes), 1_000, key, 300_001);
        let report = drop_slot(Opcode::Suspect, key, sum);
        assert_eq!(rig.ask_one(&mut client, report).status(), Status::Ok);
        let sim = rig.own.sim.borrow().control();
        rig.until(|_| sim.hung() > 0);
        if drops {
            let drop = drop_slot(Opcode::Drop, key, sum);
            assert_eq!(rig.ask_one(&mut client, drop).status(), Status::Ok);
        }
        let put = rig.put(&mut client, key, &bytes);
        assert_eq!((put.status(), put.flags & FLAG_PRESENT), (Status::Ok, 0));
        assert_eq!(rig.lookup(&mut client, 0, &[1]), 0b1, "{read} {drops}");
        // The new one is reported while the old one is still read, and replaced, too.
        assert_eq!(rig.ask_one(&mut client, report).status(), Status::Ok);
        assert_eq!(rig.put(&mut client, key, &bytes).flags & FLAG_PRESENT, 0);
        assert_eq!(rig.lookup(&mut client, 0, &[1]), 0b1, "{read} {drops}");
        sim.release();
        rig.pass(20_000_000);
        assert_eq!(rig.lookup(&mut client, 0, &[1]), 0b1, "{read} {drops}");
        assert_eq!(rig.get(&mut client, key, 300_001).1, bytes);
        // Another report is looked at as any other.
        assert_eq!(rig.ask_one(&mut client, report).status(), Status::Ok);
        rig.pass(20_000_000);
        let good = rig.stats.devices[0].store.counters.serving.verified_good.get();
        assert_eq!((good, rig.lookup(&mut client, 0, &[1])), (1, 0b1));
    }
}

/// A report may be false: a put that the store declines leaves the block, and the sidecar reads it.
#[test]
fn a_reported_block_stays_where_its_put_is_declined() {
    let small = StoreConfig { budget: Budget::BytesPerDay(0), ..config(512, 120 << 20, 8 << 20) };
    let mut rig = Rig::with(small, SimOptions::default());
    let mut client = rig.client(0);
    let bytes = block(1, 100_001);
    let mut last = 0;
    // While it fills, the budget does not count; of the rest it takes what it saw before.
    let takes = |rig: &mut Rig, client: &mut _, key| {
        (0..2).any(|_| rig.put(client, key, &bytes).status() == Status::Ok)
    };
    while takes(&mut rig, &mut client, Key::of(last + 1, last + 1)) {
        last += 1;
    }
    let key = Key::of(last, last);
    let report = drop_slot(Opcode::Suspect, key, check(crc(&bytes), 1_000, key, 100_001));
    rig.own.sim.borrow_mut().plan().add(Rule::once(Fault::Hang).on(Opcode::Read));
    assert_eq!(rig.ask_one(&mut client, report).status(), Status::Ok);
    let sim = rig.own.sim.borrow().control();
    rig.until(|_| sim.hung() > 0);
    assert_eq!(rig.put(&mut client, key, &bytes).status(), Status::Declined);
    sim.release();
    rig.pass(20_000_000);
    assert!(rig.get(&mut client, key, 100_001).1 == bytes, "it was right, and is gone");
    assert_eq!(rig.stats.devices[0].store.counters.serving.verified_good.get(), 1);
}

#[test]
fn a_device_that_goes_ends_everything_and_the_store_begins_anew_when_it_is_back() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    let key = Key::of(1, 1);
    assert_eq!(rig.put(&mut client, key, &block(1, 5000)).status(), Status::Ok);
    rig.pass(100_000_000);
    let (space, _) = rig.space("first");
    let list = || StoreAsk::List { space, from: Cursor::default() };
    let gone = Fault::Error(Status::DeviceGone);
    rig.own.sim.borrow_mut().plan().add(Rule::once(gone).on(Opcode::Read));
    // A listing's page is what it does not read.
    assert_eq!(rig.call(list()).status, Ending::Failed(Status::DeviceGone.number()));
    rig.pass(5_000_000);
    assert_eq!(rig.phase(), 5);
    assert_eq!(rig.call(list()).status, Ending::Failed(Status::DeviceGone.number()));
    assert_eq!(rig.get(&mut client, key, 8192).0.status(), Status::DeviceGone);
    assert_eq!(rig.put(&mut client, key, &block(1, 10)).status(), Status::DeviceGone);
    // Keys of a lookup are missed with the drive; a touch is no lookup.
    let lookup = keys_slot(Opcode::Lookup, HANDLE, 0, &[1, 2]);
    for slot in [lookup, Request { flags: FLAG_TOUCH, ..lookup }] {
        assert_eq!(rig.ask_one(&mut client, slot).status(), Status::DeviceGone);
    }
    rig.pass(100_000_000);
    let counters = &rig.stats.devices[0].store.counters.serving;
    assert_eq!(counters.lookup_misses_drive_gone.get(), 2);
    // It says which namespaces it had, so that they are opened for what other members have.
    assert_eq!(rig.call(StoreAsk::Survey).status, Ending::Ok);
    let refused = rig.call(StoreAsk::Clear { space, uid: 1 << 40 });
    assert_eq!(refused.status, Ending::Failed(Status::DeviceGone.number()));
    rig.replace();
    let mut call = StoreCall::new(0, StoreAsk::Restart(open()));
    call.store = Some(Box::new(Store::new(&rig.own.config).unwrap()));
    let call = rig.call_with(call);
    assert!(call.status == Ending::Ok && call.store.is_some());
    rig.until(|rig| rig.phase() == 3);
    // The handle stays.
    assert_eq!(rig.get(&mut client, key, 8192).1, block(1, 5000));
    assert_eq!(rig.put(&mut client, Key::of(2, 2), &block(2, 10)).status(), Status::Ok);
    let (space, _) = rig.space("first");
    let call = rig.call(StoreAsk::List { space, from: Cursor::default() });
    assert_eq!(call.status, Ending::Ok);
}

/// A get of whole logical blocks is the client's own read, one with a tail is two of the store's.
#[test]
fn gets_under_way_when_a_device_goes_end_once_and_the_next_store_knows_nothing_of_them() {
    let options = SimOptions { latency_ns: 2_000_000, ..SimOptions::default() };
    let mut rig = Rig::with(config(512, 120 << 20, 8 << 20), options);
    let mut client = rig.client(0);
    let blocks = [(1, 8192), (2, 5000), (3, 100)].map(|(number, length)| {
        let (key, bytes) = (Key::of(1, number), block(number, length));
        assert_eq!(rig.put(&mut client, key, &bytes).status(), Status::Ok);
        (key, bytes)
    });
    rig.pass(100_000_000);
    let gone = Rule::once(Fault::Error(Status::DeviceGone)).on(Opcode::Read).after(4);
    rig.own.sim.borrow_mut().plan().add(gone);
    let gets: Vec<_> = (0..12_u32)
        .map(|number| {
            let place = (u64::from(number) * 8192, number);
            let (key, _) = blocks[number as usize % 3];
            let request = keyed(&client, key, (8192, 0), place).slot(Opcode::Get);
            Asked { request, side: None }
        })
        .collect();
    let ends = rig.ask(&mut client, &gets);
    let well = |status: Status| matches!(status, Status::Ok | Status::DeviceGone);
    assert!(ends.iter().all(|end| well(end.status())), "{ends:?}");
    assert!(ends.iter().any(|end| end.status() == Status::DeviceGone), "{ends:?}");
    rig.until(|rig| rig.phase() == 5);
    rig.begin_anew();
    for (key, bytes) in &blocks {
        assert_eq!(rig.get(&mut client, *key, 8192).1, *bytes);
    }
    // Nobody is left in the region: it goes.
    rig.mailbox.send(PollerCommand::Detach(client.session, client.region)).unwrap();
    rig.until(|rig| rig.own.notices.iter().any(|it| matches!(it, Notice::Detached(..))));
}

/// What was acknowledged is on the device 100 ms later, however long other requests take there: a
/// kill takes what still waits in the poller.
#[test]
fn a_record_waits_for_no_other_request() {
    let mut rig = Rig::tight(config(512, 120 << 20, 8 << 20), SimOptions::default(), 4);
    let mut client = rig.client(0);
    let (read, put) = (Key::of(1, 1), Key::of(2, 2));
    assert_eq!(rig.put(&mut client, read, &block(1, 8192)).status(), Status::Ok);
    rig.pass(100_000_000);
    rig.own.sim.borrow_mut().plan().add(Rule::always(Fault::Hang).on(Opcode::Read).times(4));
    assert_eq!(rig.put(&mut client, put, &block(2, 8192)).status(), Status::Ok);
    let written = rig.stats.devices[0].writes.get();
    for place in 0..8 {
        let request = keyed(&client, read, (8192, 0), (place * 8192, 0)).slot(Opcode::Get);
        client.post(&Asked { request, side: None });
    }
    rig.pass(100_000_000);
    assert_eq!(rig.own.sim.borrow().control().hung(), 4, "the device may hold no more");
    assert_eq!(rig.stats.devices[0].writes.get(), written + 1, "the page is not written");
    rig.own.sim.borrow().control().release();
    rig.until(|rig| rig.poller.in_flight() == 0);
}

/// A drive that is there and works, but that the operator takes out.
#[test]
fn a_device_that_is_retired_ends_what_it_was_given_and_takes_nothing_more() {
    let options = SimOptions { latency_ns: 2_000_000, ..SimOptions::default() };
    let mut rig = Rig::with(config(512, 120 << 20, 8 << 20), options);
    let mut client = rig.client(0);
    let (key, bytes) = (Key::of(1, 1), block(1, 8192));
    assert_eq!(rig.put(&mut client, key, &bytes).status(), Status::Ok);
    rig.pass(100_000_000);
    let request = keyed(&client, key, (8192, 0), (0, 0)).slot(Opcode::Get);
    client.post(&Asked { request, side: None });
    rig.tick();
    assert_eq!(rig.own.sim.borrow().in_flight(), 1);
    rig.mailbox.send(PollerCommand::Retire(0)).unwrap();
    let mut ended = Vec::new();
    rig.until(|_| {
        ended.extend(client.collect());
        !ended.is_empty()
    });
    assert_eq!(ended[0].status(), Status::Ok, "it was with the device");
    assert_eq!(rig.bytes(&client, (0, 0), 8192), bytes);
    let stats = std::sync::Arc::clone(&rig.stats);
    assert_eq!((stats.devices[0].gone.get(), stats.devices[0].retired.get()), (1, 1));
    rig.until(|rig| rig.phase() == 5);
    let operations = || [stats.devices[0].reads.get(), stats.devices[0].writes.get()];
    let before = operations();
    assert_eq!(rig.get(&mut client, key, 8192).0.status(), Status::DeviceGone);
    assert_eq!(rig.put(&mut client, key, &bytes).status(), Status::DeviceGone);
    let drop = drop_slot(Opcode::Drop, key, 0);
    assert_eq!(rig.ask_one(&mut client, drop).status(), Status::DeviceGone);
    rig.pass(100_000_000);
    assert_eq!(operations(), before);
    // A drive that came back just before may have its store begin anew: too late.
    let mut call = StoreCall::new(0, StoreAsk::Restart(open()));
    call.store = Some(Box::new(Store::new(&rig.own.config).unwrap()));
    let ended = rig.call_with(call).status;
    assert_eq!(ended, Ending::Failed(Status::DeviceGone.number()));
    assert_eq!(rig.get(&mut client, key, 8192).0.status(), Status::DeviceGone);
    // Its poller ends in order, and gives back what it has.
    rig.mailbox.send(PollerCommand::Detach(client.session, client.region)).unwrap();
    rig.until(|rig| rig.own.notices.iter().any(|it| matches!(it, Notice::Detached(..))));
}
