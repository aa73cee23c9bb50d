//! Runs: every policy at every size over every stream.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use kvrail_store::{Budget, SEGMENTS_MAX, SEGMENTS_MIN};
use thiserror::Error;

use crate::engines::Engines;
use crate::line::Hints;
use crate::peers::PeerCache;
use crate::player::{Keyed, request};
use crate::policy::CachePolicy;
use crate::report::{Report, Run, StoreCounts, StreamReport};
use crate::rings::{Placement, Rings};
use crate::share::CacheSize;
use crate::sidecar_tier::SidecarTier;
use crate::store::MemberShape;
use crate::tiered::Tiered;
use crate::trace::Trace;

const DAY_NS: f64 = 86_400e9;
/// Time that a trace has for each block at least: the store's own steps take some, and what a
/// budget earns meanwhile must not count.
const BLOCK_NS: u64 = 1_000_000;

/// The runs of a replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Sizes of the cache.
    pub sizes: Vec<CacheSize>,
    /// The policies, in the order of the report.
    pub policies: Vec<CachePolicy>,
    /// Bytes of a block, 1 to 128 MiB.
    pub block_bytes: u32,
    /// Members of the store, 1 to 64, each with its share of the size.
    pub members: u16,
    /// Which of them has a block.
    pub placement: Placement,
}

impl Plan {
    /// Blocks asked for in all runs: what progress counts up to.
    #[must_use]
    pub fn work(&self, streams: &[RequestStream]) -> u64 {
        let asked: u64 = streams.iter().map(|stream| stream.trace.asked()).sum();
        asked * (self.sizes.len() * self.policies.len()) as u64
    }
}

/// Requests as a store sees them.
#[derive(Clone, Debug)]
pub struct RequestStream {
    /// The trace's name in the report.
    pub name: String,
    /// The memory tier above.
    pub below: Option<CacheSize>,
    /// The requests.
    pub trace: Trace,
}

impl RequestStream {
    /// A trace, and what is left of it below each of these tiers.
    #[must_use]
    pub fn with_tiers(name: &str, trace: Trace, tiers: &[CacheSize]) -> Vec<Self> {
        let stream = |below, trace| Self { name: name.to_owned(), below, trace };
        let below: Vec<_> =
            tiers.iter().map(|tier| stream(Some(*tier), trace.below(*tier))).collect();
        std::iter::once(stream(None, trace)).chain(below).collect()
    }
}

/// The store failed: a fault of its own.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the store failed in the replay: {0}")]
pub struct ReplayError(String);

/// Runs all policies at all sizes over all streams, on as many threads as there are processors; an
/// impossible size of a store is left out, with a note. `progress` gets the number of blocks
/// requested since its last call.
///
/// # Errors
/// `ReplayError` when the store breaks its contract.
pub fn replay(
    streams: &[RequestStream],
    plan: &Plan,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Report, ReplayError> {
    let mut jobs = Vec::new();
    for stream in 0..streams.len() {
        for size in &plan.sizes {
            jobs.extend(plan.policies.iter().map(|policy| (stream, *size, *policy)));
        }
    }
    let run = |at: usize| {
        let (stream, size, policy) = *jobs.get(at)?;
        Some((at, Job { plan, size, policy }.run(&streams[stream].trace, progress)))
    };
    let next = AtomicUsize::new(0);
    let work =
        || -> Vec<_> { std::iter::from_fn(|| run(next.fetch_add(1, Ordering::Relaxed))).collect() };
    let count = thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    let mut ran: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("runs do not panic")).collect()
    });
    ran.sort_by_key(|(at, _)| *at);
    let mut reports: Vec<_> = streams.iter().map(about).collect();
    for ((_, ran), (stream, ..)) in ran.into_iter().zip(&jobs) {
        match ran? {
            Ok(run) => reports[*stream].runs.push(run),
            Err(note) => reports[*stream].notes.push(note),
        }
    }
    Ok(Report { block_bytes: plan.block_bytes, streams: reports })
}

/// A stream that has not been played yet.
fn about(stream: &RequestStream) -> StreamReport {
    let facts = stream.trace.facts();
    StreamReport {
        trace: stream.name.clone(),
        below: stream.below.map(|tier| tier.to_string()),
        facts,
        runs: vec![],
        notes: facts.odd.words(),
    }
}

/// One run.
struct Job<'a> {
    plan: &'a Plan,
    size: CacheSize,
    policy: CachePolicy,
}

