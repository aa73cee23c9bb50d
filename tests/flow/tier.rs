//! The memory tier: blocks that clients copy themselves, without a request and without a read.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use kvrail_client::{
    BlockKey, BlockRequest, KeyState, Lookup, LookupExtent, Recency, Status, View,
};
use kvrail_protocol::{DeviceState, StatusReport};
use rustix::process::Signal;

use crate::rig::{
    LONG, Place, Sidecar, StoreShape, eventually, kvrail, rounds, run, write_records,
};
use crate::store_user::StoreUser;

/// Bytes of a block, no multiple of a page.
pub(crate) const BYTES: usize = 100_001;

/// Two members with room for many blocks, and a tier of this size.
pub(crate) fn place(tier: &str) -> Place {
    place_of(64 << 10, tier)
}

/// The same for blocks of this mean length.
fn place_of(block_mean: u64, tier: &str) -> Place {
    let shape = StoreShape { member_bytes: 64 << 20, segment_bytes: 4 << 20, block_mean };
    let mut place = Place::with_shaped_store(2, &shape);
    place.configure(&format!("memory_tier.bytes = \"{tier}\""));
    place
}

pub(crate) fn key(number: u64) -> BlockKey {
    BlockKey::of(&number.to_le_bytes())
}

/// The bytes of a version of a block.
pub(crate) fn content(number: u64, version: u64) -> Vec<u8> {
    let mut state = (number << 20 | version).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(BYTES).collect()
}

pub(crate) struct User(pub(crate) StoreUser);

impl User {
    pub(crate) fn open(sidecar: &Sidecar) -> Self {
        Self(StoreUser::open(sidecar))
    }

    pub(crate) fn put(&mut self, number: u64, version: u64) {
        eventually("a put is taken", || match self.offer(number, version) {
            Status::Ok => true,
            Status::Declined => false,
            other => panic!("{other}"),
        });
    }

    pub(crate) fn offer(&mut self, number: u64, version: u64) -> Status {
        let user = &mut self.0;
        let mut lease = user.arena.lease(BYTES).unwrap();
        lease.copy_from_slice(&content(number, version));
        user.run(BlockRequest::put(&user.space, key(number), lease).replacing())
    }

    /// Whether a block is there now, with the right bytes.
    fn find(&mut self, number: u64) -> bool {
        let there = self.end_of_get(number);
        there.is_ok_and(|bytes| bytes == content(number, 0))
    }

    /// Gets a block: its bytes, if it is there.
    pub(crate) fn get(&mut self, number: u64) -> Option<Vec<u8>> {
        match self.end_of_get(number) {
            Ok(bytes) => Some(bytes),
            Err(Status::Miss) => None,
            Err(other) => panic!("{other}"),
        }
    }

    fn end_of_get(&mut self, number: u64) -> Result<Vec<u8>, Status> {
        let user = &mut self.0;
        let lease = user.arena.lease(BYTES + 100).unwrap();
        let ticket = user.queue.submit(BlockRequest::get(&user.space, key(number), lease)).unwrap();
        let done = user.queue.wait(LONG).unwrap().expect("one was asked for");
        assert_eq!(done.ticket, ticket);
        match done.status {
            Status::Ok => {
                assert_eq!(done.bytes, BYTES as u64);
                Ok(done.lease.unwrap()[..BYTES].to_vec())
            }
            other => Err(other),
        }
    }

    fn view(&mut self, number: u64) -> Option<View> {
        let space = self.0.space.clone();
        self.0.queue.view(&space, key(number))
    }

    pub(crate) fn has(&mut self, number: u64, version: u64) {
        assert!(self.get(number) == Some(content(number, version)), "block {number}");
    }
}

/// A sum over the members of the store.
pub(crate) fn sum(report: &StatusReport, counter: &str) -> u64 {
    let of = |shard: &kvrail_protocol::ShardReport| {
        let mut counters = shard.counters.each();
        let found = counters.find(|(definition, _)| definition.name == counter);
        found.and_then(|(_, count)| *count).unwrap_or_else(|| panic!("no counter {counter}"))
    };
    report.shards.iter().map(of).sum()
}

pub(crate) fn from_memory(report: &StatusReport) -> u64 {
    let calls = report.calls.iter().filter(|call| call.operation == "get_from_memory");
    calls.map(|call| call.latency.count()).sum()
}

/// Has the blocks below this number come into the tier: each by two gets and a read.
fn warm(sidecar: &Sidecar, user: &mut User, blocks: u64) {
    eventually("all blocks are in the tier", || {
        (0..blocks).for_each(|number| user.has(number, 0));
        sum(&sidecar.status(), "tier_blocks") == blocks
    });
}

