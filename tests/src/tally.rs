//! What a client process reports about its traffic.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A block of known content: its last write was acknowledged, and no later one was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledged {
    /// First byte in the volume.
    pub offset: u64,
    /// Length.
    pub bytes: usize,
    /// Version of all of it.
    pub version: u32,
}

/// Counts and findings, of one thread or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Requests the queue took.
    pub submitted: u64,
    /// Ends that came back for them.
    pub ended: u64,
    /// Ends by status.
    pub statuses: BTreeMap<String, u64>,
    /// Bytes of the OK ones.
    pub bytes: u64,
    /// Reads whose every byte was compared.
    pub verified: u64,
    /// All faults: wrong data, double or missing ends, unexpected statuses.
    pub wrong: Vec<String>,
    /// Blocks of the volume with known content.
    pub acknowledged: Vec<Acknowledged>,
}

impl Tally {
    /// Ends with this status.
    #[must_use]
    pub fn count(&self, status: &str) -> u64 {
        self.statuses.get(status).copied().unwrap_or(0)
    }

    pub(crate) fn blame(&mut self, what: impl Into<String>) {
        self.wrong.push(what.into());
    }

    /// Adds another thread's or process's figures.
    pub fn add(&mut self, other: Self) {
        self.submitted += other.submitted;
        self.ended += other.ended;
        self.bytes += other.bytes;
        self.verified += other.verified;
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self.wrong.extend(other.wrong);
        self.acknowledged.extend(other.acknowledged);
    }

    /// Panics unless every request ended exactly once and all data was right.
    ///
    /// # Panics
    /// With the first faults.
    pub fn assert_right(&self) {
        let first: Vec<_> = self.wrong.iter().take(5).collect();
        assert!(first.is_empty(), "{} findings, the first: {first:#?}", self.wrong.len());
        assert_eq!(self.submitted, self.ended, "requests that never ended, or ended twice");
        assert_eq!(self.ended, self.statuses.values().sum::<u64>());
    }
}
