//! The sleep ladder: spin while something is expected soon, else sleep.
//!
//! Three expectations, because three things end an idle moment: with operations at the device, its
//! next completion; with all of them at a GPU's poller, the end of its copy; with none, the
//! client's next request. Each is a running mean of the gaps seen lately, clipped so that one long
//! pause is forgotten after a few events. Where one follows another without an event, as a copy
//! follows a read, a gap begins anew.
//!
//! Who would sleep but has a device to poll yields now and then; who spins does not: within the
//! time it may spin, a poller makes no system call.

/// Nanoseconds between two yields, for machines where somebody else wants the core. A poller of a
/// polled queue never sleeps while requests are under way, and whoever shares its core would wait
/// for the scheduler's slice, some milliseconds. A yield to nobody takes half a microsecond, one
/// part in a hundred.
const YIELD_AFTER_NS: u64 = 50_000;

/// What an idle poller should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    Spin,
    Sleep,
}

/// What an idle poller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expecting {
    Completion,
    Copy,
    Request,
}

/// Running state of the ladder.
#[derive(Debug)]
pub(crate) struct Ladder {
    spin_ns: u64,
    last_event_ns: u64,
    expecting: Expecting,
    /// Running means, by what was expected.
    gaps_ns: [u64; 3],
    yielded_ns: u64,
}

impl Ladder {
    /// `spin_ns` is the longest spin; 0 never spins.
    pub(crate) fn new(spin_ns: u64, now_ns: u64) -> Self {
        let expecting = Expecting::Request;
        Self { spin_ns, last_event_ns: now_ns, expecting, gaps_ns: [0; 3], yielded_ns: now_ns }
    }

    /// Something happened after waiting for `expecting`.
    #[inline]
    pub(crate) fn event(&mut self, expecting: Expecting, now_ns: u64) {
        let gap = now_ns.saturating_sub(self.last_event_ns).min(4 * self.spin_ns);
        self.last_event_ns = now_ns;
        self.expecting = expecting;
        let mean = &mut self.gaps_ns[expecting as usize];
        *mean = (*mean * 3 + gap) / 4;
    }

    /// Nothing happened.
    #[inline]
    pub(crate) fn advise(&mut self, expecting: Expecting, now_ns: u64) -> Advice {
        if expecting == Expecting::Copy && self.expecting != Expecting::Copy {
            self.last_event_ns = now_ns;
        }
        self.expecting = expecting;
        let idle_ns = now_ns.saturating_sub(self.last_event_ns);
        let soon = self.gaps_ns[expecting as usize] <= self.spin_ns;
        if idle_ns < self.spin_ns && soon { Advice::Spin } else { Advice::Sleep }
    }

    /// Whether somebody who was advised to sleep, and may not, should yield its core now.
    pub(crate) fn owes_a_yield(&mut self, now_ns: u64) -> bool {
        let owed = now_ns.saturating_sub(self.yielded_ns) >= YIELD_AFTER_NS;
        if owed {
            self.yielded_ns = now_ns;
        }
        owed
    }
}

#[cfg(test)]
mod tests {
    use super::{Advice, Expecting, Ladder};

    #[test]
    fn spins_for_what_comes_soon_and_sleeps_through_what_does_not() {
        let mut ladder = Ladder::new(20_000, 0);
        let mut now = 0;
        for _ in 0..16 {
            now += 300_000; // a large block: the device needs long
            ladder.event(Expecting::Completion, now);
            now += 1_000; // its client asks again at once
            ladder.event(Expecting::Request, now);
        }
        assert_eq!(ladder.advise(Expecting::Completion, now + 100), Advice::Sleep);
        assert_eq!(ladder.advise(Expecting::Request, now + 100), Advice::Spin);
        assert_eq!(ladder.advise(Expecting::Request, now + 20_000), Advice::Sleep);
    }

    #[test]
    fn forgets_a_long_pause_after_a_few_events() {
        let mut ladder = Ladder::new(20_000, 0);
        let mut now = 10_000_000_000;
        ladder.event(Expecting::Request, now);
        assert_eq!(ladder.advise(Expecting::Request, now), Advice::Spin, "clipped pause");
        for _ in 0..8 {
            now += 80_000;
            ladder.event(Expecting::Request, now);
        }
        assert_eq!(ladder.advise(Expecting::Request, now), Advice::Sleep);
        for _ in 0..6 {
            now += 2_000;
            ladder.event(Expecting::Request, now);
        }
        assert_eq!(ladder.advise(Expecting::Request, now), Advice::Spin);
    }

    #[test]
    fn yields_now_and_then() {
        let mut ladder = Ladder::new(0, 1_000);
        let yields = (0..1_000).filter(|us| ladder.owes_a_yield(1_000 + us * 1_000)).count();
        assert_eq!(yields, 19, "one in 50 us of a millisecond, none at its start");
    }

    #[test]
    fn spins_for_a_short_copy_behind_a_long_read() {
        let mut ladder = Ladder::new(20_000, 0);
        let mut now = 0;
        for _ in 0..8 {
            ladder.event(Expecting::Request, now);
            now += 300_000; // the device reads, and hands the bytes to the GPU's poller
            assert_eq!(ladder.advise(Expecting::Copy, now), Advice::Spin);
            now += 7_000;
            assert_eq!(ladder.advise(Expecting::Copy, now), Advice::Spin);
            ladder.event(Expecting::Copy, now);
        }
        for _ in 0..8 {
            ladder.event(Expecting::Request, now);
            ladder.advise(Expecting::Copy, now);
            now += 2_000_000; // a GPU that is busy with others
            ladder.event(Expecting::Copy, now);
            now += 1_000;
        }
        ladder.event(Expecting::Request, now);
        assert_eq!(ladder.advise(Expecting::Copy, now), Advice::Sleep);
    }

    #[test]
    fn never_spins_without_leave() {
        let mut ladder = Ladder::new(0, 5);
        assert_eq!(ladder.advise(Expecting::Request, 5), Advice::Sleep);
    }
}
