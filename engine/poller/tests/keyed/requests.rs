//! Puts, gets, lookups, drops and reports, whose bytes and words are checked.

use kvrail_device::SimOptions;
use kvrail_memory::{load, store};
use kvrail_poller::{StoreAsk, StoreCall, StoreFound};
use kvrail_ring::slot::{
    FLAG_DEMOTE, FLAG_DURABLE, FLAG_MORE, FLAG_PART, FLAG_PENDING, FLAG_PRESENT, FLAG_TOUCH,
};
use kvrail_ring::{
    CHAIN_BEGINS, CHAIN_DEPTH_MAX, KeyedRequest, Opcode, Request, Side, Status, keys_slot,
};
use kvrail_store::{Explained, Key, Priority, Status as Ending, WorthClass, check};

use super::rig::{ARENA_BYTES, Asked, HANDLE, Rig, block, config, crc, drop_slot, keyed};

/// What stands where nobody may write.
const GUARD: u8 = 0xa7;

#[test]
fn a_block_of_any_length_comes_back_as_it_was_put_and_nothing_beside_it_is_touched() {
    for logical_block in [512, 4096] {
        let mut rig = Rig::new(logical_block);
        let mut client = rig.client(0);
        let lengths = [1, 511, 512, 513, 4095, 4096, 4097, 100_000, 640_256, 1_124_352];
        for (number, length) in (1..).zip(lengths) {
            let (key, bytes) = (Key::of(number, number), block(number, length));
            let put = rig.put(&mut client, key, &bytes);
            assert_eq!((put.status(), put.bytes as usize, put.flags), (Status::Ok, length, 0));
            store(&*client.arena, 0, &vec![GUARD; 2 << 20]);
            store(&*client.tails, 0, &vec![GUARD; 4 * 4096]);
            let block_bytes = u64::from(logical_block);
            let capacity = u32::try_from(length).unwrap();
            let at = (4096, 2);
            let get = keyed(&client, key, (capacity, 0), at).slot(Opcode::Get);
            let got = rig.ask_one(&mut client, get);
            assert_eq!((got.status(), got.bytes as usize), (Status::Ok, length));
            assert_eq!(got.checksum, check(crc(&bytes), 1_000, key, capacity));
            assert_eq!(rig.bytes(&client, at, got.bytes), bytes, "{length} bytes");
            let body = length as u64 / block_bytes * block_bytes;
            let mut around = vec![0; 2 << 20];
            load(&*client.arena, 0, &mut around);
            let end = usize::try_from(4096 + body).unwrap();
            assert!(around[..4096].iter().chain(&around[end..]).all(|byte| *byte == GUARD));
            let mut pages = vec![0; 4 * 4096];
            load(&*client.tails, 0, &mut pages);
            assert!(pages[..2 * 4096].iter().chain(&pages[3 * 4096..]).all(|it| *it == GUARD));
        }
    }
}

#[test]
fn a_put_may_be_anywhere_in_a_chain_and_nothing_else_may() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    let places = [0, 1, CHAIN_DEPTH_MAX, CHAIN_BEGINS, CHAIN_BEGINS | 1, u16::MAX];
    for (number, chain) in (1..).zip(places) {
        let at =
            KeyedRequest { chain, ..keyed(&client, Key::of(number, number), (512, 7), (0, 0)) };
        assert_eq!(rig.ask_one(&mut client, at.slot(Opcode::Put)).status(), Status::Ok);
        let others = if chain == 0 { Status::Ok } else { Status::Invalid };
        let get = KeyedRequest { check: 0, ..at }.slot(Opcode::Get);
        assert_eq!(rig.ask_one(&mut client, get).status(), others, "{chain:#x}");
        let drop = Request { reserved_a: chain, ..drop_slot(Opcode::Drop, Key::of(0, 9), 0) };
        let lookup = Request { reserved_a: chain, ..keys_slot(Opcode::Lookup, HANDLE, 0, &[9]) };
        let others = if chain == 0 { [Status::Miss, Status::Ok] } else { [Status::Invalid; 2] };
        let ends = [drop, lookup].map(|it| rig.ask_one(&mut client, it).status());
        assert_eq!(ends, others, "{chain:#x}");
    }
}

