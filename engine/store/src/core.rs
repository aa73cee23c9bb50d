//! State that all stages of a store share: tables, the queue of tasks, replies.

mod doubts;
mod images;
mod uses;

use crate::admission::WriteTokens;
use crate::carriers::Carriers;
use crate::config::{StoreConfig, StoreGeometry};
use crate::entry::{Entry, Kind};
use crate::fates::{Fate, Fates};
use crate::feed::{Evicted, Feed, Gone};
use crate::fifo::Fifo;
use crate::flush::Flush;
use crate::format::{POOLS_MAX, PoolNames, Record, SPACE_BYTES};
use crate::hint::{WorthClass, ends_of};
use crate::holds::Holds;
use crate::index::{Hash, Index, Position};
use crate::key::Key;
use crate::ledger::Ledger;
use crate::payers::Payers;
use crate::placed::Placed;
use crate::pools::{PoolLimits, PoolRule, Pools};
use crate::refusal::{Try, WriteRefusal};
use crate::request::{Answer, Chain, DeclineReason, Put, Reply};
use crate::retained::Retained;
use crate::segments::{SegmentState, Segments};
use crate::slab::Slab;
use crate::spaces::{SpaceGets, Spaces};
use crate::standing::KeyOwners;
use crate::stats::{PoolStats, Stats};
use crate::task::{MemberTask, Origin, Pool, TaskId, TaskMemory, Urgency, Verb};
use crate::witness::{Nobody, Witness};
use crate::worth::Worth;

/// The time, from the caller's clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds of a clock that never goes back.
    pub ns: u64,
    /// Seconds since 1970.
    pub unix: u32,
}

/// Which structure an image is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Image {
    /// A page of an open segment.
    Page {
        /// The segment, and its row among the log's open ones.
        segment: u32,
        open: u8,
        /// Which of the segment's pages.
        index: u32,
        /// The page's serial number in the log.
        serial: u64,
        /// Drops before the page, if it has any: they are not durable before it is.
        drops_before: Option<u64>,
    },
    Head {
        segment: u32,
        copy: u32,
    },
    Super {
        copy: u32,
    },
    Space {
        slot: u32,
        copy: u32,
    },
    /// Zeroes where the write of a block has failed: whether the drive takes writes there.
    Probe {
        placed: Placed,
    },
}

/// An image on its way to the medium.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writing {
    image: Image,
    /// Tries that were refused.
    refused: u8,
    /// It waits for another try.
    waits: bool,
    task: MemberTask,
}

/// Bytes of RAM of a queued task and of a queued reply.
pub(crate) const TASK_BYTES: u64 = size_of::<MemberTask>() as u64;
pub(crate) const REPLY_BYTES: u64 = size_of::<Reply>() as u64;

/// Whether recovery has seen every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knowledge {
    /// A key that is not in the index may yet turn up.
    Partial,
    /// All that counts is in the index.
    Whole,
}

/// Progress of recovery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecoveryProgress {
    pub(crate) knowledge: Knowledge,
    /// Pools, as bits, of which a tombstone found no room in the index while recovery went on:
    /// nothing older may count there.
    pub(crate) overflow: u16,
    /// Segments at the old end of the ring whose pages recovery has not read yet.
    pub(crate) unread: usize,
    /// Whether segments may be given up unread: the newest were read.
    pub(crate) may_evict_unread: bool,
    /// Entries in state `Dropped`.
    pub(crate) dropped: u64,
    /// Of `unread`, those of each pool.
    pub(crate) unread_of: [u32; POOLS_MAX],
}

impl RecoveryProgress {
    /// A segment of a pool needs no reading any more.
    pub(crate) fn seen(&mut self, pool: u8) {
        self.unread -= 1;
        self.unread_of[usize::from(pool)] -= 1;
    }
}

