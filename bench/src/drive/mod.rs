//! The drivers: what a client thread does with its port, the same for every arm.

mod client;
mod closed;
mod open;
mod run;
mod sweep;
mod tally;

pub use self::run::{Clients, DrivenArm, Load, Sample, measure};
pub use self::sweep::{Sweep, sweep};
pub use self::tally::{Tally, latency_histogram};

/// The timed part of a run, on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its first nanosecond.
    pub start_ns: u64,
    /// The nanosecond behind it.
    pub end_ns: u64,
}

impl Window {
    /// Nothing is timed.
    pub const NONE: Self = Self { start_ns: 0, end_ns: 0 };

    /// Whether a moment lies in it.
    #[must_use]
    pub const fn holds(&self, ns: u64) -> bool {
        self.start_ns <= ns && ns < self.end_ns
    }
}
