//! One shard: the store on one device, its memory, and what it was asked.

mod calls;
mod late;
mod late_blocks;
mod late_ends;
mod late_list;
mod life;
mod listings;
mod load;
mod pulse;
mod showing;
mod site;
mod tasks;
mod tier;

use kvrail_ring::{Geometry, Status};
use kvrail_store::{
    Answer, Begun, DeclineReason, DropKey, FoundKeys, Get, Gone, Got, Key, Now, Outcome, Phase,
    PlaceKind, Put, RETRY_NS_MAX, ReadId, Reply, SpaceId, Start, Status as Ending, Store,
    StoreConfig, StoreConfigError, TaskId,
};

use super::call_queue::CallQueue;
use super::discarding::Discarding;
use super::grants::{Grant, Grants};
use super::listings::ShardListings;
use super::own::{SUSPECT, USER_CALL, USER_CORRUPT, fill_of, late_of, own_id};
use super::parked::ParkedLines;
use super::pending::{BlockCommand, Pending, StoreRequest, outcome};
use super::pool::PinnedPool;
use super::suspects::{SuspectReport, Suspects, drop_of};
use crate::admission::Masks;
use crate::limits::{SessionSlot, TenantSlot};
use crate::mailbox::CorruptBlock;
use crate::regions::Regions;
use crate::segment_map::MapWalk;
use crate::store_call::StoreSetup;
use crate::store_witness::presence_witness;
use life::Life;
use load::ShardLoad;
use pulse::Pulse;
use site::ShardSite;
use tier::{READS_MAX, ShardTier};

/// Records or buckets that a step looks at: 2 to 5 us, and 10 to 20 while the store starts.
const BUDGET: u32 = 64;
const BUDGET_WARMING: u32 = 256;
/// A store that looks through something is asked so often.
const STEP_NS: u64 = 1_000_000;
/// How long after its last work a store is asked that often.
const ACTIVE_NS: u64 = 3_000_000_000;
// A store whose drive refuses writes is asked often enough to try them again.
const _: () = assert!(RETRY_NS_MAX < ACTIVE_NS);
/// How late a poller may be for a store that waits for a time: a tenth of that to a page's write.
const SLEEP_NS: u64 = 5_000_000;
/// By then every page of what was put is written.
const SETTLED_NS: u64 = 100_000_000;
/// How late it may be from then on: a twentieth of the time to a flush.
const SLEEP_SETTLED_NS: u64 = 50_000_000;
/// How long a poller sleeps at most while clients read hidden blocks of a memory tier: none comes
/// to it when the last one has ended.
const SLEEP_HELD_NS: u64 = 1_000_000_000;
/// The same while the store starts.
const SLEEP_STARTING_NS: u64 = 1_000_000;

/// What is to be done with a request that was given to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Now,
    No,
}

/// The store on one device, and what its poller keeps for it.
#[derive(Debug)]
pub(crate) struct Shard {
    site: ShardSite,
    store: Box<Store>,
    pool: PinnedPool,
    grants: Grants,
    lines: ParkedLines,
    suspects: Suspects,
    calls: CallQueue,
    listings: ShardListings,
    discarding: Discarding,
    life: Life,
    load: ShardLoad,
    pulse: Pulse,
    map: MapWalk,
    /// Its memory tier, where it has one.
    tier: Option<Box<ShardTier>>,
    /// Whether its device was taken out of service for good.
    is_retired: bool,
    /// Gets of this member while its device was gone, and keys of lookups.
    gone_gets: u64,
    gone_keys: u64,
}

impl Shard {
    pub(crate) fn new(
        (number, device): (u8, usize),
        setup: &StoreSetup,
        (geometry, logical_block): (&Geometry, u32),
    ) -> Result<Self, StoreConfigError> {
        assert_eq!(logical_block, setup.config.logical_block, "the store's unit is the device's");
        let place = (number, device, setup.start.member());
        let mut store = Box::new(Store::new(&setup.config)?);
        store.set_pools(setup.pools.clone());
        let blocks = store.sizing().blocks;
        if let Some(memory) = &setup.presence {
            store.set_witness(presence_witness(memory));
        }
        Ok(Self {
            site: ShardSite::new(place, geometry, logical_block),
            store,
            pool: PinnedPool::new(setup),
            grants: Grants::new(),
            lines: ParkedLines::new(),
            suspects: Suspects::new(),
            calls: CallQueue::new(),
            listings: ShardListings::new(),
            discarding: Discarding::default(),
            life: Life::first(),
            load: ShardLoad::default(),
            pulse: Pulse::new(),
            map: MapWalk::default(),
            tier: setup.tier.as_ref().map(|tier| Box::new(ShardTier::new(tier, blocks))),
            is_retired: false,
            gone_gets: 0,
            gone_keys: 0,
        })
    }

