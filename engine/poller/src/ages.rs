//! Ages: how old the oldest request of each device is, and how many are older than they should be.
//! A device that hangs reports nothing by itself, and neither do requests without a deadline.
//!
//! The table of tasks is walked in steps, so that no tick pays for all of it; a walk ends with
//! the last task there is, and slots that were free lately are taken first.

use kvrail_device::Slots;

use crate::stats::DeviceStats;
use crate::task::Task;

/// Time between two steps.
const STEP_NS: u64 = 10_000_000;

/// Slots looked at in one step: a microsecond or two. A poller that does nothing but tick has
/// walked over all of them in a second.
const STEP: u32 = 192;

/// Slots looked at in one step of a poller that slept for as long as its heartbeat.
const STEP_MAX: u32 = 4096;

/// What a walk found of one device.
#[derive(Clone, Copy, Debug, Default)]
struct OverdueRequests {
    overdue: u64,
    /// When its oldest request was accepted; `u64::MAX` where it has none.
    oldest_ns: u64,
}

const NOTHING: OverdueRequests = OverdueRequests { overdue: 0, oldest_ns: u64::MAX };

/// A walk that has begun.
#[derive(Debug)]
pub(crate) struct Ages {
    next_ns: u64,
    last_ns: u64,
    at: u32,
    seen: u32,
    found: Vec<OverdueRequests>,
}

impl Ages {
    pub(crate) fn new(devices: usize) -> Self {
        Self { next_ns: 0, last_ns: 0, at: 0, seen: 0, found: vec![NOTHING; devices] }
    }

    /// Places to look at now, by the time that has passed.
    fn step(&mut self, now_ns: u64) -> u32 {
        let steps = now_ns.saturating_sub(self.last_ns) / STEP_NS;
        (self.last_ns, self.next_ns) = (now_ns, now_ns + STEP_NS);
        let slots = steps.max(1).saturating_mul(u64::from(STEP));
        u32::try_from(slots).map_or(STEP_MAX, |slots| slots.min(STEP_MAX))
    }

    /// Whether it is time for the next step.
    #[inline]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// Takes the next step, and shows what a walk found at its end.
    #[cold]
    pub(crate) fn walk(
        &mut self,
        now_ns: u64,
        overdue_ns: u64,
        tasks: &Slots<Task>,
        stats: &[DeviceStats],
    ) {
        let from = self.at;
        let to = from.saturating_add(self.step(now_ns)).min(tasks.capacity());
        let left = tasks.claimed().saturating_sub(self.seen) as usize;
        for task in tasks.claimed_among(from..to).take(left) {
            self.seen += 1;
            if task.header.is_with_store() {
                continue; // it waits for its store, not for the device
            }
            let found = &mut self.found[task.device()];
            let age_ns = now_ns.saturating_sub(task.accepted_ns);
            found.overdue += u64::from(age_ns >= overdue_ns);
            found.oldest_ns = found.oldest_ns.min(task.accepted_ns);
        }
        self.at = to;
        if self.seen >= tasks.claimed() || to == tasks.capacity() {
            for (found, stats) in self.found.iter_mut().zip(stats) {
                let OverdueRequests { overdue, oldest_ns } = std::mem::replace(found, NOTHING);
                stats.counters.overdue.set(overdue);
                stats.oldest_ns.set(if oldest_ns == u64::MAX { 0 } else { oldest_ns });
            }
            (self.at, self.seen) = (0, 0);
        }
    }
}