#[test]
fn a_second_process_gets_a_hot_block_without_a_request() {
    let place = place("32MiB");
    let sidecar = Sidecar::start(&place);
    let (mut writer, mut reader) = (User::open(&sidecar), User::open(&sidecar));
    assert!(reader.0.space.store().reads_from_memory());
    (0..20).for_each(|number| writer.put(number, 0));
    warm(&sidecar, &mut writer, 20);
    let (mut before, mut settled) = (sidecar.status(), 0);
    eventually("reads rest", || {
        before = sidecar.status();
        std::mem::replace(&mut settled, sum(&before, "hits")) == sum(&before, "hits")
    });
    (0..20).for_each(|number| reader.has(number, 0));
    eventually("calls are counted", || from_memory(&sidecar.status()) >= from_memory(&before) + 20);
    let after = sidecar.status();
    assert_eq!(sum(&after, "hits"), sum(&before, "hits"), "no get reached the store");
    let status = run(kvrail().args(["store", "status", "--socket"]).arg(place.socket()));
    let shown = status.stdout.lines().filter(|line| line.contains("blocks; "));
    assert!(shown.count() >= 2 && status.stdout.contains(" came in, 0 went"), "{}", status.stdout);
    let levels = format!("gets of all stores: {} from memory", after.memory_hits());
    assert!(after.memory_hits() >= 20 && status.stdout.contains(&levels), "{}", status.stdout);
    let explained = |number| match reader.0.space.explain(key(number)).unwrap().state {
        KeyState::There(block) => Some(block.in_memory),
        _ => None,
    };
    writer.put(20, 0);
    assert_eq!([0, 20, 99].map(explained), [Some(true), Some(false), None]);
    let mut command = kvrail();
    command.args(["store", "explain", "--socket"]).arg(place.socket());
    let of = run(command.args([reader.0.space.name(), &key(3).to_string()]));
    assert!(of.stdout.contains("clients copy it from the memory tier"), "{}", of.stdout);
    let verified = reader.0.queue.verified();
    assert_eq!((verified.right, verified.wrong, verified.reread), (20, 0, 0));
    assert_eq!(reader.get(99), None);
    sidecar.stop();
}

/// What one process has put and expects to be used is there for another's first get.
#[test]
fn what_is_expected_comes_into_memory_before_its_first_get() {
    let place = place("32MiB");
    let sidecar = Sidecar::start(&place);
    let (mut writer, mut reader) = (User::open(&sidecar), User::open(&sidecar));
    (0..20).for_each(|number| writer.put(number, 0));
    let keys: Vec<_> = (0..30).map(key).collect();
    let how = Lookup { extent: LookupExtent::All, recency: Recency::Expected, ..Lookup::default() };
    let found = writer.0.queue.lookup(&writer.0.space, &keys, &how).unwrap();
    assert_eq!(found.there.iter().filter(|there| **there).count(), 20);
    eventually("they are in memory", || sum(&sidecar.status(), "tier_blocks") == 20);
    (0..20).for_each(|number| reader.has(number, 0));
    eventually("calls are counted", || from_memory(&sidecar.status()) == 20);
    let report = sidecar.status();
    assert_eq!((sum(&report, "hits"), sum(&report, "tier_fills")), (0, 20));
    // What is there is read once.
    writer.0.queue.lookup(&writer.0.space, &keys, &how).unwrap();
    reader.has(3, 0);
    assert_eq!(sum(&sidecar.status(), "tier_fills"), 20);
    sidecar.stop();
}

/// What was acknowledged is what any client gets from then on, wherever the block lay before.
#[test]
fn no_client_gets_what_was_replaced_dropped_or_cleared() {
    let place = place("32MiB");
    let sidecar = Sidecar::start(&place);
    let (mut writer, mut reader) = (User::open(&sidecar), User::open(&sidecar));
    for version in 0..rounds(60, 12) {
        for number in 0..4 {
            writer.put(number, version);
            (0..4).for_each(|_| reader.has(number, version));
        }
    }
    assert!(sum(&sidecar.status(), "tier_fills") > 8, "blocks came and went");
    (0..4).for_each(|number| {
        let dropped = writer.0.run(BlockRequest::drop_block(&writer.0.space, key(number)));
        assert_eq!((dropped, reader.get(number)), (Status::Ok, None));
    });
    writer.put(1, 0);
    warm_one(&mut reader, 1);
    writer.0.space.clear().unwrap();
    assert_eq!(reader.get(1), None, "the namespace was cleared");
    sidecar.stop();
}

