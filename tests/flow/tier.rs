//! The memory tier: blocks that clients copy themselves, without a request and without a read.

use std::os::unix::fs::FileExt;

use kvrail_client::{BlockKey, BlockRequest, KeyState, Lookup, LookupExtent, Recency, Status};
use kvrail_protocol::StatusReport;

use crate::rig::{
    LONG, Place, Sidecar, StoreShape, eventually, kvrail, rounds, run, write_records,
};
use crate::store_user::StoreUser;

/// Bytes of a block, no multiple of a page.
const BYTES: usize = 100_001;

/// Two members with room for many blocks, and a tier of this size.
fn place(tier: &str) -> Place {
    let shape = StoreShape { member_bytes: 64 << 20, segment_bytes: 4 << 20, block_mean: 64 << 10 };
    let mut place = Place::with_shaped_store(2, &shape);
    place.configure(&format!("[memory_tier]\nbytes = \"{tier}\""));
    place
}

fn key(number: u64) -> BlockKey {
    BlockKey::of(&number.to_le_bytes())
}

/// The bytes of a version of a block.
fn content(number: u64, version: u64) -> Vec<u8> {
    let mut state = (number << 20 | version).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(BYTES).collect()
}

struct User(StoreUser);

impl User {
    fn open(sidecar: &Sidecar) -> Self {
        Self(StoreUser::open(sidecar))
    }

    fn put(&mut self, number: u64, version: u64) {
        let user = &mut self.0;
        eventually("a put is taken", || {
            let mut lease = user.arena.lease(BYTES).unwrap();
            lease.copy_from_slice(&content(number, version));
            let put = BlockRequest::put(&user.space, key(number), lease).replacing();
            match user.run(put) {
                Status::Ok => true,
                Status::Declined => false,
                other => panic!("{other}"),
            }
        });
    }

    /// Gets a block: its bytes, if it is there.
    fn get(&mut self, number: u64) -> Option<Vec<u8>> {
        let user = &mut self.0;
        let lease = user.arena.lease(BYTES + 100).unwrap();
        let ticket = user.queue.submit(BlockRequest::get(&user.space, key(number), lease)).unwrap();
        let done = user.queue.wait(LONG).unwrap().expect("one was asked for");
        assert_eq!(done.ticket, ticket);
        match done.status {
            Status::Ok => {
                assert_eq!(done.bytes, BYTES as u64);
                Some(done.lease.unwrap()[..BYTES].to_vec())
            }
            Status::Miss => None,
            other => panic!("{other}"),
        }
    }

    fn has(&mut self, number: u64, version: u64) {
        assert!(self.get(number) == Some(content(number, version)), "block {number}");
    }
}

/// A sum over the members of the store.
fn sum(report: &StatusReport, counter: &str) -> u64 {
    let of = |shard: &kvrail_protocol::ShardReport| {
        let mut counters = shard.counters.each();
        let found = counters.find(|(definition, _)| definition.name == counter);
        found.and_then(|(_, count)| *count).unwrap_or_else(|| panic!("no counter {counter}"))
    };
    report.shards.iter().map(of).sum()
}

fn from_memory(report: &StatusReport) -> u64 {
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

/// Overwrites the blocks in the tiers of a sidecar. False where this user may not.
fn damage(sidecar: &Sidecar) -> bool {
    let own = format!("/proc/{}", sidecar.pid());
    let maps = std::fs::read_to_string(format!("{own}/maps")).expect("our child");
    let memory = std::fs::OpenOptions::new().write(true).open(format!("{own}/mem"));
    let Ok(memory) = memory else { return false };
    let tiers = maps.lines().filter(|line| line.contains("kvrail-tier"));
    let ranges = tiers.filter_map(|line| line.split_whitespace().next()?.split_once('-'));
    let mut written = 0;
    for (begin, end) in ranges {
        let [begin, end] =
            [begin, end].map(|text| u64::from_str_radix(text, 16).expect("an address"));
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
    assert!(from_memory(&report) > rounds(20, 4) * 300, "hot ones stayed");
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