    /// Tasks of such a store at the device at most, beside those of requests.
    pub(crate) fn tasks_max(config: &StoreConfig) -> u32 {
        // A flush, a discard, and a read of a block that was reported; reads into a memory tier.
        // And writes out of it.
        let tier = u32::from(READS_MAX) + late_blocks::WRITES_MAX;
        config.transfers_max() + u32::from(config.images) + 3 + tier
    }

    pub(crate) fn start(&mut self, start: Start, now: Now) {
        self.store.start(start, now);
    }

    pub(crate) fn number(&self) -> u8 {
        self.site.number()
    }

    pub(crate) fn member(&self) -> u16 {
        self.site.member()
    }

    /// The poller's number of its device.
    pub(crate) fn device(&self) -> u8 {
        self.site.device()
    }

    /// What transfers and their memory are aligned to.
    #[inline(always)]
    pub(crate) fn masks(&self) -> Masks {
        self.site.masks()
    }

    /// Whether this many bytes fill logical blocks.
    #[inline(always)]
    pub(crate) fn is_whole(&self, bytes: u32) -> bool {
        self.site.tail_of(bytes) == 0
    }

    /// Finds a block that a client is about to read. PENDING: it is in memory and not on the
    /// device; nothing has counted.
    #[inline(always)]
    pub(crate) fn get(&mut self, get: &Get) -> Got {
        match self.tier {
            None => self.get_stored(get),
            Some(_) => self.get_beside_tier(get),
        }
    }

    /// The same, of what the store has.
    #[inline(always)]
    pub(crate) fn get_stored(&mut self, get: &Get) -> Got {
        let got = self.store.get(get);
        self.load.begin_reads(matches!(got, Got::Read(_)).into());
        got
    }

    /// Has the memory tier see a get of a block.
    #[inline(never)]
    fn get_beside_tier(&mut self, get: &Get) -> Got {
        if self.late_length(get.space, get.key).is_some() {
            return Got::Done(Ending::Pending.into());
        }
        let got = self.get_stored(get);
        let (Some(tier), Got::Read(reading)) = (&mut self.tier, &got) else { return got };
        let Some(uid) = self.store.uid_of(get.space) else { return got };
        if tier.meet(get, uid, reading) {
            self.pulse.mark();
        }
        tier.see_gone(&mut self.store, Some(Gone::Evicted));
        got
    }

    /// For how long clients have found a block in the memory tier, in seconds.
    pub(super) fn age_in_tier_s(&self, space: SpaceId, key: Key) -> Option<u32> {
        self.tier.as_ref()?.age_s(self.store.uid_of(space)?, key.lo())
    }

    /// Clients used blocks that the memory tier may have.
    #[cold]
    pub(crate) fn use_in_tier(&mut self, space: SpaceId, lows: &[u64]) {
        let (Some(tier), Some(uid)) = (&mut self.tier, self.store.uid_of(space)) else { return };
        lows.iter().for_each(|lo| tier.use_block(uid, *lo));
    }

    /// Clients expect to use blocks: they are to come into the memory tier.
    #[cold]
    pub(crate) fn fetch_into_tier(&mut self, space: SpaceId, lows: &[u64], now: Now) {
        let (Some(tier), Some(uid)) = (&mut self.tier, self.store.uid_of(space)) else { return };
        for lo in lows {
            if let Some(answer) = self.store.peek(space, *lo) {
                tier.fetch((space, uid, *lo), &answer);
            }
        }
        tier.see_gone(&mut self.store, Some(Gone::Evicted));
        self.touch(now.ns);
    }

    /// The key's block is another one from now on, or none: the memory tier shows it no more.
    /// Before the answer, so that no client that has it gets what was there before.
    fn forget_in_tier(&mut self, space: SpaceId, key: Key) {
        let (Some(tier), Some(uid)) = (&mut self.tier, self.store.uid_of(space)) else { return };
        if tier.has_other(uid, key) {
            return;
        }
        tier.forget(uid, key.lo());
        tier.see_gone(&mut self.store, None);
    }