/// Where the tiers of a sidecar lie in its memory.
fn ranges(sidecar: &Sidecar) -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", sidecar.pid())).expect("our child");
    let tiers = maps.lines().filter(|line| line.contains("kvrail-tier"));
    let ranges = tiers.filter_map(|line| line.split_whitespace().next()?.split_once('-'));
    let number = |text| u64::from_str_radix(text, 16).expect("an address");
    ranges.map(|(begin, end)| (number(begin), number(end))).collect()
}

/// Pages are not rounded up to more than was given, and a directory has no entries for blocks that
/// find no page.
#[test]
fn a_tier_takes_no_more_than_it_was_given_and_is_for_blocks() {
    let place = place_of(512, "19MiB");
    let sidecar = Sidecar::start(&place);
    let taken: u64 = ranges(&sidecar).iter().map(|(begin, end)| end - begin).sum();
    assert_eq!(taken, 16 << 20, "two parts of whole 2 MiB pages");
    let blocks = sum(&sidecar.status(), "tier_bytes_max");
    // Eight entries of 64 bytes for each page of 4 KiB.
    assert!(blocks > taken / 8 * 7 - (1 << 16), "{blocks} of {taken} bytes are for blocks");
    sidecar.stop();
}

/// Overwrites the blocks in the tiers of a sidecar. False where this user may not.
fn damage(sidecar: &Sidecar) -> bool {
    let memory = format!("/proc/{}/mem", sidecar.pid());
    let memory = std::fs::OpenOptions::new().write(true).open(memory);
    let Ok(memory) = memory else { return false };
    let mut written = 0;
    for (begin, end) in ranges(sidecar) {
        // Behind the directory, which has 2 entries of 64 bytes for each 64 KiB.
        let begin = begin + (end - begin) / 100;
        let noise = vec![0xa5; usize::try_from(end - begin).unwrap()];
        written += usize::from(memory.write_all_at(&noise, begin).is_ok());
    }
    written > 0
}

/// Wrong bytes in memory are no block's: the drive has the right ones, and they come in again.
#[test]
fn what_is_damaged_in_memory_comes_from_the_drive() {
    let place = place("32MiB");
    let sidecar = Sidecar::start(&place);
    let mut user = User::open(&sidecar);
    (0..20).for_each(|number| user.put(number, 0));
    warm(&sidecar, &mut user, 20);
    if !damage(&sidecar) {
        eprintln!("skipped: this user may not write its child's memory");
        return sidecar.stop().clear();
    }
    (0..20).for_each(|number| user.has(number, 0));
    assert!(user.0.queue.verified().reread > 0, "wrong copies were seen");
    eventually("all blocks are right in memory again", || {
        let reread = user.0.queue.verified().reread;
        (0..20).for_each(|number| user.has(number, 0));
        user.0.queue.verified().reread == reread && sum(&sidecar.status(), "tier_blocks") == 20
    });
    let report = sidecar.status();
    assert!(sum(&report, "tier_wrong") >= 16, "all but those right behind the directories");
    // Not as blocks of the drive, which would make their readers ones that report falsely.
    assert_eq!((sum(&report, "suspects"), sum(&report, "corrupt")), (0, 0));
    sidecar.stop();
}

/// Gets a block until it comes from memory.
fn warm_one(user: &mut User, number: u64) {
    let right = user.0.queue.verified().right;
    let mut gets = 0;
    eventually("a get needs no request", || {
        user.has(number, 0);
        gets += 1;
        gets > 20
    });
    assert_eq!(user.0.queue.verified().right, right + gets);
}

#[test]
fn a_small_tier_keeps_what_is_used_and_never_a_wrong_byte() {
    // A part of 8 MiB for each member: some 80 blocks.
    let place = place("16MiB");
    let sidecar = Sidecar::start(&place);
    let mut user = User::open(&sidecar);
    (0..400).for_each(|number| user.put(number, 0));
    for round in 0..rounds(20, 4) {
        for number in 0..400 {
            user.has(number, 0);
            user.has(number % 10, 0);
        }
        let report = sidecar.status();
        let (used, size) = (sum(&report, "tier_bytes"), sum(&report, "tier_bytes_max"));
        assert!(used <= size && size < 16 << 20, "{used} of {size} in round {round}");
    }
    let report = sidecar.status();
    assert!(sum(&report, "tier_evictions") > 100, "other blocks came");
    let (hits, most) = (from_memory(&report), rounds(20, 4) * 400);
    assert!(hits > most / 4 * 3, "hot ones stayed: {hits} of {most} and more gets from memory");
    sidecar.stop();
}