/// Shared state.
#[derive(Debug)]
pub(crate) struct Core {
    config: StoreConfig,
    geometry: StoreGeometry,
    instance: u128,
    now: Now,
    pub(crate) index: Index,
    pub(crate) segments: Segments,
    pub(crate) spaces: Spaces,
    pub(crate) flush: Flush,
    pub(crate) stats: Stats,
    pool_stats: [PoolStats; POOLS_MAX],
    feed: Feed,
    fates: Fates,
    pub(crate) admission: WriteTokens,
    pub(crate) worth: Worth,
    /// When hints end, in seconds since 1970: holds without an owner.
    ends: Holds,
    retained: Retained,
    payers: Payers,
    witness: Box<dyn Witness>,
    pub(crate) recovery: RecoveryProgress,
    standing: KeyOwners,
    /// Of each pool: numbers of drops without a record.
    ledgers: Box<[Ledger; POOLS_MAX]>,
    carriers: Carriers,
    pools: Pools,
    /// The store has pools with names, now or once.
    pooled: bool,
    /// Version of the segments' shares that admission has.
    shared: u64,
    refusal: WriteRefusal,
    /// There is no number for another segment.
    worn_out: bool,
    tasks: Fifo<MemberTask>,
    replies: Fifo<Reply>,
    images: Slab<Writing>,
    bytes: Box<[u8]>,
}

/// Pools have ends of hints as owners have holds.
const END_OWNERS: u16 = 16;
const _: () = assert!(END_OWNERS as usize == POOLS_MAX, "an owner for each pool");

impl Core {
    /// Evictions that readers of the feed have not seen yet.
    pub(crate) fn feed(&self) -> &Feed {
        &self.feed
    }

    pub(crate) fn feed_mut(&mut self) -> &mut Feed {
        &mut self.feed
    }

    /// Numbers of a pool's drops without a record.
    pub(crate) fn ledger(&self, pool: u8) -> &Ledger {
        &self.ledgers[usize::from(pool)]
    }

    /// A head was found with a pool's ledger: that of the newest head counts.
    pub(crate) fn found_ledger(&mut self, pool: u8, ledger: Ledger, (segment, epoch): (u32, u64)) {
        if self.carriers.add(pool, segment, epoch) {
            *self.ledger_mut(pool) = ledger;
        }
    }

    /// The pool of the second ledger in the next head of a segment that a pool gets.
    pub(crate) fn second_ledger(&self, segment: (u32, u8), pool: u8) -> u8 {
        let has = |pool| !self.ledger(pool).ranges().is_empty();
        self.carriers.second(segment, pool, has)
    }

    /// A segment's head will have the ledgers of these pools.
    pub(crate) fn carry_ledgers(&mut self, pools: [u8; 2], segment: u32) {
        let epoch = self.segments.epoch(segment);
        for pool in pools {
            let _ = self.carriers.add(pool, segment, epoch);
        }
    }

    pub(crate) fn ledger_mut(&mut self, pool: u8) -> &mut Ledger {
        &mut self.ledgers[usize::from(pool)]
    }

    /// A store with an index of `buckets` buckets for `blocks` blocks.
    pub(crate) fn new(
        config: &StoreConfig,
        geometry: StoreGeometry,
        (buckets, blocks): (u64, u64),
        admission: WriteTokens,
    ) -> Self {
        // The last buffer is for listings.
        let images = u32::from(config.images) - 1;
        let tasks = config.writes + images + config.transfers_max() + 3;
        let index = Index::new(buckets, crate::entry::NUMBERS);
        // One reply for each row that has one pending, and one for a change of a namespace.
        let replies = 2 * config.writes + config.puts + 2;
        Self {
            config: *config,
            geometry,
            instance: 0,
            now: Now::default(),
            index,
            segments: Segments::new(geometry.segments),
            spaces: Spaces::new(geometry.spaces),
            flush: Flush::default(),
            stats: Stats::default(),
            pool_stats: [PoolStats::default(); POOLS_MAX],
            feed: Feed::new(),
            fates: Fates::new(blocks),
            admission,
            worth: Worth::new(u64::from(geometry.segments) * geometry.segment_bytes),
            ends: Holds::new(ends_of(blocks), END_OWNERS, u32::MAX),
            retained: Retained::default(),
            payers: Payers::new(config.owners),
            witness: Box::new(Nobody),
            recovery: RecoveryProgress {
                knowledge: Knowledge::Partial,
                overflow: 0,
                unread: 0,
                may_evict_unread: false,
                dropped: 0,
                unread_of: [0; POOLS_MAX],
            },
            standing: KeyOwners::ALONE,
            ledgers: Box::new([Ledger::EMPTY; POOLS_MAX]),
            carriers: Carriers::default(),
            pools: Pools::default(),
            pooled: false,
            shared: 0,
            refusal: WriteRefusal::default(),
            worn_out: false,
            tasks: Fifo::with_limit(tasks as usize),
            replies: Fifo::with_limit(replies as usize),
            images: Slab::with_slots(images),
            bytes: vec![0; images as usize * SPACE_BYTES].into_boxed_slice(),
        }
    }

