//! Whether a GPU still works, seen by every thread that has to do with it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use kvrail_counters::GpuCounters;

/// Shared between the GPU's poller, the bridges that use it, and the reports.
#[derive(Debug, Default)]
pub struct Health {
    failed: OnceLock<String>,
    direct_failed: OnceLock<String>,
    fell_back: OnceLock<String>,
    counters: Counters,
}

/// Counters of a GPU's poller; one writer, read by reports.
#[derive(Debug, Default)]
pub(crate) struct Counters(GpuCounters<AtomicU64>);

/// Adds; the GPU's poller is the only writer.
pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed) + value, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn launched(&self, moves: usize) {
        add(&self.0.launches, 1);
        add(&self.0.moves, moves as u64);
    }

    pub(crate) fn gathered(&self, bytes: u32) {
        add(&self.0.gathered_bytes, u64::from(bytes));
    }

    pub(crate) fn scattered(&self, bytes: u32) {
        add(&self.0.scattered_bytes, u64::from(bytes));
    }

    pub(crate) fn direct(&self, bytes: u32) {
        add(&self.0.direct_bytes, u64::from(bytes));
    }

    pub(crate) fn failed(&self) {
        add(&self.0.failed, 1);
    }
}

impl Health {
    /// Marks the GPU failed, for good. The first reason stays.
    pub fn fail(&self, reason: String) {
        let _first = self.failed.set(reason);
    }

    /// Why it failed, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// Whether it works.
    #[inline]
    #[must_use]
    pub fn works(&self) -> bool {
        self.failed.get().is_none()
    }

    /// Marks direct I/O failed, for good; staging goes on.
    pub fn fail_direct(&self, reason: String) {
        let _first = self.direct_failed.set(reason);
    }

    /// Why direct I/O failed, if it has.
    #[must_use]
    pub fn direct_failure(&self) -> Option<&str> {
        self.direct_failed.get().map(String::as_str)
    }

    /// Notes that a device goes staged that went direct before. The first stays.
    pub(crate) fn fall_back(&self, what: String) {
        let _first = self.fell_back.set(what);
    }

    /// Which device goes staged that went direct before.
    #[must_use]
    pub fn fallback(&self) -> Option<&str> {
        self.fell_back.get().map(String::as_str)
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> GpuCounters<u64> {
        self.counters.0.map(|counter| counter.load(Ordering::Relaxed))
    }
}
