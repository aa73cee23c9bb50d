//! Which heads have the newest ledgers.
//!
//! A head has room for two ledgers. The first one is its pool's. The second one is that of the pool
//! that the segment was in before, whose numbers go with the segment's pages; where that is the
//! same pool or has no numbers, it is the one whose newest head is next to be written over. Without
//! that, the ledger of a pool at rest would go with the segment that others use again.

use crate::format::POOLS_MAX;

/// Of each pool: the segment and epoch of the newest head with its ledger.
#[derive(Debug, Default)]
pub(crate) struct Carriers([Option<(u32, u64)>; POOLS_MAX]);

impl Carriers {
    /// A head has a pool's ledger. Whether it is the newest.
    pub(crate) fn add(&mut self, pool: u8, segment: u32, epoch: u64) -> bool {
        let newest = &mut self.0[usize::from(pool)];
        let newer = newest.is_none_or(|(_, before)| epoch > before);
        if newer {
            *newest = Some((segment, epoch));
        }
        newer
    }

    /// The pool of the second ledger in a segment's next head, which is a pool's; `has`: whether a
    /// pool's ledger has numbers.
    pub(crate) fn second(
        &self,
        (segment, before): (u32, u8),
        pool: u8,
        has: impl Fn(u8) -> bool,
    ) -> u8 {
        if before != pool && has(before) {
            return before;
        }
        let carried = (0_u8..).zip(&self.0).filter_map(|(it, at)| at.map(|at| (it, at)));
        let others = carried.filter(|(it, _)| *it != pool && has(*it));
        let next = others.min_by_key(|(_, (at, epoch))| (*at != segment, *epoch));
        next.map_or(before, |(other, _)| other)
    }
}

#[cfg(test)]
mod tests {
    use super::Carriers;

    #[test]
    fn the_second_ledger_is_the_one_that_would_go() {
        let mut carriers = Carriers::default();
        assert_eq!(carriers.second((7, 0), 0, |_| true), 0, "no head has another one");
        for (pool, segment, epoch) in [(0, 7, 9), (1, 7, 9), (2, 5, 4), (3, 6, 3)] {
            assert!(carriers.add(pool, segment, epoch), "the first of pool {pool}");
        }
        assert!(!carriers.add(1, 5, 4), "an older head");
        assert_eq!(carriers.second((7, 2), 0, |_| true), 2, "its own numbers go with the segment");
        assert_eq!(carriers.second((7, 0), 0, |_| true), 1, "no other head has it");
        assert_eq!(carriers.second((7, 2), 0, |pool| pool != 2), 1, "the last one has no numbers");
        assert_eq!(carriers.second((4, 0), 0, |_| true), 3, "the oldest head");
        assert_eq!(carriers.second((4, 0), 0, |pool| pool == 0), 0, "none has numbers");
    }
}
