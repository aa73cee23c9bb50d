//! Counters of clients.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use kvrail_client::{BlockNote, Status};

use crate::drive::latency_histogram;

/// Failures that are kept in words.
const WORDS_MAX: usize = 16;

/// Of one client, or of all.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) found: RequestCounts,
    pub(super) put: PutCounts,
    pub(super) failed: FailureCounts,
    pub(super) times: ServingTimes,
    /// Spent on the bytes: no part of what the store costs.
    pub(super) pattern_ns: u64,
}

/// Results of requests.
#[derive(Debug, Default)]
pub(super) struct RequestCounts {
    pub(super) requests: u64,
    /// Blocks that they had.
    pub(super) asked: u64,
    /// Blocks got before the first one of a request that was missing.
    pub(super) hits: u64,
    /// Blocks that a lookup found, and a get did not.
    pub(super) gone: u64,
}

/// Results of puts.
#[derive(Debug, Default)]
pub(super) struct PutCounts {
    pub(super) stored: u64,
    /// There already, or on their way.
    pub(super) present: u64,
    /// Not taken, by reason.
    pub(super) declined: BTreeMap<&'static str, u64>,
}

/// Counters that must stay 0.
#[derive(Debug, Default)]
pub(super) struct FailureCounts {
    /// Gets and puts that failed, by status.
    pub(super) errors: BTreeMap<String, u64>,
    /// Sectors that were not what was put.
    pub(super) wrong: u64,
    pub(super) words: Vec<String>,
}

/// In nanoseconds.
#[derive(Debug)]
pub(super) struct ServingTimes {
    pub(super) lookup: Histogram<u64>,
    pub(super) get: Histogram<u64>,
    pub(super) put: Histogram<u64>,
    /// From a request's planned start until all of its hits are there.
    pub(super) request: Histogram<u64>,
}

impl Default for ServingTimes {
    fn default() -> Self {
        let [lookup, get, put, request] = [0; 4].map(|_| latency_histogram());
        Self { lookup, get, put, request }
    }
}

impl Counts {
    /// A put ended.
    pub(super) fn put(&mut self, status: Status, note: BlockNote) {
        match (status, note) {
            (Status::Ok, BlockNote::None) => self.put.stored += 1,
            (Status::Ok, _) => self.put.present += 1,
            (Status::Declined, note) => *self.put.declined.entry(note.words()).or_default() += 1,
            (status, _) => self.error(status, "put"),
        }
    }

    /// A get or put failed.
    pub(super) fn error(&mut self, status: Status, what: &str) {
        *self.failed.errors.entry(format!("{what} {status}")).or_default() += 1;
    }

    /// Bytes were not what was put.
    pub(super) fn wrong(&mut self, sectors: u64, words: impl FnOnce() -> String) {
        self.failed.wrong += sectors;
        if sectors > 0 && self.failed.words.len() < WORDS_MAX {
            self.failed.words.push(words());
        }
    }

    /// Adds those of another client.
    pub(super) fn add(&mut self, other: Self) {
        let Self { found, put, failed, times, pattern_ns } = other;
        self.pattern_ns += pattern_ns;
        self.found.requests += found.requests;
        self.found.asked += found.asked;
        self.found.hits += found.hits;
        self.found.gone += found.gone;
        self.put.stored += put.stored;
        self.put.present += put.present;
        for (reason, count) in put.declined {
            *self.put.declined.entry(reason).or_default() += count;
        }
        self.failed.wrong += failed.wrong;
        for (status, count) in failed.errors {
            *self.failed.errors.entry(status).or_default() += count;
        }
        self.failed.words.extend(failed.words);
        self.failed.words.truncate(WORDS_MAX);
        for (all, its) in [
            (&mut self.times.lookup, times.lookup),
            (&mut self.times.get, times.get),
            (&mut self.times.put, times.put),
            (&mut self.times.request, times.request),
        ] {
            all.add(its).expect("the same bounds");
        }
    }
}