    /// Why nothing is taken that must be written, if that is so now.
    #[inline(always)]
    pub(crate) fn declines(&self) -> Option<DeclineReason> {
        let refused = self.refusal.code().map(|_| DeclineReason::Refused);
        if self.worn_out { Some(DeclineReason::Broken) } else { refused }
    }

    /// Whether nothing is begun that makes space: the drive may not take what is written there.
    pub(crate) fn is_held_up(&self) -> bool {
        self.worn_out || self.refusal.is_open()
    }

    /// There is no number for another segment.
    pub(crate) fn set_worn_out(&mut self) {
        self.worn_out = true;
    }

    /// The drive's present refusal of writes.
    pub(crate) fn refusal(&self) -> &WriteRefusal {
        &self.refusal
    }

    /// A write that the drive had refused is done.
    pub(crate) fn taken(&mut self) {
        self.refusal.end();
    }

    /// The drive has refused a write of the store's own.
    pub(crate) fn refused(&mut self, which: Try, code: u16) {
        self.stats.failures += 1;
        self.stats.refusals += u64::from(self.refusal.refuse(which, code, self.now.ns));
    }

    #[inline(always)]
    pub(crate) fn config(&self) -> &StoreConfig {
        &self.config
    }

    #[inline(always)]
    pub(crate) fn geometry(&self) -> &StoreGeometry {
        &self.geometry
    }

    /// The store's number, which its heads carry; 0 before its supers were read.
    #[inline(always)]
    pub(crate) fn instance(&self) -> u128 {
        self.instance
    }

    pub(crate) fn set_instance(&mut self, instance: u128) {
        self.instance = instance;
    }

    /// Sets which members hold which keys, now and before.
    pub(crate) fn set_standing(&mut self, standing: KeyOwners) {
        self.standing = standing;
    }

    /// Whether a record of a segment is none of this member's any more.
    pub(crate) fn is_strange(&self, uid: u64, lo: u64, segment: u32) -> bool {
        self.standing.is_strange(uid, lo, self.segments.epoch(segment))
    }

    #[inline(always)]
    pub(crate) fn now(&self) -> Now {
        self.now
    }

    pub(crate) fn set_now(&mut self, now: Now) {
        self.now = now;
    }

    /// Whether a put waits for space.
    pub(crate) fn is_space_awaited(&self) -> bool {
        self.payers.is_any()
    }

    /// Accounts of the sessions for which blocks are moved.
    pub(crate) fn payers(&mut self) -> &mut Payers {
        &mut self.payers
    }

    /// Whether a segment with this number of entries in the index takes no more, however small its
    /// blocks are. The limit spreads a full index over segments that can be reclaimed one by one.
    pub(crate) fn is_many(&self, entries: u64) -> bool {
        // Twice the fair share where there are few segments: their blocks' mean is a guess. Open
        // ones of several pools are not half of it together.
        let pools = u64::from(self.segments.wanted_count());
        let shares = u64::from(self.geometry.segments / 2).min(8 * pools);
        // At least one. As a quotient this would be a division for every put.
        entries > 0 && (entries + 1) * shares > self.index.capacity()
    }

