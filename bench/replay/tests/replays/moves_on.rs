//! A working set that is replaced by another one.

use std::fmt::Write;

use fastrand::Rng;
use kvrail_replay::{CachePolicy, Trace};

use crate::{each_seed, of, read, run};

/// Chains of a working set, and their blocks: together as many as the store has room for.
const CHAINS: u64 = 200;
const BLOCKS: u64 = 30;

/// Ten rounds of one working set, then the given number of another; a round reads as many chains as
/// a set has, each drawn at random.
fn two_sets(seed: u64, rounds: u64) -> Trace {
    let mut random = Rng::with_seed(seed);
    let mut text = String::new();
    for at in 0..(10 + rounds) * CHAINS {
        let set = if at < 10 * CHAINS { 0 } else { CHAINS };
        let first = (set + random.u64(..CHAINS)) * BLOCKS;
        let ids: Vec<u64> = (first..first + BLOCKS).collect();
        writeln!(text, "{{\"timestamp\": {}, \"hash_ids\": {ids:?}}}", at * 500).unwrap();
    }
    read(&text)
}

/// In its fifth round a new working set has nine of ten hits that LRU has.
#[test]
fn a_new_working_set_is_there_after_four_rounds() {
    each_seed("moves on", 3, |seed| {
        let size = (CHAINS * BLOCKS).to_string();
        let hits = |rounds, policy| {
            let report = run(&two_sets(seed, rounds), &size, &[policy], 1 << 20);
            of(&report, policy).next().unwrap().hits
        };
        let fifth = |policy| hits(5, policy) - hits(4, policy);
        let (store, lru) = (fifth(CachePolicy::All), fifth(CachePolicy::Lru));
        println!("seed {seed}: {store} hits of LRU's {lru}");
        assert!(store * 10 >= lru * 9, "{store} of {lru}");
    });
}
