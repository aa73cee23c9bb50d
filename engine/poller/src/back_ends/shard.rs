//! One shard: the store on one device, its memory, and what it was asked.

mod calls;
mod listings;
mod tasks;

use std::collections::VecDeque;

use kvrail_counters::ServingCounters;
use kvrail_ring::{Geometry, Status};
use kvrail_store::{
    Begun, Budget, Config, ConfigError, DropKey, Get, Got, Hint, Now, Outcome, Phase, Place, Put,
    RETRY_NS_MAX, ReadId, Reply, SpaceId, Start, Store, TaskId,
};

use super::discarding::Discarding;
use super::grants::{Grant, Grants};
use super::listings::Listings;
use super::own::{SUSPECT, USER_CALL, USER_CORRUPT, own_id};
use super::parked::Lines;
use super::pending::{BlockCommand, Pending, StoreRequest, outcome};
use super::pool::PinnedPool;
use super::suspects::{Report, Suspects, Verdict};
use crate::admission::Masks;
use crate::limits::{SIDECAR, STORE_CALLS_MAX, SessionSlot, TenantSlot};
use crate::mailbox::CorruptBlock;
use crate::stats::{StoreStats, show_all};
use crate::store_call::{StoreCall, StoreSetup};
use crate::store_witness::presence_witness;

/// Records or buckets that a step looks at: 2 to 5 us, and 10 to 20 while nobody is served well.
const BUDGET: u32 = 64;
const BUDGET_WARMING: u32 = 256;
/// A store that looks through something is asked so often.
const STEP_NS: u64 = 1_000_000;
/// How long after its last work a store is asked that often.
const ACTIVE_NS: u64 = 3_000_000_000;
// A store whose drive refuses writes is asked often enough to try them again.
const _: () = assert!(RETRY_NS_MAX < ACTIVE_NS);
/// Counters are shown so often.
const SHOW_NS: u64 = 10_000_000;
/// How late a poller may be for a store that waits for a time: a tenth of that to a page's write.
const SLEEP_NS: u64 = 5_000_000;
/// By then every page of what was put is written.
const SETTLED_NS: u64 = 100_000_000;
/// How late it may be from then on: a twentieth of the time to a flush.
const SLEEP_SETTLED_NS: u64 = 50_000_000;
/// The same while the store starts.
const SLEEP_STARTING_NS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its device is there.
    Running,
    /// Its device was gone: nothing is asked of it until the store begins anew.
    Gone,
    /// The poller is about to stop: nothing is asked any more.
    Stopped,
}

/// What is to be done with a request that was given to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Now,
    No,
}

#[derive(Debug)]
pub(crate) struct Shard {
    /// Among this poller's.
    number: u8,
    device: u8,
    member: u16,
    /// First byte of the store on the device.
    area_at: u64,
    masks: Masks,
    store: Box<Store>,
    pool: PinnedPool,
    grants: Grants,
    lines: Lines,
    suspects: Suspects,
    calls: VecDeque<Box<StoreCall>>,
    listings: Listings,
    /// The first call is with the store.
    asked: bool,
    /// And the store has answered it.
    answered: bool,
    state: State,
    /// Requests were ended because the device is gone.
    swept: bool,
    life: u32,
    /// Tasks at the device, or on their way there.
    in_flight: u32,
    /// Clients' puts and drops that are not answered.
    requests: u32,
    /// Gets that are being read.
    reads: u32,
    discarding: Discarding,
    dirty: bool,
    /// When a step is due at the latest.
    due_ns: u64,
    active_ns: u64,
    shown_ns: u64,
    counters: ServingCounters<u64>,
    /// Session whose report was false, until it is counted.
    false_reporter: Option<SessionSlot>,
    /// A block that was wrong, until it is told.
    corrupt_block: Option<CorruptBlock>,
}

