//! What becomes of blocks and memory when sessions and sidecars end.

use kvrail_device::SimOptions;
use kvrail_poller::{Notice, Permit, PollerCommand, StoreAsk, StoreCall, TickOutcome};
use kvrail_ring::slot::{FLAG_CONTINUED, FLAG_DEMOTE, FLAG_DURABLE, FLAG_TOUCH};
use kvrail_ring::{Opcode, Request, Side, Status, keys_slot};
use kvrail_store::{Key, check};

use super::rig::{Asked, HANDLE, Rig, block, config, crc, drop_slot};

#[test]
fn everything_acknowledged_is_found_by_the_next_sidecar() {
    for logical_block in [512, 4096] {
        let mut rig = Rig::new(logical_block);
        let mut client = rig.client(0);
        let length = |number: u64| 1 + usize::try_from(number * 7919 % 300_000).unwrap();
        let key = |number: u64| Key::of(5, number);
        for number in 0..40 {
            let put = rig.put(&mut client, key(number), &block(number, length(number)));
            assert_eq!(put.status(), Status::Ok);
        }
        rig.pass(100_000_000); // pages are written after 50 ms
        let durable = rig.put_request(&client, key(99), &block(99, 777), (0, 0));
        let durable = Request { flags: FLAG_DURABLE, ..durable };
        assert_eq!(rig.ask_one(&mut client, durable).status(), Status::Ok);
        let mut rig = rig.restart();
        let mut client = rig.client(0);
        for number in 0..40 {
            let (done, bytes) = rig.get(&mut client, key(number), 1 << 20);
            assert_eq!(done.status(), Status::Ok, "{number}");
            assert!(bytes == block(number, length(number)), "{number}");
        }
        assert_eq!(rig.get(&mut client, key(99), 1 << 20).1, block(99, 777));
    }
}

#[test]
fn a_sidecar_that_is_told_to_stop_writes_what_it_acknowledged() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    assert_eq!(rig.put(&mut client, Key::of(1, 1), &block(1, 5000)).status(), Status::Ok);
    rig.mailbox.send(PollerCommand::Drain).unwrap();
    rig.mailbox.send(PollerCommand::Stop).unwrap();
    while rig.tick() != TickOutcome::Stopped {}
    assert!(rig.own.notices.iter().any(|it| matches!(it, Notice::Drained)));
    let mut rig = rig.restart();
    let mut client = rig.client(0);
    assert_eq!(rig.get(&mut client, Key::of(1, 1), 8192).1, block(1, 5000));
}

/// Each kind of request has a way of its own through the poller. None of them gets to a store that
/// drains.
#[test]
fn a_draining_store_answers_no_lookup_get_or_change() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    let key = Key::of(1, 1);
    assert_eq!(rig.put(&mut client, key, &block(1, 5000)).status(), Status::Ok);
    rig.mailbox.send(PollerCommand::Drain).unwrap();
    let is_drained = |notice: &Notice| matches!(notice, Notice::Drained);
    rig.until(|rig| rig.own.notices.iter().any(is_drained));
    let looks = [(0, 0), (0, 50), (FLAG_TOUCH, 0), (FLAG_DEMOTE, 0)];
    for (flags, hold_ms) in looks {
        let look = Request { flags, ..keys_slot(Opcode::Lookup, HANDLE, hold_ms, &[1]) };
        let done = rig.ask_one(&mut client, look);
        let answer = (done.status(), done.bytes, done.device_ns);
        assert_eq!(answer, (Status::Draining, 0, 0), "{flags} {hold_ms}");
    }
    assert_eq!(rig.get(&mut client, key, 8192).0.status(), Status::Draining);
    assert_eq!(rig.put(&mut client, Key::of(2, 2), b"x").status(), Status::Draining);
    let drop = rig.ask_one(&mut client, drop_slot(Opcode::Drop, key, 0));
    assert_eq!(drop.status(), Status::Draining);
    let counters = &rig.stats.devices[0].store.counters;
    assert_eq!((counters.store.lookup_hits.get(), counters.store.hits.get()), (0, 0));
}