/// The device of a member is taken away: what was there goes to `keep`, and comes back from it.
fn take_away(sidecar: &Sidecar, member: &Path, keep: &Path) {
    sidecar.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(200)); // what it has given to the kernel ends
    std::fs::copy(member, keep).expect("our own files");
    let file = std::fs::File::options().write(true).open(member).expect("our own file");
    file.set_len(1 << 20).expect("our own file");
    sidecar.signal(Signal::CONT);
}

/// A member that was away, and is back: its blocks come into memory and are found there again, by a
/// client that does nothing but get them.
#[test]
fn a_member_that_is_back_is_served_from_memory_again() {
    let mut place = place("32MiB");
    place.configure("sidecar.sandbox = \"off\""); // another file takes its place
    let sidecar = Sidecar::start(&place);
    let mut user = User::open(&sidecar);
    (0..40).for_each(|number| user.put(number, 0));
    warm(&sidecar, &mut user, 40);
    write_records(&sidecar);
    let (member, keep) = (place.members[1].clone(), place.data_path("kept"));
    take_away(&sidecar, &member, &keep);
    let state = || sidecar.status().devices[1].state;
    let all = |user: &mut User| (0..40).filter(|number| user.find(*number)).count();
    // Gets are served from memory, and do not notice; a write does.
    eventually("it is gone", || {
        let _ends: Vec<_> = (40..60).map(|number| user.offer(number, 0)).collect();
        state() == DeviceState::Gone
    });
    assert!(all(&mut user) < 40, "what lay on it is not served");
    std::fs::rename(&keep, &member).expect("our own files");
    eventually("it is back", || state() == DeviceState::Serving && all(&mut user) == 40);
    eventually("gets need no request", || {
        let hits = sum(&sidecar.status(), "hits");
        (0..5).for_each(|_| assert_eq!(all(&mut user), 40));
        std::thread::sleep(Duration::from_millis(20)); // counts are shown a step later
        sum(&sidecar.status(), "hits") == hits
    });
    sidecar.stop();
}

#[test]
fn a_sidecar_that_is_gone_serves_nothing() {
    let place = place("32MiB");
    let sidecar = Sidecar::start(&place);
    let mut user = User::open(&sidecar);
    (0..4).for_each(|number| user.put(number, 0));
    warm(&sidecar, &mut user, 4);
    write_records(&sidecar);
    sidecar.kill();
    eventually("the end is seen", || {
        let lease = user.0.arena.lease(BYTES).unwrap();
        let request = BlockRequest::get(&user.0.space, key(1), lease);
        match user.0.queue.submit(request) {
            Ok(_) => {
                let done = user.0.queue.wait(LONG);
                !matches!(done, Ok(Some(done)) if done.status == Status::Ok)
            }
            Err(_) => true,
        }
    });
    let sidecar = Sidecar::start(&place);
    let mut user = User::open(&sidecar);
    eventually("recovery has found them", || (0..4).all(|number| user.get(number).is_some()));
    warm(&sidecar, &mut user, 4);
    sidecar.stop();
}

/// Has many other blocks come into the tier, more than it has room for.
fn flood(user: &mut User, from: u64, blocks: u64) {
    for number in from..from + blocks {
        user.put(number, 0);
        (0..3).for_each(|_| user.has(number, 0));
    }
}

#[test]
fn a_block_that_is_viewed_stays_as_it_is_whatever_becomes_of_its_key() {
    let place = place("16MiB");
    let sidecar = Sidecar::start(&place);
    let (mut writer, mut reader) = (User::open(&sidecar), User::open(&sidecar));
    (0..8).for_each(|number| writer.put(number, 0));
    warm(&sidecar, &mut writer, 8);
    let views: Vec<_> = (0..3).map(|number| reader.view(number).expect("it is there")).collect();
    let are_whole = || {
        let mut all = (0..).zip(&views);
        all.all(|(number, view)| view[..] == content(number, 0))
    };
    assert!(are_whole());
    assert!(reader.view(1000).is_none(), "a key without a block");
    let keys: Vec<_> = (0..8).map(key).collect();
    let found = reader.0.queue.lookup(&reader.0.space, &keys, &Lookup::default()).unwrap();
    let copied = Duration::from_nanos((8 * BYTES as u64).div_ceil(10));
    assert_eq!(found.load_time(8), Some(copied), "no drive is waited for");
    let (store, view) = (reader.0.space.store(), views[0].as_ptr_range());
    let lies_in = |(base, bytes): &(std::ptr::NonNull<u8>, usize)| {
        let base = base.as_ptr().addr();
        base <= view.start.addr() && view.end.addr() <= base + bytes
    };
    assert_eq!(store.tier_memory().iter().filter(|memory| lies_in(memory)).count(), 1);
    assert_eq!(store.views_left(), 1, "of the four that a client has at least");
    // Replaced, dropped, driven out.
    writer.put(0, 1);
    let dropped = writer.0.run(BlockRequest::drop_block(&writer.0.space, key(1)));
    assert_eq!(dropped, Status::Ok);
    flood(&mut writer, 100, 200);
    assert!(are_whole());
    writer.has(0, 1);
    assert_eq!(writer.get(1), None);
    // Cleared.
    writer.0.space.clear().unwrap();
    flood(&mut writer, 400, 200);
    assert!(are_whole());
    // A client that holds all it may holds no more, and gets go on.
    reader.0.space.refresh().unwrap();
    let mut more = Vec::new();
    while let Some(view) = (400..600).find_map(|number| reader.view(number)) {
        more.push(view);
    }
    assert_eq!(views.len() + more.len(), 4, "the least a client may hold");
    reader.has(599, 0);
    assert!(are_whole());
    drop((views, more));
    assert!((400..600).any(|number| reader.view(number).is_some()));
    sidecar.stop();
}