#[test]
fn lookups_holds_drops_and_misses_say_what_is_there() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    let key = |number: u64| Key::of(7, number);
    for number in [1, 2, 4] {
        assert_eq!(rig.put(&mut client, key(number), &block(number, 5000)).status(), Status::Ok);
    }
    assert_eq!(rig.lookup(&mut client, 0, &[1, 2, 3, 4, 5]), 0b01011);
    assert_eq!(rig.lookup(&mut client, 50, &[3, 2]), 0b10 | 0b10 << 8);
    let release = keys_slot(Opcode::Release, HANDLE, 0, &[2, 3]);
    let released = rig.ask_one(&mut client, release);
    assert_eq!((released.status(), released.bytes), (Status::Ok, 1));
    let wrong = rig.ask_one(&mut client, drop_slot(Opcode::Drop, key(1), 12345));
    assert_eq!(wrong.status(), Status::Miss);
    for (number, status) in [(1, Status::Ok), (1, Status::Miss), (3, Status::Miss)] {
        let drop = Request { flags: FLAG_DURABLE, ..drop_slot(Opcode::Drop, key(number), 0) };
        assert_eq!(rig.ask_one(&mut client, drop).status(), status, "{number}");
    }
    assert_eq!(rig.lookup(&mut client, 0, &[1, 2, 3, 4]), 0b1010);
    assert_eq!(rig.get(&mut client, key(1), 8192).0.status(), Status::Miss);
    let (small, _) = rig.get(&mut client, key(2), 4999);
    let whole = check(crc(&block(2, 5000)), 1_000, key(2), 5000);
    assert_eq!((small.status(), small.bytes, small.checksum), (Status::TooSmall, 5000, whole));
    let (fits, bytes) = rig.get(&mut client, key(2), 1 << 20);
    assert_eq!((fits.status(), bytes), (Status::Ok, block(2, 5000)));
    let present = rig.put(&mut client, key(2), &block(3, 5000));
    assert_eq!((present.status(), present.flags), (Status::Ok, FLAG_PRESENT));
    assert_eq!(rig.get(&mut client, key(2), 8192).1, block(2, 5000), "the first one stays");
}

#[test]
fn a_block_in_parts_is_there_when_all_are() {
    const PART: usize = 8 << 20;
    const BLOCK: usize = 100 << 20;
    let options = SimOptions::default();
    let mut rig = Rig::with(config(512, 2200 << 20, 256 << 20), options);
    let mut client = rig.client(0);
    let (key, bytes) = (Key::of(3, 4), block(9, BLOCK - 77));
    let whole = u32::try_from(bytes.len()).unwrap();
    let sum = check(crc(&bytes), 1_000, key, whole);
    let parts: Vec<&[u8]> = bytes.chunks(PART).collect();
    for (number, part) in parts.iter().enumerate() {
        assert_eq!(rig.lookup(&mut client, 0, &[key.lo()]), 0, "not before the last part");
        let mut request = rig.put_request(&client, key, part, (0, 0));
        request.checksum = sum;
        let at = u32::try_from(number * PART).unwrap();
        let side = Some(Side { block_bytes: whole, at, metadata: b"meta", ..Side::default() });
        let done = rig.ask(&mut client, &[Asked { request, side }])[0];
        let flags = if number + 1 < parts.len() { FLAG_MORE } else { 0 };
        assert_eq!((done.status(), done.flags), (Status::Ok, flags), "part {number}");
        assert_eq!(done.bytes as usize, part.len());
    }
    // Whole gets end at 64 MiB.
    let (large, _) = rig.get(&mut client, key, 104 << 20);
    assert_eq!((large.status(), large.bytes, large.checksum), (Status::TooSmall, whole, sum));
    for (number, part) in parts.iter().enumerate() {
        let length = u32::try_from(part.len()).unwrap();
        let from = (number * PART) as u64;
        let request = keyed(&client, key, (length, from), (0, 1)).slot(Opcode::Get);
        let done = rig.ask_one(&mut client, Request { flags: FLAG_PART, ..request });
        assert_eq!((done.status(), done.bytes, done.checksum), (Status::Ok, length, sum));
        assert_eq!(rig.bytes(&client, (0, 1), length), *part, "part {number}");
    }
    let beyond = keyed(&client, key, (512, u64::from(whole) + 77), (0, 1)).slot(Opcode::Get);
    let done = rig.ask_one(&mut client, Request { flags: FLAG_PART, ..beyond });
    assert_eq!(done.status(), Status::Invalid);
}