/// Whether all is written is no question of time: a machine may stand still, and a drive be slow.
#[test]
fn what_was_acknowledged_is_written_however_long_it_takes() {
    for (stands_still_ms, latency_ms) in [(101, 0), (1_100, 0), (0, 700)] {
        let options = SimOptions { latency_ns: latency_ms * 1_000_000, ..SimOptions::default() };
        let mut rig = Rig::with(config(512, 120 << 20, 8 << 20), options);
        let mut client = rig.client(0);
        assert_eq!(rig.put(&mut client, Key::of(1, 1), &block(1, 5000)).status(), Status::Ok);
        rig.own.stands_still_ns.set(stands_still_ms * 1_000_000);
        rig.mailbox.send(PollerCommand::Drain).unwrap();
        rig.mailbox.send(PollerCommand::Stop).unwrap();
        while rig.tick() != TickOutcome::Stopped {}
        let mut rig = rig.restart();
        let mut client = rig.client(0);
        let found = rig.get(&mut client, Key::of(1, 1), 8192).1;
        assert!(found == block(1, 5000), "{stands_still_ms} {latency_ms}");
    }
}

/// A store takes blocks while it reads what it has, and may be told to stop meanwhile.
#[test]
fn what_was_acknowledged_during_recovery_is_written() {
    let options = SimOptions { latency_ns: 2_000_000, ..SimOptions::default() };
    let mut rig = Rig::with(config(512, 120 << 20, 1 << 20), options);
    let mut client = rig.client(0);
    for number in 0..300 {
        let put = rig.put(&mut client, Key::of(2, number), &block(number, 200_000));
        assert_eq!(put.status(), Status::Ok);
    }
    let mut rig = rig.restart_warming();
    let mut client = rig.client(0);
    assert_eq!(rig.put(&mut client, Key::of(1, 1), &block(1, 5000)).status(), Status::Ok);
    assert_eq!(rig.phase(), 2, "it still reads");
    rig.mailbox.send(PollerCommand::Drain).unwrap();
    rig.mailbox.send(PollerCommand::Stop).unwrap();
    while rig.tick() != TickOutcome::Stopped {}
    let mut rig = rig.restart();
    let mut client = rig.client(0);
    assert!(rig.get(&mut client, Key::of(1, 1), 8192).1 == block(1, 5000));
}

/// A cache is asked for what it does not have all day.
#[test]
fn misses_are_no_failures() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    assert_eq!(rig.get(&mut client, Key::of(1, 1), 4096).0.status(), Status::Miss);
    assert_eq!(rig.put(&mut client, Key::of(1, 1), &block(1, 5000)).status(), Status::Ok);
    assert_eq!(rig.get(&mut client, Key::of(1, 1), 512).0.status(), Status::TooSmall);
    let counters = &rig.stats.sessions[usize::from(client.session.0)].counters;
    assert_eq!((counters.completed.get(), counters.failed.get()), (3, 1));
}

