//! The worth of blocks to a store, by uses, hints and holds: entries, segments and the clock of
//! uses stay in step.

use super::Core;
use crate::entry::Entry;
use crate::hint::{Hint, Priority, WorthClass};
use crate::holds::HeldBlock;
use crate::index::Position;
use crate::key::Key;
use crate::pools::POOL_SEGMENTS_MIN;
use crate::request::Chain;
use crate::retained::{Retained, retained};
use crate::worth::AGE_MAX;

/// A pool needs this many times the segments that its held blocks fill.
const HELD_SHARE: u64 = 4;

impl Core {
    /// A block that is there is used.
    #[inline(always)]
    pub(crate) fn use_block(&mut self, position: Position, entry: &Entry, segment: u32) {
        self.worth.clock.count(entry.length());
        if entry.class() == WorthClass::Over {
            return;
        }
        let age = self.worth.clock.age(entry.stamp());
        self.worth.used(self.segments.pool(segment), age);
        // Within a tick its stamp stays as it is.
        if age > 0 {
            self.set_age(position, entry, segment, 0);
        }
    }

    /// A block that is there is put again. Behind a hole that stays it is worth no more than
    /// before.
    pub(crate) fn offered_again(&mut self, position: Position, entry: &Entry, chain: Chain) {
        let segment = self.geometry.segment_of(entry.place());
        let pool = self.segments.pool(segment);
        if chain == Chain::Extends || self.worth.takes_newcomers(pool) {
            self.use_block(position, entry, segment);
        }
    }

    /// Sets the age of a present block, in ticks.
    #[inline(always)]
    pub(crate) fn set_age(&mut self, position: Position, entry: &Entry, segment: u32, age: u64) {
        let clock = &self.worth.clock;
        let (before, stamp) = (clock.tick_of(entry.stamp()), clock.stamp(age));
        self.segments.use_again(segment, before, clock.tick_of(stamp));
        self.index.update(position, entry.with_stamp(stamp));
    }

    /// The class of a block that is put into this pool with a hint. Its end is noted; where there
    /// is no room for that, and where a quarter of the pool is retained already, the block is worth
    /// no more than others, and the hint counts as refused.
    pub(crate) fn class_of(
        &mut self,
        block: (u16, Key),
        place: (u8, u32),
        hint: Hint,
    ) -> WorthClass {
        let class = self.class_beside(block, place, hint, None);
        self.stats.hints_refused += u64::from(class.is_none());
        class.unwrap_or(WorthClass::Of(hint.priority.min(Priority::Normal)))
    }

    /// The class of a block that recovery finds, instead of an entry of the same key. Its hint was
    /// counted at its put.
    pub(crate) fn class_of_recovered(
        &mut self,
        block: (u16, Key),
        place: (u8, u32),
        hint: Hint,
        old: Option<&Entry>,
    ) -> WorthClass {
        let class = self.class_beside(block, place, hint, old);
        class.unwrap_or(WorthClass::Of(hint.priority.min(Priority::Normal)))
    }

    /// The class by a hint; none where there is no room for that.
    fn class_beside(
        &mut self,
        (number, key): (u16, Key),
        (pool, length): (u8, u32),
        hint: Hint,
        old: Option<&Entry>,
    ) -> Option<WorthClass> {
        // Of an older put.
        self.forget_end(number, key.lo());
        if hint.until != 0 && hint.is_over(self.now.unix) {
            return Some(WorthClass::Over);
        }
        let freed = old.map_or(0, |old| retained(old, &self.geometry));
        let wanted = u64::from(self.geometry.padded(length));
        let bytes = self.retained.bytes(pool) - freed + wanted;
        let fits = hint.priority != Priority::High || bytes <= self.holdable(pool, 0);
        let ends = hint.until == 0 || self.note_end(number, key.lo(), pool, hint.until);
        (fits && ends).then_some(WorthClass::Of(hint.priority))
    }

