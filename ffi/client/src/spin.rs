//! How long threads may spin for a completion, and how many of them.

use std::sync::atomic::{AtomicU32, Ordering};

use kvrail_protocol::SpinHints;

/// Threads of this process that spin in `wait` now, over all clients.
static SPINNERS: AtomicU32 = AtomicU32::new(0);

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
        let before = SPINNERS.fetch_sub(1, Ordering::Relaxed); // a census
        debug_assert!(before > 0, "a thread stops spinning once");
    }
}

#[cfg(test)]
mod tests {
    use kvrail_protocol::SpinHints;

    use super::SpinLimits;

    #[test]
    fn one_may_spin_on_the_smallest_machine() {
        let hints = SpinHints { spin_ns: 1, cores: 1, spinning_pollers: 1 };
        assert_eq!(SpinLimits::new(&hints).spinners_max, 1);
        let hints = SpinHints { spin_ns: 1, cores: 16, spinning_pollers: 4 };
        assert_eq!(SpinLimits::new(&hints).spinners_max, 11);
    }
}