    /// The entry of a key.
    #[inline(always)]
    pub(crate) fn find(&self, number: u16, key: Key) -> (Hash, Option<(Position, Entry)>) {
        let hash = self.index.hash(number, key.lo());
        let found = self.index.find(hash, key, number);
        (hash, found.map(|(position, entry)| (position, *entry)))
    }

    /// Puts a live entry where there is none. `false`: the index is full.
    pub(crate) fn insert_live(&mut self, hash: Hash, key: Key, entry: Entry) -> bool {
        debug_assert!(entry.is_there(), "{:?} is counted as a block", entry.kind());
        let taken = self.index.insert(hash, key, entry);
        if taken {
            self.count_in(&entry);
            self.tell(&entry, |witness, uid, lo| witness.come(uid, lo));
        }
        taken
    }

    /// Sets the witness that is notified of blocks from now on.
    pub(crate) fn set_witness(&mut self, witness: Box<dyn Witness>) {
        self.witness = witness;
    }

    pub(crate) fn witness_mut(&mut self) -> &mut dyn Witness {
        &mut *self.witness
    }

    /// A namespace is open under a uid.
    pub(crate) fn open_uid(&mut self, number: u16, uid: u64) {
        self.index.set_uid(number, uid);
        self.witness.open(uid);
    }

    /// A uid is in force no more.
    pub(crate) fn close_uid(&mut self, uid: u64) {
        self.witness.close(uid);
    }

    /// Recovery has found everything.
    pub(crate) fn know_all(&mut self) {
        self.recovery.knowledge = Knowledge::Whole;
        self.witness.complete();
    }

    /// An entry begins or ends to stand for a block that is there.
    fn tell(&mut self, entry: &Entry, what: fn(&mut dyn Witness, u64, u64)) {
        if entry.is_there() {
            what(&mut *self.witness, self.spaces.uid(entry.number()), entry.lo());
        }
    }

    /// Remembers that a key was dropped, where there is no entry of it, until recovery has read
    /// every older record.
    pub(crate) fn insert_dropped(&mut self, hash: Hash, key: Key, entry: Entry) {
        debug_assert_eq!(entry.kind(), Kind::Dropped, "a block is counted as a drop");
        let taken = self.index.insert(hash, key, entry);
        self.recovery.dropped += u64::from(taken);
        self.recovery.overflow |= u16::from(!taken) << self.spaces.pool(entry.number());
    }

    fn count_in(&mut self, entry: &Entry) {
        if entry.kind() == Kind::Dropped {
            self.recovery.dropped += 1;
        }
        if !entry.is_there() {
            return;
        }
        let tick = self.worth.clock.weigh(entry);
        self.segments.gain(self.geometry.segment_of(entry.place()), tick);
        self.spaces.gain(entry.number(), entry.length());
        let pool = self.segments.pool(self.geometry.segment_of(entry.place()));
        self.retained.gain(entry, pool, &self.geometry);
    }

    fn count_out(&mut self, entry: &Entry) {
        if entry.kind() == Kind::Dropped {
            self.recovery.dropped -= 1;
        }
        if !entry.is_there() {
            return;
        }
        let tick = self.worth.clock.weigh(entry);
        self.segments.lose(self.geometry.segment_of(entry.place()), tick);
        self.spaces.lose(entry.number(), entry.length());
        let pool = self.segments.pool(self.geometry.segment_of(entry.place()));
        self.retained.lose(entry, pool, &self.geometry);
    }

