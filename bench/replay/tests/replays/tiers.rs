//! A memory tier above the store.

use std::collections::HashSet;

use kvrail_replay::{CachePolicy, CacheSize, Run, TierWrites, Trace};

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
