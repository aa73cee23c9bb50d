//! Experiment E3: which drive has a block, by the hash of its key or in turn along its chain.
//!
//! How long the slowest block of a burst takes on simulated drives: each moves one block after the
//! other at its bandwidth, and answers after a fixed latency. Which drive a block is on comes from
//! the code that clients and pollers use. With a trace, also the hits of the store's own code over
//! as many rings.

use std::env;
use std::path::Path;

use fastrand::Rng;
use kvrail_replay::{Placement, Plan, Policy, Share, Stream, Trace, replay};
use kvrail_store::Members;

/// A data-center drive of PCIe 4 or 5 at large reads.
const BYTES_PER_US: f64 = 6800.0;
const LATENCY_US: f64 = 80.0;
const BLOCK_BYTES: f64 = 1_048_576.0;
const BURSTS: usize = 20_000;
const LOADS: [f64; 4] = [0.0, 0.3, 0.6, 0.8];

/// Microseconds that the slowest block of each burst takes, sorted.
fn bursts(placement: Placement, drives: u16, blocks: usize, load: f64) -> Vec<f64> {
    let mut rng = Rng::with_seed(0xe3);
    let members = Members::first(drives);
    let each = BLOCK_BYTES / BYTES_PER_US;
    let mut free = vec![0.0_f64; usize::from(drives)];
    let mut now = 0.0_f64;
    let between = each * blocks as f64 / f64::from(drives) / load;
    let mut taken = Vec::with_capacity(BURSTS);
    for _ in 0..BURSTS {
        if load > 0.0 {
            now += -between * (1.0 - rng.f64()).ln();
        } else {
            now = free.iter().copied().fold(now, f64::max);
        }
        let root = rng.u64(..);
        let mut slowest = 0.0_f64;
        for depth in 0..blocks {
            let lo = if depth == 0 { root } else { rng.u64(..) };
            let drive = &mut free[placement.of(members, (root, depth), lo)];
            *drive = drive.max(now) + each;
            slowest = slowest.max(*drive + LATENCY_US - now);
        }
        taken.push(slowest);
    }
    taken.sort_by(f64::total_cmp);
    taken
}

fn table() {
    println!("| drives | blocks | load | hash mean / p50 / p99 | chain mean / p50 / p99 | mean |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let show = |all: &[f64]| {
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let at = |percent: usize| all[all.len() * percent / 100];
        (mean, format!("{mean:.0} / {:.0} / {:.0}", at(50), at(99)))
    };
    for drives in [4, 8] {
        for blocks in [14, 54] {
            for load in LOADS {
                let (hash, one) = show(&bursts(Placement::Hash, drives, blocks, load));
                let (chain, other) = show(&bursts(Placement::Chain, drives, blocks, load));
                let load = if load > 0.0 { format!("{load:.1}") } else { "alone".into() };
                let gain = hash / chain;
                println!("| {drives} | {blocks} | {load} | {one} | {other} | {gain:.2} |");
            }
        }
    }
}

/// Hits of the store's own code over so many rings.
fn hits(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let streams = Stream::with_tiers("trace", Trace::load(path, &mut |_| ())?, &[]);
    println!("\n| rings | placement | 5 % | 10 % | 20 % |");
    println!("| --- | --- | --- | --- | --- |");
    for (members, placement) in [
        (1, Placement::Hash),
        (4, Placement::Hash),
        (4, Placement::Chain),
        (8, Placement::Hash),
        (8, Placement::Chain),
    ] {
        let plan = Plan {
            sizes: [5.0, 10.0, 20.0].map(Share::Percent).to_vec(),
            policies: vec![Policy::All],
            block_bytes: 1 << 20,
            members,
            placement,
        };
        let report = replay(&streams, &plan, &|_| ())?;
        let runs = &report.streams[0].runs;
        let cells: Vec<_> = runs.iter().map(|it| format!("{:.3}", it.hit_ratio)).collect();
        println!("| {members} | {placement:?} | {} |", cells.join(" | "));
    }
    Ok(())
}

/// How many keys of a chain store move to another member when a drive is added.
fn moved() {
    let mut rng = Rng::with_seed(0xe3);
    println!("\n| drives | hash: keys that move | chain |");
    println!("| --- | --- | --- |");
    for drives in [4, 8] {
        let (before, after) = (Members::first(drives), Members::first(drives + 1));
        let mut moved = [0; 2];
        for _ in 0..10_000 {
            let (root, lo, depth) = (rng.u64(..), rng.u64(..), rng.usize(1..54));
            for (count, placement) in moved.iter_mut().zip([Placement::Hash, Placement::Chain]) {
                let place = |members| placement.of(members, (root, depth), lo);
                *count += u32::from(place(before) != place(after));
            }
        }
        let [hash, chain] = moved.map(|count| f64::from(count) / 100.0);
        println!("| {drives} to {} | {hash:.0} % | {chain:.0} % |", drives + 1);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    table();
    moved();
    env::args_os().nth(1).map_or(Ok(()), |path| hits(Path::new(&path)))
}
