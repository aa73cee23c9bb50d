//! The sleep policy: spin while something is expected soon, else sleep.
//!
//! Three expectations, because three things end an idle moment: with operations at the device, its
//! next completion; with any at a GPU's poller, the end of its copy; with none, the client's next
//! request. For each it is learned whether a spin brings it ([`AdaptiveSpin`]). Where one follows
//! another without an event, as a copy follows a read, a wait begins anew.
//!
//! A poller that may not block, because a polled queue has I/O in flight, calls sched_yield every
//! 50 us. A spinning one does not: within the time it may spin, a poller makes no system call.

use kvrail_ring::AdaptiveSpin;

/// Nanoseconds between two yields, for machines where somebody else wants the core. A poller of a
/// polled queue never sleeps while requests are in flight, and whoever shares its core would wait
/// for the scheduler's slice, some milliseconds. A yield to nobody takes half a microsecond, one
/// part in a hundred.
const YIELD_AFTER_NS: u64 = 50_000;

/// Longest spin for the end of a copy: 1 MiB takes 20 us on an idle link of PCIe 5, and 80 behind
/// others. A wake-up would add as much again.
const COPY_SPIN_NS: u64 = 100_000;

/// What an idle poller should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleAction {
    Spin,
    Block,
}

/// What an idle poller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitReason {
    Completion,
    Copy,
    Request,
}

/// Running state of the policy.
#[derive(Debug)]
pub(crate) struct IdlePolicy {
    spin_ns: u64,
    last_event_ns: u64,
    /// What is waited for; nothing since the last event, while they follow each other.
    waits_for: Option<WaitReason>,
    /// By what is expected.
    adaptive: [AdaptiveSpin; 3],
    yielded_ns: u64,
}

impl IdlePolicy {
    /// `spin_ns` is the longest spin; 0 never spins.
    pub(crate) fn new(spin_ns: u64, now_ns: u64) -> Self {
        let adaptive = [AdaptiveSpin::default(); 3];
        Self { spin_ns, last_event_ns: now_ns, waits_for: None, adaptive, yielded_ns: now_ns }
    }

    /// Something was found at `found_ns`, and done with at `now_ns`.
    #[inline]
    pub(crate) fn event(&mut self, found_ns: u64, now_ns: u64) {
        if let Some(expected) = self.waits_for.take() {
            let waited_ns = found_ns.saturating_sub(self.last_event_ns);
            self.adaptive[expected as usize].learn(waited_ns, self.longest_ns(expected));
        }
        self.last_event_ns = now_ns;
    }

    /// Nothing happened.
    #[inline]
    pub(crate) fn advise(&mut self, expecting: WaitReason, now_ns: u64) -> IdleAction {
        if self.waits_for.replace(expecting).is_some_and(|before| before != expecting) {
            self.last_event_ns = now_ns;
        }
        let idle_ns = now_ns.saturating_sub(self.last_event_ns);
        let favoured = self.adaptive[expecting as usize].should_spin();
        let spins = favoured && idle_ns < self.longest_ns(expecting);
        if spins { IdleAction::Spin } else { IdleAction::Block }
    }

    /// Longest spin.
    #[inline]
    fn longest_ns(&self, expecting: WaitReason) -> u64 {
        match expecting {
            WaitReason::Copy if self.spin_ns > 0 => self.spin_ns.max(COPY_SPIN_NS),
            _ => self.spin_ns,
        }
    }

    /// Whether somebody who was advised to sleep, and may not, should yield its core now.
    pub(crate) fn should_yield(&mut self, now_ns: u64) -> bool {
        let owed = now_ns.saturating_sub(self.yielded_ns) >= YIELD_AFTER_NS;
        if owed {
            self.yielded_ns = now_ns;
        }
        owed
    }
}

#[cfg(test)]
mod tests {
    use super::{IdleAction, IdlePolicy, WaitReason};

    const SPIN_NS: u64 = 20_000;

