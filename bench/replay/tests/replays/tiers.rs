//! A memory tier above the store.

use std::collections::HashSet;

use kvrail_replay::{CachePolicy, CacheSize, Routing, Run, TierEntry, TierUses, TierWrites, Trace};

use crate::chats::chats;
use crate::{each_seed, of, read, run};

const ALL: [TierWrites; 3] = [TierWrites::Apart, TierWrites::AtOnce, TierWrites::Late];

fn tier(blocks: u64, writes: TierWrites) -> CachePolicy {
    CachePolicy::Tiered(CacheSize::Blocks(blocks), writes)
}

/// Each way to write, below a memory of this number of blocks.
fn tiers(trace: &Trace, store: &str, memory: u64) -> [Run; 3] {
    let policies = ALL.map(|writes| tier(memory, writes));
    let report = run(trace, store, &policies, 1 << 20);
    policies.map(|policy| of(&report, policy).next().unwrap().clone())
}

/// Hits, and hits in memory, of an LRU of `memory` blocks which takes everything, above a store
/// that loses nothing: in lists, without a line of the tier's.
fn plain(trace: &Trace, memory: usize) -> (u64, u64) {
    let (mut newest_first, mut stored): (Vec<u32>, HashSet<u32>) = Default::default();
    let (mut hits, mut in_memory) = (0, 0);
    for (_, blocks) in trace.iter() {
        for block in blocks {
            let is_near = newest_first.contains(block);
            in_memory += u64::from(is_near);
            if !is_near && !stored.contains(block) {
                break;
            }
            hits += 1;
        }
        for block in blocks.iter().rev() {
            newest_first.retain(|other| other != block);
            newest_first.insert(0, *block);
        }
        newest_first.truncate(memory);
        stored.extend(blocks);
    }
    (hits, in_memory)
}

#[test]
fn above_a_store_with_room_each_hit_is_one_of_a_plain_model() {
    each_seed("tier over room", 4, |seed| {
        let trace = read(&chats(seed, 600));
        let [apart, at_once, late] = tiers(&trace, "20000", 200);
        let (hits, in_memory) = plain(&trace, 200);
        assert_eq!((apart.hits, apart.memory_hits), (hits, Some(in_memory)));
        assert_eq!((at_once.hits, late.hits), (hits, hits), "a store with room drops nothing");
        let puts = |run: &Run| run.store.unwrap().puts;
        let distinct = u64::from(trace.distinct());
        assert_eq!((puts(&apart), puts(&at_once)), (distinct, distinct));
        // What is in memory at the end was not written yet.
        assert!((distinct - 200..distinct).contains(&puts(&late)), "{}", puts(&late));
    });
}

#[test]
fn with_memory_for_all_nothing_is_written_late() {
    let trace = read(&chats(9, 300));
    let [_, _, late] = tiers(&trace, "2000", trace.distinct().into());
    assert_eq!((late.memory_hits, late.store.unwrap().puts), (Some(late.hits), 0));
    assert_eq!(late.hits, plain(&trace, usize::MAX).0);
}

/// Chats that go on are used in memory, others never come again.
#[test]
fn a_store_that_is_too_small_has_more_hits_of_fewer_written_bytes() {
    each_seed("tier over a small store", 3, |seed| {
        let trace = read(&chats(seed, 4000));
        let [apart, at_once, late] = tiers(&trace, "1500", 600);
        let alone = run(&trace, "1500", &[CachePolicy::All], 1 << 20);
        let alone = alone.streams[0].runs[0].clone();
        let seen = [&alone, &apart, &at_once, &late].map(|run| (run.hits, run.written_bytes));
        println!("seed {seed}: {} blocks: {seen:?}", trace.distinct());
        assert!(late.written_bytes * 4 < alone.written_bytes * 3, "{seen:?}");
        for other in [alone, apart, at_once] {
            assert!(late.hits > other.hits, "{seen:?}");
        }
    });
}

/// Hits, and those in memory, of a tier with room for all above a store that loses nothing: a block
/// is in memory from its second get on, or from its put on.
fn plain_tier(trace: &Trace, entry: TierEntry) -> (u64, u64) {
    let (mut stored, mut got): (HashSet<u32>, HashSet<u32>) = Default::default();
    let mut in_memory = HashSet::new();
    let (mut hits, mut memory_hits) = (0, 0);
    for (_, blocks) in trace.iter() {
        for block in blocks {
            if !stored.contains(block) {
                break;
            }
            hits += 1;
            memory_hits += u64::from(in_memory.contains(block));
            if !got.insert(*block) {
                in_memory.insert(*block);
            }
        }
        let new = blocks.iter().filter(|block| !stored.contains(*block)).copied();
        if entry != TierEntry::SecondGet {
            in_memory.extend(new);
        }
        stored.extend(blocks);
    }
    (hits, memory_hits)
}