    /// The same for a client that looks at everything.
    pub(crate) fn inspect(&mut self, get: &Get) -> Got {
        let got = self.store.inspect(get);
        self.load.begin_reads(matches!(got, Got::Read(_)).into());
        got
    }

    /// This many reads of clients have ended, which hold the same segment.
    #[inline]
    pub(crate) fn reads_ended(&mut self, id: ReadId, count: u32, outcome: Outcome) {
        self.load.end_reads(count);
        self.store.reads_ended(id, count, outcome);
        if outcome == Outcome::Failed(Status::DeviceGone.number()) {
            self.lose();
            self.pulse.mark();
        }
    }

    #[inline(always)]
    pub(crate) fn is_gone(&self) -> bool {
        self.life.is_gone()
    }

    /// Counts a get of a member whose device is gone.
    ///
    /// # Errors
    /// DEVICE_GONE, of such a member.
    pub(crate) fn open_to_gets(&mut self) -> Result<(), Status> {
        if !self.is_gone() {
            return Ok(());
        }
        self.gone_gets += 1;
        self.pulse.mark();
        Err(Status::DeviceGone)
    }

    /// Counts keys of a lookup while the device is gone.
    pub(crate) fn count_gone_keys(&mut self, keys: u64) {
        self.gone_keys += keys;
        self.pulse.mark();
    }

    /// Requests that wait for room.
    pub(crate) fn lines(&mut self) -> &mut ParkedLines {
        &mut self.lines
    }

    pub(crate) fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    pub(crate) fn phase(&self) -> Phase {
        self.store.phase()
    }

    /// Something is to be done in this tick.
    pub(crate) fn touch(&mut self, now_ns: u64) {
        self.pulse.touch(now_ns);
    }

    pub(crate) fn count_request(&mut self) {
        self.load.begin_request();
    }

    pub(crate) fn count_answer(&mut self) {
        self.load.end_request();
    }

    /// What a handle means to it. INVALID: nothing was ever granted. STALE: the namespace is gone.
    #[inline(always)]
    pub(crate) fn resolve(&mut self, session: SessionSlot, handle: u16) -> Result<Grant, Status> {
        let grant = self.grants.at(session, handle).ok_or(Status::Invalid)?;
        if grant.life == self.life.number() {
            Ok(*grant)
        } else {
            self.resolve_anew(session, handle)
        }
    }

    /// The same for a handle of the life before: the same namespace has another name now.
    #[cold]
    #[inline(never)]
    fn resolve_anew(&mut self, session: SessionSlot, handle: u16) -> Result<Grant, Status> {
        let grant = self.grants.at(session, handle).filter(|grant| grant.life > 0);
        let grant = grant.ok_or(Status::Invalid)?;
        grant.space = SpaceId::NONE;
        if !matches!(self.store.phase(), Phase::Warming | Phase::Serving) {
            return Ok(*grant);
        }
        let space = self.store.spaces().find(|view| view.uid == grant.uid);
        grant.space = space.map_or(SpaceId::NONE, |view| view.id);
        grant.life = self.life.number();
        Ok(*grant)
    }

    /// Has a handle mean a namespace of this life of a store, whatever the store is doing.
    #[cfg(test)]
    pub(crate) fn grant_unchecked(&mut self, session: SessionSlot, handle: u16, life: u32) {
        let (space, permit) = (SpaceId::NONE, crate::store_call::Permit::Write);
        let grant = Grant { space, uid: u64::from(handle), life, permit, is_late: false };
        *self.grants.at(session, handle).expect("a handle that can be") = grant;
    }

    /// Its device is gone from now on.
    #[cfg(test)]
    pub(crate) fn lose_device(&mut self) {
        self.life.lose_device();
    }

    /// Its device is gone: of the memory tier nothing is found either, since a clear would not
    /// reach this member.
    fn lose(&mut self) {
        self.life.lose_device();
        if let Some(tier) = &mut self.tier {
            tier.stop();
        }
    }

    /// Its device is gone for good.
    pub(crate) fn retire(&mut self) {
        self.is_retired = true;
        self.lose();
        self.pulse.mark();
    }

    /// The namespace that a handle means; nothing where that is not known at once.
    #[inline(always)]
    pub(crate) fn space(&mut self, session: SessionSlot, handle: u16) -> Option<SpaceId> {
        let grant = self.grants.at(session, handle)?;
        (grant.life == self.life.number() && !self.life.is_gone()).then_some(grant.space)
    }

