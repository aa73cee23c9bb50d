//! Whether all records of drops were found: a drop that is missing must not bring its block back.
//!
//! Drops are numbered over the store's life. Each page has the number of drops before it and the
//! number that was durable when the page was written. The numbers of two successive pages must
//! follow each other, except for drops of reclaimed segments: the ledger has those. A hole above
//! the durable number is the effect of a crash; recovery writes a gap record, so that the hole is
//! no damage later. A hole below the durable number is damage: no older record can be trusted.

use crate::fifo::Fifo;
use crate::ledger::Ledger;

/// Gaps remembered at most; more than that is damage.
const GAPS_MAX: usize = 64;

/// The verdict on the drops in a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hole {
    /// There is none, or it is known, or it was never durable.
    Harmless,
    /// Durable drops are missing.
    Damage,
}

/// The account of drops while pages are read, newest segment first.
#[derive(Debug)]
pub(crate) struct Drops {
    durable: u64,
    /// Numbers that are known to be missing, from and to.
    known: Fifo<(u64, u64)>,
    /// Gaps found by this recovery, without a record yet.
    new: Fifo<(u64, u64)>,
    /// Drops before the lowest page seen in newer segments.
    above: Option<u64>,
    /// Drops up to the last page of the segment being read, and before its first.
    expected: Option<u64>,
    first: Option<u64>,
    /// Drops up to the newest page.
    last: u64,
}

impl Drops {
    pub(crate) fn new() -> Self {
        Self {
            durable: 0,
            known: Fifo::with_limit(GAPS_MAX),
            new: Fifo::with_limit(GAPS_MAX),
            above: None,
            expected: None,
            first: None,
            last: 0,
        }
    }

    /// Enters the number of durable drops of a head or page.
    pub(crate) fn durable(&mut self, drops: u64) {
        self.durable = self.durable.max(drops);
        self.last = self.last.max(drops);
    }

    /// All heads are read: the newest segment must reach the durable number.
    pub(crate) fn heads_end(&mut self) {
        self.above = Some(self.durable);
    }

    /// Enters a gap record.
    pub(crate) fn known(&mut self, from: u64, to: u64) {
        if self.known.len() < GAPS_MAX {
            self.known.push((from, to));
        }
    }

    /// The next page of the segment being read.
    pub(crate) fn page(&mut self, ledger: &Ledger, before: u64, drops: u16) -> Hole {
        let hole = self.expected.map_or(Hole::Harmless, |from| self.hole(ledger, from, before));
        self.first.get_or_insert(before);
        let end = before.saturating_add(drops.into());
        self.expected = Some(end);
        self.last = self.last.max(end);
        hole
    }

    /// The numbers of the drops of the segment being read.
    pub(crate) fn numbers(&self) -> (u64, u64) {
        (self.first.unwrap_or(0), self.expected.unwrap_or(0))
    }

    /// The segment is read to its end.
    pub(crate) fn segment_end(&mut self, ledger: &Ledger) -> Hole {
        let (expected, first) = (self.expected.take(), self.first.take());
        let Some(from) = expected else { return Hole::Harmless };
        let hole = self.above.map_or(Hole::Harmless, |to| self.hole(ledger, from, to));
        self.above = first;
        // Pages behind a hole may state that its drops were durable.
        let new = (0..self.new.len()).filter_map(|nth| self.new.get(nth));
        let durable = new.into_iter().any(|(low, _)| *low < self.durable);
        if durable { Hole::Damage } else { hole }
    }

    fn hole(&mut self, ledger: &Ledger, from: u64, to: u64) -> Hole {
        let mut at = from;
        while at < to {
            let known = (0..self.known.len()).filter_map(|nth| self.known.get(nth));
            let gap = known.into_iter().find(|(low, high)| (*low..*high).contains(&at));
            if let Some(end) = gap.map(|(_, high)| *high).or_else(|| ledger.end_of(at)) {
                at = end;
            } else if at < self.durable || self.new.len() == GAPS_MAX {
                return Hole::Damage;
            } else {
                // Up to the next number that is known to be missing.
                let next = ledger.ranges().iter().map(|(begin, _)| *begin);
                let end =
                    next.into_iter().find(|begin| *begin > at).map_or(to, |begin| begin.min(to));
                self.known(at, end);
                self.new.push((at, end));
                at = end;
            }
        }
        Hole::Harmless
    }

