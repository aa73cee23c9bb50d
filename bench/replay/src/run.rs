//! Runs: every policy at every size over one trace.

use std::fmt;
use std::str::FromStr;

use kvrail_store::{Budget, SEGMENTS_MAX, SEGMENTS_MIN};
use thiserror::Error;

use crate::peers::{Access, Belady, Lru, Peer, S3Fifo};
use crate::report::{Report, Run, StoreCounts, TraceFacts};
use crate::rings::{Placement, Rings};
use crate::store::Shape;
use crate::trace::Trace;

const DAY_NS: f64 = 86_400e9;
/// Time that a trace has for each block at least: the store's own steps take some, and what a
/// budget earns meanwhile must not count.
const BLOCK_NS: u64 = 1_000_000;

/// A share of the trace's different blocks, or a number of blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// Of the different blocks, in percent.
    Percent(f64),
    /// Blocks.
    Blocks(u64),
}

impl Share {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 100 %")]
    fn blocks(self, distinct: u32) -> u64 {
        match self {
            Self::Percent(percent) => (f64::from(distinct) * percent / 100.0).round() as u64,
            Self::Blocks(blocks) => blocks,
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent} %"),
            Self::Blocks(blocks) => write!(f, "{blocks}"),
        }
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "{text:?} is no size: write a share of the trace's different blocks (5%), more \
                than 0 and up to 100 %, or a number of blocks (5000)"
            )
        };
        let Some(percent) = text.strip_suffix('%') else {
            let blocks = text.parse().ok().filter(|blocks| (1..=1 << 32).contains(blocks));
            return blocks.map(Self::Blocks).ok_or_else(refused);
        };
        let percent = percent.trim_end().parse().ok();
        let percent = percent.filter(|percent| *percent > 0.0 && *percent <= 100.0);
        percent.map(Self::Percent).ok_or_else(refused)
    }
}

/// Who caches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// The store, which takes everything.
    All,
    /// The store with a write budget: bytes written for each byte asked for, moves and records
    /// counted. Its ring is full of other blocks when the trace begins, as it is in all of its life
    /// but the first filling.
    Budget(f64),
    /// Least recently used.
    Lru,
    /// S3-FIFO.
    S3Fifo,
    /// With knowledge of what comes.
    Belady,
}

impl Policy {
    /// What a store may write in a day, if its share of what is asked for is as in the trace.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
    fn budget(self, trace: &Trace, block_bytes: u32) -> Budget {
        let Self::Budget(share) = self else { return Budget::Unlimited };
        let asked_bytes = trace.asked() as f64 * f64::from(block_bytes);
        let days = Pace::of(trace).span_ns as f64 / DAY_NS;
        Budget::BytesPerDay((share * asked_bytes / days) as u64)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "kvrail, all admitted",
            Self::Budget(share) => return write!(f, "kvrail, budget {share:.2}"),
            Self::Lru => "LRU",
            Self::S3Fifo => "S3-FIFO",
            Self::Belady => "Belady",
        })
    }
}

/// What to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Sizes of the cache.
    pub sizes: Vec<Share>,
    /// Who caches, in the order of the report.
    pub policies: Vec<Policy>,
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
    pub fn work(&self, trace: &Trace) -> u64 {
        trace.asked() * (self.sizes.len() * self.policies.len()) as u64
    }
}

/// The store failed: a fault of its own.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the store failed in the replay: {0}")]
pub struct ReplayError(String);

/// Runs all policies at all sizes; a store of a size that none can have is left out, with a note.
/// `progress` is told how many blocks were asked for since it was told before.
///
/// # Errors
/// `ReplayError` when the store does what it must not.
pub fn replay(
    trace: &Trace,
    plan: &Plan,
    progress: &mut dyn FnMut(u64),
) -> Result<Report, ReplayError> {
    let trace_facts = TraceFacts {
        requests: trace.requests() as u64,
        asked: trace.asked(),
        distinct: trace.distinct().into(),
        span_s: trace.span_ns() as f64 / 1e9,
    };
    let mut report =
        Report { trace: trace_facts, block_bytes: plan.block_bytes, runs: vec![], notes: vec![] };
    if trace.requests() == 0 {
        report.notes.push("the trace has no request".to_owned());
    }
    for size in &plan.sizes {
        let blocks = size.blocks(trace.distinct());
        for policy in &plan.policies {
            let played = match peer(*policy, blocks, trace) {
                Some(mut cache) => Some(play(&mut *cache, trace, plan.block_bytes, progress)),
                None => match Shape::of(blocks / u64::from(plan.members), plan.block_bytes) {
                    Some(shape) => {
                        let limits = (plan.block_bytes, policy.budget(trace, plan.block_bytes));
                        let rings = (plan.members, plan.placement);
                        Some(play_store((shape, rings), limits, trace, progress)?)
                    }
                    None => None,
                },
            };
            match played {
                Some(played) => report.runs.push(played.run(*policy, *size, blocks, plan, trace)),
                None => report.notes.push(format!(
                    "{policy} at {size}: {blocks} blocks are too {} for a store, of which each \
                     member has {} to {} segments",
                    if blocks > u64::from(SEGMENTS_MAX) { "many" } else { "few" },
                    SEGMENTS_MIN,
                    SEGMENTS_MAX
                )),
            }
        }
    }
    Ok(report)
}

