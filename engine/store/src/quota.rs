//! How many segments each pool has, may have, and is kept.
//!
//! What is kept for a pool: its minimum, and what it needs to work once it was written to. A pool
//! takes free segments below its maximum while what is kept for others stays free. Else it reclaims
//! its own oldest segment; below what is kept for it, that of the pool which is furthest above.

use crate::format::POOLS_MAX;
use crate::pools::{POOL_SEGMENTS_MIN, PoolLimits};

/// One pool's account.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    held: u32,
    limits: PoolLimits,
    /// Segments kept for it.
    kept: u32,
}

/// All accounts.
#[derive(Debug)]
pub(crate) struct Quota {
    rows: [Row; POOLS_MAX],
    /// Pools that somebody wanted space in.
    wanted: u16,
    wanted_count: u32,
    /// Pools that have segments.
    held: u16,
    /// Segments kept for pools that do not have them.
    owed: u32,
    /// Grows with each change.
    version: u64,
}

impl Quota {
    pub(crate) fn new() -> Self {
        let rows = [Row::default(); POOLS_MAX];
        let mut new = Self { rows, wanted: 0, wanted_count: 0, held: 0, owed: 0, version: 0 };
        new.want(0);
        new
    }

    fn row(&self, pool: u8) -> &Row {
        &self.rows[usize::from(pool)]
    }

    pub(crate) fn wanted(&self) -> u16 {
        self.wanted
    }

    pub(crate) fn wanted_count(&self) -> u32 {
        self.wanted_count
    }

    pub(crate) fn held_bits(&self) -> u16 {
        self.held
    }

    /// Another one when anything else is another.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn held(&self, pool: u8) -> u32 {
        self.row(pool).held
    }

    pub(crate) fn set_limits(&mut self, limits: &[PoolLimits; POOLS_MAX]) {
        for (row, limits) in self.rows.iter_mut().zip(limits) {
            row.limits = PoolLimits {
                minimum: limits.minimum.min(limits.maximum),
                maximum: limits.maximum.max(POOL_SEGMENTS_MIN),
            };
        }
        self.count();
    }

    pub(crate) fn want(&mut self, pool: u8) {
        let bit = 1 << pool;
        if self.wanted & bit == 0 {
            self.wanted |= bit;
            self.wanted_count = self.wanted.count_ones();
            self.count();
        }
    }

    /// A pool gets a segment.
    pub(crate) fn take(&mut self, pool: u8) {
        self.rows[usize::from(pool)].held += 1;
        self.count();
    }

    /// A pool has one segment less.
    pub(crate) fn give(&mut self, pool: u8) {
        let held = &mut self.rows[usize::from(pool)].held;
        *held = held.checked_sub(1).expect("a pool gives what it has");
        self.count();
    }

    fn count(&mut self) {
        (self.held, self.owed, self.version) = (0, 0, self.version + 1);
        for (pool, row) in self.rows.iter_mut().enumerate() {
            let works = if self.wanted >> pool & 1 == 1 { POOL_SEGMENTS_MIN } else { 0 };
            row.kept = row.limits.minimum.max(works);
            self.held |= u16::from(row.held > 0) << pool;
            self.owed += row.kept.saturating_sub(row.held);
        }
    }

    /// Segments that a pool may take of so many free ones.
    pub(crate) fn takeable(&self, pool: u8, free: u32) -> u32 {
        let row = self.row(pool);
        let own = row.kept.saturating_sub(row.held);
        let beyond = free.saturating_sub(self.owed - own);
        let room = row.limits.maximum.saturating_sub(row.held);
        // Where more is kept than there is, whoever comes first has it.
        room.min(beyond.max(own.min(free)))
    }

    pub(crate) fn is_over(&self, pool: u8) -> bool {
        let row = self.row(pool);
        row.held > row.limits.maximum
    }

    /// The pool that gives a segment when this one is short.
    pub(crate) fn donor(&self, pool: u8, can_go: impl Fn(u8) -> bool) -> Option<u8> {
        let row = self.row(pool);
        if row.held >= row.kept {
            return Some(pool).filter(|pool| can_go(*pool));
        }
        // Where segments are bad, less than all minimums may be left: then working comes first.
        self.furthest(pool, |row| row.kept, &can_go)
            .or_else(|| self.furthest(pool, |_| POOL_SEGMENTS_MIN, &can_go))
            .or_else(|| Some(pool).filter(|pool| can_go(*pool)))
    }

    /// The other pool that has most beyond something.
    fn furthest(
        &self,
        pool: u8,
        kept: impl Fn(&Row) -> u32,
        can_go: impl Fn(u8) -> bool,
    ) -> Option<u8> {
        let rows = (0_u8..).zip(&self.rows).filter(|(other, _)| *other != pool);
        let beyond = rows.map(|(other, row)| (row.held.saturating_sub(kept(row)), other));
        let able = beyond.filter(|(beyond, other)| *beyond > 0 && can_go(*other));
        able.max_by_key(|(beyond, _)| *beyond).map(|(_, other)| other)
    }

    /// What each pool has or may claim.
    pub(crate) fn shares(&self) -> [u32; POOLS_MAX] {
        self.rows.map(|row| row.held.max(row.kept))
    }
}

#[cfg(test)]
mod tests {
    use super::Quota;
    use crate::format::POOLS_MAX;
    use crate::pools::PoolLimits;

    fn quota(limits: &[(u32, u32)], held: &[u32]) -> Quota {
        let mut quota = Quota::new();
        let mut all = [PoolLimits::default(); POOLS_MAX];
        for (pool, (minimum, maximum)) in (0..).zip(limits) {
            all[pool] = PoolLimits { minimum: *minimum, maximum: *maximum };
        }
        quota.set_limits(&all);
        for (pool, held) in (0..).zip(held) {
            (0..*held).for_each(|_| quota.take(pool));
            quota.want(pool);
        }
        quota
    }

    #[test]
    fn what_is_kept_for_others_stays_free() {
        let quota = quota(&[(0, 50), (10, 20), (6, u32::MAX)], &[8, 3, 6]);
        assert_eq!([0, 1, 2].map(|pool| quota.takeable(pool, 9)), [2, 9, 2]);
        assert_eq!([0, 1, 2].map(|pool| quota.takeable(pool, 7)), [0, 7, 0]);
        assert_eq!([0, 1, 2].map(|pool| quota.takeable(pool, 60)), [42, 17, 53]);
    }

    #[test]
    fn a_pool_below_its_minimum_takes_from_the_one_furthest_above() {
        let quota = quota(&[(0, 50), (10, 20), (6, u32::MAX)], &[12, 9, 15]);
        assert_eq!(quota.donor(1, |_| true), Some(2));
        assert_eq!(quota.donor(1, |pool| pool != 2), Some(0));
        assert_eq!(quota.donor(0, |_| true), Some(0));
        assert_eq!(quota.donor(2, |pool| pool != 2), None);
    }

    #[test]
    fn a_pool_with_nothing_works_whatever_the_minimums_say() {
        let quota = quota(&[(20, 50), (20, 20), (0, 50)], &[18, 17, 0]);
        assert_eq!(quota.donor(2, |_| true), Some(0));
        assert!(!quota.is_over(2));
    }
}
