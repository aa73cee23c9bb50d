//! The worth of blocks: how lately each was used, and how often present blocks are used.
//!
//! A clock counts used bytes: gets of blocks, and offered blocks. An entry has the tick of its last
//! use, a segment the sum of its entries' ticks. A survey looks at all segments in steps, and
//! yields for each pool the coldest segment and the age of the coldest ones.

use std::cmp::Reverse;

use crate::entry::{Entry, STAMP_MASK};
use crate::format::POOLS_MAX;
use crate::hint::{Priority, WorthClass};
use crate::segments::{SegmentState, Segments};

/// Ticks of the clock in which as many bytes are used as the store has.
pub(crate) const TICKS_OF_STORE: u64 = 64;
/// Ticks by which a block with a priority is younger or older in its segment's mean and in the
/// choice of moves. Its neighbours share the mean.
const HINT_TICKS: u64 = TICKS_OF_STORE;
const HINT_MOVES: u64 = 8 * TICKS_OF_STORE;
/// The clock's first tick: above the range of a stamp plus a hint.
const FIRST_TICK: u64 = 1 << 13;
/// Ages above this are made this: stamps would come round.
pub(crate) const AGE_MAX: u64 = 1 << 11;
/// Initial age of a block at its put: the age at which blocks are evicted, divided by this. An
/// unused block is worth less than one that was used at that time.
const UNUSED_SHARE: u64 = 2;
const _: () = assert!(AGE_MAX < STAMP_MASK as u64, "a stamp of the greatest age comes round");
const _: () = assert!(FIRST_TICK > STAMP_MASK as u64 + HINT_MOVES, "a tick below 0");
/// Newcomers are admitted while the coldest segments are older than this number of mean gaps
/// between uses.
const GAPS: u64 = 2;
/// One tick of this number admits newcomers in any case, so that a repeated put succeeds.
const OPEN_TICKS: u64 = 32;
/// The coldest segments count for newcomers and moves: one of this number.
const COLD_SHARE: u32 = 8;
const CUT_SHARE: u32 = 3;
/// Uses that a mean gap is over.
const GAP_USES: u64 = 1 << 12;
/// Bits of a gap behind the point.
const GAP_BITS: u32 = 16;
/// Part of the segments that one step surveys: one of this number, so that a survey ends soon.
const STEPS_OF_SURVEY: u32 = 16;

/// Counts bytes that are used, and gives uses stamps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UseClock {
    used: u64,
    shift: u32,
}

impl UseClock {
    /// A clock for a store of `bytes`.
    pub(crate) fn new(bytes: u64) -> Self {
        let shift = (bytes / TICKS_OF_STORE).max(1).ilog2();
        Self { used: FIRST_TICK << shift, shift }
    }

    /// Counts the use of a block of `bytes`.
    #[inline(always)]
    pub(crate) fn count(&mut self, bytes: u32) {
        self.used += u64::from(bytes);
    }

    #[inline(always)]
    pub(crate) fn tick(&self) -> u64 {
        self.used >> self.shift
    }

    /// Bytes of a tick.
    pub(crate) fn tick_bytes(&self) -> u64 {
        1 << self.shift
    }

    /// The stamp of a block with this age in ticks.
    #[inline(always)]
    pub(crate) fn stamp(&self, age: u64) -> u16 {
        let [low, high, ..] = (self.tick() - age.min(AGE_MAX)).to_le_bytes();
        u16::from_le_bytes([low, high]) & STAMP_MASK
    }

    /// How many ticks ago a stamp was given.
    #[inline(always)]
    pub(crate) fn age(&self, stamp: u16) -> u64 {
        (self.stamp(0).wrapping_sub(stamp) & STAMP_MASK).into()
    }

    /// The tick of a stamp.
    #[inline(always)]
    pub(crate) fn tick_of(&self, stamp: u16) -> u64 {
        self.tick() - self.age(stamp)
    }

    /// The tick that an entry counts with in its segment.
    pub(crate) fn weigh(&self, entry: &Entry) -> u64 {
        shifted(self.tick_of(entry.stamp()), entry, HINT_TICKS)
    }

    /// The age that an entry counts with when blocks move.
    pub(crate) fn weighed_age(&self, entry: &Entry) -> u64 {
        let tick = shifted(self.tick_of(entry.stamp()), entry, HINT_MOVES);
        self.tick().saturating_sub(tick)
    }
}

