//! The time as stores need it: of this machine's clock, and of the calendar.

use std::time::{SystemTime, UNIX_EPOCH};

use kvrail_store::Now;

/// Which time of the calendar the poller began at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calendar {
    begun_ns: u64,
    begun_unix: u64,
}

impl Calendar {
    /// Reads the system's calendar, once.
    pub(crate) fn new(now_ns: u64) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self { begun_ns: now_ns, begun_unix: since.map_or(0, |unix| unix.as_secs()) }
    }

    pub(crate) fn now(self, ns: u64) -> Now {
        let passed = ns.saturating_sub(self.begun_ns) / 1_000_000_000;
        Now { ns, unix: u32::try_from(self.begun_unix + passed).unwrap_or(u32::MAX) }
    }
}
