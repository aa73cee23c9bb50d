//! The counters of one client.

use std::fmt;

use hdrhistogram::Histogram;

use crate::port::Fault;

/// Longest latency that a histogram resolves: one minute, in nanoseconds.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Significant decimal digits of a histogram.
const DIGITS: u8 = 3;
/// Failures that are kept in words; all are counted.
const KEPT_MAX: usize = 8;

/// A histogram of nanoseconds.
///
/// # Panics
/// Never: the bounds are constants that the library takes.
#[must_use]
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS).expect("bounds are in order")
}

/// Counts of one client, or of several merged.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Latencies of the operations counted, in nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// Operations counted: those that ended within the window (closed loop), or whose planned
    /// start lies in it (open loop).
    pub operations: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// Operations that failed, at any time of the run.
    pub errors: u64,
    /// Blocks that a store's ring had come round over. No errors.
    pub evicted: u64,
    /// Sectors that were not what they should be.
    pub verify_failures: u64,
    /// Bytes compared in full.
    pub verified_bytes: u64,
    /// Blocks whose headers were compared within the timed run.
    pub sampled_blocks: u64,
    /// Nanoseconds spent filling buffers within the window: the benchmark's own work.
    pub pattern_ns: u64,
    /// When the last counted operation ended, on the monotonic clock.
    pub last_ns: u64,
    /// The first failures in words.
    pub failures: Vec<String>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            latency_ns: latency_histogram(),
            operations: 0,
            bytes: 0,
            errors: 0,
            evicted: 0,
            verify_failures: 0,
            verified_bytes: 0,
            sampled_blocks: 0,
            pattern_ns: 0,
            last_ns: 0,
            failures: Vec::new(),
        }
    }
}

impl Tally {
    /// Counts one operation.
    pub fn count(&mut self, latency_ns: u64, bytes: u32) {
        self.latency_ns.saturating_record(latency_ns);
        self.operations += 1;
        self.bytes += u64::from(bytes);
    }

    /// Counts a failed operation.
    pub fn failed(&mut self, operation: &str, offset: u64, fault: Fault) {
        self.errors += 1;
        self.keep(|| format!("{operation} at {offset}: {fault}"));
    }

    /// Counts wrong sectors.
    pub fn mismatched(&mut self, sectors: u64, first: impl fmt::Display) {
        self.verify_failures += sectors;
        self.keep(|| first.to_string());
    }

    /// Counts `operations` that were planned and could not be started.
    pub fn overrun(&mut self, operations: u64) {
        self.errors += operations;
        self.keep(|| {
            format!("{operations} planned operations never started: the rate is too high")
        });
    }

    fn keep(&mut self, words: impl FnOnce() -> String) {
        if self.failures.len() < KEPT_MAX {
            self.failures.push(words());
        }
    }

    /// Adds another client's counts.
    ///
    /// # Panics
    /// Never: all histograms have the same bounds.
    pub fn merge(&mut self, other: Self) {
        self.latency_ns.add(&other.latency_ns).expect("all histograms have the same bounds");
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.evicted += other.evicted;
        self.verify_failures += other.verify_failures;
        self.verified_bytes += other.verified_bytes;
        self.sampled_blocks += other.sampled_blocks;
        self.pattern_ns += other.pattern_ns;
        self.last_ns = self.last_ns.max(other.last_ns);
        let room = KEPT_MAX - self.failures.len();
        self.failures.extend(other.failures.into_iter().take(room));
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::{KEPT_MAX, Tally};
    use crate::port::Fault;

    #[test]
    fn merging_adds_up_and_keeps_few_words() {
        let mut sum = Tally::default();
        for client in 0..4 {
            let mut tally = Tally::default();
            for offset in 0..5 {
                tally.count(1000 * (client + 1), 4096);
                tally.failed("read", offset, Fault::Errno(Errno::IO));
            }
            sum.merge(tally);
        }
        assert_eq!((sum.operations, sum.bytes, sum.errors), (20, 20 * 4096, 20));
        assert_eq!(sum.failures.len(), KEPT_MAX);
        assert_eq!(sum.latency_ns.len(), 20);
        assert!(sum.latency_ns.max() >= 4000 && sum.latency_ns.min() <= 1000);
    }
}