    /// The first gap without a record.
    pub(crate) fn unrecorded(&self) -> Option<(u64, u64)> {
        self.new.front().copied()
    }

    pub(crate) fn recorded(&mut self) {
        self.new.pop();
    }

    /// Drops of the store's life.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn drops_durable(&self) -> u64 {
        self.durable
    }
}

#[cfg(test)]
mod tests {
    use super::{Drops, Hole, Ledger};

    const NONE: &Ledger = &Ledger::EMPTY;

    #[test]
    fn holes_are_damage_below_what_was_durable_only() {
        let mut drops = Drops::new();
        drops.durable(4);
        drops.heads_end();
        assert_eq!(drops.page(NONE, 5, 1), Hole::Harmless);
        assert_eq!(drops.page(NONE, 7, 2), Hole::Harmless);
        assert_eq!(drops.unrecorded(), Some((6, 7)));
        assert_eq!(drops.segment_end(NONE), Hole::Harmless);
        assert_eq!(drops.last(), 9);
        // The older segment ends at 4; number 4 was not durable.
        assert_eq!(drops.page(NONE, 3, 1), Hole::Harmless);
        assert_eq!(drops.segment_end(NONE), Hole::Harmless);
        // The next one ends at 2; number 2 was.
        assert_eq!(drops.page(NONE, 0, 2), Hole::Harmless);
        assert_eq!(drops.segment_end(NONE), Hole::Damage);
    }

    #[test]
    fn a_later_page_states_that_a_hole_was_durable() {
        for (durable, verdict) in [(1, Hole::Harmless), (2, Hole::Damage)] {
            let mut drops = Drops::new();
            drops.heads_end();
            assert_eq!(drops.page(NONE, 0, 1), Hole::Harmless);
            assert_eq!(drops.page(NONE, 2, 1), Hole::Harmless);
            drops.durable(durable);
            assert_eq!(drops.page(NONE, 3, 0), Hole::Harmless);
            assert_eq!(drops.segment_end(NONE), verdict, "{durable} were durable");
        }
    }

    #[test]
    fn a_tail_that_heads_know_of_is_missed_and_known_gaps_are_not() {
        let mut drops = Drops::new();
        drops.durable(4);
        drops.heads_end();
        drops.page(NONE, 0, 2);
        assert_eq!(drops.segment_end(NONE), Hole::Damage);
        let mut drops = Drops::new();
        drops.durable(4);
        drops.known(2, 3);
        drops.heads_end();
        drops.page(NONE, 0, 2);
        assert_eq!(drops.page(NONE, 3, 1), Hole::Harmless);
        assert_eq!((drops.segment_end(NONE), drops.unrecorded()), (Hole::Harmless, None));
    }

    #[test]
    fn numbers_of_reclaimed_segments_are_no_hole() {
        let ledger = Ledger::of([(4, 7), (9, 12)].into_iter()).unwrap();
        let mut drops = Drops::new();
        drops.durable(20);
        drops.heads_end();
        assert_eq!(drops.page(&ledger, 12, 8), Hole::Harmless);
        assert_eq!(drops.numbers(), (12, 20));
        assert_eq!(drops.segment_end(&ledger), Hole::Harmless);
        assert_eq!(drops.page(&ledger, 7, 2), Hole::Harmless);
        assert_eq!(drops.segment_end(&ledger), Hole::Harmless);
        // Number 3 is in no ledger.
        assert_eq!(drops.page(&ledger, 0, 3), Hole::Harmless);
        assert_eq!(drops.segment_end(&ledger), Hole::Damage);
    }

    #[test]
    fn a_gap_ends_where_the_ledger_goes_on() {
        let ledger = Ledger::of([(4, 7)].into_iter()).unwrap();
        let mut drops = Drops::new();
        drops.heads_end();
        assert_eq!(drops.page(&ledger, 9, 1), Hole::Harmless);
        assert_eq!(drops.segment_end(&ledger), Hole::Harmless);
        assert_eq!(drops.page(&ledger, 0, 2), Hole::Harmless);
        assert_eq!(drops.segment_end(&ledger), Hole::Harmless);
        assert_eq!(
            [drops.new.pop(), drops.new.pop(), drops.new.pop()],
            [Some((2, 4)), Some((7, 9)), None]
        );
    }
}