    /// Whether the store has room for one more of this request's session.
    pub(crate) fn has_room(&self, asked: &StoreRequest) -> bool {
        let owner = u16::from(asked.client.session.0);
        match asked.ask {
            BlockCommand::Put { at: 0, block_bytes, .. } => {
                let whole = asked.bytes == block_bytes;
                self.store
                    .has_place(owner, if whole { PlaceKind::Block } else { PlaceKind::Incomplete })
            }
            BlockCommand::Drop { .. } => self.store.has_place(owner, PlaceKind::Drop),
            BlockCommand::Put { .. } | BlockCommand::Get(_) => true, // the store decides
        }
    }

    /// Has a session of which nothing is here take part in a user's share.
    pub(crate) fn seat(&mut self, session: SessionSlot, user: TenantSlot) {
        self.lines.seat(session, user);
        self.store.seat(session.0.into(), user.0.into());
    }

    /// Whether blocks of a session wait for parts that were not taken from its lanes yet.
    pub(crate) fn is_incomplete(&self, session: SessionSlot) -> bool {
        self.store.is_incomplete(session.0.into())
    }

    /// Gives a request to the store.
    pub(crate) fn give(
        &mut self,
        pending: &Pending,
        metadata: &[u8],
        regions: &Regions,
        now: Now,
    ) -> Begun {
        let (user, owner) = (pending.id.to_u64(), u16::from(pending.asked().client.session.0));
        let StoreRequest { space, key, .. } = *pending.asked();
        self.touch(now.ns);
        if pending.asked().is_late
            && let Some(begun) = self.put_late(pending, metadata, regions, now)
        {
            return begun;
        }
        if self.waits_for_late(pending.asked()) {
            // It waits as for room, and finds the block once it is written. The store is not asked:
            // it would count each of many tries.
            return Begun::Done(Ending::Declined(DeclineReason::Busy).into());
        }
        let begun = self.begin(pending, (user, owner), metadata, now);
        let is_drop = matches!(pending.asked().ask, BlockCommand::Drop { .. });
        let is_done = matches!(begun, Begun::Done(Answer { status: Ending::Ok, .. }));
        // A put that writes nothing changes nothing, nor does a drop that ends without effect.
        if matches!(begun, Begun::Taken) || (is_drop && is_done) {
            self.forget_in_tier(space, key);
        }
        begun
    }

    fn begin(
        &mut self,
        pending: &Pending,
        (user, owner): (u64, u16),
        metadata: &[u8],
        now: Now,
    ) -> Begun {
        let StoreRequest { space, key, durability, .. } = *pending.asked();
        let reported = self.suspects.check_of(space, key);
        match pending.asked().ask {
            BlockCommand::Put { .. } => {
                let put = pending.put(metadata).expect("it is a put");
                match reported {
                    Some(check) if put.at == 0 => self.put_over(&put, check, now),
                    _ => self.store.put(&put, now),
                }
            }
            BlockCommand::Get(_) => unreachable!("the store has found the block"),
            BlockCommand::Drop { only } => {
                if reported.is_some_and(|check| only.is_none_or(|only| only == check)) {
                    self.suspects.withdraw(space, key);
                }
                let in_memory = self.drop_late(space, key, only);
                // What is in memory is the block that is meant; the store finds no write that is
                // under way by its check, and is to end it.
                let only = only.filter(|_| in_memory.is_none());
                let drop = DropKey { user, owner, space, key, only, durability };
                let begun = self.store.drop_key(&drop, now);
                match (begun, in_memory) {
                    (Begun::Taken, Some(answer)) => self.note_drop(user, answer.length),
                    (Begun::Done(Answer { status: Ending::Miss, .. }), Some(answer)) => {
                        return Begun::Done(answer);
                    }
                    _ => {}
                }
                begun
            }
        }
    }

    /// A block that was reported is replaced by a put, which would find it PRESENT a moment before
    /// it goes. One that the put leaves there, because the store declines that, is read.
    fn put_over(&mut self, put: &Put<'_>, check: u64, now: Now) -> Begun {
        let begun = self.store.put_over(put, &drop_of((put.space, put.key), check), now);
        let stays = match begun {
            Begun::Taken | Begun::Confirms => false,
            Begun::Done(answer) => {
                matches!(answer.status, Ending::Declined(_) | Ending::Invalid(_))
            }
        };
        if !stays {
            self.suspects.withdraw(put.space, put.key);
        }
        begun
    }

