//! Which numbers of drops have no record any more, because their segments were reclaimed.
//!
//! Segments go in any order, so the numbers that are left on the medium have holes that are no
//! damage. Each head carries the ledger of its segment's pool, and that of another one.

/// Ranges of a pool's ledger: two ledgers fill what a head has left.
pub(crate) const LEDGER_MAX: usize = 116;

/// Ranges of numbers, in ascending order; no two touch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ledger {
    ranges: [(u64, u64); LEDGER_MAX],
    count: usize,
}

impl Ledger {
    pub(crate) const EMPTY: Self = Self { ranges: [(0, 0); LEDGER_MAX], count: 0 };

    /// The ledger of these ranges, if they can be those of one.
    pub(crate) fn of(ranges: impl Iterator<Item = (u64, u64)>) -> Option<Self> {
        let mut ledger = Self::EMPTY;
        for (from, to) in ranges {
            let behind = ledger.ranges().last().is_none_or(|(_, end)| *end < from);
            if from >= to || !behind || !ledger.add(from, to) {
                return None;
            }
        }
        Some(ledger)
    }

    pub(crate) fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges[..self.count]
    }

    /// Whether `ranges` more ranges fit, wherever they are.
    pub(crate) fn has_room(&self, ranges: usize) -> bool {
        self.count + ranges <= LEDGER_MAX
    }

    /// Numbers from `from` to below `to` have no record. `false`: there is no room to note that.
    #[must_use]
    pub(crate) fn add(&mut self, from: u64, to: u64) -> bool {
        if from >= to {
            return true;
        }
        let first = self.ranges().partition_point(|(_, end)| *end < from);
        let last = self.ranges().partition_point(|(begin, _)| *begin <= to);
        if first == last {
            if !self.has_room(1) {
                return false;
            }
            self.ranges.copy_within(first..self.count, first + 1);
            self.ranges[first] = (from, to);
            self.count += 1;
            return true;
        }
        let from = from.min(self.ranges[first].0);
        let to = to.max(self.ranges[last - 1].1);
        self.ranges[first] = (from, to);
        self.ranges.copy_within(last..self.count, first + 1);
        self.count -= last - first - 1;
        let apart = |pair: &[(u64, u64)]| pair[0].1 < pair[1].0;
        debug_assert!(self.ranges().windows(2).all(apart), "ranges touch: {:?}", self.ranges());
        true
    }

    /// Removes the numbers below this one, which no longer matter.
    pub(crate) fn forget_below(&mut self, number: u64) {
        let gone = self.ranges().partition_point(|(_, end)| *end <= number);
        self.ranges.copy_within(gone..self.count, 0);
        self.count -= gone;
    }

    /// The end of the range that a number is in.
    pub(crate) fn end_of(&self, number: u64) -> Option<u64> {
        let at = self.ranges().partition_point(|(_, end)| *end <= number);
        let (begin, end) = *self.ranges().get(at)?;
        (begin <= number).then_some(end)
    }
}

impl PartialEq for Ledger {
    fn eq(&self, other: &Self) -> bool {
        self.ranges() == other.ranges()
    }
}

impl Eq for Ledger {}

#[cfg(test)]
mod tests {
    use super::{LEDGER_MAX, Ledger};

    #[test]
    fn it_agrees_with_a_plain_set_of_numbers() {
        let mut random = fastrand::Rng::with_seed(4);
        for _ in 0..300 {
            let (mut ledger, mut plain) = (Ledger::EMPTY, vec![false; 400]);
            for _ in 0..random.usize(..60) {
                let from = random.usize(..390);
                let to = from + random.usize(..10);
                assert!(ledger.add(from as u64, to as u64));
                plain[from..to].fill(true);
                if random.u8(..20) == 0 {
                    let below = random.usize(..400);
                    ledger.forget_below(below as u64);
                    let kept = ledger.ranges().first().map_or(400, |(begin, _)| *begin);
                    let kept = usize::try_from(kept).unwrap();
                    plain[..kept.min(400)].fill(false);
                }
            }
            for (number, known) in plain.iter().enumerate() {
                assert_eq!(ledger.end_of(number as u64).is_some(), *known, "{number}: {ledger:?}");
            }
            assert_eq!(Ledger::of(ledger.ranges().iter().copied()), Some(ledger));
        }
    }

    #[test]
    fn a_full_one_takes_what_touches_a_range_only() {
        let mut ledger = Ledger::EMPTY;
        for at in 0..LEDGER_MAX as u64 {
            assert!(ledger.has_room(1) && ledger.add(10 * at, 10 * at + 5));
        }
        assert!(!ledger.has_room(1) && !ledger.add(7, 8));
        assert!(ledger.add(5, 10) && ledger.has_room(1) && !ledger.has_room(2));
        assert_eq!((ledger.end_of(3), ledger.end_of(16)), (Some(15), None));
    }

    #[test]
    fn ranges_that_cannot_be_are_none() {
        let of = |ranges: &[(u64, u64)]| Ledger::of(ranges.iter().copied());
        assert!(of(&[(1, 2), (3, 9)]).is_some());
        for wrong in [&[(1, 1)][..], &[(2, 1)], &[(1, 5), (5, 6)], &[(8, 9), (1, 2)]] {
            assert_eq!(of(wrong), None, "{wrong:?}");
        }
    }
}