#[test]
fn the_sidecars_tier_with_room_has_the_hits_of_a_plain_model() {
    each_seed("the sidecar's tier over room", 4, |seed| {
        let trace = read(&chats(seed, 600));
        for entry in [TierEntry::SecondGet, TierEntry::AtPut, TierEntry::Late] {
            // Enough entries that no set is full, and that no first get is forgotten.
            let policy = CachePolicy::Sidecar(CacheSize::Blocks(200_000), entry, TierUses::Once);
            let report = run(&trace, "20000", &[policy], 4096);
            let ran = of(&report, policy).next().unwrap();
            let (hits, in_memory) = plain_tier(&trace, entry);
            assert!(in_memory > 0, "chats go on");
            assert_eq!((ran.hits, ran.memory_hits), (hits, Some(in_memory)), "{entry:?}");
            let puts = if entry == TierEntry::Late { 0 } else { trace.distinct() };
            assert_eq!(ran.store.unwrap().puts, u64::from(puts), "{entry:?}");
        }
    });
}

/// What is in memory is in the store. Where each use in memory counts, the store does what it does
/// without a tier; where one in a while does, the store takes hot blocks for cold ones.
#[test]
fn a_store_that_counts_each_use_has_the_hits_of_one_without_a_tier() {
    each_seed("the sidecar's tier over a small store", 3, |seed| {
        let trace = read(&chats(seed, 4000));
        let policy = |blocks, uses| {
            CachePolicy::Sidecar(CacheSize::Blocks(blocks), TierEntry::SecondGet, uses)
        };
        let [each, once] = [TierUses::Each, TierUses::Once];
        let policies = [
            CachePolicy::All,
            policy(100, each),
            policy(100_000, each),
            policy(100, once),
            policy(100_000, once),
        ];
        let report = run(&trace, "1500", &policies, 1 << 16);
        let runs = policies.map(|policy| of(&report, policy).next().unwrap());
        let [alone, small, large, counted_once, large_counted_once] = runs.map(|run| run.hits);
        println!("seed {seed}: hits {:?}", runs.map(|run| run.hits));
        assert_eq!([small, large], [alone, alone]);
        let memory = |at: usize| runs[at].memory_hits.unwrap();
        assert!(0 < memory(1) && memory(1) < memory(2) && memory(2) <= large, "{runs:?}");
        // The price of a report in a while, on these chats: 8 % and 13 % of the hits.
        assert!(counted_once < alone && large_counted_once < counted_once, "{runs:?}");
        assert!(large_counted_once * 10 > alone * 8, "{runs:?}");
    });
}

/// The sidecar's own code writes late what the plain policy does, more or less.
#[test]
fn the_sidecars_late_writes_have_more_hits_of_fewer_written_bytes() {
    each_seed("the sidecar's late tier over a small store", 3, |seed| {
        let trace = read(&chats(seed, 4000));
        let memory = CacheSize::Blocks(600);
        let late = CachePolicy::Sidecar(memory, TierEntry::Late, TierUses::Each);
        let policies = [CachePolicy::All, CachePolicy::Tiered(memory, TierWrites::Late), late];
        let report = run(&trace, "1500", &policies, 1 << 20);
        let [alone, plain, late] = policies.map(|policy| of(&report, policy).next().unwrap());
        let seen = [alone, plain, late].map(|run| (run.hits, run.written_bytes));
        println!("seed {seed}: {} blocks: {seen:?}", trace.distinct());
        assert!(late.written_bytes * 10 < alone.written_bytes * 9, "{seen:?}");
        assert!(late.hits > alone.hits && late.hits * 10 > plain.hits * 9, "{seen:?}");
        assert!(late.memory_hits.unwrap() * 10 > plain.memory_hits.unwrap() * 9, "{late:?}");
    });
}

/// Two engines in turns: the second request of a prompt finds nothing in the other's memory.
#[test]
fn engines_have_memories_of_their_own() {
    let lines = (0..6).map(|at| format!("{{\"timestamp\": {at}, \"hash_ids\": [1, 2, 3]}}\n"));
    let others = (0..2000).map(|at| format!("{{\"timestamp\": 9, \"hash_ids\": [{}]}}\n", 9 + at));
    let trace = read(&lines.chain(others).collect::<String>());
    let engines = |routing, count| CachePolicy::Engines(CacheSize::Blocks(100), routing, count);
    let policies = [
        engines(Routing::InTurns, 1),
        engines(Routing::InTurns, 2),
        engines(Routing::LongestPrefix, 2),
        engines(Routing::InTurns, 50),
        CachePolicy::TwoLru(CacheSize::Blocks(100)),
        CachePolicy::TwoLru(CacheSize::Blocks(2)),
    ];
    let report = run(&trace, "2000", &policies, 4096);
    let hits = policies.map(|policy| {
        let ran = of(&report, policy).next().unwrap();
        (ran.hits, ran.memory_hits.unwrap())
    });
    // Memories of two blocks have the head of three.
    assert_eq!(hits, [(15, 15), (15, 12), (15, 15), (15, 0), (15, 15), (15, 10)]);
}