    /// A session is gone.
    pub(crate) fn forget(&mut self, session: SessionSlot, now_ns: u64) {
        self.store.owner_gone(session.0.into());
        self.grants.forget(session);
        self.calls.forget(session);
        self.touch(now_ns);
    }

    /// A task has ended at the device.
    pub(crate) fn task_ended(&mut self, status: Status, now_ns: u64) {
        self.load.end_task();
        if status == Status::DeviceGone {
            self.lose();
        }
        self.touch(now_ns);
    }

    /// The store's task is done.
    pub(crate) fn finish(&mut self, id: TaskId, outcome: Outcome, now: Now) {
        self.store.finish(id, outcome, now);
    }

    /// One of its own tasks has ended.
    pub(crate) fn finish_own(&mut self, tag: u64, status: Status, now: Now) {
        if tag == SUSPECT {
            return self.suspect_read(outcome(status), now);
        }
        if let Some(number) = fill_of(tag) {
            let tier = self.tier.as_mut().expect("its read was begun");
            tier.read_ended(number, &mut self.store, outcome(status));
            return self.pulse.mark();
        }
        let id = own_id(tag);
        if self.discarding.goes_on(id, status) {
            return;
        }
        self.finish(id, outcome(status), now);
    }

    /// Whether a step is due.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.pulse.is_due(now_ns) || self.load.requests() > 0
    }

    /// Goes on with everything that can go on.
    pub(crate) fn step(&mut self, now: Now) {
        self.pulse.begin_step();
        let serving = self.store.phase() == Phase::Serving;
        let budget = if serving { BUDGET } else { BUDGET_WARMING };
        self.look_at_suspects(now);
        if self.tier.as_mut().is_some_and(|tier| tier.step(now.ns)) {
            self.pulse.mark();
        }
        self.see_gone(Some(Gone::Evicted));
        self.store.step(&self.pool, budget, now);
        self.step_late(now);
        let after_ns = match self.phase() {
            Phase::Starting | Phase::Warming => 0,
            _ if self.store.is_walking() => STEP_NS,
            _ => SLEEP_NS,
        };
        self.pulse.end_step(now.ns, after_ns);
    }

    /// Whether the poller must not sleep: the store works, and waits for no device.
    pub(crate) fn is_working(&self) -> bool {
        let works = match self.phase() {
            Phase::Starting | Phase::Warming => true,
            Phase::Serving => {
                self.load.requests() > 0 || !self.suspects.is_empty() || !self.listings.is_empty()
            }
            Phase::Failed(_) => false,
        };
        let copies = self.tier.as_ref().map_or(0, |tier| tier.copies());
        works && self.load.tasks() == 0 && copies == 0 && self.life.is_running()
    }

    /// How long the poller may sleep.
    pub(crate) fn sleep_ns(&self, now_ns: u64) -> u64 {
        match self.phase() {
            _ if self.is_gone() => self.sleep_gone_ns(),
            Phase::Starting | Phase::Warming => SLEEP_STARTING_NS,
            Phase::Failed(_) => u64::MAX,
            Phase::Serving if self.load.requests() > 0 || self.tier_walks() => STEP_NS,
            Phase::Serving => {
                let has_held = self.tier.as_ref().is_some_and(|tier| tier.tier.has_held());
                let most_ns = if has_held { SLEEP_HELD_NS } else { u64::MAX };
                self.sleep_idle_ns(self.pulse.idle_ns(now_ns)).min(most_ns)
            }
        }
    }

    /// Whether the memory tier has more to look at than a step does, for which no client comes.
    fn tier_walks(&self) -> bool {
        self.tier.as_ref().is_some_and(|tier| tier.tier.is_walking())
    }

    /// The same, so long after the last work.
    fn sleep_idle_ns(&self, idle_ns: u64) -> u64 {
        match idle_ns {
            ACTIVE_NS.. => u64::MAX,
            SETTLED_NS.. if !self.store.is_walking() => SLEEP_SETTLED_NS,
            _ => SLEEP_NS,
        }
    }

    /// Has all that was acknowledged written at once; whether it is, or never can be.
    pub(crate) fn settle(&mut self) -> bool {
        let is_late_settled = self.settle_late();
        // What goes with a device is known once it is swept.
        let never = match self.is_gone() {
            true => self.life.is_swept(),
            false => matches!(self.phase(), Phase::Starting | Phase::Failed(_)),
        };
        let is_settled = never || is_late_settled && self.store.is_written();
        if is_settled && !self.has_losses() {
            return true;
        }
        self.store.hurry();
        self.pulse.mark();
        false
    }

    /// Asks nothing more of the device.
    pub(crate) fn stop(&mut self) {
        self.life.stop();
    }

    /// Whether it asks nothing, and nothing is in flight.
    pub(crate) fn is_stopped(&self) -> bool {
        self.life.is_stopped() && self.load.tasks() == 0
    }

    /// Clients' requests that are not answered.
    pub(crate) fn requests(&self) -> u32 {
        self.load.unanswered()
    }

    /// Tasks at the device, or on their way there, beside clients' own.
    pub(crate) fn in_flight(&self) -> u32 {
        self.load.tasks()
    }

    /// The next answer of the store's that is a client's.
    pub(crate) fn next_reply(&mut self) -> Option<Reply> {
        if let Some(reply) = self.tier.as_mut().and_then(|tier| tier.next_reply()) {
            return Some(reply);
        }
        loop {
            let reply = self.store.next_reply()?;
            match (reply.user, late_of(reply.user)) {
                (USER_CALL, _) => self.call_answered(&reply),
                (USER_CORRUPT, _) => {}
                (_, Some(entry)) => self.late_answered(entry, reply.answer.status),
                _ => return Some(self.corrected(reply)),
            }
        }
    }

    /// Has the sidecar look at a block that a reader found wrong. False: there is no room.
    pub(crate) fn suspect(&mut self, report: SuspectReport, now_ns: u64) -> Option<bool> {
        if !self.suspects.has_room() {
            return None;
        }
        if let Some(uid) = self.store.uid_of(report.space)
            && let Some(noted) = self.suspect_late(uid, report.key, report.check)
        {
            return Some(noted);
        }
        // The copy in memory first: a reader that finds the drive's bytes wrong reports once more.
        if let (Some(tier), Some(uid)) = (&mut self.tier, self.store.uid_of(report.space))
            && tier.report(uid, report.key.lo())
        {
            return Some(true);
        }
        let noted = self.store.suspect(report.space, report.key, report.check);
        if noted {
            self.suspects.push(report);
            self.touch(now_ns);
        }
        Some(noted)
    }

    /// Leaves out of what was found the blocks that writers reported: they are no hits until the
    /// sidecar has read them. What is held stays held.
    pub(crate) fn leave_out_reported(&self, space: SpaceId, lows: &[u64], found: &mut FoundKeys) {
        if self.suspects.is_empty() {
            return;
        }
        for (bit, lo) in lows.iter().enumerate() {
            if self.suspects.has(space, *lo) {
                found.found &= !(1 << bit);
            }
        }
    }

    /// Counts the report of a session that may not write: it changes nothing.
    pub(crate) fn count_ignored(&mut self) {
        self.suspects.count_ignored();
    }

    /// Goes on with reported blocks.
    fn look_at_suspects(&mut self, now: Now) {
        if !self.life.is_running() {
            return;
        }
        let Self { suspects, store, pool, site, .. } = self;
        if suspects.step(store, |bytes| pool.load_suspect(bytes), site.device(), now) {
            self.pulse.mark();
        }
    }

    /// Takes the session whose report was false, to be counted.
    pub(crate) fn take_false_reporter(&mut self) -> Option<SessionSlot> {
        self.suspects.take_false_reporter()
    }

    /// Takes a block that was wrong, to be reported.
    pub(crate) fn take_corrupt(&mut self) -> Option<CorruptBlock> {
        self.suspects.take_corrupt()
    }

    /// The read of a piece of a reported block has ended.
    fn suspect_read(&mut self, outcome: Outcome, now: Now) {
        self.suspects.piece_ended(&mut self.store, self.site.device(), outcome, now);
        self.pulse.mark();
    }

    /// Whether the device is gone, nothing is in flight any more, and what is left is not ended.
    pub(crate) fn take_sweep(&mut self) -> Due {
        if self.is_gone() {
            self.end_copies();
        }
        let copies = self.tier.as_ref().map_or(0, |tier| tier.copies());
        let is_busy = !self.load.is_off_device() || copies > 0;
        if !self.is_gone() || self.life.is_swept() || is_busy {
            return Due::No;
        }
        self.life.sweep();
        self.suspects.clear();
        Due::Now
    }
}