/// When a store is told of requests: at their times, drawn out where those leave too little.
struct Pace {
    trace_ns: u64,
    span_ns: u64,
}

impl Pace {
    fn of(trace: &Trace) -> Self {
        let trace_ns = trace.span_ns();
        Self { trace_ns, span_ns: trace_ns.max(trace.asked() * BLOCK_NS) }
    }

    /// Of a request, and the blocks asked for before it. Where all come at once, or nobody noted
    /// when, blocks follow each other evenly.
    fn at(&self, at_ns: u64, before: u64) -> u64 {
        if self.trace_ns == 0 {
            return before * BLOCK_NS;
        }
        let drawn = u128::from(at_ns) * u128::from(self.span_ns) / u128::from(self.trace_ns);
        u64::try_from(drawn).expect("within the span")
    }
}

/// What came of one run.
struct Played {
    hits: u64,
    written_bytes: u64,
    store: Option<StoreCounts>,
}

impl Played {
    fn run(self, policy: Policy, size: Share, blocks: u64, plan: &Plan, trace: &Trace) -> Run {
        let asked = trace.asked().max(1) as f64;
        Run {
            policy: policy.to_string(),
            size: size.to_string(),
            blocks,
            hits: self.hits,
            hit_ratio: self.hits as f64 / asked,
            written_bytes: self.written_bytes,
            write_ratio: self.written_bytes as f64 / (asked * f64::from(plan.block_bytes)),
            store: self.store,
        }
    }
}

fn peer(policy: Policy, blocks: u64, trace: &Trace) -> Option<Box<dyn Peer>> {
    let distinct = trace.distinct();
    match policy {
        Policy::All | Policy::Budget(_) => None,
        Policy::Lru => Some(Box::new(Lru::new(blocks, distinct))),
        Policy::S3Fifo => Some(Box::new(S3Fifo::new(blocks, distinct))),
        Policy::Belady => {
            let all = trace.iter().flat_map(|(_, blocks)| blocks.iter().copied());
            Some(Box::new(Belady::new(blocks, distinct, all)))
        }
    }
}

/// Hits inside unbroken prefixes, and blocks written.
fn play(
    cache: &mut dyn Peer,
    trace: &Trace,
    block_bytes: u32,
    progress: &mut dyn FnMut(u64),
) -> Played {
    let (mut hits, mut written) = (0, 0);
    for (_, blocks) in trace.iter() {
        let mut unbroken = true;
        for block in blocks {
            let access = cache.access(*block);
            unbroken &= access == Access::Hit;
            hits += u64::from(unbroken);
            written += u64::from(access == Access::Written);
        }
        progress(blocks.len() as u64);
    }
    Played { hits, written_bytes: written * u64::from(block_bytes), store: None }
}

fn play_store(
    (shape, members): (Shape, (u16, Placement)),
    (block_bytes, budget): (u32, Budget),
    trace: &Trace,
    progress: &mut dyn FnMut(u64),
) -> Result<Played, ReplayError> {
    let mut store = Rings::new(members, shape, (block_bytes, budget)).map_err(ReplayError)?;
    if budget != Budget::Unlimited {
        store.fill().map_err(ReplayError)?;
    }
    let (pace, mut hits, mut before) = (Pace::of(trace), 0, 0);
    for (at_ns, blocks) in trace.iter() {
        let at_ns = pace.at(at_ns, before);
        before += blocks.len() as u64;
        hits += store.request(at_ns, blocks).map_err(ReplayError)?;
        progress(blocks.len() as u64);
    }
    let (counts, written_bytes) = store.counted();
    Ok(Played { hits, written_bytes, store: Some(counts) })
}
