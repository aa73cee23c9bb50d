//! The store of one member: requests in, tasks out, results in, answers out.

mod namespaces;
#[cfg(test)]
mod plain;
mod unwritten;

use crate::admission::WriteTokens;
use crate::config::{Budget, StoreConfig, StoreConfigError};
use crate::core::{Core, Image, Knowledge, Now};
use crate::drops::Drops;
use crate::entry::{Entry, Kind};
use crate::explain::Explained;
use crate::feed::Evicted;
use crate::format::POOLS_MAX;
use crate::holds::Holds;
use crate::key::Key;
use crate::list::{Cursor, Lister, ListingPage};
use crate::log::Log;
use crate::pools::{PoolLimits, PoolRule, PoolView};
use crate::prepare::Prepare;
use crate::reads::{self, Count};
use crate::reclaim::Reclaim;
use crate::recover::Recovery;
use crate::refusal::Try;
use crate::request::{
    Answer, Begun, DeclineReason, DropKey, Fault, FoundKeys, Get, Got, PlaceKind, Put, ReadId,
    Reading, Reply, SpaceId, Status,
};
use crate::segments::bits;
use crate::sizing::Sizing;
use crate::start::{Start, StartError, Starting};
use crate::stats::Stats;
use crate::sweep::IndexSweep;
use crate::task::{MemberTask, Origin, Outcome, Pool, TaskId, Verb};
use crate::witness::Witness;
use crate::writes::Writes;

/// Keys of one lookup at most.
pub const LOOKUP_KEYS_MAX: usize = 64;

/// How far a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading supers, namespaces and heads: no request is taken.
    Starting,
    /// Requests are taken; what is not found may yet turn up.
    Warming,
    /// Everything is known.
    Serving,
    /// It does not start.
    Failed(StartError),
}

/// The effect of a lookup on the blocks that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nothing is held.
    No,
    /// Nothing is held, but they count as used, as by a get.
    Touch,
    /// Nothing is held, and they go before all others, until they are used again.
    Demote,
    /// Nothing is held; they count as used, and are to come into memory (the caller's task).
    Fetch,
    /// Holds the blocks for this time in nanoseconds, at most `Times::hold`.
    For(u64),
}

impl Hold {
    /// Whether the caller asks what is there. One that touches, demotes or fetches knows it.
    #[must_use]
    pub fn is_lookup(self) -> bool {
        !matches!(self, Self::Touch | Self::Demote | Self::Fetch)
    }
}

/// The keyed store of one member.
///
/// The caller gives requests, then calls `step`, then drains `next_task` and `next_reply`, and
/// gives each task's result to `finish`, in any order and at any time. The store acts only within
/// these calls, and none of them blocks. `Begun::Taken` and `Confirms` are followed by exactly one
/// reply. A get is no task: it returns the place of the block, and the caller reads it and answers.
#[derive(Debug)]
pub struct Store {
    core: Core,
    log: Log,
    writes: Writes,
    holds: Holds,
    starting: Starting,
    recovery: Recovery,
    /// Of each pool.
    drops: [Drops; POOLS_MAX],
    prepare: Prepare,
    reclaim: Reclaim,
    sweep: IndexSweep,
    lister: Lister,
    sizing: Sizing,
}

impl Store {
    /// Allocates all tables; nothing is allocated after that.
    ///
    /// # Errors
    /// `StoreConfigError` when no store can have these sizes.
    pub fn new(config: &StoreConfig) -> Result<Self, StoreConfigError> {
        let geometry = config.check()?;
        let sizing = Sizing::with(config, &geometry);
        let admission = WriteTokens::new(config.budget, &geometry, sizing.blocks);
        Ok(Self {
            core: Core::new(config, geometry, (sizing.buckets, sizing.blocks), admission),
            log: Log::new(),
            writes: Writes::new(config.puts, config.writes, config.owners),
            holds: Holds::new(config.holds, config.owners, config.owner_holds),
            starting: Starting::new(config.transfers_max()),
            recovery: Recovery::new(config.transfers_max(), &geometry, config.block_mean),
            drops: std::array::from_fn(|_| Drops::new()),
            prepare: Prepare::new(),
            reclaim: Reclaim::new(config),
            sweep: IndexSweep::default(),
            lister: Lister::new(),
            sizing,
        })
    }