impl Shard {
    pub(crate) fn new(
        (number, device): (u8, usize),
        setup: &StoreSetup,
        (geometry, logical_block): (&Geometry, u32),
    ) -> Result<Self, ConfigError> {
        assert_eq!(logical_block, setup.config.logical_block, "the store's unit is the device's");
        let member = setup.start.member();
        let mut store = Box::new(Store::new(&setup.config)?);
        store.set_pools(setup.pools.clone());
        if let Some(memory) = &setup.presence {
            store.set_witness(presence_witness(memory));
        }
        Ok(Self {
            number,
            device: u8::try_from(device).expect("256 devices"),
            member,
            area_at: geometry.data_offset,
            masks: Masks {
                block: logical_block - 1,
                memory: u64::from(geometry.memory_alignment) - 1,
            },
            store,
            pool: PinnedPool::new(setup),
            grants: Grants::new(),
            lines: Lines::new(),
            suspects: Suspects::new(),
            calls: VecDeque::with_capacity(STORE_CALLS_MAX),
            listings: Listings::new(),
            asked: false,
            answered: false,
            state: State::Running,
            swept: false,
            life: 1,
            in_flight: 0,
            requests: 0,
            reads: 0,
            discarding: Discarding::default(),
            dirty: true,
            due_ns: 0,
            active_ns: 0,
            shown_ns: 0,
            counters: ServingCounters::default(),
            false_reporter: None,
            corrupt_block: None,
        })
    }

    /// Tasks of such a store at the device at most, beside those of requests.
    pub(crate) fn tasks_max(config: &Config) -> u32 {
        // A flush, a discard, and a read of a block that was reported.
        config.transfers_max() + u32::from(config.images) + 3
    }

    pub(crate) fn start(&mut self, start: Start, now: Now) {
        self.store.start(start, now);
    }

    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    pub(crate) fn member(&self) -> u16 {
        self.member
    }

    /// The poller's number of its device.
    pub(crate) fn device(&self) -> u8 {
        self.device
    }

    /// What transfers and their memory are aligned to.
    #[inline(always)]
    pub(crate) fn masks(&self) -> Masks {
        self.masks
    }

    /// Whether so many bytes fill logical blocks.
    #[inline(always)]
    pub(crate) fn is_whole(&self, bytes: u32) -> bool {
        bytes & self.masks.block == 0
    }

    /// Finds a block for a client, who is about to read it.
    #[inline(always)]
    pub(crate) fn get(&mut self, get: &Get) -> Got {
        let got = self.store.get(get);
        self.reads += u32::from(matches!(got, Got::Read(_)));
        got
    }

    /// The same for a client that looks at everything.
    pub(crate) fn inspect(&mut self, get: &Get) -> Got {
        let got = self.store.inspect(get);
        self.reads += u32::from(matches!(got, Got::Read(_)));
        got
    }

