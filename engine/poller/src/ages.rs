//! Ages: how old the oldest request of each device is, and how many are older than they should be.
//! A device that hangs says nothing by itself, and neither do requests without a deadline.
//!
//! The table of requests is walked in steps, so that no tick pays for all of it; a walk ends with
//! the last request there is, and places that were free lately are taken first.

use kvrail_device::{Clock, Device};

use crate::poller::Poller;
use crate::sessions::REQUESTS_MAX;

/// Time between two steps.
const STEP_NS: u64 = 10_000_000;

/// Places looked at in one step: a microsecond or two. A poller that does nothing but tick has
/// walked over all of them in a second.
const STEP: u32 = 192;

/// Places looked at in one step of a poller that slept for as long as its heartbeat.
const STEP_MAX: u32 = 4096;

/// What a walk found of one device.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    overdue: u64,
    /// When its oldest request was accepted; `u64::MAX` where it has none.
    oldest_ns: u64,
}

const NOTHING: Found = Found { overdue: 0, oldest_ns: u64::MAX };

/// A walk under way.
#[derive(Debug)]
pub(crate) struct Ages {
    next_ns: u64,
    last_ns: u64,
    at: u32,
    seen: u32,
    found: Vec<Found>,
}

impl Ages {
    pub(crate) fn new(devices: usize) -> Self {
        Self { next_ns: 0, last_ns: 0, at: 0, seen: 0, found: vec![NOTHING; devices] }
    }

    /// Places to look at now, by the time that has passed.
    fn step(&mut self, now_ns: u64) -> u32 {
        let steps = now_ns.saturating_sub(self.last_ns) / STEP_NS;
        (self.last_ns, self.next_ns) = (now_ns, now_ns + STEP_NS);
        let places = steps.max(1).saturating_mul(u64::from(STEP));
        u32::try_from(places).map_or(STEP_MAX, |places| places.min(STEP_MAX))
    }
}

impl<D: Device, C: Clock> Poller<D, C> {
    /// Takes the next step, if it is time.
    #[inline]
    pub(crate) fn look_at_ages(&mut self) {
        if self.now_ns >= self.ages.next_ns {
            self.walk();
        }
    }

    #[cold]
    fn walk(&mut self) {
        let now_ns = self.now_ns;
        let from = self.ages.at;
        let to = from.saturating_add(self.ages.step(now_ns)).min(REQUESTS_MAX);
        let overdue_ns = self.mailbox.overdue_ns();
        let Self { ages, requests, .. } = self;
        let left = requests.claimed().saturating_sub(ages.seen) as usize;
        for accepted in requests.claimed_among(from..to).take(left) {
            let found = &mut ages.found[usize::from(accepted.device)];
            let age_ns = now_ns.saturating_sub(accepted.accepted_ns);
            found.overdue += u64::from(age_ns >= overdue_ns);
            found.oldest_ns = found.oldest_ns.min(accepted.accepted_ns);
            ages.seen += 1;
        }
        ages.at = to;
        if ages.seen >= requests.claimed() || to == REQUESTS_MAX {
            self.tell_ages();
        }
    }

    /// A walk is over.
    fn tell_ages(&mut self) {
        for (found, stats) in self.ages.found.iter_mut().zip(&self.stats.devices) {
            let Found { overdue, oldest_ns } = std::mem::replace(found, NOTHING);
            stats.overdue.set(overdue);
            stats.oldest_ns.set(if oldest_ns == u64::MAX { 0 } else { oldest_ns });
        }
        (self.ages.at, self.ages.seen) = (0, 0);
    }
}