    /// Sets the witness that is notified of blocks from now on. Call before `start`.
    pub fn set_witness(&mut self, witness: Box<dyn Witness>) {
        self.core.set_witness(witness);
    }

    /// Which namespaces are made in which pool, and what the pools may have. Before `start`. The
    /// medium keeps the names of pools that once were; a namespace stays in the pool that it was
    /// made in.
    pub fn set_pools(&mut self, rules: Vec<PoolRule>) {
        if !rules.is_empty() {
            self.log.set_pooled();
        }
        self.core.set_pool_rules(rules);
    }

    /// From now on the pools may have this, in the order of the rules that they were given by. One
    /// that has more than its maximum gives its oldest segments up, one after the other.
    pub fn set_pool_limits(&mut self, limits: &[PoolLimits], now: Now) {
        self.core.set_now(now);
        self.core.set_pool_limits(limits);
    }

    /// Pools that have a rule, a namespace or segments; the first is the default one.
    pub fn pools(&self) -> impl Iterator<Item = PoolView<'_>> {
        let (core, limits) = (&self.core, self.core.pools().limits());
        let ruled = core.pools().ruled();
        bits(1 | ruled | core.segments.holding() | core.spaces.pools()).map(move |number| {
            PoolView {
                number,
                name: core.pools().name(number),
                ruled: ruled >> number & 1 == 1,
                limits: limits[usize::from(number)],
                segments: core.segments.held(number),
                blocks: core.segments.live_of(number),
                bytes: core.spaces.bytes_of_pool(number),
                stats: core.pool_view(number),
                write_tokens: core.admission.tokens_of(number),
            }
        })
    }

    /// Begins to read what is on the medium, or to make a store there. Once.
    pub fn start(&mut self, start: Start, now: Now) {
        self.core.set_now(now);
        self.core.admission.start(now.ns);
        self.starting.begin(&mut self.core, start);
    }

    /// How far it is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.starting.error() {
            Some(why) => Phase::Failed(why),
            None if !self.starting.is_done() => Phase::Starting,
            None if self.recovery.is_reading() => Phase::Warming,
            None => Phase::Serving,
        }
    }

    /// Sizes of the tables.
    #[must_use]
    pub fn sizing(&self) -> &Sizing {
        &self.sizing
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.core.stats
    }

    /// The write budget.
    #[must_use]
    pub fn budget(&self) -> Budget {
        self.core.admission.budget()
    }

    /// Bytes that may be written at once; below 0, bytes that were written beyond that.
    #[must_use]
    pub fn write_tokens(&self) -> i64 {
        self.core.admission.tokens()
    }

    /// From now on another budget holds.
    pub fn set_budget(&mut self, budget: Budget, now: Now) {
        self.core.set_now(now);
        self.core.admission.set_budget(budget, now.ns);
    }

    /// Entries of the index in use.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.core.index.used()
    }

    /// Bytes of all blocks that are there, without what their last units are padded with.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.core.spaces.bytes_in_all()
    }

    /// Holds in force, and expired ones that are not removed yet.
    #[must_use]
    pub fn holds(&self) -> u32 {
        self.holds.count()
    }

    /// Seconds since 1970 when the oldest segment with content was opened.
    #[must_use]
    pub fn oldest(&self) -> Option<u32> {
        self.core.segments.nth(0).map(|segment| self.core.segments.time(segment))
    }

    /// Counts every entry of the index: takes long.
    ///
    /// # Panics
    /// When segments, namespaces or retained bytes count otherwise.
    pub fn audit(&self) {
        let buckets = (0..self.core.index.len()).flat_map(|row| self.core.index.bucket(row));
        let there = buckets.filter(|(_, entry)| entry.is_there()).count() as u64;
        assert_eq!(there, self.core.segments.live_in_all(), "entries and segments");
        assert_eq!(there, self.core.spaces.blocks_in_all(), "entries and namespaces");
        self.core.segments.audit();
        self.core.audit_retained();
        for pool in 0..POOLS_MAX.try_into().expect("16 pools") {
            let (blocks, own) =
                (self.core.spaces.blocks_of_pool(pool), self.core.segments.live_of(pool));
            assert_eq!(blocks, own, "blocks and entries of pool {pool}");
        }
    }

    /// Buffers that the pool must have: the first are `StoreConfig::buffer_bytes` long, the last
    /// `StoreConfig::images` 8 KiB.
    #[must_use]
    pub fn pool_buffers(&self) -> u16 {
        self.core.config().buffers + self.core.config().images
    }

    /// Has an owner of which nothing is here take part in a user's share of places; below
    /// `StoreConfig::owners`, as there are no more users than owners. Each is a user of its own
    /// before.
    pub fn seat(&mut self, owner: u16, user: u16) {
        self.writes.seat(owner, user);
    }

    /// Whether a request of this owner that needs such a place can be given now.
    #[must_use]
    pub fn has_place(&self, owner: u16, place: PlaceKind) -> bool {
        self.reply_room() > 0 && self.writes.has_place(owner, place)
    }

    /// Whether blocks of an owner wait for parts that were not given yet.
    #[must_use]
    pub fn is_incomplete(&self, owner: u16) -> bool {
        self.writes.is_incomplete(owner)
    }

    /// Room for more replies beside all that may follow from requests in flight.
    fn reply_room(&self) -> usize {
        let owed = self.core.replies() + self.writes.owed();
        self.core.reply_limit().saturating_sub(owed + 1)
    }

    /// The status of any request while the store cannot take one.
    fn busy(&self) -> Option<Status> {
        if !self.starting.is_done() {
            return Some(Status::Declined(DeclineReason::Starting));
        }
        (self.reply_room() == 0).then_some(Status::Declined(DeclineReason::Busy))
    }

    /// Puts a block, or a part of one.
    pub fn put(&mut self, put: &Put<'_>, now: Now) -> Begun {
        self.core.set_now(now);
        match self.busy() {
            Some(why) => Begun::Done(why.into()),
            None => self.writes.put(&mut self.core, &mut self.log, put, None),
        }
    }

    /// As `put`, over a block that a reader found wrong: it is dropped if the put is taken, and
    /// stays if that is declined. `wrong` is the drop of the check that it has.
    pub fn put_over(&mut self, put: &Put<'_>, wrong: &DropKey, now: Now) -> Begun {
        self.core.set_now(now);
        match self.busy() {
            Some(why) => Begun::Done(why.into()),
            None => self.writes.put(&mut self.core, &mut self.log, put, Some(wrong)),
        }
    }

    /// The uid of an open namespace.
    #[must_use]
    pub fn uid_of(&self, space: SpaceId) -> Option<u64> {
        let number = self.core.spaces.resolve(space).ok()?;
        Some(self.core.spaces.uid(number))
    }

    /// The length and check of a block that can be read, by the lower half of its key.
    #[must_use]
    pub fn peek(&self, space: SpaceId, lo: u64) -> Option<Answer> {
        let number = self.core.spaces.resolve(space).ok()?;
        reads::peek(&self.core, (number, lo))
    }

    /// As `inspect` of a whole block, by the lower half of its key. What is returned is followed by
    /// one `read_ended`.
    pub fn inspect_low(&mut self, space: SpaceId, lo: u64) -> Option<Reading> {
        let number = self.core.spaces.resolve(space).ok()?;
        if !self.starting.is_done() {
            return None;
        }
        reads::find_low(&mut self.core, (number, lo))
    }

    /// Finds a block, or a part of one, that the caller is about to read. Each `Got::Read` is
    /// followed by one `read_ended`.
    #[inline(always)]
    pub fn get(&mut self, get: &Get) -> Got {
        self.find(get, Count::Hit)
    }

    /// As `get`, for readers of all blocks: the block keeps its worth, no counter of gets moves.
    pub fn inspect(&mut self, get: &Get) -> Got {
        self.find(get, Count::Nothing)
    }

    #[inline(always)]
    fn find(&mut self, get: &Get, count: Count) -> Got {
        if !self.starting.is_done() {
            return Got::Done(Status::Declined(DeclineReason::Starting).into());
        }
        match reads::find(&mut self.core, get, count) {
            Ok(reading) => Got::Read(reading),
            Err(answer) => Got::Done(answer),
        }
    }

    /// The read of a block that `get` found has ended: its segment may be used again.
    pub fn read_ended(&mut self, id: ReadId, outcome: Outcome) {
        self.reads_ended(id, 1, outcome);
    }

    /// Ends `count` reads with the same id.
    #[inline]
    pub fn reads_ended(&mut self, id: ReadId, count: u32, outcome: Outcome) {
        self.core.segments.reads_end(id.segment(), count);
        self.core.stats.failures += if outcome == Outcome::Done { 0 } else { count.into() };
    }

    /// Drops a block. `Miss`: it was not there; a restart will not bring it back either.
    pub fn drop_key(&mut self, drop: &DropKey, now: Now) -> Begun {
        self.core.set_now(now);
        match self.busy() {
            Some(why) => Begun::Done(why.into()),
            None => self.writes.drop_key(&mut self.core, &mut self.log, drop),
        }
    }

    /// Looks for keys by their lower halves, up to 64 of them.
    ///
    /// # Errors
    /// `Fault` when the namespace is unknown or there are too many keys.
    pub fn lookup(
        &mut self,
        space: SpaceId,
        owner: u16,
        keys: &[u64],
        hold: Hold,
        now: Now,
    ) -> Result<FoundKeys, Fault> {
        self.lookup_beside((space, owner), keys, hold, 0, now)
    }

    /// The same beside blocks that the caller has in memory and not on the medium: bit n of
    /// `elsewhere` for the n-th key. They count as hits, and are not in the answer.
    ///
    /// # Errors
    /// As `lookup`.
    pub fn lookup_beside(
        &mut self,
        (space, owner): (SpaceId, u16),
        keys: &[u64],
        hold: Hold,
        elsewhere: u64,
        now: Now,
    ) -> Result<FoundKeys, Fault> {
        self.core.set_now(now);
        let number = self.core.spaces.resolve(space)?;
        if keys.len() > LOOKUP_KEYS_MAX || owner >= self.core.config().owners {
            return Err(Fault::Limit);
        }
        let mut hashes = [crate::index::Hash::default(); LOOKUP_KEYS_MAX];
        let mut tags = 0;
        for (hash, lo) in hashes.iter_mut().zip(keys) {
            *hash = self.core.index.hash(number, *lo);
            tags ^= self.core.index.touch(*hash);
        }
        // Load the tags of all keys before the first comparison.
        std::hint::black_box(tags);
        let mut found = FoundKeys::default();
        let partial = self.core.recovery.knowledge == Knowledge::Partial;
        for (bit, (hash, lo)) in hashes.iter().zip(keys).enumerate() {
            let is_it =
                |entry: &Entry| entry.is_low(*lo, number) && self.core.readable(entry).is_some();
            let place = self.core.index.place_of(*hash, is_it);
            let there = place.is_some();
            found.found |= u64::from(there) << bit;
            found.warming |= u64::from(partial && !there) << bit;
            let Some(place) = place else { continue };
            let entry = self.core.index.get(place);
            found.bytes += u64::from(entry.length());
            match hold {
                Hold::No => {}
                Hold::Touch | Hold::Fetch => {
                    let segment = self.core.geometry().segment_of(entry.place());
                    self.core.use_block(place, &entry, segment);
                }
                Hold::Demote => self.core.demote(place, &entry),
                Hold::For(time) => {
                    let until = now.ns.saturating_add(time.min(self.core.config().times.hold));
                    let block = self.core.to_hold(place);
                    let most = self.core.holdable(block.pool, 0);
                    let held = self.holds.take(block, owner, until, most);
                    found.held |= u64::from(held) << bit;
                    self.core.stats.holds_refused += u64::from(!held);
                }
            }
        }
        if hold.is_lookup() {
            let hashes = &hashes[..keys.len()];
            reads::count_lookup(&mut self.core, number, (hashes, keys), found.found | elsewhere);
        }
        Ok(found)
    }

    /// Ends a hold. `false`: there was none.
    pub fn release(&mut self, space: SpaceId, owner: u16, lo: u64) -> bool {
        let number = self.core.spaces.resolve(space);
        number.is_ok_and(|number| self.holds.release(number, lo, owner))
    }

    /// An owner is gone: its holds end, and its incomplete puts are given up. Its requests in
    /// flight still get their replies.
    pub fn owner_gone(&mut self, owner: u16) {
        if owner < self.core.config().owners {
            self.holds.owner_gone(owner);
            self.core.payers().owner_gone(owner);
            self.writes.owner_gone(&mut self.core, &mut self.log, owner);
        }
    }

    /// Enters a reader's report that a block with this check is corrupt. The block stays, and is
    /// served, until it is verified. `false`: there is no such block.
    ///
    /// To look, the caller gets the block itself, as an owner of its own: `Extent::Part` by parts
    /// of its buffer's size. Each read holds the segment as any get does. When a part is a miss or
    /// its answer has another check, the block that was meant is gone, and that is all. Else the
    /// check over all parts decides: if it is wrong, `drop_key` with `only` the check; if it is
    /// right, `absolve`.
    pub fn suspect(&mut self, space: SpaceId, key: Key, check: u64) -> bool {
        let number = self.core.spaces.resolve(space);
        number.is_ok_and(|number| reads::mark(&mut self.core, (number, key), check, Kind::Suspect))
    }

    /// The block with this check is what it should be.
    pub fn absolve(&mut self, space: SpaceId, key: Key, check: u64) -> bool {
        let number = self.core.spaces.resolve(space);
        number.is_ok_and(|number| reads::mark(&mut self.core, (number, key), check, Kind::Live))
    }

    /// Explains a key.
    #[must_use]
    pub fn explain(&mut self, space: SpaceId, key: Key, now: Now) -> Explained {
        self.core.set_now(now);
        if !self.starting.is_done() {
            return Explained::Starting;
        }
        match self.core.spaces.resolve(space) {
            Ok(number) => Explained::of(&self.core, &self.writes, &self.holds, number, key),
            Err(_) => Explained::UnknownSpace,
        }
    }

    /// Begins to look for the next blocks of a listing: of one namespace, or of all. `listed` has
    /// them later. One listing's page at a time; a second one is declined as busy.
    ///
    /// A whole listing has every block that was there when it began and when it ended, wherever it
    /// was moved meanwhile; one that was moved may be listed twice, and what was put meanwhile may
    /// be listed or not. Nothing is listed that is not there when it is handed out.
    ///
    /// # Errors
    /// `Declined` while another page is on its way, `Warming` while recovery goes on, `Invalid`
    /// when the namespace is unknown.
    pub fn list(&mut self, space: Option<SpaceId>, from: Cursor, now: Now) -> Result<(), Status> {
        self.core.set_now(now);
        if !self.starting.is_done() {
            return Err(Status::Declined(DeclineReason::Starting));
        }
        if !self.lister.is_idle() {
            return Err(Status::Declined(DeclineReason::Busy));
        }
        if self.core.recovery.knowledge == Knowledge::Partial {
            return Err(Status::Warming);
        }
        let number = space.map(|space| self.core.spaces.resolve(space)).transpose();
        let number = number.map_err(Status::Invalid)?;
        let uid = number.map(|number| self.core.spaces.uid(number));
        self.lister.begin(&mut self.core, &self.log, uid, from);
        Ok(())
    }

    /// The blocks of the last `list`, once they are read. The caller of `list` must take them, even
    /// if the owner is gone.
    pub fn listed(&mut self) -> Option<ListingPage<'_>> {
        self.lister.take(&self.core)
    }

    /// The next evicted block since the start, in the order of events. If the feed is drained
    /// before each page of a listing is taken, feed and listing together give the set of present
    /// blocks. Blocks lost by a crash or left out by recovery are not in the feed: list after each
    /// start.
    pub fn next_evicted(&mut self) -> Option<Evicted<'_>> {
        self.core.feed_mut().pop()
    }

    /// Rows in the feed, at most 512.
    #[must_use]
    pub fn evictions(&self) -> usize {
        self.core.feed().len()
    }

    /// Evicted blocks that are missing in the feed, because it was full or their keys are unknown.
    /// After an increase, only a new listing gives the set of present blocks.
    #[must_use]
    pub fn evictions_lost(&self) -> u64 {
        self.core.feed().lost()
    }

    /// Whether there is more to look at than one step does.
    #[must_use]
    pub fn is_walking(&self) -> bool {
        self.sweep.is_walking() || self.reclaim.is_walking() || self.core.worth.is_wanted()
    }

    /// Has the records of all that was acknowledged written in the next step, due or not.
    pub fn hurry(&mut self) {
        self.log.hurry();
    }

    /// Whether these records are on the medium. A drive that refuses writes is not waited for.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.core.declines().is_some() || self.log.is_written(&self.core)
    }

    /// The caller's code of the last refusal, while the drive refuses what the store must write.
    /// Puts and drops are declined then; what is there is served, and what was acknowledged is
    /// written when the drive takes writes again.
    #[must_use]
    pub fn refusal(&self) -> Option<u16> {
        self.core.refusal().code()
    }

    /// Goes on with everything that can go on, looking at about `budget` records or index buckets.
    pub fn step(&mut self, pool: &impl Pool, budget: u32, now: Now) {
        self.core.set_now(now);
        self.core.try_images_again();
        if !self.starting.is_done() {
            self.starting.step(&mut self.core, &mut self.drops, pool);
            // Pools that have no rule any more: else it was allocated with the rules.
            if self.core.is_pooled() {
                self.log.set_pooled();
            }
            return;
        }
        let Self { core, log, drops, .. } = self;
        core.payers().wait(self.writes.waiting());
        self.recovery.step(core, log, drops, pool, budget);
        let resumed = self.recovery.resumed();
        self.prepare.step(core, log, |pool| resumed >> pool & 1 == 1);
        if !self.recovery.is_reading() || core.recovery.unread > 0 {
            self.reclaim.step(core, log, &self.holds, pool, budget);
        }
        core.worth.step(&core.segments, now.ns);
        self.sweep.step(core, &self.writes, budget);
        self.lister.step(core, pool);
        self.writes.step(core, log);
        self.log.step(&mut self.core);
        self.holds.expire(now.ns, |_, _| {});
        self.core.end_hints();
        self.flush(now);
        if !self.core.spaces.is_busy()
            && !self.core.is_held_up()
            && self.core.has_image()
            && let Some(slot) = self.core.spaces.mend()
        {
            self.write_space(slot, self.core.spaces.first_copy(slot));
        }
    }

    /// Begins a flush if one is due.
    fn flush(&mut self, now: Now) {
        let (flush, after) = (&self.core.flush, self.core.config().times.flush);
        let may = !flush.is_refused() || self.core.refusal().is_due(now.ns);
        if may && flush.is_due(now.ns, after) {
            self.core.flush.begin(self.log.drops_written(&self.core));
            self.core.plain_task(Origin::Flush, Verb::Flush, 0, 0);
        }
    }

    /// The next thing to do, if there is one. The bytes of the store's own writes are in the pool
    /// when it returns.
    pub fn next_task(&mut self, pool: &mut impl Pool) -> Option<MemberTask> {
        self.core.next_task(pool)
    }

    /// The next answer, if there is one.
    pub fn next_reply(&mut self) -> Option<Reply> {
        self.core.next_reply()
    }

    /// Ends a task. The bytes of a read into the pool stay there until the store issues another
    /// transfer with that buffer.
    pub fn finish(&mut self, id: TaskId, outcome: Outcome, now: Now) {
        self.core.set_now(now);
        let (origin, slot) = id.split();
        match origin {
            Origin::Part => {
                self.writes.part_ended(&mut self.core, &mut self.log, slot, outcome);
            }
            Origin::Image => {
                if let Some(image) = self.core.image_ended(slot, outcome) {
                    self.image_ended(image, outcome);
                }
            }
            Origin::Buffer if !self.starting.is_done() => self.starting.ended(slot, outcome),
            Origin::Buffer if self.recovery.is_reading() => self.recovery.ended(slot, outcome),
            Origin::Buffer => {
                self.reclaim.ended(&mut self.core, &mut self.log, slot, outcome);
            }
            Origin::Flush => self.flush_ended(outcome),
            Origin::Discard => self.prepare.discarded(&mut self.core),
            Origin::List => self.lister.ended(outcome),
        }
    }

    fn flush_ended(&mut self, outcome: Outcome) {
        let core = &mut self.core;
        let before = core.flush.is_refused();
        if let Outcome::Failed(code) = outcome {
            core.flush.fail();
            return core.refused(if before { Try::Later } else { Try::First }, code);
        }
        if before {
            core.taken();
        }
        let drops = core.flush.succeed();
        if self.recovery.is_done() {
            for (pool, drops) in (0..).zip(drops) {
                self.log.set_drops_durable(pool, drops);
            }
        }
    }

    /// The write of an image is done; of a super or a namespace it may be given up.
    fn image_ended(&mut self, image: Image, outcome: Outcome) {
        let core = &mut self.core;
        match image {
            Image::Page { open, .. } => self.log.page_written(open, self.core.flush.ticket()),
            Image::Head { segment, copy } => self.prepare.head_written(core, segment, copy),
            Image::Super { copy } => self.starting.super_written(core, copy, outcome),
            Image::Space { slot, copy } => self.space_written(slot, copy, outcome),
            Image::Probe { placed } => self.log.forgo(placed),
        }
    }
}
