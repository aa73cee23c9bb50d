//! The report of a replay.

use serde::Serialize;

/// A trace in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TraceFacts {
    /// Requests.
    pub requests: u64,
    /// References: blocks that they ask for.
    pub references: u64,
    /// Different ones.
    pub blocks: u64,
    /// From the first request to the last, in seconds.
    pub span_s: f64,
    /// Tokens of a block, where the lengths of prompts agree on it.
    pub block_tokens: Option<u64>,
    /// The irregularity.
    #[serde(flatten)]
    pub odd: Oddities,
}

/// An irregularity of a trace, which is played all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Oddities {
    /// Requests that stand behind one of a later time.
    pub back: u64,
    /// Requests without a block.
    pub empty: u64,
    /// References to a block that the same request has before.
    pub repeated: u64,
    /// References to a block behind another one than when it was asked for first.
    pub apart: u64,
    /// Requests with a priority or an end.
    pub hinted: u64,
}

impl Oddities {
    /// A sentence for each, with what is made of it.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let all = [
            (
                self.back,
                "requests stand behind one of a later time: each is played at its own time",
            ),
            (self.empty, "requests have no block: they ask for nothing and put nothing"),
            (
                self.repeated,
                "references repeat a block of the same request: each counts as requested, and the \
                 block is put once",
            ),
            (
                self.apart,
                "references follow another block than the block's first one did: the trace has \
                 holes, as below a memory tier, or its ids are not of prefixes; what a request \
                 has is taken as its prompt",
            ),
            (
                self.hinted,
                "requests have a priority or an end: the store takes both with their blocks, the \
                 other caches know neither",
            ),
        ];
        let there = all.into_iter().filter(|(count, _)| *count > 0);
        there.map(|(count, words)| format!("{count} {words}")).collect()
    }
}

/// Counters of a store alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StoreCounts {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Blocks put.
    pub puts: u64,
    /// Blocks moved when their segment was reclaimed.
    pub moved: u64,
    /// Blocks evicted.
    pub evicted: u64,
    /// Puts declined: their chain is worth less than what would go for it.
    pub declined_colder: u64,
    /// Puts declined: little budget was left, and the block was not put before.
    pub declined_first_sight: u64,
    /// Puts declined: no budget was left.
    pub declined_budget: u64,
}

impl StoreCounts {
    /// The counters of two members of one shape.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            segment_bytes: self.segment_bytes,
            segments: self.segments + other.segments,
            puts: self.puts + other.puts,
            moved: self.moved + other.moved,
            evicted: self.evicted + other.evicted,
            declined_colder: self.declined_colder + other.declined_colder,
            declined_first_sight: self.declined_first_sight + other.declined_first_sight,
            declined_budget: self.declined_budget + other.declined_budget,
        }
    }

    /// Puts that were declined, for whatever reason.
    #[must_use]
    pub fn declined(&self) -> u64 {
        self.declined_colder + self.declined_first_sight + self.declined_budget
    }
}

/// One policy at one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// Whose.
    pub policy: String,
    /// Size as it was asked for.
    pub size: String,
    /// Blocks that the cache holds.
    pub blocks: u64,
    /// Blocks found inside unbroken prefixes.
    pub hits: u64,
    /// The share of the requested blocks.
    pub hit_ratio: f64,
    /// Bytes written: blocks; a store writes moved blocks, records and heads too.
    pub written_bytes: u64,
    /// The share of the requested bytes.
    pub write_ratio: f64,
    /// Of the hits, those in memory; of a memory tier only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_hits: Option<u64>,
    /// Of the store only.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreCounts>,
}

/// A stream of requests, and every policy at every size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamReport {
    /// The trace's name.
    pub trace: String,
    /// The memory tier above, as it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below: Option<String>,
    /// The stream in numbers.
    #[serde(flatten)]
    pub facts: TraceFacts,
    /// Runs: size by size, the policies in order.
    pub runs: Vec<Run>,
    /// Omissions and irregularities.
    pub notes: Vec<String>,
}

impl StreamReport {
    /// The trace, and what is above.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.below {
            None => self.trace.clone(),
            Some(tier) => format!("{}, below {tier}", self.trace),
        }
    }
}

/// All streams.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// In the order in which they were named, each before what is below its tiers.
    pub streams: Vec<StreamReport>,
}