    /// Replaces an entry by one of the same key.
    pub(crate) fn replace(&mut self, position: Position, old: &Entry, new: Entry) {
        debug_assert_eq!(*old, self.index.get(position), "an entry as it was earlier");
        self.count_out(old);
        self.count_in(&new);
        // One that is moved is there all the time.
        if old.is_there() != new.is_there() {
            if old.is_there() {
                self.forget_end(old.number(), old.lo());
            }
            self.tell(old, |witness, uid, lo| witness.go(uid, lo));
            self.tell(&new, |witness, uid, lo| witness.come(uid, lo));
        }
        self.index.update(position, new);
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, position: Position) {
        let entry = self.index.remove(position);
        self.count_out(&entry);
        if entry.is_there() {
            self.forget_end(entry.number(), entry.lo());
        }
        self.tell(&entry, |witness, uid, lo| witness.go(uid, lo));
    }

    /// Removes the entry of a block that is given up for space.
    pub(crate) fn evict(&mut self, position: Position, record: &Record, metadata: &[u8]) {
        let entry = self.index.get(position);
        self.remove(position);
        let fate = if entry.class() == WorthClass::Over { Fate::Expired } else { Fate::Evicted };
        self.enter_fate(entry.number(), entry.lo(), fate);
        self.stats.evicted += 1;
        self.pool_stats(self.spaces.pool(entry.number())).evicted += 1;
        let Record { uid, key, length, .. } = *record;
        self.feed.push(&Evicted { uid, key, length, why: Gone::Evicted, metadata });
    }

    /// A key went, or did not come.
    pub(crate) fn enter_fate(&mut self, number: u16, lo: u64, fate: Fate) {
        self.fates.enter(self.index.hash(number, lo), fate);
    }

    /// Whether the fate of a key may be known.
    #[inline(always)]
    pub(crate) fn is_sampled(&self, hash: Hash) -> bool {
        self.fates.has(hash)
    }

    /// Counts a key of the sample that was not found and has no entry, by its fate.
    #[cold]
    pub(crate) fn count_absent(&mut self, hash: Hash) {
        debug_assert!(self.is_sampled(hash), "another key's fate would be counted");
        let (stats, one_in) = (&mut self.stats, self.fates.one_in());
        let reason = match self.fates.of(hash) {
            None => &mut stats.absent_estimated_unknown,
            Some(Fate::Evicted) => &mut stats.absent_estimated_evicted,
            Some(Fate::Expired) => &mut stats.absent_estimated_expired,
            Some(Fate::Dropped) => &mut stats.absent_estimated_dropped,
            Some(Fate::Damaged) => &mut stats.absent_estimated_damaged,
            Some(Fate::Lost) => &mut stats.absent_estimated_lost,
            Some(Fate::Budget) => &mut stats.absent_estimated_budget,
            Some(Fate::Colder) => &mut stats.absent_estimated_colder,
            Some(Fate::Declined) => &mut stats.absent_estimated_declined,
        };
        *reason += one_in;
        stats.absent_estimated += one_in;
    }

    /// The segment of an entry's block, if the block can be got: the records of that segment are
    /// all known.
    #[inline(always)]
    pub(crate) fn readable(&self, entry: &Entry) -> Option<u32> {
        if !entry.is_there() {
            return None;
        }
        let segment = self.geometry.segment_of(entry.place());
        let known =
            !matches!(self.segments.state(segment), SegmentState::Reading | SegmentState::Dead);
        known.then_some(segment)
    }

    /// Whether a drop up to this epoch is still needed once a segment is gone: others of its pool
    /// may have an older put of the key.
    pub(crate) fn needs_drop(&self, victim: u32, bound: u64) -> bool {
        let oldest = self.segments.oldest(self.segments.pool(victim));
        oldest.is_some_and(|oldest| oldest != victim && self.segments.epoch(oldest) <= bound)
    }

    /// Removes the entry of a put that is given up. While recovery goes on it stands for a drop:
    /// the record of one may have been passed over because of the put.
    pub(crate) fn give_up_writing(&mut self, number: u16, key: Key, put: u32) {
        let (_, found) = self.find(number, key);
        let ours = |entry: &Entry| entry.kind() == Kind::Writing && entry.put() == put;
        let Some((position, entry)) = found.filter(|(_, entry)| ours(entry)) else { return };
        if self.recovery.knowledge == Knowledge::Partial {
            self.replace(position, &entry, Entry::dropped(key, number, u64::MAX, 0));
        } else {
            self.remove(position);
        }
    }