/// The tick of an entry with what its priority is worth.
fn shifted(tick: u64, entry: &Entry, by: u64) -> u64 {
    match entry.class() {
        WorthClass::Of(Priority::Low) => tick - by,
        WorthClass::Of(Priority::High) => tick + by,
        WorthClass::Of(Priority::Normal) | WorthClass::Over => tick,
    }
}

/// A segment, in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Coldest {
    segment: u32,
    epoch: u64,
    /// The survey found it passed over.
    spared: bool,
}

/// State of a pool.
#[derive(Clone, Copy, Debug, Default)]
struct PoolState {
    /// Mean ticks between two uses of a block, with `GAP_BITS` behind the point, and how many uses
    /// that is from.
    gap: u64,
    gaps: u64,
    /// When the coldest segments' blocks were used, in the mean.
    cold_tick: u64,
    cut_tick: u64,
    coldest: Option<Coldest>,
    /// Whether a survey has ended that saw a segment of it.
    known: bool,
}

/// Ages of one pool's segments while a survey goes on.
#[derive(Clone, Copy, Debug)]
struct AgeTally {
    counts: [u32; BUCKETS],
    sums: [u64; BUCKETS],
    seen: u32,
    oldest: u64,
    coldest: Option<(EvictionRank, Coldest)>,
}

/// How much a segment's turn to go it is: the greatest one goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionRank {
    /// Where all others are spared, too: the one with the fewest held bytes.
    Spared(Reverse<u32>),
    /// Its age.
    Due(u64),
}

/// Ages by eighths of octaves.
const BUCKETS: usize = 80;

impl AgeTally {
    const EMPTY: Self =
        Self { counts: [0; BUCKETS], sums: [0; BUCKETS], seen: 0, oldest: 0, coldest: None };

    fn take(&mut self, age: u64, spared: Option<u32>, coldest: Coldest) {
        let age = age.min(STAMP_MASK.into());
        let bucket = bucket(age);
        self.counts[bucket] += 1;
        self.sums[bucket] += age;
        self.seen += 1;
        self.oldest = self.oldest.max(age);
        let turn =
            spared.map_or(EvictionRank::Due(age), |held| EvictionRank::Spared(Reverse(held)));
        if self.coldest.is_none_or(|(most, _)| turn > most) {
            self.coldest = Some((turn, coldest));
        }
    }

    /// The mean age of the oldest segments: one of `share`.
    fn mean_of_oldest(&self, share: u32) -> u64 {
        let wanted = u64::from((self.seen / share).max(1));
        self.sum_of_oldest(wanted) / wanted
    }

    /// The mean age of the next victims, one of `share`, without the very oldest.
    fn mean_of_next(&self, share: u32) -> u64 {
        let wanted = u64::from((self.seen / share).max(2));
        if self.seen < 2 {
            0
        } else {
            self.sum_of_oldest(wanted).saturating_sub(self.oldest) / (wanted - 1)
        }
    }

    fn sum_of_oldest(&self, wanted: u64) -> u64 {
        let (mut left, mut sum) = (wanted, 0);
        for (count, ages) in self.counts.iter().zip(&self.sums).rev().filter(|(it, _)| **it > 0) {
            let count = u64::from(*count);
            let taken = count.min(left);
            sum += ages / count * taken;
            left -= taken;
        }
        sum
    }
}

fn bucket(age: u64) -> usize {
    let octave = age.max(8).ilog2();
    let eighth = age >> (octave - 3);
    usize::try_from(u64::from(octave - 3) * 8 + eighth).expect("a small number")
}

/// Uses and ages of all pools.
#[derive(Debug)]
pub(crate) struct Worth {
    pub(crate) clock: UseClock,
    pools: [PoolState; POOLS_MAX],
    tallies: Box<[AgeTally; POOLS_MAX]>,
    /// The next segment of the survey under way.
    at: Option<u32>,
    /// The tick in which the last survey began.
    surveyed: u64,
    /// Whether a caller waits for the end of a survey.
    wanted: bool,
}

/// Bytes of RAM of the tallies.
pub(crate) const TALLIES_BYTES: u64 = (POOLS_MAX * size_of::<AgeTally>()) as u64;