#[test]
fn two_sessions_that_put_one_key_end_as_one() {
    let mut rig = Rig::new(512);
    let (mut one, mut two) = (rig.client(0), rig.client(1));
    let (key, bytes) = (Key::of(1, 1), block(1, 70_000));
    let first = rig.put_request(&one, key, &bytes, (0, 0));
    let second = rig.put_request(&two, key, &bytes, (0, 0));
    one.post(&Asked { request: first, side: None });
    two.post(&Asked { request: second, side: None });
    let (mut ends, mut others) = (Vec::new(), Vec::new());
    rig.until(|_| {
        ends.extend(one.collect());
        others.extend(two.collect());
        !ends.is_empty() && !others.is_empty()
    });
    let flags = [ends[0].flags, others[0].flags];
    assert!(flags == [0, FLAG_PENDING] || flags == [FLAG_PENDING, 0], "{flags:?}");
    assert_eq!(rig.put(&mut two, key, &bytes).flags, FLAG_PRESENT);
    assert_eq!(rig.get(&mut two, key, 70_000).1, bytes);
}

#[test]
fn every_kind_of_garbage_is_invalid_and_leaves_nothing_entered() {
    let mut rig = Rig::new(4096);
    let mut client = rig.client(0);
    let (key, bytes) = (Key::of(1, 1), block(1, 8192 + 5));
    let put = rig.put_request(&client, key, &bytes, (0, 0));
    let get = keyed(&client, key, (8192, 0), (0, 0)).slot(Opcode::Get);
    let lookup = keys_slot(Opcode::Lookup, HANDLE, 0, &[1]);
    let drop = drop_slot(Opcode::Drop, key, 0);
    let garbage = [
        Request { volume: HANDLE + 1, ..put },
        Request { volume: u16::MAX, ..put },
        Request { class: 3, ..put },
        Request { flags: 0xff, ..put },
        Request { flags: FLAG_PART, ..put },
        Request { length: 0, ..put },
        Request { length: u32::MAX, ..put },
        Request { region: 55, ..put },
        Request { region_offset: 2, ..put },
        Request { region_offset: ARENA_BYTES as u64, ..put },
        Request { region_offset: u64::MAX - 4095, ..put },
        Request { layout_block: 16, ..put },
        Request { layout_block: u32::MAX, ..put },
        Request { flags: FLAG_DURABLE, ..get },
        Request { reserved_a: 1, ..get },
        Request { checksum: 1, ..get },
        Request { flags: FLAG_PART, checksum: 1 << 40, ..get },
        Request { flags: FLAG_PART, length: 0, ..get },
        Request { region: 55, ..get },
        Request { length: 0, ..lookup },
        Request { length: 6, ..lookup },
        Request { flags: 1, ..lookup },
        Request { flags: FLAG_TOUCH, region: 1000, ..lookup },
        Request { flags: FLAG_DEMOTE, region: 1000, ..lookup },
        Request { flags: FLAG_TOUCH | FLAG_DEMOTE, ..lookup },
        Request { flags: FLAG_TOUCH, ..drop },
        Request { volume: 9, ..lookup },
        Request { length: 1, ..drop },
        Request { region: 1, ..drop },
        Request { reserved_a: 1, ..drop },
        Request { opcode: Opcode::Read as u8, volume: 0, ..Request { length: 4096, ..get } },
        Request { opcode: 11, ..get },
    ];
    for (number, request) in garbage.into_iter().enumerate() {
        let done = rig.ask_one(&mut client, request);
        assert_eq!(done.status(), Status::Invalid, "{number}: {request:?}");
    }
    let sides = [
        Side { block_bytes: 0, at: 0, metadata: &[], ..Side::default() },
        Side { block_bytes: 4096, at: 0, metadata: &[], ..Side::default() },
        Side { block_bytes: u32::MAX, at: 0, metadata: &[], ..Side::default() },
        Side { block_bytes: 20_000, at: 0, metadata: &[], ..Side::default() },
        Side { block_bytes: 20_000, at: 100, metadata: &[], ..Side::default() },
        Side { block_bytes: 20_000, at: u32::MAX - 4095, metadata: &[], ..Side::default() },
    ];
    for side in sides {
        let done = rig.ask(&mut client, &[Asked { request: put, side: Some(side) }])[0];
        assert_eq!(done.status(), Status::Invalid, "{side:?}");
    }
    // Nobody is left in the region: it goes.
    let (session, region) = (client.session, client.region);
    rig.mailbox.send(kvrail_poller::PollerCommand::Detach(session, region)).unwrap();
    rig.until(|rig| {
        rig.own.notices.iter().any(|it| matches!(it, kvrail_poller::Notice::Detached(..)))
    });
}

