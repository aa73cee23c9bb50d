//! Time as the rooms see it: monotonic nanoseconds, real or made up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// A source of monotonic nanoseconds.
pub trait Clock: std::fmt::Debug {
    /// Turns of a loop that find nothing and may pass before the clock is read again: 0 where
    /// reading costs nothing.
    const UNREAD_TURNS_MAX: u32;

    /// Nanoseconds since some fixed moment; never goes back.
    fn now_ns(&self) -> u64;
}

/// CLOCK_MONOTONIC through the vDSO: about 20 ns a call, no system call.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    /// About half a microsecond of spinning.
    const UNREAD_TURNS_MAX: u32 = 16;

    fn now_ns(&self) -> u64 {
        let now = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).expect("monotonic time starts at boot");
        let nanos = u64::try_from(now.tv_nsec).expect("below a second");
        seconds * 1_000_000_000 + nanos
    }
}

/// Time that only a test moves. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct FakeClock(Arc<AtomicU64>);

impl FakeClock {
    /// Moves time forward.
    pub fn advance(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Clock for FakeClock {
    const UNREAD_TURNS_MAX: u32 = 0;

    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
