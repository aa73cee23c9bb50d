//! What a replay found.

use serde::Serialize;

/// A trace in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TraceFacts {
    /// Requests.
    pub requests: u64,
    /// Blocks that they ask for.
    pub asked: u64,
    /// Different ones.
    pub distinct: u64,
    /// From the first request to the last, in seconds.
    pub span_s: f64,
}

/// What only a store counts.
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
    /// Puts declined: little budget was left, and the block was not put before.
    pub declined_first_sight: u64,
    /// Puts declined: no budget was left.
    pub declined_budget: u64,
}

impl StoreCounts {
    /// Those of two members of one shape.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            segment_bytes: self.segment_bytes,
            segments: self.segments + other.segments,
            puts: self.puts + other.puts,
            moved: self.moved + other.moved,
            evicted: self.evicted + other.evicted,
            declined_first_sight: self.declined_first_sight + other.declined_first_sight,
            declined_budget: self.declined_budget + other.declined_budget,
        }
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
    /// That of the blocks asked for.
    pub hit_ratio: f64,
    /// Bytes written: blocks; a store writes moved blocks, records and heads too.
    pub written_bytes: u64,
    /// That of the bytes asked for.
    pub write_ratio: f64,
    /// Of the store only.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreCounts>,
}

/// A trace, and every policy at every size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The trace.
    pub trace: TraceFacts,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Runs: size by size, the policies in order.
    pub runs: Vec<Run>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}