#[test]
fn a_deadline_in_microseconds_gives_one_notice() {
    let options = SimOptions { latency_ns: 30_000_000, ..SimOptions::default() };
    let mut rig = Rig::with(config(512, 120 << 20, 8 << 20), options);
    let mut client = rig.client(0);
    let mut request = rig.put_request(&client, Key::of(1, 1), &block(1, 4096), (0, 0));
    request.reserved_b = 3_000;
    client.post(&Asked { request, side: None });
    let mut heard = Vec::new();
    rig.until(|_| {
        heard.extend(client.collect());
        heard.len() >= 2
    });
    let words: Vec<_> = heard.iter().map(|it| (it.status(), it.flags)).collect();
    assert_eq!(words, [(Status::Late, 1), (Status::Ok, 0)]);
    assert!(heard[1].device_ns >= 30_000_000, "{heard:?}");
    // The same of gets: of whole logical blocks, and with a tail.
    let tailed = rig.put(&mut client, Key::of(1, 2), &block(2, 5000));
    assert_eq!(tailed.status(), Status::Ok);
    for (low, length) in [(1, 4096), (2, 5000)] {
        let mut request = keyed(&client, Key::of(1, low), (8192, 0), (0, 0)).slot(Opcode::Get);
        request.reserved_b = 3_000;
        client.post(&Asked { request, side: None });
        heard.clear();
        rig.until(|_| {
            heard.extend(client.collect());
            heard.len() >= 2
        });
        let words: Vec<_> = heard.iter().map(|it| (it.status(), it.flags)).collect();
        assert_eq!(words, [(Status::Late, 1), (Status::Ok, 0)], "{length}");
        assert!(heard[1].bytes == length && heard[1].device_ns >= 30_000_000, "{heard:?}");
    }
}