    /// Counters of a pool, with its present write tokens.
    pub(crate) fn pool_view(&self, pool: u8) -> PoolStats {
        let write_tokens = u64::try_from(self.admission.tokens_of(pool)).unwrap_or(0);
        let (retained_bytes, ends) = (self.retained.bytes(pool), self.ends.count_of(pool.into()));
        let counted = self.pool_stats[usize::from(pool)];
        let SpaceGets { hits, misses } = self.spaces.gets_of_pool(pool);
        PoolStats { hits, misses, write_tokens, retained_bytes, ends: ends.into(), ..counted }
    }

    pub(crate) fn pool_stats(&mut self, pool: u8) -> &mut PoolStats {
        &mut self.pool_stats[usize::from(pool)]
    }

    pub(crate) fn pools(&self) -> &Pools {
        &self.pools
    }

    pub(crate) fn set_pool_rules(&mut self, rules: Vec<PoolRule>) {
        self.pools.set_rules(rules);
    }

    /// Gives the rules' pools their numbers on the medium. `None`: there are more pools than
    /// `most`.
    pub(crate) fn number_pools(&mut self, known: &PoolNames, most: usize) -> Option<PoolNames> {
        let Self { pools, spaces, .. } = self;
        pools.number(known, most, |pool| spaces.uses_pool(pool))
    }

    /// Whether the store has pools with names.
    pub(crate) fn is_pooled(&self) -> bool {
        self.pooled
    }

    /// From now on the store has pools with names.
    pub(crate) fn set_pooled(&mut self) {
        self.pooled = true;
    }

    /// Other limits, in the rules' order.
    pub(crate) fn set_pool_limits(&mut self, limits: &[PoolLimits]) {
        self.pools.set_limits(limits);
        self.limit_pools();
    }

    /// Applies the limits of the current rules to the pools.
    pub(crate) fn limit_pools(&mut self) {
        self.segments.set_limits(&self.pools.limits(), self.pools.ruled());
    }

    /// Of each pool: segments of lower epochs are not part of its ring once the next head is
    /// durable. That head needs no numbers of drops below these floors. A segment that is released
    /// later stays above its floor until another head is written, and so do its numbers.
    pub(crate) fn take_floors(&mut self) -> [u64; POOLS_MAX] {
        let known = |pool| if pool == 0 || self.pooled { self.segments.floor(pool) } else { 0 };
        let mut pools = 0..;
        let floors = std::array::from_fn(|_| known(pools.next().expect("an endless range")));
        for (pool, ledger) in (0..).zip(self.ledgers.iter_mut()) {
            let oldest = self.segments.oldest(pool);
            let first = oldest.map_or(u64::MAX, |segment| self.segments.drops(segment).0);
            ledger.forget_below(first);
        }
        floors
    }

    /// Whether a block may be put into a pool.
    pub(crate) fn admit(
        &mut self,
        pool: u8,
        hash: Hash,
        put: &Put<'_>,
    ) -> Result<(), DeclineReason> {
        self.worth.clock.count(put.length);
        if self.segments.is_full(pool) {
            self.admission.end_filling(pool);
        }
        let newcomer = put.chain == Chain::Begins && !self.admission.is_filling(pool);
        if newcomer && !self.worth.takes_newcomers(pool) {
            return Err(DeclineReason::Colder);
        }
        if self.pooled {
            if self.shared != self.segments.version() {
                self.shared = self.segments.version();
                self.admission.set_shares(&self.segments.shares());
            }
            // Small blocks of one pool must not take the index of the others.
            if self.index.is_crowded() && self.segments.is_dense(pool, self.index.capacity()) {
                return Err(DeclineReason::IndexFull);
            }
        }
        self.admission.admit(pool, hash, put.depth, self.now.ns)
    }