    /// Notes when the hint of a block ends. `false`: there is no row for its pool. Rows are kept
    /// for the others by the segments that each has or may claim, so that none takes all.
    fn note_end(&mut self, number: u16, lo: u64, pool: u8, until: u32) -> bool {
        let (shares, rows) = (self.segments.shares(), u64::from(self.ends.limit()));
        let all = u64::from(shares.iter().sum::<u32>().max(self.segments.count()));
        let others = (0_u8..).zip(shares).filter(|(other, _)| *other != pool);
        let kept = others.map(|(other, share)| {
            let part = rows * u64::from(share) / all;
            part.saturating_sub(self.ends.count_of(other.into()).into())
        });
        let block = HeldBlock { number, lo, pool, bytes: 0 };
        u64::from(self.ends.count()) + kept.sum::<u64>() < rows
            && self.ends.take(block, pool.into(), until.into(), u64::MAX)
    }

    /// A block that is there counts as older than the coldest of its pool, and is not retained any
    /// more. A use makes it as young as others.
    pub(crate) fn demote(&mut self, position: Position, entry: &Entry) {
        let class = match entry.class() {
            WorthClass::Of(Priority::High) => WorthClass::Of(Priority::Normal),
            class => class,
        };
        let pool = self.segments.pool(self.geometry.segment_of(entry.place()));
        let stamp = self.worth.stamp_of_demoted(pool);
        self.stats.demoted += 1;
        self.replace(position, entry, entry.with_class(class).with_stamp(stamp));
    }

    /// Counts the blocks of a high priority again.
    pub(crate) fn audit_retained(&self) {
        let mut again = Retained::default();
        let buckets = (0..self.index.len()).flat_map(|row| self.index.bucket(row));
        for (_, entry) in buckets.filter(|(_, entry)| entry.is_there()) {
            let pool = self.segments.pool(self.geometry.segment_of(entry.place()));
            again.gain(&entry, pool, &self.geometry);
        }
        assert_eq!(again, self.retained, "entries and retained bytes");
    }

    /// When the hint of a block ends, as far as the table of ends has it.
    pub(crate) fn hint_end(&self, entry: &Entry) -> Option<u32> {
        let end = self.ends.held_until(entry.number(), entry.lo(), 0)?;
        u32::try_from(end).ok()
    }

    /// The end of a block's hint is not needed any more.
    pub(super) fn forget_end(&mut self, number: u16, lo: u64) {
        if self.ends.count() > 0 {
            self.ends.release_all(number, lo);
        }
    }

    /// Blocks whose hints have ended become worthless.
    pub(crate) fn end_hints(&mut self) {
        let Self { ends, index, segments, worth, geometry, now, retained, .. } = self;
        ends.expire(now.unix.into(), |number, lo| {
            let is_it = |entry: &Entry| entry.is_low(lo, number) && entry.is_there();
            let Some(position) = index.place_of(index.hash(number, lo), is_it) else { return };
            let entry = index.get(position);
            let over = entry.with_class(WorthClass::Over).with_stamp(worth.clock.stamp(AGE_MAX));
            let segment = geometry.segment_of(entry.place());
            segments.use_again(segment, worth.clock.weigh(&entry), worth.clock.weigh(&over));
            retained.lose(&entry, segments.pool(segment), geometry);
            index.update(position, over);
        });
    }

    /// The block at a position, as holds name it.
    pub(crate) fn to_hold(&self, position: Position) -> HeldBlock {
        let entry = self.index.get(position);
        HeldBlock {
            number: entry.number(),
            lo: entry.lo(),
            pool: self.segments.pool(self.geometry.segment_of(entry.place())),
            bytes: self.geometry.padded(entry.length()),
        }
    }

    /// Bytes of a pool that may be held if the pool had `less` fewer segments: a quarter of its
    /// segments beyond those that it works with. The limit guarantees a complete segment with few
    /// held blocks.
    pub(crate) fn holdable(&self, pool: u8, less: u32) -> u64 {
        let work = POOL_SEGMENTS_MIN + less;
        let segments = self.segments.reach(pool).saturating_sub(work);
        u64::from(segments) * self.geometry.segment_bytes / HELD_SHARE
    }
}
