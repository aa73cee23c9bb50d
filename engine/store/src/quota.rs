//! How many segments each pool has, may have, and is kept.
//!
//! The reservation of a pool is its minimum, and the segments that it needs to work once it was
//! written to. A pool takes free segments below its maximum while the reservations of others stay
//! free. Else it reclaims its own oldest segment; below its reservation, that of the pool which is
//! furthest above its own. Pools without a rule have no part of their own: the oldest segment of
//! any of them goes, and one that lost its rule gives to the others too.

use crate::format::POOLS_MAX;
use crate::pools::{POOL_SEGMENTS_MIN, PoolLimits};

/// One pool's account.
#[derive(Clone, Copy, Debug, Default)]
struct PoolAccount {
    held: u32,
    limits: PoolLimits,
    /// Segments kept for it.
    kept: u32,
}

/// All accounts.
#[derive(Debug)]
pub(crate) struct Quota {
    rows: [PoolAccount; POOLS_MAX],
    /// Pools with a demand for space since the start.
    wanted: u16,
    wanted_count: u32,
    /// Pools that have segments.
    held: u16,
    /// Pools that have a rule.
    ruled: u16,
    /// Segments kept for pools that do not have them.
    owed: u32,
    /// Grows with each change.
    version: u64,
}

impl Quota {
    pub(crate) fn new() -> Self {
        let rows = [PoolAccount::default(); POOLS_MAX];
        let (wanted, wanted_count, held, ruled, owed, version) = (0, 0, 0, 0, 0, 0);
        let mut new = Self { rows, wanted, wanted_count, held, ruled, owed, version };
        new.want(0);
        new
    }

    fn row(&self, pool: u8) -> &PoolAccount {
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

    pub(crate) fn set_limits(&mut self, limits: &[PoolLimits; POOLS_MAX], ruled: u16) {
        self.ruled = ruled;
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

    /// Segments that a pool may take of `free` free ones.
    pub(crate) fn takeable(&self, pool: u8, free: u32) -> u32 {
        let row = self.row(pool);
        let own = row.kept.saturating_sub(row.held);
        let beyond = free.saturating_sub(self.owed - own);
        let room = row.limits.maximum.saturating_sub(row.held);
        // Reservations above the capacity are served in the order of demand.
        let taken = room.min(beyond.max(own.min(free)));
        debug_assert!(taken <= free, "{taken} of {free} free segments");
        taken
    }

    pub(crate) fn is_over(&self, pool: u8) -> bool {
        let row = self.row(pool);
        row.held > row.limits.maximum
    }

    /// The pool that gives up a segment when this one is short. `age` returns the age of a pool's
    /// oldest segment: less is older.
    pub(crate) fn donor(
        &self,
        pool: u8,
        can_go: impl Fn(u8) -> bool,
        age: impl Fn(u8) -> u64,
    ) -> Option<u8> {
        let row = self.row(pool);
        if row.held >= row.kept {
            let all = (0..16).filter(|other| *other == pool || self.shares_with(*other, pool));
            return all.filter(|pool| can_go(*pool)).min_by_key(|pool| age(*pool));
        }
        // Where segments are bad, less than all minimums may be left: then working comes first.
        self.furthest(pool, |row| row.kept, &can_go)
            .or_else(|| self.furthest(pool, |_| POOL_SEGMENTS_MIN, &can_go))
            .or_else(|| Some(pool).filter(|pool| can_go(*pool)))
    }

    /// Whether a pool gives its oldest segment to another one, which has what is kept for it.
    fn shares_with(&self, pool: u8, taker: u8) -> bool {
        let ruled = |pool: u8| self.ruled >> pool & 1 == 1;
        let (giver, taker_row) = (self.row(pool), self.row(taker));
        let takes = taker_row.held < taker_row.limits.maximum && (pool != 0 || !ruled(taker));
        takes && !ruled(pool) && giver.held > giver.kept
    }

    /// The other pool that has most beyond something.
    fn furthest(
        &self,
        pool: u8,
        kept: impl Fn(&PoolAccount) -> u32,
        can_go: impl Fn(u8) -> bool,
    ) -> Option<u8> {
        let rows = (0_u8..).zip(&self.rows).filter(|(other, _)| *other != pool);
        let beyond = rows.map(|(other, row)| (row.held.saturating_sub(kept(row)), other));
        let able = beyond.filter(|(beyond, other)| *beyond > 0 && can_go(*other));
        able.max_by_key(|(beyond, _)| *beyond).map(|(_, other)| other)
    }

    /// The segments that each pool has or may claim.
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
        quota.set_limits(&all, (1 << limits.len()) - 1);
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
        let donor = |pool, but| quota.donor(pool, |pool| Some(pool) != but, u64::from);
        assert_eq!(donor(1, None), Some(2));
        assert_eq!(donor(1, Some(2)), Some(0));
        assert_eq!(donor(0, None), Some(0));
        assert_eq!(donor(2, Some(2)), None);
    }

    #[test]
    fn pools_without_a_rule_share_by_age() {
        let mut quota = quota(&[(0, 50), (10, 20), (0, 50), (0, 50)], &[12, 10, 9, 8]);
        let ages = |pool: u8| [5, 4, 1, 2][usize::from(pool)];
        quota.ruled = 0b0010;
        assert_eq!([0, 1, 2, 3].map(|pool| quota.donor(pool, |_| true, ages)), [2; 4].map(Some));
        let but = |pool| pool != 2 && pool != 3;
        assert_eq!([0, 1].map(|pool| quota.donor(pool, but, ages)), [0, 1].map(Some));
        // The default pool gives to others without a rule only.
        assert_eq!([2, 1].map(|pool| quota.donor(pool, |donor| donor == 0, ages)), [Some(0), None]);
        // Each pool keeps its working set, and a pool at its maximum takes from its own segments.
        (0..5).for_each(|_| quota.give(2));
        assert_eq!(quota.donor(3, |_| true, ages), Some(3));
        (0..10).for_each(|_| quota.take(1));
        assert_eq!(quota.donor(1, |_| true, ages), Some(1));
    }

    #[test]
    fn a_pool_with_nothing_works_whatever_the_minimums_say() {
        let quota = quota(&[(20, 50), (20, 20), (0, 50)], &[18, 17, 0]);
        assert_eq!(quota.donor(2, |_| true, u64::from), Some(0));
        assert!(!quota.is_over(2));
    }
}
