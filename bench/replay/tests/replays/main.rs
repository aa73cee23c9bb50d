//! Replays of generated traces: what must hold for any of them. Every scenario prints its seed
//! when it fails; `KVRAIL_STORE_SEED` is the first one, `KVRAIL_STORE_CASES` how many.

mod chats;
mod hints;
mod moves_on;
mod odd;
mod prefix;
#[path = "../../../../engine/store/tests/sim/seeds.rs"]
mod seeds;
mod tiers;

use std::sync::atomic::{AtomicU64, Ordering};

use kvrail_replay::{
    CachePolicy, CacheSize, Placement, Plan, Report, RequestStream, Run, Trace, replay,
};

use crate::seeds::each_seed;

fn read(text: &str) -> Trace {
    Trace::read(text.as_bytes(), "generated".as_ref(), &mut |_| {}).unwrap()
}

/// The report of all runs over a trace.
fn run(trace: &Trace, sizes: &str, policies: &[CachePolicy], block_bytes: u32) -> Report {
    run_on(1, trace, (sizes, ""), policies, block_bytes)
}

/// As `run`, with the given number of members of a store, and below tiers.
fn run_on(
    members: u16,
    trace: &Trace,
    (sizes, tiers): (&str, &str),
    policies: &[CachePolicy],
    block_bytes: u32,
) -> Report {
    let shares = |text: &str| -> Vec<CacheSize> {
        text.split_terminator(',').map(|size| size.parse().unwrap()).collect()
    };
    let (policies, placement) = (policies.to_vec(), Placement::Hash);
    let plan = Plan { sizes: shares(sizes), policies, block_bytes, members, placement };
    let streams = RequestStream::with_tiers("generated", trace.clone(), &shares(tiers));
    let asked = AtomicU64::new(0);
    let count = |more| {
        asked.fetch_add(more, Ordering::Relaxed);
    };
    let report = replay(&streams, &plan, &count).unwrap();
    let ran =
        report.streams.iter().map(|stream| stream.facts.references * stream.runs.len() as u64);
    let ran: u64 = ran.sum();
    assert_eq!(asked.into_inner(), ran, "progress comes to its end");
    report
}

/// The runs of one policy over the trace as it is.
fn of(report: &Report, policy: CachePolicy) -> impl Iterator<Item = &Run> {
    report.streams[0].runs.iter().filter(move |run| run.policy == policy.to_string())
}
