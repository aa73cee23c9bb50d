//! Whether to spin for a completion or to sleep.

use std::sync::atomic::{AtomicU32, Ordering};

use kvrail_protocol::SpinHints;

/// Threads of this process that spin in `wait` now, over all clients.
static SPINNERS: AtomicU32 = AtomicU32::new(0);

/// What sleeping adds to a wait, in nanoseconds: a wait that was slept through looks longer than
/// it would have been, and must not keep its thread asleep for ever.
const WAKE_UP_NS: u64 = 30_000;

/// What the sidecar and the machine allow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpinLimits {
    /// Longest wait worth spinning for.
    pub(crate) spin_ns: u64,
    /// Threads that may spin at once.
    spinners_max: u32,
}

impl SpinLimits {
    /// All cores but one may spin, and the sidecar's pollers do already; one client thread always
    /// may, as long as spinning is wanted at all.
    pub(crate) fn new(hints: &SpinHints) -> Self {
        let taken = hints.spinning_pollers.saturating_add(1);
        Self { spin_ns: hints.spin_ns, spinners_max: hints.cores.saturating_sub(taken).max(1) }
    }

    /// Leave to spin, until the result is dropped.
    pub(crate) fn enter(&self) -> Option<Spinning> {
        // A census: it orders nothing, and to be off by one for a moment does no harm.
        let before = SPINNERS.fetch_add(1, Ordering::Relaxed);
        let spinning = Spinning(());
        (before < self.spinners_max).then_some(spinning)
    }
}

/// One spinning thread.
#[derive(Debug)]
pub(crate) struct Spinning(());

impl Drop for Spinning {
    fn drop(&mut self) {
        SPINNERS.fetch_sub(1, Ordering::Relaxed); // a census
    }
}

/// How long waits took lately.
#[derive(Debug, Default)]
pub(crate) struct Expectation {
    /// Moving average of waits, in nanoseconds; the newest counts a quarter.
    wait_ns: u64,
}

impl Expectation {
    /// Whether a wait is likely to be short enough to spin through.
    pub(crate) fn is_short(&self, limit_ns: u64) -> bool {
        limit_ns > 0 && self.wait_ns <= limit_ns + WAKE_UP_NS
    }

    /// A wait took this long, for a request that the sidecar had for `told_ns`. The shorter of the
    /// two is what a spin would take: the rest of a wait is what it took to wake this thread.
    pub(crate) fn learn(&mut self, waited_ns: u64, told_ns: u64, limit_ns: u64) {
        // Clipped, so that one long pause is forgotten after a few short waits.
        let clipped = waited_ns.min(told_ns).min(limit_ns.saturating_mul(8));
        self.wait_ns = (self.wait_ns * 3 + clipped) / 4;
    }
}

#[cfg(test)]
mod tests {
    use kvrail_protocol::SpinHints;

    use super::{Expectation, SpinLimits, WAKE_UP_NS};

    #[test]
    fn spins_for_short_waits_and_sleeps_through_long_ones() {
        let mut expectation = Expectation::default();
        assert!(expectation.is_short(20_000));
        for _ in 0..8 {
            expectation.learn(300_000, 290_000, 20_000);
        }
        assert!(!expectation.is_short(20_000));
        for _ in 0..12 {
            // One of many, and slept through.
            expectation.learn(2_000 + WAKE_UP_NS, 2_000_000, 20_000);
        }
        assert!(expectation.is_short(20_000), "sleeping does not keep it asleep");
        for _ in 0..12 {
            expectation.learn(300_000, 15_000, 20_000); // somebody else had the core
        }
        assert!(expectation.is_short(20_000), "however long it takes to wake");
        assert!(!expectation.is_short(0), "no spinning without leave");
    }

    #[test]
    fn one_may_spin_on_the_smallest_machine() {
        let hints = SpinHints { spin_ns: 1, cores: 1, spinning_pollers: 1 };
        assert_eq!(SpinLimits::new(&hints).spinners_max, 1);
        let hints = SpinHints { spin_ns: 1, cores: 16, spinning_pollers: 4 };
        assert_eq!(SpinLimits::new(&hints).spinners_max, 11);
    }
}