    /// Queues the write of a part of a put: `exact` bytes.
    pub(crate) fn part_task(&mut self, id: TaskId, offset: u64, (user, exact): (u64, u32)) {
        let length = u64::from(self.geometry.padded(exact));
        self.stats.written_bytes += length;
        let (memory, urgency) = (TaskMemory::Client { user, exact }, Urgency::Client);
        self.tasks.push(MemberTask { id, verb: Verb::Write, offset, length, memory, urgency });
    }

    /// Queues a transfer between the medium and a cell, or more from there on, that makes space.
    pub(crate) fn space_task(&mut self, cell: u32, verb: Verb, offset: u64, length: u64) {
        let (buffer, at) = self.cell(cell);
        let (id, memory) = (TaskId::new(Origin::Buffer, cell), TaskMemory::Pool { buffer, at });
        let urgency = self.payers.pay(length);
        self.tasks.push(MemberTask { id, verb, offset, length, memory, urgency });
    }

    /// Queues a read into a cell of the buffers.
    pub(crate) fn cell_task(&mut self, cell: u32, offset: u64, length: u64) {
        let (buffer, at) = self.cell(cell);
        let (id, memory) = (TaskId::new(Origin::Buffer, cell), TaskMemory::Pool { buffer, at });
        let (verb, urgency) = (Verb::Read, Urgency::Background);
        self.tasks.push(MemberTask { id, verb, offset, length, memory, urgency });
    }

    /// Where a cell is: its buffer, and its first byte there.
    pub(crate) fn cell(&self, cell: u32) -> (u16, u32) {
        let cells = self.config.cells();
        (small(cell / cells), cell % cells * self.config.cell_bytes())
    }

    /// The buffer that pages of listings are read into: the last one, which no image has.
    pub(crate) fn list_buffer(&self) -> u16 {
        self.config.buffers + self.config.images - 1
    }

    /// Queues the read of a page for a listing.
    pub(crate) fn list_task(&mut self, offset: u64, length: u64) {
        let memory = TaskMemory::Pool { buffer: self.list_buffer(), at: 0 };
        let (id, urgency) = (TaskId::new(Origin::List, 0), Urgency::Background);
        self.tasks.push(MemberTask { id, verb: Verb::Read, offset, length, memory, urgency });
    }

    /// Queues a task without bytes.
    pub(crate) fn plain_task(&mut self, origin: Origin, verb: Verb, offset: u64, length: u64) {
        let id = TaskId::new(origin, 0);
        let (memory, urgency) = (TaskMemory::None, Urgency::Background);
        self.tasks.push(MemberTask { id, verb, offset, length, memory, urgency });
    }

    /// The next task, with its bytes in the pool if they are the store's.
    pub(crate) fn next_task(&mut self, pool: &mut impl Pool) -> Option<MemberTask> {
        let task = self.tasks.pop()?;
        if let ((Origin::Image, slot), TaskMemory::Pool { buffer, .. }) =
            (task.id.split(), task.memory)
        {
            let at = slot as usize * SPACE_BYTES;
            let length = usize::try_from(task.length).expect("at most SPACE_BYTES");
            pool.save(buffer, 0, &self.bytes[at..at + length]);
        }
        Some(task)
    }

    pub(crate) fn reply(&mut self, user: u64, owner: u16, answer: impl Into<Answer>) {
        self.replies.push(Reply { user, owner, answer: answer.into() });
    }

    pub(crate) fn next_reply(&mut self) -> Option<Reply> {
        self.replies.pop()
    }

    /// Replies there is room for.
    pub(crate) fn reply_limit(&self) -> usize {
        self.replies.limit()
    }

    /// Replies in the queue.
    pub(crate) fn replies(&self) -> usize {
        self.replies.len()
    }
}

/// A row number as a buffer's.
fn small(slot: u32) -> u16 {
    u16::try_from(slot).expect("tables of buffers have at most 4096 rows")
}