    /// So many of clients' reads have ended, which hold the same.
    #[inline]
    pub(crate) fn reads_ended(&mut self, id: ReadId, count: u32, outcome: Outcome) {
        let left = self.reads.checked_sub(count);
        self.reads = left.expect("invariant 1: more ends than reads");
        self.store.reads_ended(id, count, outcome);
        if outcome == Outcome::Failed(Status::DeviceGone.number()) {
            self.state = State::Gone;
            self.dirty = true;
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.state == State::Gone
    }

    /// Counts a get of a member whose device is gone.
    ///
    /// # Errors
    /// DEVICE_GONE, of such a member.
    pub(crate) fn open_to_gets(&mut self) -> Result<(), Status> {
        if !self.is_gone() {
            return Ok(());
        }
        self.counters.misses_drive_gone += 1;
        self.dirty = true;
        Err(Status::DeviceGone)
    }

    /// Requests that wait for room.
    pub(crate) fn lines(&mut self) -> &mut Lines {
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
        (self.dirty, self.active_ns) = (true, now_ns);
    }

    pub(crate) fn count_request(&mut self) {
        self.requests += 1;
    }

    pub(crate) fn count_answer(&mut self) {
        let left = self.requests.checked_sub(1);
        self.requests = left.expect("invariant 1: more answers than requests");
    }

    /// What a handle means to it. INVALID: nothing was ever granted. STALE: the namespace is gone.
    #[inline(always)]
    pub(crate) fn resolve(&mut self, session: SessionSlot, handle: u16) -> Result<Grant, Status> {
        let grant = self.grants.at(session, handle).ok_or(Status::Invalid)?;
        if grant.life == self.life { Ok(*grant) } else { self.resolve_anew(session, handle) }
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
        grant.life = self.life;
        Ok(*grant)
    }

    /// Has a handle mean a namespace of this life of a store, whatever the store is doing.
    #[cfg(test)]
    pub(crate) fn grant_unchecked(&mut self, session: SessionSlot, handle: u16, life: u32) {
        let (space, permit) = (SpaceId::NONE, crate::store_call::Permit::Write);
        let grant = Grant { space, uid: u64::from(handle), life, permit };
        *self.grants.at(session, handle).expect("a handle that can be") = grant;
    }

    /// The namespace that a handle means; nothing where that is not known at once.
    #[inline(always)]
    pub(crate) fn space(&mut self, session: SessionSlot, handle: u16) -> Option<SpaceId> {
        let grant = self.grants.at(session, handle)?;
        (grant.life == self.life && self.state != State::Gone).then_some(grant.space)
    }

    /// Whether the store has room for one more of this request's session.
    pub(crate) fn has_room(&self, asked: &StoreRequest) -> bool {
        let owner = u16::from(asked.client.session.0);
        match asked.ask {
            BlockCommand::Put { at: 0, block_bytes, .. } => {
                let whole = asked.bytes == block_bytes;
                self.store.has_place(owner, if whole { Place::Block } else { Place::Incomplete })
            }
            BlockCommand::Drop { .. } => self.store.has_place(owner, Place::Drop),
            BlockCommand::Put { .. } | BlockCommand::Get(_) => true, // the store says so
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
    pub(crate) fn give(&mut self, pending: &Pending, metadata: &[u8], now: Now) -> Begun {
        let (user, owner) = (pending.id.to_u64(), u16::from(pending.asked().client.session.0));
        let StoreRequest { space, key, durability, bytes, .. } = *pending.asked();
        self.touch(now.ns);
        match pending.asked().ask {
            BlockCommand::Put { chain, depth, block_bytes: length, at, check } => {
                let put = Put {
                    user,
                    owner,
                    space,
                    key,
                    length,
                    at,
                    bytes,
                    check,
                    chain,
                    depth,
                    hint: Hint::default(),
                    durability,
                    metadata,
                };
                self.store.put(&put, now)
            }
            BlockCommand::Get(_) => unreachable!("the store has said where the block is"),
            BlockCommand::Drop { only } => {
                let drop = DropKey { user, owner, space, key, only, durability };
                self.store.drop_key(&drop, now)
            }
        }
    }

    /// A session is gone.
    pub(crate) fn forget(&mut self, session: SessionSlot, now_ns: u64) {
        self.store.owner_gone(session.0.into());
        self.grants.forget(session);
        self.touch(now_ns);
    }

    /// A task has ended at the device.
    pub(crate) fn task_ended(&mut self, status: Status, now_ns: u64) {
        let left = self.in_flight.checked_sub(1);
        self.in_flight = left.expect("invariant 1: more ends than tasks");
        if status == Status::DeviceGone {
            self.state = State::Gone;
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
        let id = own_id(tag);
        if self.discarding.goes_on(id, status) {
            return;
        }
        self.finish(id, outcome(status), now);
    }

    /// Whether a step is due.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.dirty || now_ns >= self.due_ns || self.requests > 0
    }

    /// Goes on with everything that can go on.
    pub(crate) fn step(&mut self, now: Now) {
        self.dirty = false;
        let serving = self.store.phase() == Phase::Serving;
        let budget = if serving { BUDGET } else { BUDGET_WARMING };
        self.look_at_suspects(now);
        self.store.step(&self.pool, budget, now);
        let after_ns = match self.phase() {
            Phase::Starting | Phase::Warming => 0,
            _ if self.store.is_walking() => STEP_NS,
            _ => SLEEP_NS,
        };
        self.due_ns = now.ns + after_ns;
    }

    /// Whether the poller must not sleep: the store works, and waits for no device.
    pub(crate) fn is_working(&self) -> bool {
        let works = match self.phase() {
            Phase::Starting | Phase::Warming => true,
            Phase::Serving => {
                self.requests > 0 || !self.suspects.is_empty() || !self.listings.is_empty()
            }
            Phase::Failed(_) => false,
        };
        works && self.in_flight == 0 && self.state == State::Running
    }

    /// How long the poller may sleep.
    pub(crate) fn sleep_ns(&self, now_ns: u64) -> u64 {
        match self.phase() {
            _ if self.state == State::Gone => u64::MAX,
            Phase::Starting | Phase::Warming => SLEEP_STARTING_NS,
            Phase::Failed(_) => u64::MAX,
            Phase::Serving if self.requests > 0 => STEP_NS,
            Phase::Serving => self.sleep_idle_ns(now_ns.saturating_sub(self.active_ns)),
        }
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
        let never = matches!(self.phase(), Phase::Starting | Phase::Failed(_)) || self.is_gone();
        if never || self.store.is_written() {
            return true;
        }
        self.store.hurry();
        self.dirty = true;
        false
    }

    /// Asks nothing more of the device.
    pub(crate) fn stop(&mut self) {
        self.state = State::Stopped;
    }

    /// Whether it asks nothing, and nothing is in flight.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state == State::Stopped && self.in_flight == 0
    }

    /// Clients' requests that are not answered.
    pub(crate) fn requests(&self) -> u32 {
        self.requests + self.reads
    }

    /// Tasks at the device, or on their way there, beside clients' own.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The next answer of the store's that is a client's.
    pub(crate) fn next_reply(&mut self) -> Option<Reply> {
        loop {
            let reply = self.store.next_reply()?;
            match reply.user {
                USER_CALL => self.call_answered(&reply),
                USER_CORRUPT => {}
                _ => return Some(reply),
            }
        }
    }

    /// Has the sidecar look at a block that a reader found wrong. False: there is no room.
    pub(crate) fn suspect(&mut self, report: Report, now_ns: u64) -> Option<bool> {
        if !self.suspects.has_room() {
            return None;
        }
        let noted = self.store.suspect(report.space, report.key, report.check);
        if noted {
            self.suspects.push(report);
            self.touch(now_ns);
        }
        Some(noted)
    }

    /// Counts the report of a session that may not write: whoever may only read changes nothing.
    pub(crate) fn count_ignored(&mut self) {
        self.counters.ignored += 1;
    }

    fn look_at_suspects(&mut self, now: Now) {
        if self.suspects.is_empty() || self.state != State::Running {
            return;
        }
        let get = |report: &Report, extent| Get { space: report.space, key: report.key, extent };
        if let Some(report) = self.suspects.unseen() {
            let whole = kvrail_store::Extent::Whole { capacity: 0 };
            match self.store.inspect(&get(&report, whole)) {
                Got::Done(answer)
                    if answer.status == kvrail_store::Status::TooSmall
                        && answer.check == report.check =>
                {
                    self.suspects.begin(answer.length);
                }
                _ => self.suspects.pop(),
            }
        }
        if self.suspects.is_there() {
            self.add_up(now);
        }
        if let Some((report, at, bytes)) = self.suspects.next() {
            let part = kvrail_store::Extent::Part { at, bytes };
            match self.store.inspect(&get(&report, part)) {
                Got::Read(reading) => self.suspects.found(reading),
                Got::Done(_) => self.suspects.pop(),
            }
        }
    }

    /// Adds up what was read of a reported block, and judges.
    fn add_up(&mut self, now: Now) {
        let report = self.suspects.first().expect("it was read for one");
        let view = self.store.spaces().find(|view| view.id == report.space);
        let Some(uid) = view.map(|view| view.uid) else { return self.suspects.pop() };
        let Self { suspects, pool, .. } = self;
        match suspects.add(uid, |bytes| pool.load_suspect(bytes)) {
            Verdict::Open => {}
            Verdict::Right => {
                self.suspects.pop();
                self.store.absolve(report.space, report.key, report.check);
                self.counters.verified_good += 1;
                self.false_reporter = Some(report.reporter);
            }
            Verdict::Wrong => self.drop_corrupt(&report, now),
        }
        self.dirty = true;
    }

    /// The session whose report was false, to be counted.
    pub(crate) fn take_false_reporter(&mut self) -> Option<SessionSlot> {
        self.false_reporter.take()
    }

    /// A block that was wrong, to be told.
    pub(crate) fn take_corrupt(&mut self) -> Option<CorruptBlock> {
        self.corrupt_block.take()
    }

    fn drop_corrupt(&mut self, report: &Report, now: Now) {
        let offset = self.suspects.place();
        let view = self.store.spaces().find(|view| view.id == report.space);
        let name = view.map_or(&[][..], |view| view.name);
        let (device, key) = (self.device.into(), report.key);
        self.corrupt_block = Some(CorruptBlock::new(device, name, key, offset));
        self.suspects.pop();
        self.counters.corrupt += 1;
        let drop = DropKey {
            user: USER_CORRUPT,
            owner: SIDECAR.0.into(),
            space: report.space,
            key: report.key,
            only: Some(report.check),
            durability: kvrail_store::Durability::Soon,
        };
        // Without room it stays, and is reported again.
        let _begun = self.store.drop_key(&drop, now);
    }

    /// The read of a piece of a reported block has ended.
    fn suspect_read(&mut self, outcome: Outcome, now: Now) {
        let Some((report, reading)) = self.suspects.reading() else { return };
        self.store.read_ended(reading.id, outcome);
        let answer = reading.ended(outcome);
        let same = answer.check == report.check;
        match answer.status {
            kvrail_store::Status::Ok if same => self.suspects.there(),
            kvrail_store::Status::Failed(_) if same => self.drop_corrupt(&report, now),
            _ => self.suspects.pop(),
        }
        self.dirty = true;
    }

    /// Whether the device is gone, nothing is in flight any more, and what is left is not ended.
    pub(crate) fn take_sweep(&mut self) -> Due {
        if self.state != State::Gone || self.in_flight + self.reads > 0 || self.swept {
            return Due::No;
        }
        self.swept = true;
        self.suspects.clear();
        Due::Now
    }

    /// Shows its counters, now and then.
    pub(crate) fn show(&mut self, stats: &StoreStats, now_ns: u64) {
        if now_ns < self.shown_ns + SHOW_NS {
            return;
        }
        self.shown_ns = now_ns;
        let phase = match self.phase() {
            _ if self.state == State::Gone => 5,
            Phase::Starting => 1,
            Phase::Warming => 2,
            Phase::Serving => 3,
            Phase::Failed(_) => 4,
        };
        stats.phase.set(phase);
        stats.show(self.store.stats());
        stats.refused.set(self.store.refusal().map_or(0, u64::from));
        let budget = match self.store.budget() {
            Budget::Unlimited => 0,
            // A budget of nothing is one.
            Budget::BytesPerDay(bytes) => bytes.max(1),
        };
        self.counters = ServingCounters {
            budget_bytes_per_day: budget,
            write_tokens: u64::try_from(self.store.write_tokens()).unwrap_or(0),
            requests: self.requests().into(),
            parked: self.lines.count() as u64,
            ..self.counters
        };
        show_all(stats.counters.serving.each(), self.counters.each());
        stats.show_pools(&self.store);
        stats.entries.set(self.store.entries());
        stats.bytes.set(self.store.bytes());
        stats.holds.set(self.store.holds().into());
        stats.oldest.set(self.store.oldest().unwrap_or(0).into());
    }
}
