//! Whether kernels of other processes keep the GPU busy.
//!
//! A kernel on an idle GPU moves a block of many separate tensors faster than the engines with a
//! list, and with less of this thread. On a GPU with other computations it waits for a slice of 2
//! ms, and takes one from those. A late completion distinguishes the two cases.

use std::time::{Duration, Instant};

/// 16 launches of 4 MiB are in flight at most, 1.3 ms of a PCIe 5 link: a longer one has waited for
/// a slice. On a slower bus engines with lists are as fast as the bus, whatever this value is.
const LATE: Duration = Duration::from_micros(1600);

/// How long a late kernel is remembered: one in this time is tried again.
const REMEMBERED: Duration = Duration::from_millis(200);

/// Results of the last kernels.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SmContention {
    late_at: Option<Instant>,
}

impl SmContention {
    /// A kernel was done.
    pub(super) fn done(&mut self, started: Instant, now: Instant) {
        if now.saturating_duration_since(started) >= LATE {
            self.late_at = Some(now);
        }
    }

    /// Whether kernels would wait.
    pub(super) fn is_contended(&self, now: Instant) -> bool {
        self.late_at.is_some_and(|at| now.saturating_duration_since(at) < REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{LATE, REMEMBERED, SmContention};

    #[test]
    fn a_late_kernel_is_remembered_for_a_while_and_a_quick_one_is_not() {
        let (mut crowd, start) = (SmContention::default(), Instant::now());
        assert!(!crowd.is_contended(start));
        crowd.done(start, start + Duration::from_micros(80));
        assert!(!crowd.is_contended(start + LATE));
        let late = start + LATE;
        crowd.done(start, late);
        assert!(crowd.is_contended(late) && crowd.is_contended(late + REMEMBERED / 2));
        assert!(!crowd.is_contended(late + REMEMBERED));
    }
}
