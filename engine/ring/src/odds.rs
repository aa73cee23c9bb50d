//! Whether a spin is worth its time, by how spins went.
//!
//! A spin is a bet that something comes soon. Only a bet says so: what was slept through came with
//! the wake-up of the sleeper on top, and often with that of the other side, which slept because it
//! was kept waiting. Who judged by that would keep both asleep for ever.

/// Sleeps between two bets at most. One lost in so many costs little, and sides that could do
/// without sleeping find that out within some milliseconds.
const SLEEPS_MAX: u32 = 127;

/// A lost bet doubles the sleeps before the next one, a won bet halves what the next loss costs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Odds {
    /// Sleeps after the last loss.
    price: u32,
    /// Of these, those still to come.
    sleeps_left: u32,
}

impl Odds {
    /// Whether to spin through the next wait.
    #[inline]
    #[must_use]
    pub fn favour_spinning(&self) -> bool {
        self.sleeps_left == 0
    }

    /// A wait is over that took so long; `limit_ns` is the longest spin.
    #[inline]
    pub fn learn(&mut self, waited_ns: u64, limit_ns: u64) {
        if self.sleeps_left > 0 {
            self.sleeps_left -= 1;
        } else if waited_ns < limit_ns {
            self.price /= 2;
        } else {
            self.price = (2 * self.price + 1).min(SLEEPS_MAX);
            self.sleeps_left = self.price;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Odds, SLEEPS_MAX};

    const LIMIT_NS: u64 = 20_000;

    /// How many of so many waits were spun through.
    fn bets(odds: &mut Odds, waits: u32, waited_ns: impl Fn(bool) -> u64) -> u32 {
        let mut bets = 0;
        for _ in 0..waits {
            let spins = odds.favour_spinning();
            bets += u32::from(spins);
            odds.learn(waited_ns(spins), LIMIT_NS);
        }
        bets
    }

    #[test]
    fn spins_through_short_waits_and_sleeps_through_long_ones() {
        let mut odds = Odds::default();
        assert_eq!(bets(&mut odds, 100, |_| 2_000), 100);
        assert!(bets(&mut odds, 1_000, |_| 300_000) < 16);
        let waits = 100 * (SLEEPS_MAX + 1);
        assert!(bets(&mut odds, waits, |_| 300_000) <= 101, "one in so many");
    }

    #[test]
    fn is_not_kept_asleep_by_the_price_of_sleeping() {
        let mut odds = Odds::default();
        bets(&mut odds, 1_000, |_| 300_000); // somebody else wanted the core
        let waited_ns = |spins| if spins { 2_000 } else { 60_000 };
        bets(&mut odds, SLEEPS_MAX, waited_ns);
        assert_eq!(bets(&mut odds, 100, waited_ns), 100);
    }

    #[test]
    fn one_pause_costs_one_sleep() {
        let mut odds = Odds::default();
        assert_eq!(bets(&mut odds, 10, |_| 2_000), 10);
        odds.learn(10_000_000, LIMIT_NS);
        assert_eq!(bets(&mut odds, 10, |_| 2_000), 9);
    }
}