impl Job<'_> {
    /// Plays a trace. No store can be so large or small: a note.
    fn run(
        &self,
        trace: &Trace,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Result<Run, String>, ReplayError> {
        let Plan { block_bytes, members, placement, .. } = *self.plan;
        let blocks = self.size.blocks(trace.distinct());
        if let Some(mut cache) = self.policy.peer(blocks, trace) {
            let (hits, written) = play(&mut *cache, trace, progress);
            let written_bytes = written * u64::from(block_bytes);
            let memory_hits = cache.memory_hits();
            let played = Played { hits, memory_hits, written_bytes, ..Played::default() };
            return Ok(Ok(self.ran(played, trace)));
        }
        let Some(shape) = MemberShape::of(blocks / u64::from(members), block_bytes) else {
            return Ok(Err(format!(
                "{} at {}: {blocks} blocks are too {} for a store, of which each member has {} to \
                 {} segments",
                self.policy,
                self.size,
                if blocks > u64::from(SEGMENTS_MAX) { "many" } else { "few" },
                SEGMENTS_MIN,
                SEGMENTS_MAX
            )));
        };
        let limits = (block_bytes, budget(self.policy, trace, block_bytes));
        let rings = Rings::new((members, placement), shape, limits).map_err(ReplayError)?;
        let distinct = trace.distinct();
        let played = match self.policy {
            CachePolicy::Tiered(size, writes) => {
                let mut tier =
                    Tiered::new(writes, size.blocks(distinct), (rings, blocks), distinct);
                let hits = play_keyed(&mut tier, Tiered::store, trace, progress);
                hits.map(|hits| Played::below(hits, tier.counted()))
            }
            CachePolicy::Sidecar(size, entry, uses) => {
                let mut tier = SidecarTier::new(
                    (entry, uses),
                    (size.blocks(distinct), block_bytes),
                    (rings, blocks),
                );
                let hits = play_keyed(&mut tier, SidecarTier::store, trace, progress);
                hits.map(|hits| Played::below(hits, tier.counted()))
            }
            CachePolicy::Engines(size, routing, count) => {
                let memory = (count, size.blocks(distinct));
                let mut engines = Engines::new(routing, memory, rings, distinct);
                let hits = play_keyed(&mut engines, Engines::store, trace, progress);
                hits.map(|hits| Played::below(hits, engines.counted()))
            }
            _ => play_store(rings, limits.1, trace, progress),
        };
        Ok(Ok(self.ran(played.map_err(ReplayError)?, trace)))
    }

    fn ran(&self, played: Played, trace: &Trace) -> Run {
        let Played { hits, memory_hits, written_bytes, store } = played;
        let asked = trace.asked().max(1) as f64;
        Run {
            policy: self.policy.to_string(),
            size: self.size.to_string(),
            blocks: self.size.blocks(trace.distinct()),
            hits,
            hit_ratio: hits as f64 / asked,
            written_bytes,
            write_ratio: written_bytes as f64 / (asked * f64::from(self.plan.block_bytes)),
            memory_hits,
            store,
        }
    }
}

/// What a policy made of a trace.
#[derive(Clone, Copy, Debug, Default)]
struct Played {
    /// Inside unbroken prefixes.
    hits: u64,
    /// Those in memory, of a tier.
    memory_hits: Option<u64>,
    written_bytes: u64,
    /// What a store counted.
    store: Option<StoreCounts>,
}

impl Played {
    /// Hits in all, and what a memory and the store below it have counted.
    fn below(hits: u64, (memory_hits, (counts, written_bytes)): (u64, (StoreCounts, u64))) -> Self {
        Self { hits, memory_hits: Some(memory_hits), written_bytes, store: Some(counts) }
    }
}

/// A policy's write budget in bytes a day: its share of the trace's requested bytes.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
fn budget(policy: CachePolicy, trace: &Trace, block_bytes: u32) -> Budget {
    let CachePolicy::Budget(share) = policy else { return Budget::Unlimited };
    let asked_bytes = trace.asked() as f64 * f64::from(block_bytes);
    let days = ReplayPace::of(trace).span_ns as f64 / DAY_NS;
    Budget::BytesPerDay((share * asked_bytes / days) as u64)
}

/// The times at which a store gets requests: their own, stretched where they leave too little time.
struct ReplayPace {
    trace_ns: u64,
    span_ns: u64,
}

impl ReplayPace {
    fn of(trace: &Trace) -> Self {
        let trace_ns = trace.span_ns();
        Self { trace_ns, span_ns: trace_ns.max(trace.asked() * BLOCK_NS) }
    }

    /// The time of a request, from its timestamp and the number of blocks requested before it.
    /// Where all requests have one timestamp or none, blocks follow each other evenly.
    fn at(&self, at_ns: u64, before: u64) -> u64 {
        if self.trace_ns == 0 { before * BLOCK_NS } else { self.drawn(at_ns) }
    }

    /// When blocks end of a request that is played at this time.
    fn hints(&self, hints: Hints, at_ns: u64, played_ns: u64) -> Hints {
        let lives = |until: u64| played_ns.saturating_add(self.drawn(until - at_ns));
        Hints { until_ns: hints.until_ns.map(lives), ..hints }
    }

    fn drawn(&self, ns: u64) -> u64 {
        match u128::from(ns) * u128::from(self.span_ns) {
            _ if self.trace_ns == 0 => ns,
            long => u64::try_from(long / u128::from(self.trace_ns)).unwrap_or(u64::MAX),
        }
    }
}

/// Hits inside unbroken prefixes, and blocks written.
fn play(cache: &mut dyn PeerCache, trace: &Trace, progress: &(dyn Fn(u64) + Sync)) -> (u64, u64) {
    let (mut hits, mut written) = (0, 0);
    for (_, blocks) in trace.iter() {
        let found = cache.request(blocks);
        (hits, written) = (hits + found.hits, written + found.written);
        progress(blocks.len() as u64);
    }
    (hits, written)
}

fn play_store(
    mut store: Rings,
    budget: Budget,
    trace: &Trace,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Played, String> {
    if budget != Budget::Unlimited {
        store.fill()?;
    }
    let hits = play_keyed(&mut store, |store| store, trace, progress)?;
    let (counts, written_bytes) = store.counted();
    Ok(Played { hits, memory_hits: None, written_bytes, store: Some(counts) })
}

/// Plays a trace against a cache with a store in it. Hits inside unbroken prefixes.
fn play_keyed<K: Keyed<Error = String>>(
    cache: &mut K,
    store: impl Fn(&mut K) -> &mut Rings,
    trace: &Trace,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<u64, String> {
    let (pace, mut hits, mut before) = (ReplayPace::of(trace), 0, 0);
    for (at_ns, hints, blocks) in trace.hinted() {
        let played_ns = pace.at(at_ns, before);
        store(cache).pass(played_ns, pace.hints(hints, at_ns, played_ns));
        before += blocks.len() as u64;
        hits += request(cache, blocks)? as u64;
        progress(blocks.len() as u64);
    }
    Ok(hits)
}