/// Engines look up first and get what is there: without lookups' misses a cache has none.
#[test]
fn lookups_are_counted_by_keys_and_as_one_request() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    for number in [1, 2] {
        let put = rig.put(&mut client, Key::of(7, number), &block(number, 5000));
        assert_eq!(put.status(), Status::Ok);
    }
    assert_eq!(rig.get(&mut client, Key::of(7, 9), 4096).0.status(), Status::Miss);
    assert_eq!(rig.get(&mut client, Key::of(7, 1), 512).0.status(), Status::TooSmall);
    rig.pass(100_000_000); // every counter is shown
    let counters = &rig.stats.sessions[usize::from(client.session.0)].counters;
    let before = (counters.accepted.get(), counters.completed.get());
    let first = keys_slot(Opcode::Lookup, HANDLE, 0, &[1, 2, 3, 4, 5]);
    let further =
        Request { flags: FLAG_CONTINUED, ..keys_slot(Opcode::Lookup, HANDLE, 0, &[6, 7, 8]) };
    for slot in [first, further, further] {
        assert_eq!(rig.ask_one(&mut client, slot).status(), Status::Ok);
    }
    rig.pass(100_000_000);
    let counters = &rig.stats.sessions[usize::from(client.session.0)].counters;
    let after = (counters.accepted.get(), counters.completed.get());
    assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1));
    let store = &rig.stats.devices[0].store.counters.store;
    assert_eq!((store.lookup_hits.get(), store.lookup_misses.get()), (2, 9));
    assert_eq!((store.misses.get(), store.misses_other_length.get()), (2, 1));
    assert_eq!((store.lookup_misses_absent.get(), store.absent_estimated_unknown.get()), (9, 10));
    let refused = Request { flags: FLAG_CONTINUED, ..drop_slot(Opcode::Drop, Key::of(7, 1), 0) };
    assert_eq!(rig.ask_one(&mut client, refused).status(), Status::Invalid);
}

#[test]
fn a_session_that_dies_with_puts_half_done_leaves_nothing() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    let mut other = rig.client(1);
    // Two parts of three, and a put on its way.
    let (key, bytes) = (Key::of(1, 1), block(1, 3 << 20));
    let sum = check(crc(&bytes), 1_000, key, 3 << 20);
    for number in 0..2_u32 {
        let from = number as usize * (1 << 20);
        let mut request = rig.put_request(&client, key, &bytes[from..from + (1 << 20)], (0, 0));
        request.checksum = sum;
        let side =
            Some(Side { block_bytes: 3 << 20, at: number << 20, metadata: &[], ..Side::default() });
        assert_eq!(rig.ask(&mut client, &[Asked { request, side }])[0].status(), Status::Ok);
    }
    assert_eq!(rig.lookup(&mut client, 5_000, &[1]), 0);
    let late = rig.put_request(&client, Key::of(2, 2), &block(2, 900_001), (0, 3));
    client.post(&Asked { request: late, side: None });
    rig.mailbox.send(PollerCommand::CloseSession(client.session)).unwrap();
    rig.until(|rig| rig.own.notices.iter().any(|it| matches!(it, Notice::SessionClosed(_))));
    // The key is free again, and so is the slot.
    assert_eq!(rig.put(&mut other, key, &bytes).flags, 0);
    assert_eq!(rig.get(&mut other, key, 3 << 20).1, bytes);
    rig.own.notices.clear();
    let mut again = rig.stranger(0, 8);
    let get = super::rig::keyed(&again, key, (4096, 0), (0, 0)).slot(kvrail_ring::Opcode::Get);
    assert_eq!(rig.ask_one(&mut again, get).status(), Status::Invalid, "its handles are gone");
}

/// Calls wait for their turn at a store. The slot's next session must not get what one that has
/// ended was to have.
#[test]
fn a_grant_that_still_waits_ends_with_its_session() {
    let mut rig = Rig::new(512);
    let client = rig.client(0);
    let (space, _) = rig.space("first");
    let (session, permit) = (client.session, Permit::Write);
    let call = StoreCall::new(0, StoreAsk::Grant { session, handle: HANDLE, space, permit });
    rig.mailbox.send(PollerCommand::Store(0, call)).unwrap();
    rig.mailbox.send(PollerCommand::CloseSession(session)).unwrap();
    rig.until(|rig| {
        let has = |what: fn(&Notice) -> bool| rig.own.notices.iter().any(what);
        has(|it| matches!(it, Notice::SessionClosed(_)))
            && has(|it| matches!(it, Notice::Store(..)))
    });
    rig.own.notices.clear();
    let mut next = rig.stranger(0, 8);
    let get = super::rig::keyed(&next, Key::of(1, 1), (4096, 0), (0, 0)).slot(Opcode::Get);
    assert_eq!(rig.ask_one(&mut next, get).status(), Status::Invalid);
}
