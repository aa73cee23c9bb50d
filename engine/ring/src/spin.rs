//! Whether a spin is worth its time, by the results of earlier spins.
//!
//! A spin is a bet that something comes soon. Only the length of a spin measures this. A wait that
//! slept also includes its wake-up, and often the wake-up of the other side, which slept because it
//! was kept waiting; judged by such waits, both sides would sleep for ever.
//!
//! A failed spin adds its length to a debt; a successful one subtracts one wake-up. Above a limit
//! the waiter sleeps at once for the next waits. So spins take no more time than they save, however
//! waits are mixed.

/// Credit of a successful spin: a sleep and a wake-up cost both sides together 10 to 40 us.
const WAKE_UP_NS: u64 = 20_000;

/// Largest debt of failed spins. One or two are a disturbance and no habit.
const LOSSES_MAX: u64 = 2;

/// Sleeps before the next spin above that debt. One failed spin in this number costs little, and
/// two sides that could do without sleeping find that out within some milliseconds.
const SLEEPS: u32 = 127;

/// Results of the spins of one kind of wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdaptiveSpin {
    owed_ns: u64,
    sleeps_left: u32,
}

impl AdaptiveSpin {
    /// Whether to spin through the next wait.
    #[inline]
    #[must_use]
    pub fn should_spin(&self) -> bool {
        self.sleeps_left == 0
    }

    /// Enters a wait of `waited_ns`; `limit_ns` is the longest spin.
    #[inline]
    pub fn learn(&mut self, waited_ns: u64, limit_ns: u64) {
        if self.sleeps_left > 0 {
            self.sleeps_left -= 1;
        } else if waited_ns < limit_ns {
            self.owed_ns = self.owed_ns.saturating_sub(WAKE_UP_NS);
        } else if self.owed_ns < LOSSES_MAX * limit_ns {
            self.owed_ns += limit_ns;
        } else {
            self.sleeps_left = SLEEPS;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{AdaptiveSpin, SLEEPS};

    const LIMIT_NS: u64 = 100_000;

    /// The number of waits, of `waits`, that were spun through.
    fn bets(adaptive: &mut AdaptiveSpin, waits: u32, waited_ns: impl Fn(u32, bool) -> u64) -> u32 {
        let mut bets = 0;
        for wait in 0..waits {
            let spins = adaptive.should_spin();
            bets += u32::from(spins);
            adaptive.learn(waited_ns(wait, spins), LIMIT_NS);
        }
        bets
    }

    #[test]
    fn spins_through_short_waits_and_sleeps_through_long_ones() {
        let mut adaptive = AdaptiveSpin::default();
        assert_eq!(bets(&mut adaptive, 100, |_, _| 2_000), 100);
        let waits = 100 * (SLEEPS + 1);
        assert!(bets(&mut adaptive, waits, |_, _| 300_000) <= 102, "one of 128");
    }

    #[test]
    fn is_not_kept_asleep_by_the_price_of_sleeping() {
        let mut adaptive = AdaptiveSpin::default();
        bets(&mut adaptive, 1_000, |_, _| 300_000); // another thread had the core
        let waited_ns = |_, spins| if spins { 2_000 } else { 160_000 };
        bets(&mut adaptive, SLEEPS, waited_ns);
        assert_eq!(bets(&mut adaptive, 100, waited_ns), 100);
    }

    #[test]
    fn a_pause_now_and_then_changes_nothing() {
        let mut adaptive = AdaptiveSpin::default();
        let waited_ns = |wait: u32, _| if wait.is_multiple_of(10) { 10_000_000 } else { 2_000 };
        assert_eq!(bets(&mut adaptive, 1_000, waited_ns), 1_000);
    }

    #[test]
    fn sleeps_where_bursts_do_not_pay_for_the_pauses_between() {
        let mut adaptive = AdaptiveSpin::default();
        let waited_ns = |wait: u32, _| if wait.is_multiple_of(3) { 2_000_000 } else { 20_000 };
        assert!(bets(&mut adaptive, 12_800, waited_ns) < 400);
    }
}