#[test]
fn more_puts_than_the_store_takes_at_once_wait_and_all_end_well() {
    let mut config = config(512, 120 << 20, 8 << 20);
    (config.puts, config.writes) = (4, 4);
    let mut rig = Rig::with(config, SimOptions { latency_ns: 1_000_000, ..SimOptions::default() });
    let (mut client, mut other) = (rig.client(0), rig.client(1));
    let key = |number: u64| Key::of(2, number);
    let puts: Vec<_> = (0..30_u64)
        .map(|number| {
            let place = (number * 8192, u32::try_from(number % 16).unwrap());
            let request = rig.put_request(&client, key(number), &block(number, 8192), place);
            let metadata: &[u8] = b"some metadata";
            let side = Side { block_bytes: 8192, at: 0, metadata, ..Side::default() };
            Asked { request, side: Some(side) }
        })
        .collect();
    let done = rig.ask(&mut client, &puts);
    assert!(done.iter().all(|it| (it.status(), it.flags) == (Status::Ok, 0)), "{done:?}");
    let gets: Vec<_> = (0..30)
        .map(|number| {
            let place = (number * 8192, 0);
            let request = keyed(&other, key(number), (8192, 0), place).slot(Opcode::Get);
            Asked { request, side: None }
        })
        .collect();
    let done = rig.ask(&mut other, &gets);
    for (number, done) in (0..).zip(done) {
        assert_eq!(done.status(), Status::Ok);
        assert_eq!(rig.bytes(&other, (number * 8192, 0), 8192), block(number, 8192));
    }
}

/// The worth of a put and its end are those of its block.
#[test]
fn a_put_has_a_worth() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    let (space, _) = rig.space("first");
    let of = WorthClass::Of;
    let cases = [
        (0, 0, of(Priority::Normal)),
        (1, 0, of(Priority::Low)),
        (2, u32::MAX, of(Priority::High)),
        (2, 1, WorthClass::Over),
    ];
    for (number, (worth, until, class)) in (0..).zip(cases) {
        let key = Key::of(7, number);
        let request = rig.put_request(&client, key, &block(number, 5000), (0, 0));
        let side = Side { block_bytes: 5000, worth, until, ..Side::default() };
        let done = rig.ask(&mut client, &[Asked { request, side: Some(side) }]);
        assert_eq!(done[0].status(), Status::Ok);
        let call = rig.call_with(StoreCall::new(0, StoreAsk::Explain { space, key }));
        let StoreFound::Key { known: Some(Explained::There(block)), .. } = call.found else {
            panic!("{call:?}")
        };
        assert_eq!(block.class, class, "{worth} {until}");
    }
}

#[test]
fn who_may_only_read_puts_and_drops_nothing() {
    let mut rig = Rig::new(512);
    let (mut owner, mut reader) = (rig.client(0), rig.client(1));
    let (space, _) = rig.space("first");
    assert_eq!(rig.grant_reading(reader.session, HANDLE, space), Ending::Ok);
    let (key, bytes) = (Key::of(1, 1), block(1, 5000));
    assert_eq!(rig.put(&mut reader, key, &bytes).status(), Status::Denied);
    assert_eq!(rig.lookup(&mut owner, 0, &[key.lo()]), 0, "nothing was written");
    assert_eq!(rig.put(&mut owner, key, &bytes).status(), Status::Ok);
    assert_eq!(rig.ask_one(&mut reader, drop_slot(Opcode::Drop, key, 0)).status(), Status::Denied);
    assert_eq!(rig.lookup(&mut reader, 50, &[key.lo()]) & 1, 1, "it may look up and hold");
    let demote = keys_slot(Opcode::Lookup, HANDLE, 0, &[key.lo()]);
    let demote = Request { flags: FLAG_DEMOTE, ..demote };
    assert_eq!(rig.ask_one(&mut reader, demote).status(), Status::Denied);
    assert_eq!(rig.ask_one(&mut owner, demote).bytes & 1, 1);
    assert_eq!(rig.get(&mut reader, key, 8192).0.status(), Status::Ok);
    assert_eq!(rig.grant(reader.session, HANDLE, space), Ending::Ok);
    assert_eq!(rig.ask_one(&mut reader, drop_slot(Opcode::Drop, key, 0)).status(), Status::Ok);
}