    /// Waits for an event that comes after so long: until the first advice to sleep, or to the end.
    /// Says whether it was spun through.
    fn wait(
        policy: &mut IdlePolicy,
        expecting: WaitReason,
        now: &mut u64,
        wait_ns: u64,
    ) -> IdleAction {
        let (start, end) = (*now, *now + wait_ns);
        let mut advice = policy.advise(expecting, start);
        while advice == IdleAction::Spin && *now < end {
            *now += 1_000;
            advice = policy.advise(expecting, *now);
        }
        *now = end;
        policy.event(end, end);
        advice
    }

    #[test]
    fn spins_for_what_comes_soon_and_sleeps_through_what_does_not() {
        let (mut policy, mut now) = (IdlePolicy::new(SPIN_NS, 0), 0);
        for _ in 0..16 {
            wait(&mut policy, WaitReason::Completion, &mut now, 300_000); // a large block
            wait(&mut policy, WaitReason::Request, &mut now, 1_000); // its client asks at once
        }
        assert_eq!(policy.advise(WaitReason::Completion, now), IdleAction::Block);
        policy.event(now, now);
        assert_eq!(policy.advise(WaitReason::Request, now + 100), IdleAction::Spin);
        assert_eq!(policy.advise(WaitReason::Request, now + SPIN_NS), IdleAction::Block);
    }

    #[test]
    fn what_an_event_takes_is_no_wait() {
        let (mut policy, mut now) = (IdlePolicy::new(SPIN_NS, 0), 0);
        for _ in 0..8 {
            assert_eq!(policy.advise(WaitReason::Request, now), IdleAction::Spin);
            policy.event(now + 2_000, now + 30_000); // handing over to this device takes long
            now += 30_000;
        }
    }

    #[test]
    fn what_comes_without_a_wait_teaches_nothing() {
        let (mut policy, mut now) = (IdlePolicy::new(SPIN_NS, 0), 0);
        for _ in 0..3 {
            wait(&mut policy, WaitReason::Request, &mut now, 80_000);
        }
        for _ in 0..8 {
            policy.event(now, now);
        }
        assert_eq!(policy.advise(WaitReason::Request, now), IdleAction::Block);
    }

    #[test]
    fn spins_again_when_those_who_slept_for_each_other_need_not() {
        let (mut policy, mut now) = (IdlePolicy::new(SPIN_NS, 0), 0);
        for _ in 0..500 {
            wait(&mut policy, WaitReason::Request, &mut now, 80_000);
        }
        for _ in 0..200 {
            // The client is fast, but the bell takes its time.
            let asleep = policy.advise(WaitReason::Request, now) == IdleAction::Block;
            wait(&mut policy, WaitReason::Request, &mut now, if asleep { 60_000 } else { 2_000 });
        }
        assert_eq!(policy.advise(WaitReason::Request, now), IdleAction::Spin);
    }

    #[test]
    fn yields_now_and_then() {
        let mut policy = IdlePolicy::new(0, 1_000);
        let yields = (0..1_000).filter(|us| policy.should_yield(1_000 + us * 1_000)).count();
        assert_eq!(yields, 19, "one in 50 us of a millisecond, none at its start");
    }

    #[test]
    fn spins_for_a_short_copy_behind_a_long_read() {
        let (mut policy, mut now) = (IdlePolicy::new(SPIN_NS, 0), 0);
        for _ in 0..8 {
            policy.advise(WaitReason::Completion, now);
            now += 300_000; // the device reads, and hands the bytes to the GPU's poller
            assert_eq!(policy.advise(WaitReason::Copy, now), IdleAction::Spin);
            now += 70_000;
            assert_eq!(
                policy.advise(WaitReason::Copy, now),
                IdleAction::Spin,
                "longer than others"
            );
            policy.event(now, now);
        }
        for _ in 0..8 {
            wait(&mut policy, WaitReason::Copy, &mut now, 2_000_000); // a GPU busy with others
        }
        assert_eq!(policy.advise(WaitReason::Copy, now), IdleAction::Block);
    }

    #[test]
    fn never_spins_without_leave() {
        let mut policy = IdlePolicy::new(0, 5);
        assert_eq!(policy.advise(WaitReason::Request, 5), IdleAction::Block);
    }
}
