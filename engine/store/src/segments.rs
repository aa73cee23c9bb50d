//! The rings of segments: each segment's state and pool, and the order of epochs.

use crate::fifo::Fifo;
use crate::format::POOLS_MAX;
use crate::pools::PoolLimits;
use crate::quota::Quota;

/// Segments of a pool with a head and nothing else, at most: two ready, one being made ready.
const EMPTY_MAX: usize = 3;
/// Segments that a pool has ready.
const READY: usize = 2;
/// Segments that a pool can get below which one is reclaimed.
const SPARE: usize = 2;

/// The state of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// Its content does not count. May still be read by gets that began before.
    Free,
    /// Its head is being written.
    Preparing,
    /// Head written, nothing else.
    Ready,
    /// Blocks are placed here.
    Open,
    /// Full; blocks placed here are still being written.
    Closing,
    /// Complete.
    Sealed,
    /// Found at the start; its pages are not read yet.
    Unread,
    /// Its pages are being read: entries do not count before all are.
    Reading,
    /// Its blocks are being moved or evicted.
    Victim,
    /// Not to be trusted: its entries go.
    Dead,
}

impl SegmentState {
    /// Whether entries may point to a segment in this state.
    pub(crate) fn has_content(self) -> bool {
        !matches!(self, Self::Free | Self::Preparing | Self::Ready)
    }
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    epoch: u64,
    time: u32,
    /// Entries of the index that point here.
    live: u32,
    /// The sum of their ticks.
    ticks: u64,
    /// Gets that read here now.
    readers: u32,
    pages: u32,
    state: SegmentState,
    pool: u8,
    /// Numbers of its drops: from, and to below.
    drops: (u64, u64),
    /// Whether it has records of gaps in those numbers.
    gaps: bool,
    /// Whether it has puts of keys that a newer segment has puts of.
    stale: bool,
    /// The copy of its head that was found at the start: the other one may be damaged.
    copy: u8,
    /// Time until which reclaim prefers other segments, in nanoseconds, and the held bytes that
    /// caused it.
    spared_ns: u64,
    held: u32,
}

/// One pool's segments.
#[derive(Debug)]
struct PoolSegments {
    /// Ready ones in the order of their epochs.
    ready: Fifo<u32>,
    /// The one with content of the lowest epoch.
    oldest: Option<u32>,
    /// Entries of the index that point to them.
    live: u64,
    preparing: usize,
    /// Complete ones, and drops in all.
    sealed: u32,
    drops: u64,
}

/// All segments of a shard.
#[derive(Debug)]
pub(crate) struct Segments {
    table: Box<[Segment]>,
    /// Segments with content of all pools, oldest first.
    order: Fifo<u32>,
    free: Fifo<u32>,
    rings: Box<[PoolSegments]>,
    quota: Quota,
    /// Segments whose entries are being removed.
    dead: usize,
    /// Segments with puts that newer ones replace.
    stale: usize,
    next_epoch: u64,
}

impl Segments {
    pub(crate) fn new(count: u32) -> Self {
        let segment = Segment {
            epoch: 0,
            time: 0,
            live: 0,
            ticks: 0,
            readers: 0,
            pages: 0,
            state: SegmentState::Free,
            pool: 0,
            drops: (0, 0),
            gaps: false,
            stale: false,
            copy: 0,
            spared_ns: 0,
            held: 0,
        };
        let queue = || Fifo::with_limit(count as usize);
        let ring = || PoolSegments {
            ready: Fifo::with_limit(READY),
            oldest: None,
            live: 0,
            preparing: 0,
            sealed: 0,
            drops: 0,
        };
        Self {
            table: vec![segment; count as usize].into_boxed_slice(),
            order: queue(),
            free: queue(),
            rings: (0..POOLS_MAX).map(|_| ring()).collect(),
            quota: Quota::new(),
            dead: 0,
            stale: 0,
            next_epoch: 1,
        }
    }

    fn at(&mut self, segment: u32) -> &mut Segment {
        &mut self.table[segment as usize]
    }