/// A poller without work sleeps until a client comes, and the end of a view is no request.
#[test]
fn the_memory_of_a_dropped_block_is_free_behind_its_last_view_on_an_idle_host() {
    let place = place("16MiB");
    let sidecar = Sidecar::start(&place);
    let (mut writer, mut reader) = (User::open(&sidecar), User::open(&sidecar));
    (0..8).for_each(|number| writer.put(number, 0));
    warm(&sidecar, &mut writer, 8);
    let views: Vec<_> = (0..3).map(|number| reader.view(number).expect("it is there")).collect();
    (0..3).for_each(|number| {
        let dropped = writer.0.run(BlockRequest::drop_block(&writer.0.space, key(number)));
        assert_eq!(dropped, Status::Ok);
    });
    let blocks = || sum(&sidecar.status(), "tier_blocks");
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(blocks(), 8, "what is viewed is there");
    drop(views);
    eventually("what was viewed is gone", || blocks() == 5);
    sidecar.stop();
}

/// The memory of a session that has ended is used again: none of its blocks stays for ever.
#[test]
fn what_a_client_that_is_gone_has_held_is_free() {
    let place = place("16MiB");
    let sidecar = Sidecar::start(&place);
    let mut writer = User::open(&sidecar);
    for _ in 0..20 {
        (0..4).for_each(|number| writer.put(number, 0));
        let mut reader = User::open(&sidecar);
        let mut views = Vec::new();
        eventually("four views", || {
            (0..4).for_each(|number| reader.has(number, 0));
            views = (0..4).filter_map(|number| reader.view(number)).collect();
            views.len() == 4
        });
        // Replaced while they are held: their memory waits for the session to end.
        (0..4).for_each(|number| writer.put(number, 1));
        (0..4).for_each(|number| writer.put(number, 0));
        assert!((0..).zip(&views).all(|(number, view)| view[..] == content(number, 0)));
    }
    flood(&mut writer, 100, 300);
    let report = sidecar.status();
    assert!(sum(&report, "tier_evictions") > 0 && sum(&report, "tier_blocks") > 100, "{report:?}");
    sidecar.stop();
}

/// A program that only views fetches nothing: its reports of uses must not fill its queue.
#[test]
fn views_alone_go_on_reporting_uses() {
    let place = place("16MiB");
    let sidecar = Sidecar::start(&place);
    let (mut writer, mut reader) = (User::open(&sidecar), User::open(&sidecar));
    reader.0.queue = reader.0.client.open_queue(8).unwrap();
    (0..20).for_each(|number| writer.put(number, 0));
    let keys: Vec<_> = (0..20).map(key).collect();
    let how = Lookup { extent: LookupExtent::All, recency: Recency::Expected, ..Lookup::default() };
    eventually("they are in memory", || {
        writer.0.queue.lookup(&writer.0.space, &keys, &how).unwrap();
        sum(&sidecar.status(), "tier_blocks") == 20
    });
    let own = reader.0.client.session().0;
    let uses = || {
        let report = sidecar.status();
        let session = report.sessions.iter().find(|session| session.id == own);
        session.expect("it is attached").counters.accepted.expect("it is counted")
    };
    let before = uses();
    eventually("all uses are reported", || {
        (0..20).for_each(|number| drop(reader.view(number).expect("it is in memory")));
        uses() >= before + 20
    });
    sidecar.stop();
}