impl Worth {
    /// The worth of all blocks of a store of `bytes`.
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            clock: UseClock::new(bytes),
            pools: [PoolState::default(); POOLS_MAX],
            tallies: Box::new([AgeTally::EMPTY; POOLS_MAX]),
            at: None,
            surveyed: 0,
            wanted: false,
        }
    }

    fn pool(&self, pool: u8) -> &PoolState {
        &self.pools[usize::from(pool)]
    }

    /// Enters a use of a block of a pool at this age in ticks.
    #[inline(always)]
    pub(crate) fn used(&mut self, pool: u8, age: u64) {
        let pool = &mut self.pools[usize::from(pool)];
        pool.gaps = (pool.gaps + 1).min(GAP_USES);
        let age = age << GAP_BITS;
        // The first uses count alike, later ones fade.
        if pool.gaps < GAP_USES {
            pool.gap = pool.gap + age.saturating_sub(pool.gap) / pool.gaps
                - pool.gap.saturating_sub(age) / pool.gaps;
        } else {
            pool.gap = pool.gap - pool.gap / GAP_USES + age / GAP_USES;
        }
    }

    /// The stamp of a block that is put into a pool.
    pub(crate) fn stamp_of_put(&self, pool: u8) -> u16 {
        self.clock.stamp(self.life(pool).unwrap_or(0) / UNUSED_SHARE)
    }

    /// The stamp of a block of a pool that is to go first: a turn of the store older than the
    /// coldest blocks. Were it older still, the mean age of the coldest ones, by which puts are
    /// judged, would be that of what was demoted.
    pub(crate) fn stamp_of_demoted(&self, pool: u8) -> u16 {
        let life = self.life(pool).unwrap_or(TICKS_OF_STORE);
        self.clock.stamp(life + TICKS_OF_STORE)
    }

    /// Ticks since the coldest blocks of a pool were used, in the mean; nothing before a survey.
    pub(crate) fn life(&self, pool: u8) -> Option<u64> {
        let pool = self.pool(pool);
        pool.known.then(|| self.clock.tick() - pool.cold_tick)
    }

    /// Whether a chain of which the store has little is worth more than what is there.
    pub(crate) fn takes_newcomers(&self, pool: u8) -> bool {
        let pool = self.pool(pool);
        let tick = self.clock.tick();
        !pool.known
            || (tick - pool.cold_tick) << GAP_BITS > GAPS * pool.gap
            || tick.is_multiple_of(OPEN_TICKS)
    }

    /// The age up to which a block is worth a move.
    pub(crate) fn age_to_move(&self, pool: u8) -> u64 {
        let pool = self.pool(pool);
        if pool.known { self.clock.tick() - pool.cut_tick } else { 0 }
    }

    /// A pool's coldest segment, once: then another survey is needed. One that was passed over
    /// while the survey went on is none: it would go before all others.
    pub(crate) fn coldest(&mut self, pool: u8, segments: &Segments, now_ns: u64) -> Option<u32> {
        let coldest = self.pools[usize::from(pool)].coldest.take();
        let there = |coldest: &Coldest| {
            segments.epoch(coldest.segment) == coldest.epoch
                && segments.state(coldest.segment) == SegmentState::Sealed
                && (coldest.spared || segments.spared(coldest.segment, now_ns).is_none())
        };
        self.wanted |= coldest.filter(there).is_none();
        coldest.filter(there).map(|coldest| coldest.segment)
    }

    /// The next segment of the survey under way.
    #[cfg(test)]
    pub(crate) fn survey_at(&self) -> Option<u32> {
        self.at
    }

    /// Results of a pool's last survey: last use of the coldest blocks, and of the next victims.
    #[cfg(test)]
    pub(crate) fn known(&self, pool: u8) -> Option<(u64, u64)> {
        let pool = self.pool(pool);
        pool.known.then_some((pool.cold_tick, pool.cut_tick))
    }

    /// Whether a caller waits for a survey.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Looks at some segments.
    pub(crate) fn step(&mut self, segments: &Segments, now_ns: u64) {
        let tick = self.clock.tick();
        let begin = match self.at {
            Some(at) => at,
            None if self.wanted || tick > self.surveyed => {
                self.surveyed = tick;
                0
            }
            None => return,
        };
        let end = (begin + segments.count().div_ceil(STEPS_OF_SURVEY)).min(segments.count());
        for segment in begin..end {
            if segments.state(segment) == SegmentState::Sealed {
                let (epoch, pool) = (segments.epoch(segment), segments.pool(segment));
                // One without blocks goes first.
                let age = segments.mean_tick(segment);
                let age = age.map_or(AGE_MAX, |mean| tick.saturating_sub(mean));
                let spared = segments.spared(segment, now_ns);
                let coldest = Coldest { segment, epoch, spared: spared.is_some() };
                self.tallies[usize::from(pool)].take(age, spared, coldest);
            }
        }
        self.at = (end < segments.count()).then_some(end);
        if self.at.is_none() {
            self.end(tick);
        }
    }

    fn end(&mut self, tick: u64) {
        self.wanted = false;
        for (pool, tally) in self.pools.iter_mut().zip(self.tallies.iter_mut()) {
            pool.known = tally.seen > 0;
            if pool.known {
                pool.cold_tick = tick - tally.mean_of_oldest(COLD_SHARE);
                pool.cut_tick = tick - tally.mean_of_next(CUT_SHARE);
                pool.coldest = tally.coldest.map(|(_, coldest)| coldest);
                *tally = AgeTally::EMPTY;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        AGE_MAX, AgeTally, BUCKETS, Coldest, EvictionRank, GAP_BITS, STAMP_MASK, UseClock, Worth,
        bucket,
    };
    use crate::segments::{SegmentState, Segments};

    #[test]
    fn buckets_are_in_the_order_of_ages() {
        let mut last = 0;
        for age in 0..=u64::from(STAMP_MASK) {
            let now = bucket(age);
            assert!(now == last || now == last + 1, "{age}: {now} after {last}");
            last = now;
        }
        assert_eq!(last + 1, BUCKETS);
    }

    #[test]
    fn a_stamp_says_its_age() {
        let mut clock = UseClock::new(1 << 20);
        let stamp = clock.stamp(0);
        (0..700).for_each(|_| clock.count(1 << 14));
        assert_eq!((clock.age(stamp), clock.tick_of(stamp)), (700, clock.tick() - 700));
        assert_eq!(clock.age(clock.stamp(u64::MAX)), AGE_MAX);
    }

    #[test]
    fn the_oldest_share_has_its_mean() {
        let mut tally = AgeTally::EMPTY;
        for age in 1..=32 {
            tally.take(age, None, Coldest { segment: 7, epoch: age, spared: false });
        }
        tally.take(32, Some(9), Coldest { segment: 7, epoch: 33, spared: true });
        assert_eq!((tally.mean_of_oldest(33), tally.mean_of_oldest(1)), (32, 16));
        assert_eq!((tally.mean_of_next(16), AgeTally::EMPTY.mean_of_next(3)), (32, 0));
        assert_eq!(
            tally.coldest.map(|(turn, it)| (turn, it.epoch)),
            Some((EvictionRank::Due(32), 32))
        );
        let mut spared = AgeTally::EMPTY;
        for held in [5, 3, 4] {
            let coldest = Coldest { segment: 7, epoch: held.into(), spared: true };
            spared.take(7, Some(held), coldest);
        }
        assert_eq!(spared.coldest.map(|(_, it)| it.epoch), Some(3), "the fewest held bytes");
    }

    /// A segment that is passed over while a survey goes on is not the one of which all others were
    /// passed over, too.
    #[test]
    fn one_that_is_passed_over_during_a_survey_waits_for_the_next_one() {
        let mut segments = Segments::new(4);
        for segment in 0..2 {
            segments.found(segment, 0, (0, u64::from(segment) + 1, 0));
            segments.set(segment, SegmentState::Sealed);
        }
        segments.sort();
        let mut worth = Worth::new(1 << 20);
        let survey = |worth: &mut Worth, segments: &Segments| {
            while worth.survey_at().is_some() {
                worth.step(segments, 5);
            }
        };
        assert_eq!(worth.coldest(0, &segments, 5), None, "nothing is known yet");
        worth.step(&segments, 5);
        segments.pass_over(0, 100, 10);
        survey(&mut worth, &segments);
        assert_eq!(worth.coldest(0, &segments, 5), None, "the survey found it as it was before");
        worth.step(&segments, 5);
        survey(&mut worth, &segments);
        assert_eq!(worth.coldest(0, &segments, 5), Some(1));
        segments.pass_over(1, 200, 10);
        assert_eq!(worth.coldest(0, &segments, 5), None);
        worth.step(&segments, 5);
        survey(&mut worth, &segments);
        assert_eq!(worth.coldest(0, &segments, 5), Some(0), "of two the one with less");
    }

    #[test]
    fn the_mean_gap_follows_uses() {
        let mut worth = Worth::new(1000);
        (0..100).for_each(|at| worth.used(3, if at % 2 == 0 { 10 } else { 30 }));
        assert!((19..=21).contains(&(worth.pool(3).gap >> GAP_BITS)), "{:?}", worth.pool(3));
        (0..100_000).for_each(|_| worth.used(3, 500));
        assert!((490..=500).contains(&(worth.pool(3).gap >> GAP_BITS)), "{:?}", worth.pool(3));
    }
}