    fn ring(&self, pool: u8) -> &PoolSegments {
        &self.rings[usize::from(pool)]
    }

    fn ring_mut(&mut self, pool: u8) -> &mut PoolSegments {
        &mut self.rings[usize::from(pool)]
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.table.len()).expect("made of a u32")
    }

    #[inline(always)]
    pub(crate) fn state(&self, segment: u32) -> SegmentState {
        self.table[segment as usize].state
    }

    pub(crate) fn epoch(&self, segment: u32) -> u64 {
        self.table[segment as usize].epoch
    }

    /// The pool that the segment is in; of a free one the pool that it was in last.
    pub(crate) fn pool(&self, segment: u32) -> u8 {
        self.table[segment as usize].pool
    }

    pub(crate) fn pages(&self, segment: u32) -> u32 {
        self.table[segment as usize].pages
    }

    pub(crate) fn live(&self, segment: u32) -> u32 {
        self.table[segment as usize].live
    }

    pub(crate) fn time(&self, segment: u32) -> u32 {
        self.table[segment as usize].time
    }

    /// The mean tick of its entries' last uses; nothing without entries.
    pub(crate) fn mean_tick(&self, segment: u32) -> Option<u64> {
        let segment = &self.table[segment as usize];
        segment.ticks.checked_div(segment.live.into())
    }

    /// An entry that was used in the first tick was used in the second one.
    #[inline(always)]
    pub(crate) fn use_again(&mut self, segment: u32, before: u64, now: u64) {
        let ticks = &mut self.at(segment).ticks;
        // A demoted block counts less than its tick: first the sum grows.
        *ticks = *ticks + now - before;
    }

    pub(crate) fn gain(&mut self, segment: u32, tick: u64) {
        let row = self.at(segment);
        debug_assert!(row.state.has_content(), "an entry points to a {:?} segment", row.state);
        row.live += 1;
        row.ticks += tick;
        let pool = row.pool;
        self.ring_mut(pool).live += 1;
    }

    pub(crate) fn lose(&mut self, segment: u32, tick: u64) {
        let row = self.at(segment);
        row.live = row.live.checked_sub(1).expect("an entry is counted once");
        row.ticks -= tick;
        debug_assert!(row.live > 0 || row.ticks == 0, "ticks of entries that are gone");
        let pool = row.pool;
        self.ring_mut(pool).live -= 1;
    }

    #[inline(always)]
    pub(crate) fn read_begins(&mut self, segment: u32) {
        debug_assert!(self.state(segment).has_content(), "a get reads what is not there");
        self.at(segment).readers += 1;
    }

    pub(crate) fn reads_end(&mut self, segment: u32, count: u32) {
        let readers = &mut self.at(segment).readers;
        *readers = readers.checked_sub(count).expect("a read is counted once");
    }

    /// The oldest segment with content of a pool.
    pub(crate) fn oldest(&self, pool: u8) -> Option<u32> {
        self.ring(pool).oldest
    }

    /// The content at a position in the order of epochs.
    pub(crate) fn nth(&self, at: usize) -> Option<u32> {
        self.order.get(at).copied()
    }

    fn position(&self, epoch: u64) -> usize {
        self.order.partition_point(|segment| self.epoch(*segment) < epoch)
    }

    /// The segment with content of the lowest epoch that is not below this one.
    pub(crate) fn first_since(&self, epoch: u64) -> Option<u32> {
        self.nth(self.position(epoch))
    }

    /// Segments with content of the same pool and of lower epochs.
    pub(crate) fn before(&self, segment: u32) -> u32 {
        let older = (0..self.position(self.epoch(segment))).filter_map(|at| self.nth(at));
        let pool = self.pool(segment);
        let count = older.filter(|older| self.pool(*older) == pool).count();
        u32::try_from(count).expect("segments are numbered by u32")
    }

    pub(crate) fn with_content(&self) -> usize {
        self.order.len()
    }

    /// Sets the limits of the pools, and which of them have a rule.
    pub(crate) fn set_limits(&mut self, limits: &[PoolLimits; POOLS_MAX], ruled: u16) {
        self.quota.set_limits(limits, ruled);
    }

    /// Enters a demand for space in a pool.
    pub(crate) fn want(&mut self, pool: u8) {
        self.quota.want(pool);
    }

    /// Bit mask of the pools with a demand for space since the start.
    pub(crate) fn wanted(&self) -> u16 {
        self.quota.wanted()
    }

    /// How many they are.
    pub(crate) fn wanted_count(&self) -> u32 {
        self.quota.wanted_count()
    }

    /// Pools that have segments, as bits.
    pub(crate) fn holding(&self) -> u16 {
        self.quota.held_bits()
    }

    /// Segments of a pool: with content, ready, and being made ready.
    pub(crate) fn held(&self, pool: u8) -> u32 {
        self.quota.held(pool)
    }

    /// The segments that each pool has or may claim: its part in everything that is shared by size.
    pub(crate) fn shares(&self) -> [u32; POOLS_MAX] {
        self.quota.shares()
    }

    /// Another number when shares are others.
    pub(crate) fn version(&self) -> u64 {
        self.quota.version()
    }

    /// Segments that a pool has or can get without any reclaim, to put blocks into.
    fn spare(&self, pool: u8) -> usize {
        let ring = self.ring(pool);
        let free = u32::try_from(self.free.len()).expect("segments are numbered by u32");
        ring.ready.len() + ring.preparing + self.quota.takeable(pool, free) as usize
    }

    /// Segments that a pool has or could take now.
    pub(crate) fn reach(&self, pool: u8) -> u32 {
        let free = u32::try_from(self.free.len()).expect("segments are numbered by u32");
        self.held(pool) + self.quota.takeable(pool, free)
    }

    /// Whether a pool has or gets another ready segment without any reclaim.
    pub(crate) fn has_next(&self, pool: u8) -> bool {
        self.spare(pool) > 0
    }

    /// Reclaim prefers other segments to this one, with `held` held bytes, until `until_ns`.
    pub(crate) fn pass_over(&mut self, segment: u32, held: u64, until_ns: u64) {
        let row = self.at(segment);
        (row.spared_ns, row.held) = (until_ns, u32::try_from(held).unwrap_or(u32::MAX));
        self.set(segment, SegmentState::Sealed);
    }

    /// The held bytes of a segment that others go before.
    pub(crate) fn spared(&self, segment: u32, now_ns: u64) -> Option<u32> {
        let row = &self.table[segment as usize];
        (row.spared_ns > now_ns).then_some(row.held)
    }

    /// Whether no epoch is left for another segment, and puts may not take the last ready one.
    pub(crate) fn is_worn_out(&self) -> bool {
        let short = |pool| {
            let ring = self.ring(pool);
            ring.ready.len() < READY && ring.preparing == 0
        };
        self.next_epoch == u64::MAX && bits(self.wanted()).any(short)
    }

    /// Whether a pool has no more segments without content than a ring that goes round.
    pub(crate) fn is_full(&self, pool: u8) -> bool {
        self.spare(pool) <= EMPTY_MAX
    }

    /// Whether a segment must be reclaimed so that the pool can go on.
    pub(crate) fn is_short(&self, pool: u8) -> bool {
        self.spare(pool) < SPARE
    }

    /// Whether a pool has more than it may.
    pub(crate) fn is_over(&self, pool: u8) -> bool {
        self.quota.is_over(pool)
    }

    /// The pool that gives up a segment when this one is short, among those with a reclaimable
    /// oldest segment.
    pub(crate) fn donor(&self, pool: u8, can_go: impl Fn(u8) -> bool) -> Option<u8> {
        let age = |pool| self.oldest(pool).map_or(u64::MAX, |oldest| self.epoch(oldest));
        self.quota.donor(pool, can_go, age)
    }

    /// The pool with the most entries for its segments, among those with a reclaimable oldest
    /// segment.
    pub(crate) fn densest(&self, can_go: impl Fn(u8) -> bool) -> Option<u8> {
        let denser = |one: &u8, other: &u8| {
            let weigh = |pool: u8, by: u8| {
                u128::from(self.ring(pool).live) * u128::from(self.held(by).max(1))
            };
            // Of equals the first.
            weigh(*one, *other).cmp(&weigh(*other, *one)).then(other.cmp(one))
        };
        bits(self.quota.held_bits()).filter(|pool| can_go(*pool)).max_by(denser)
    }

    /// Whether a pool has more than its share of an index with `capacity` entries.
    pub(crate) fn is_dense(&self, pool: u8, capacity: u64) -> bool {
        let part = u128::from(capacity) * u128::from(self.held(pool));
        u128::from(self.ring(pool).live) * u128::from(self.count()) > part
    }

    /// Entries of the index that point into a pool.
    pub(crate) fn live_of(&self, pool: u8) -> u64 {
        self.ring(pool).live
    }

    /// The pool that gets the next free segment: of those that may, the one with the fewest ready
    /// ones; of equals the next one behind `last`.
    pub(crate) fn next_pool(&self, last: u8, may: impl Fn(u8) -> bool) -> Option<u8> {
        let free = u32::try_from(self.free.len()).expect("segments are numbered by u32");
        if free == 0 {
            return None;
        }
        let wants = |pool: &u8| {
            let ring = self.ring(*pool);
            let ready = ring.ready.len() + ring.preparing;
            ready < READY && may(*pool) && self.quota.takeable(*pool, free) > 0
        };
        let after = |pool: &u8| pool.wrapping_sub(last + 1) % small(POOLS_MAX);
        bits(self.wanted())
            .filter(wants)
            .min_by_key(|pool| (self.ring(*pool).ready.len(), after(pool)))
    }

    pub(crate) fn ready(&self, pool: u8) -> usize {
        self.ring(pool).ready.len()
    }

    /// Epochs below this are not part of a pool's ring.
    pub(crate) fn floor(&self, pool: u8) -> u64 {
        let ring = self.ring(pool);
        let first = ring.oldest.or_else(|| ring.ready.front().copied());
        first.map_or(self.next_epoch, |segment| self.epoch(segment))
    }

    /// An epoch that the medium will never fall behind. The newest segments may be empty: they are
    /// made ready again after a restart, and a crash may leave them without a head then.
    pub(crate) fn lasting_epoch(&self) -> u64 {
        let pools = self.quota.held_bits().count_ones() as usize;
        let empty = READY * pools + EMPTY_MAX - READY;
        let at = self.order.len().checked_sub(empty + 1);
        at.and_then(|at| self.nth(at)).map_or(0, |segment| self.epoch(segment))
    }

    /// The next epoch will be above this one.
    pub(crate) fn raise_epoch(&mut self, seen: u64) {
        self.next_epoch = self.next_epoch.max(seen.saturating_add(1));
    }

    /// Takes the first free segment that no get reads for a pool, and gives it an epoch.
    /// Also the pool that it was in before.
    pub(crate) fn prepare(&mut self, pool: u8, time: u32) -> Option<(u32, u8)> {
        let segment = *self.free.front()?;
        if self.table[segment as usize].readers > 0 || self.next_epoch == u64::MAX {
            return None;
        }
        self.free.pop();
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        let row = self.at(segment);
        assert!(
            (row.live, row.ticks) == (0, 0),
            "a segment is written again while entries point to it"
        );
        (row.epoch, row.time, row.pages, row.state) = (epoch, time, 0, SegmentState::Preparing);
        row.spared_ns = 0;
        let before = std::mem::replace(&mut row.pool, pool);
        self.ring_mut(pool).preparing += 1;
        self.quota.take(pool);
        Some((segment, before))
    }

    /// The copy of a segment's head that is written first: power may fail, and the other one is
    /// whole.
    pub(crate) fn first_copy(&self, segment: u32) -> u32 {
        u32::from(1 - self.table[segment as usize].copy)
    }

    pub(crate) fn prepared(&mut self, segment: u32) {
        debug_assert_eq!(self.state(segment), SegmentState::Preparing, "a head is written once");
        self.at(segment).state = SegmentState::Ready;
        let pool = self.pool(segment);
        let ring = self.ring_mut(pool);
        ring.preparing -= 1;
        ring.ready.push(segment);
    }

    /// Opens the next ready segment of a pool.
    pub(crate) fn open(&mut self, pool: u8) -> Option<u32> {
        let segment = self.ring_mut(pool).ready.pop()?;
        debug_assert_eq!((self.state(segment), self.pool(segment)), (SegmentState::Ready, pool));
        self.at(segment).state = SegmentState::Open;
        // Another pool may have opened one of a higher epoch before.
        let at = self.position(self.epoch(segment));
        self.order.insert(at, segment);
        self.ring_mut(pool).oldest.get_or_insert(segment);
        Some(segment)
    }

    /// It takes no more blocks; its drops end below this number.
    pub(crate) fn close(&mut self, segment: u32, drops: u64) {
        debug_assert_eq!(self.state(segment), SegmentState::Open, "an open segment is closed once");
        let (from, _) = self.drops(segment);
        self.set_drops(segment, (from, drops));
        self.set(segment, SegmentState::Closing);
    }

    /// Numbers of a segment's drops: from, and to below.
    pub(crate) fn drops(&self, segment: u32) -> (u64, u64) {
        self.table[segment as usize].drops
    }

    pub(crate) fn set_drops(&mut self, segment: u32, drops: (u64, u64)) {
        debug_assert!(drops.0 <= drops.1, "numbers of drops ascend: {drops:?}");
        let before = std::mem::replace(&mut self.at(segment).drops, drops);
        let pool = self.pool(segment);
        let ring = self.ring_mut(pool);
        ring.drops = ring.drops - (before.1 - before.0) + (drops.1 - drops.0);
    }

    /// A segment has a record of a gap.
    pub(crate) fn set_gaps(&mut self, segment: u32) {
        self.at(segment).gaps = true;
    }

    /// A segment has a put of a key that a newer one has a put of: it must go first, else the old
    /// one would count once the new one is gone.
    pub(crate) fn set_stale(&mut self, segment: u32) {
        self.stale += usize::from(!std::mem::replace(&mut self.at(segment).stale, true));
    }

    /// A complete segment of a pool that must go before any newer one.
    pub(crate) fn stale(&self, pool: u8) -> Option<u32> {
        if self.stale == 0 {
            return None;
        }
        self.find(pool, |segment| {
            let segment = &self.table[segment as usize];
            segment.stale && segment.state == SegmentState::Sealed
        })
    }

    /// Whether a segment has records that belong to no block, and that others may need.
    pub(crate) fn has_plain(&self, segment: u32) -> bool {
        let segment = &self.table[segment as usize];
        segment.gaps || segment.drops.0 < segment.drops.1
    }

    /// The segment is complete and has that many pages.
    pub(crate) fn seal(&mut self, segment: u32, pages: u32) {
        self.at(segment).pages = pages;
        self.set(segment, SegmentState::Sealed);
    }

    pub(crate) fn set(&mut self, segment: u32, state: SegmentState) {
        let before = std::mem::replace(&mut self.at(segment).state, state);
        let pool = self.pool(segment);
        let sealed = &mut self.ring_mut(pool).sealed;
        *sealed = *sealed + u32::from(state == SegmentState::Sealed)
            - u32::from(before == SegmentState::Sealed);
        self.dead -= usize::from(before == SegmentState::Dead);
        self.dead += usize::from(state == SegmentState::Dead);
    }

    /// Whether entries of any segment go.
    pub(crate) fn has_dead(&self) -> bool {
        self.dead > 0
    }

    /// Whether there are any such entries.
    pub(crate) fn has_dead_entries(&self) -> bool {
        self.table.iter().any(|segment| segment.state == SegmentState::Dead && segment.live > 0)
    }

    /// A segment found at the start, by this copy of its head.
    pub(crate) fn found(&mut self, segment: u32, copy: u32, (pool, epoch, time): (u8, u64, u32)) {
        let row = self.at(segment);
        debug_assert_eq!(row.state, SegmentState::Free, "a segment is found once");
        (row.epoch, row.time, row.state, row.pool) = (epoch, time, SegmentState::Unread, pool);
        row.copy = u8::try_from(copy).expect("one of two");
        self.order.push(segment);
        self.quota.take(pool);
    }

    /// Marks a segment without valid content as free.
    pub(crate) fn found_free(&mut self, segment: u32) {
        self.set(segment, SegmentState::Free);
        self.free.push(segment);
    }

    /// All heads are known.
    pub(crate) fn sort(&mut self) {
        let table = &self.table;
        self.order.sort_by_key(|&segment| table[segment as usize].epoch);
        for segment in (0..self.order.len()).filter_map(|at| self.order.get(at).copied()) {
            let pool = usize::from(self.table[segment as usize].pool);
            self.rings[pool].oldest.get_or_insert(segment);
        }
    }

    /// The content of a segment does not count any more.
    pub(crate) fn release(&mut self, segment: u32) {
        self.release_nth(self.position(self.epoch(segment)));
    }

    /// That of a pool's oldest segment.
    pub(crate) fn release_oldest(&mut self, pool: u8) {
        self.release(self.oldest(pool).expect("the caller has it"));
    }

    /// A segment with content of a pool for which something holds.
    pub(crate) fn find(&self, pool: u8, is: impl Fn(u32) -> bool) -> Option<u32> {
        let all = (0..self.order.len()).filter_map(|at| self.nth(at));
        all.into_iter().find(|segment| self.pool(*segment) == pool && is(*segment))
    }

    /// The content at a position does not count.
    pub(crate) fn release_nth(&mut self, at: usize) {
        let segment = self.order.remove(at).expect("the caller has it");
        debug_assert_eq!(self.live(segment), 0, "entries point to a segment that is released");
        let pool = self.pool(segment);
        if self.oldest(pool) == Some(segment) {
            let newer = (at..self.order.len()).filter_map(|at| self.nth(at));
            self.ring_mut(pool).oldest =
                newer.into_iter().find(|segment| self.pool(*segment) == pool);
        }
        self.quota.give(pool);
        self.set_drops(segment, (0, 0));
        self.at(segment).gaps = false;
        self.stale -= usize::from(std::mem::take(&mut self.at(segment).stale));
        self.found_free(segment);
    }

    /// Entries that point to any segment.
    pub(crate) fn live_in_all(&self) -> u64 {
        self.table.iter().map(|segment| u64::from(segment.live)).sum()
    }

    /// Drops in a pool's segments.
    pub(crate) fn drops_of(&self, pool: u8) -> u64 {
        self.ring(pool).drops
    }

    /// Complete segments of a pool.
    pub(crate) fn sealed(&self, pool: u8) -> u32 {
        self.ring(pool).sealed
    }

    /// Whether pools count what their segments do. Takes long.
    pub(crate) fn audit(&self) {
        for (pool, ring) in (0..).zip(&self.rings) {
            let own = || self.table.iter().filter(|segment| segment.pool == pool);
            let live: u64 = own().map(|segment| u64::from(segment.live)).sum();
            assert_eq!(live, ring.live, "entries of pool {pool}");
            let drops: u64 = own().map(|segment| segment.drops.1 - segment.drops.0).sum();
            let sealed = own().filter(|segment| segment.state == SegmentState::Sealed).count();
            assert_eq!((drops, sealed), (ring.drops, ring.sealed as usize), "pool {pool}");
            let held = own().filter(|segment| segment.state != SegmentState::Free).count();
            assert_eq!(held, self.held(pool) as usize, "segments of pool {pool}");
        }
    }
}

fn small(number: usize) -> u8 {
    u8::try_from(number).expect("16 pools")
}

/// Numbers of the bits that are set.
pub(crate) fn bits(mask: u16) -> impl Iterator<Item = u8> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let bit = u8::try_from(left.trailing_zeros()).expect("at most 16");
        left &= left.wrapping_sub(1);
        (bit < 16).then_some(bit)
    })
}
