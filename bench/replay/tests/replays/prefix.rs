//! Hits inside prefixes: the store against caches of single blocks.

use kvrail_replay::Policy;

use crate::chats::chats;
use crate::{each_seed, of, read, run, run_on};

/// The store loses little against LRU, whose order it does not keep, and nothing has more hits
/// than Belady.
#[test]
fn the_store_keeps_up_with_lru() {
    each_seed("prefix", 1, |seed| {
        let trace = read(&chats(seed, 3000));
        let policies = [Policy::All, Policy::Lru, Policy::S3Fifo, Policy::Belady];
        let report = run(&trace, "5%,10%,20%,50%", &policies, 1 << 20);
        let runs = of(&report, Policy::All).zip(of(&report, Policy::Lru));
        for ((store, lru), best) in runs.zip(of(&report, Policy::Belady)) {
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
            // What is written is what was put and moved, and little else.
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
    let one = run(&read(&text), "7%,400", &[Policy::All, Policy::S3Fifo], 640_256);
    let other = run(&read(&text), "7%,400", &[Policy::All, Policy::S3Fifo], 640_256);
    assert_eq!(one, other);
}

/// A cache that has room for all misses each block once, wherever the lines stand.
#[test]
fn a_cache_for_all_misses_once() {
    let trace = read(&chats(4, 800));
    let policies = [Policy::All, Policy::Lru, Policy::S3Fifo, Policy::Belady];
    let all = 2 * trace.distinct();
    let report = run(&trace, &all.to_string(), &policies, 4096);
    for run in &report.runs {
        assert_eq!(run.hits, trace.asked() - u64::from(trace.distinct()), "{run:?}");
    }
}

/// Rings that age apart leave few holes: each has its share of the size and of the blocks.
#[test]
fn eight_members_hit_nearly_as_often_as_one() {
    each_seed("members", 1, |seed| {
        let trace = read(&chats(seed, 3000));
        let on = |members| run_on(members, &trace, "20%,50%", &[Policy::All], 1 << 20);
        for (one, eight) in on(1).runs.iter().zip(&on(8).runs) {
            println!("seed {seed}, {}: {:.3}, {:.3}", one.size, one.hit_ratio, eight.hit_ratio);
            assert!((one.hit_ratio - eight.hit_ratio).abs() < 0.05, "{one:?} {eight:?}");
            let counts = eight.store.unwrap();
            let there = counts.puts - counts.evicted;
            assert!(there <= eight.blocks, "{there} of {}: {counts:?}", eight.blocks);
        }
    });
}
