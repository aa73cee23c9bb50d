//! Numbers that one thread writes and everyone may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; only the owning poller calls this.
    #[inline]
    pub fn add(&self, amount: u64) {
        // One writer, so load + store loses nothing; Relaxed: readers want a recent value only.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Replaces the value; only the owning poller calls this.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed); // a gauge orders nothing
    }

    /// A recent value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed) // a statistic orders nothing
    }
}
