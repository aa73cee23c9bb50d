//! Hits inside prefixes: the store against caches of single blocks.

use kvrail_replay::{CachePolicy, CacheSize};

use crate::chats::chats;
use crate::odd::ALL;
use crate::{each_seed, of, read, run, run_on};

/// The store loses little against LRU, whose order it does not keep, and nothing has more hits
/// than Belady.
#[test]
fn the_store_keeps_up_with_lru() {
    each_seed("prefix", 1, |seed| {
        let trace = read(&chats(seed, 3000));
        let report = run(&trace, "5%,10%,20%,50%", &ALL, 1 << 20);
        let runs = of(&report, CachePolicy::All).zip(of(&report, CachePolicy::Lru));
        for ((store, lru), best) in runs.zip(of(&report, CachePolicy::Belady)) {
            println!(
                "seed {seed}, {}: {:.3} / {:.3}, LRU {:.3}, Belady {:.3}",
                store.size, store.hit_ratio, store.write_ratio, lru.hit_ratio, best.hit_ratio
            );
            assert!(store.hit_ratio >= 0.95 * lru.hit_ratio, "{store:?} {lru:?}");
            assert!(store.hits <= best.hits && lru.hits <= best.hits, "{store:?} {best:?}");
            let counts = store.store.unwrap();
            let missed = trace.asked() - store.hits;
            assert!(counts.puts <= missed, "{counts:?}");
            let there = counts.puts - counts.evicted;
            assert!(there <= store.blocks, "{there} of {}", store.blocks);
            // The written bytes are those put and moved, and little else.
            let blocks = (counts.puts + counts.moved) << 20;
            let own = store.written_bytes - blocks;
            // Segments are small here: a head and a page for each few blocks.
            assert!(own * 50 < blocks, "{own} of {blocks}");
        }
    });
}

/// Nothing is left to chance.
#[test]
fn replays_are_identical() {
    let text = chats(3, 1500);
    let one = run(&read(&text), "7%,400", &[CachePolicy::All, CachePolicy::S3Fifo], 640_256);
    let other = run(&read(&text), "7%,400", &[CachePolicy::All, CachePolicy::S3Fifo], 640_256);
    assert_eq!(one, other);
}

/// A cache that has room for all misses each block once, wherever the lines stand.
#[test]
fn a_cache_for_all_misses_once() {
    let trace = read(&chats(4, 800));
    let all = 2 * trace.distinct();
    let report = run(&trace, &all.to_string(), &ALL, 4096);
    for run in &report.streams[0].runs {
        assert_eq!(run.hits, trace.asked() - u64::from(trace.distinct()), "{run:?}");
    }
}

/// Rings that age apart leave few holes: each has its share of the size and of the blocks.
#[test]
fn eight_members_hit_nearly_as_often_as_one() {
    each_seed("members", 1, |seed| {
        let trace = read(&chats(seed, 3000));
        let on = |members| run_on(members, &trace, ("20%,50%", ""), &[CachePolicy::All], 1 << 20);
        for (one, eight) in on(1).streams[0].runs.iter().zip(&on(8).streams[0].runs) {
            println!("seed {seed}, {}: {:.3}, {:.3}", one.size, one.hit_ratio, eight.hit_ratio);
            assert!((one.hit_ratio - eight.hit_ratio).abs() < 0.05, "{one:?} {eight:?}");
            let counts = eight.store.unwrap();
            let there = counts.puts - counts.evicted;
            assert!(there <= eight.blocks, "{there} of {}: {counts:?}", eight.blocks);
        }
    });
}

/// A tier takes the blocks that it has off the stream, and nothing else: with the trace's first
/// sights alone left below the largest one, and everything below one that has no room.
#[test]
fn below_a_tier_is_what_the_tier_does_not_have() {
    each_seed("below", 3, |seed| {
        let trace = read(&chats(seed, 1500));
        for tier in [1, 7, 150, 10_000] {
            // The tier as a list: the last one goes first, and a request's head is its newest.
            let mut there: Vec<u32> = Vec::new();
            let mut expected = Vec::new();
            for (at, blocks) in trace.iter() {
                let missing = blocks.iter().copied().filter(|block| !there.contains(block));
                let missing: Vec<u32> = missing.collect();
                if !missing.is_empty() {
                    expected.push((at, missing));
                }
                there.retain(|block| !blocks.contains(block));
                there.splice(..0, blocks.iter().copied());
                there.truncate(tier);
            }
            let below = trace.below(CacheSize::Blocks(tier as u64));
            let first = expected[0].0;
            let expected: Vec<_> = expected.into_iter().map(|(at, it)| (at - first, it)).collect();
            let seen: Vec<_> = below.iter().map(|(at, blocks)| (at, blocks.to_vec())).collect();
            assert_eq!(seen, expected, "{tier}");
        }
    });
}

/// One report has several traces and tiers, each with its result alone.
#[test]
fn a_report_has_each_stream_as_if_alone() {
    let trace = read(&chats(8, 1200));
    let both = run_on(1, &trace, ("5%,20%", "2%,10%"), &ALL, 1 << 20);
    assert_eq!(both.streams.len(), 3);
    for (stream, tier) in both.streams.iter().zip([None, Some("2 %"), Some("10 %")]) {
        assert_eq!(stream.below.as_deref(), tier);
        assert_eq!(stream.runs.len(), 2 * ALL.len());
    }
    let alone = run(&trace.below(CacheSize::Percent(10.0)), "5%,20%", &ALL, 1 << 20);
    assert_eq!(both.streams[2].runs, alone.streams[0].runs);
    // The tier has what was used last: less is asked for below it, and less of that is found.
    let hits = |stream: usize| both.streams[stream].runs[0].hits;
    assert!(hits(2) < hits(0), "{both:?}");
}
