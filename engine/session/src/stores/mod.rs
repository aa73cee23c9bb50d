//! Namespaces of the stores: opened, cleared, removed and listed on all members alike.
//!
//! The control thread keeps each member's last state. One request of a store is at work at a time,
//! because a member changes one namespace at a time; those of other stores go on meanwhile.
//! Messages of the session socket and results of pollers meet here and nowhere else.

mod call_failure;
mod calls;
mod explain;
mod handles;
mod history;
mod identity;
mod job;
mod late_losses;
mod listings;
mod memory_hits;
mod reading;
mod refusals;
mod report;
mod requests;
mod sample;
mod served;
mod summary;
mod tiers;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use kvrail_memory::{Pinned, Region};
use kvrail_poller::{
    PollerHandle, SessionSlot, SpaceRecord, StoreAsk, StoreCall, StoreFound, presence_witness,
};
use kvrail_protocol::{ControlReply, ControlRequest};
use kvrail_ring::Status;
use kvrail_store::{Members, Sizing, Start, Store as Shards};

use call_failure::failure;
use calls::Calls;
use handles::{Handles, PoolPlace};
use history::History;
use job::{Asker, Create, JobStage, MemberCopy, NextStep, StoreJob, Wish};
use late_losses::LateLosses;
use listings::{Listings, PendingListing};
use memory_hits::MemoryHits;
use refusals::RefusalLog;
use requests::wish;
pub use served::{ServedShard, ServedStore, ServedTier, memory_tier, presence_table};
use summary::list;

use crate::audit::AUDIT;
use crate::failure::{Failure, invalid, quota};
use crate::policy::WriteBudget;
use crate::pollers::{PollerSet, Pollers};
use crate::pools::{PoolSize, pools_fit};
use crate::rate::RateLimit;
use crate::reply::Reply;
use crate::session::Session;
use crate::tenants::Rights;
use crate::watch::Watch;

/// Requests about namespaces that one session may have waiting.
const JOBS_OF_ONE: usize = 32;

/// Lines about namespaces that are made, cleared and removed, at once; then one a second.
const LINES: u32 = 32;

/// A member of a store.
#[derive(Debug)]
struct Shard {
    served: ServedShard,
    sizing: Sizing,
    poller: usize,
    /// Its device's number there.
    device: usize,
    /// Its last list of namespaces; `None` where it may have changed since.
    spaces: Option<Vec<SpaceRecord>>,
    mark: u64,
    /// A log line about blocks too small for its index was written.
    logged_small: bool,
    refusals: RefusalLog,
}

impl Shard {
    fn spaces(&self) -> impl Iterator<Item = &SpaceRecord> {
        self.spaces.iter().flatten()
    }

    fn find(&self, name: &str) -> Option<&SpaceRecord> {
        self.spaces().find(|space| space.name == name)
    }
}

/// A store, with the requests to it.
#[derive(Debug)]
struct StoreJobs {
    volume: u16,
    name: String,
    shards: Vec<Shard>,
    /// The first one is at work.
    jobs: VecDeque<StoreJob>,
    /// They go on beside the requests.
    listings: Listings,
    history: History,
}

impl StoreJobs {
    /// Pollers that the first request and the listing at work wait for.
    fn waits_for(&self) -> PollerSet {
        let waiting = self.jobs.front().into_iter().flat_map(|job| job.waiting.iter().copied());
        let waiting = waiting.chain(self.listings.member());
        waiting.fold(PollerSet::default(), |set, shard| set.with(self.shards[shard].poller))
    }
}

/// All stores.
#[derive(Debug)]
pub(crate) struct Stores {
    stores: Vec<StoreJobs>,
    calls: Calls,
    handles: Handles,
    /// The user that made each namespace, by volume and name, since this sidecar began.
    makers: BTreeMap<(u16, String), u32>,
    /// Memory in which sessions name what they read in place.
    holds: BTreeMap<u64, Arc<Region>>,
    memory_hits: MemoryHits,
    log: RateLimit,
    losses: LateLosses,
}

impl Stores {
    /// # Errors
    /// In words, when a member is with no poller or its sizes are those of no store.
    pub(crate) fn new(
        served: Vec<ServedStore>,
        pollers: &[PollerHandle],
        name: impl Fn(u16) -> String,
    ) -> Result<Self, String> {
        let store = |served: ServedStore| {
            let name = name(served.volume);
            let shard = |served: ServedShard| shard(served, pollers, &name);
            let shards: Vec<_> = served.shards.into_iter().map(shard).collect::<Result<_, _>>()?;
            let (listings, history) = (Listings::default(), History::new(shards.len()));
            let (volume, jobs) = (served.volume, VecDeque::new());
            Ok(StoreJobs { volume, name, shards, jobs, listings, history })
        };
        let stores: Vec<_> = served.into_iter().map(store).collect::<Result<_, String>>()?;
        let has_store = |poller: usize| {
            stores.iter().flat_map(|store| &store.shards).any(|shard| shard.poller == poller)
        };
        let with_store = pollers.iter().enumerate().filter(|(poller, _)| has_store(*poller));
        with_store.for_each(|(_, handle)| handle.mailbox.lend_batches());
        Ok(Self {
            stores,
            calls: Calls::new(pollers.len()),
            handles: Handles::default(),
            makers: BTreeMap::new(),
            holds: BTreeMap::new(),
            memory_hits: MemoryHits::default(),
            log: RateLimit::with_burst(LINES),
            losses: LateLosses::default(),
        })
    }

    /// Sets the write budgets of members, by their volumes' ids.
    pub(crate) fn set_budgets(&mut self, budgets: &[WriteBudget], pollers: &mut Pollers) {
        for (volume, _) in budgets.iter().enumerate().filter(|(_, it)| **it != WriteBudget::Rated) {
            if !self.stores.iter().any(|store| usize::from(store.volume) == volume) {
                tracing::warn!("volume {volume} is no store: its write_budget limits nothing");
            }
        }
        for (at, store) in self.stores.iter_mut().enumerate() {
            let budget = budgets.get(usize::from(store.volume)).copied().unwrap_or_default();
            for (place, shard) in store.shards.iter_mut().enumerate() {
                let budget = budget.of(shard.sizing.capacity_bytes, shard.served.rated);
                if shard.served.config.budget != budget {
                    // A store that starts again takes it from its configuration.
                    shard.served.config.budget = budget;
                    let call = StoreCall::new(0, StoreAsk::Budget(budget));
                    let poller = (shard.poller, shard.device);
                    self.calls.send((at, place), poller, call, pollers);
                }
            }
        }
    }

    /// Sets the sizes of stores' pools, by their volumes' ids.
    pub(crate) fn set_pools(&mut self, pools: &[Vec<PoolSize>], pollers: &mut Pollers) {
        for (at, store) in self.stores.iter_mut().enumerate() {
            let Some(sizes) = pools.get(usize::from(store.volume)) else { continue };
            let members = store.shards.len();
            for (place, shard) in store.shards.iter_mut().enumerate() {
                let mut rules = shard.served.pools.clone();
                for (rule, size) in rules.iter_mut().zip(sizes) {
                    rule.limits = size.limits(&shard.sizing, members);
                }
                if rules == shard.served.pools {
                    continue;
                }
                if let Err(why) = pools_fit(&rules, shard.sizing.segments) {
                    let name = &store.name;
                    tracing::error!("store {name}: member {place}: pools stay as they were: {why}");
                    continue;
                }
                let limits = rules.iter().map(|rule| rule.limits).collect();
                // A store that starts again takes it from its rules.
                shard.served.pools = rules;
                let call = StoreCall::new(0, StoreAsk::Pools(limits));
                self.calls.send((at, place), (shard.poller, shard.device), call, pollers);
            }
        }
    }

    fn position(&self, volume: u16) -> Result<usize, Failure> {
        self.stores.iter().position(|store| store.volume == volume).ok_or_else(|| {
            invalid(format!(
                "volume {volume} is no store, so it has no namespaces; `kvrail volume create \
                 --kind store` makes one"
            ))
        })
    }

    /// The presence tables of a store, in the order of its members.
    pub(crate) fn show_presence(
        &self,
        (session, seq): (u64, u64),
        volume: u16,
    ) -> Result<Reply, Failure> {
        let store = &self.stores[self.position(volume)?];
        // They show fingerprints of all keys. The open of a namespace checked the rights.
        if !self.handles.has_any(session, volume) {
            let message = "presence tables need an open namespace of the store; open one first";
            return Err((Status::Denied, message.into()));
        }
        let regions = store.shards.iter().map(|shard| shard.served.presence.as_ref());
        let (members, fds) = shown(regions)?;
        Ok(Reply::new(session, seq, ControlReply::Presence { members }).with_fds(fds))
    }

    /// Begins a session's request. Returns the answers that are due now, of others too.
    pub(crate) fn ask(
        &mut self,
        (of, slot): (&Session, Option<SessionSlot>),
        seq: u64,
        ask: ControlRequest,
        rights: impl Fn(u16) -> Rights,
        pollers: &mut Pollers,
    ) -> Result<Vec<Reply>, Failure> {
        let session = of.id();
        let (volume, wish) = match ask {
            ControlRequest::Events { volume, since } => {
                self.hear_all_gone(pollers.handles());
                let mut page = self.stores[self.position(volume)?].history.since(since)?;
                if !rights(volume).read_all() {
                    page.events.retain(|event| self.handles.has_opened(session, event.uid));
                }
                return Ok(vec![Reply::new(session, seq, ControlReply::Events(page))]);
            }
            other => wish(other, rights)?,
        };
        let at = self.position(volume)?;
        let all = self.stores.iter().flat_map(|store| &store.jobs);
        let own = all.filter(|job| job.asker.is_some_and(|asker| asker.session == session));
        let listings = self.stores.iter().map(|store| store.listings.of(session));
        if own.count() + listings.sum::<usize>() >= JOBS_OF_ONE {
            return Err(quota(format!(
                "this client has {JOBS_OF_ONE} requests about namespaces waiting, the most it may \
                 have; wait for their answers"
            )));
        }
        let asker = Asker { session, seq, slot, uid: of.peer().uid };
        self.stores[at].jobs.push_back(StoreJob::new(asker, of.describe(), wish));
        Ok(self.advance(at, pollers))
    }

    /// A call has come back. The answers that are due now.
    pub(crate) fn called(
        &mut self,
        poller: usize,
        mut call: Box<StoreCall>,
        pollers: &mut Pollers,
    ) -> Vec<Reply> {
        self.take_evictions(poller, &pollers.handles()[poller]);
        let Some((at, place)) = self.calls.ended(poller, call.number, pollers) else {
            return Vec::new();
        };
        let store = &mut self.stores[at];
        let shard = &mut store.shards[place];
        let failure = failure((&store.name, place), shard.served.config.spaces, &call);
        match call.ask {
            StoreAsk::Survey if failure.is_none() => {
                shard.spaces = Some(std::mem::take(&mut call.spaces));
                shard.mark = call.uid_mark;
            }
            StoreAsk::Restart(_) => {
                shard.spaces = None;
                store.history.began_anew(place);
                match failure {
                    None => tracing::warn!("store {}: member {place} starts again", store.name),
                    Some((_, why)) => tracing::error!("{why}"),
                }
                return Vec::new();
            }
            StoreAsk::Budget(_) | StoreAsk::Pools(_) => return Vec::new(),
            StoreAsk::List { .. } => return self.listed(at, (place, failure), &call, pollers),
            StoreAsk::Explain { .. } => {
                let job = store.jobs.front_mut();
                job.into_iter().for_each(|job| {
                    job.found = std::mem::replace(&mut call.found, StoreFound::Nothing)
                });
            }
            _ => {}
        }
        if failure.is_some() {
            // Its device may have been away: its old state may not hold.
            shard.spaces = None;
        }
        if let Some(job) = store.jobs.front_mut() {
            job.waiting.retain(|waiting| *waiting != place);
            job.failure = job.failure.take().or(failure);
        }
        self.advance(at, pollers)
    }

    /// Goes on with a store's requests as far as it can now.
    fn advance(&mut self, at: usize, pollers: &mut Pollers) -> Vec<Reply> {
        let mut replies = Vec::new();
        loop {
            let store = &mut self.stores[at];
            let Some(job) = store.jobs.front_mut().filter(|job| job.waiting.is_empty()) else {
                return replies;
            };
            let outcome = match job.failure.take() {
                Some(failure) => Some(Err(failure)),
                None => self.step(at, pollers),
            };
            let Some(outcome) = outcome else { continue };
            let job = self.stores[at].jobs.pop_front().expect("it was at work");
            let Some(Asker { session, seq, .. }) = job.asker else { continue };
            replies.extend(match outcome {
                Ok(JobEnd::ControlReply(answer)) => vec![Reply::new(session, seq, answer)],
                Ok(JobEnd::Listing(listing)) => {
                    self.stores[at].listings.push(*listing);
                    self.go_on_listing(at, pollers)
                }
                Err(failure) => vec![Reply::failure(session, seq, failure)],
            });
        }
    }

    /// One step of the first request: its end, or `None` while members have requests in flight.
    fn step(&mut self, at: usize, pollers: &mut Pollers) -> Option<Result<JobEnd, Failure>> {
        let store = &mut self.stores[at];
        let job = store.jobs.front_mut()?;
        if let JobStage::Granting { handle, uid } = job.stage {
            let created = job.created;
            return Some(Ok(JobEnd::ControlReply(ControlReply::Namespace {
                handle,
                uid,
                created,
            })));
        }
        // Namespaces in a list, or removed because they are empty, are counted again.
        let counted =
            matches!(job.wish, Wish::List { .. } | Wish::Remove { otherwise: Some(_), .. });
        if counted && job.stage == JobStage::New {
            job.stage = JobStage::Changing;
            store.shards.iter_mut().for_each(|shard| shard.spaces = None);
        }
        let unknown = store.shards.iter().enumerate().filter(|(_, shard)| shard.spaces.is_none());
        let unknown: Vec<_> = unknown.map(|(place, _)| (place, StoreAsk::Survey)).collect();
        if !unknown.is_empty() {
            self.send(at, unknown, pollers);
            return None;
        }
        if let Wish::List { rights } = &job.wish {
            let spaces = store.shards.iter().flat_map(Shard::spaces);
            let mut all = list(spaces, |name| self.memory_hits.of(store.volume, name));
            all.retain(|space| rights.of(&space.name).is_some());
            return Some(Ok(JobEnd::ControlReply(ControlReply::Namespaces(all))));
        }
        if let Err(failure) = may_go_on(job, (store.volume, &store.shards), &self.makers) {
            return Some(Err(failure));
        }
        let name = job.wish.name()?;
        let seen = |shard| MemberCopy { space: Shard::find(shard, name), mark: shard.mark };
        let seen: Vec<_> = store.shards.iter().map(seen).collect();
        let first = store.shards.first();
        let members = first.map_or(Members::NONE, |shard| shard.served.restart.members());
        match job.next(&seen, members) {
            NextStep::ControlRequest(asks) => {
                self.send(at, asks, pollers);
                None
            }
            NextStep::Agreed { uid } => {
                Some(self.agreed(at, uid, pollers)?.map(JobEnd::ControlReply))
            }
            NextStep::Gone => {
                let name = job.name().unwrap_or_default();
                self.makers.remove(&(store.volume, name.into()));
                self.memory_hits.forget(store.volume, name);
                log_change(&mut self.log, &store.name, job, "removed");
                Some(Ok(JobEnd::ControlReply(ControlReply::NamespaceRemoved)))
            }
            NextStep::List { name, from } => {
                let listing = job.asker.map(|asker| PendingListing::new(asker, name, from));
                Some(
                    listing
                        .map(|listing| JobEnd::Listing(Box::new(listing)))
                        .ok_or_else(session_gone),
                )
            }
            NextStep::Explained { member, uid, key } => {
                let device = store.shards[member].served.device.0;
                let event = store.history.latest(uid, key.bits());
                let place = (u16::try_from(member).unwrap_or(u16::MAX), device);
                let remembered = store.history.remembered(key.bits());
                let report = explain::report(place, &job.found, event, remembered);
                let report = report.ok_or_else(|| (Status::Internal, "no explanation".into()));
                Some(report.map(|report| JobEnd::ControlReply(ControlReply::Key(Box::new(report)))))
            }
            NextStep::Refuse(failure) => Some(Err(failure)),
        }
    }

    /// All members have the namespace with this uid.
    fn agreed(
        &mut self,
        at: usize,
        uid: u64,
        pollers: &mut Pollers,
    ) -> Option<Result<ControlReply, Failure>> {
        let store = &mut self.stores[at];
        let job = store.jobs.front_mut()?;
        let name = job.name().unwrap_or_default().to_owned();
        if job.stage == JobStage::Changing {
            let what = match (job.created, &job.wish) {
                (true, _) => "made",
                (false, Wish::Clear { .. }) => {
                    store.history.cleared(uid);
                    self.memory_hits.forget(store.volume, &name);
                    "cleared"
                }
                // A drive was replaced.
                (false, _) => "made again on members that lacked it",
            };
            log_change(&mut self.log, &store.name, job, what);
            if let (true, Some(asker)) = (job.created, job.asker) {
                self.makers.insert((store.volume, name.clone()), asker.uid);
            }
        }
        self.memory_hits.begin(store.volume, &name);
        let asker = job.asker;
        let Wish::Open { permit, .. } = job.wish else {
            let session = asker.map_or(0, |asker| asker.session);
            let handle = self.handles.known(session, (store.volume, &name)).unwrap_or(u16::MAX);
            return Some(Ok(ControlReply::Namespace { handle, uid, created: false }));
        };
        // The session that it would be opened for is gone.
        let Some(Asker { session, slot: Some(slot), .. }) = asker else {
            return Some(Err(session_gone()));
        };
        let known = (uid, pool_of(&store.shards, &name));
        let handle = match self.handles.of(session, (store.volume, &name), known) {
            Ok(handle) => handle,
            Err(failure) => return Some(Err(failure)),
        };
        job.stage = JobStage::Granting { handle, uid };
        let spaces = store.shards.iter().filter_map(|shard| shard.find(&name));
        let grant = |record: &SpaceRecord| StoreAsk::Grant {
            session: slot,
            handle,
            space: record.id,
            permit,
        };
        let grants = spaces.map(grant).enumerate().collect();
        self.send(at, grants, pollers);
        None
    }

    /// Sends the first request's calls to members.
    fn send(&mut self, at: usize, asks: Vec<(usize, StoreAsk)>, pollers: &mut Pollers) {
        let Self { stores, calls, .. } = self;
        let store = &mut stores[at];
        for (place, ask) in asks {
            let shard = &mut store.shards[place];
            let room = match ask {
                StoreAsk::Survey => shard.served.config.spaces as usize,
                StoreAsk::Grant { .. } | StoreAsk::Explain { .. } => 0,
                _ => {
                    // Its state is read again afterwards.
                    shard.spaces = None;
                    0
                }
            };
            if let Some(job) = store.jobs.front_mut() {
                job.waiting.push(place);
            }
            let call = StoreCall::with_room(0, ask, room);
            calls.send((at, place), (shard.poller, shard.device), call, pollers);
        }
    }

    /// The device of a poller is back after it was gone: its store starts again.
    pub(crate) fn replaced(&mut self, poller: usize, device: usize, pollers: &mut Pollers) {
        for (at, store) in self.stores.iter_mut().enumerate() {
            let here = |shard: &Shard| (shard.poller, shard.device) == (poller, device);
            let Some(place) = store.shards.iter().position(here) else { continue };
            let shard = &mut store.shards[place];
            shard.spaces = None;
            let start: Start = shard.served.restart;
            let Ok(mut anew) = Shards::new(&shard.served.config) else { continue };
            anew.set_pools(shard.served.pools.clone());
            // The earlier table is stale once its store is dropped.
            shard.served.presence = match presence_table(&shard.sizing) {
                Ok(region) => {
                    anew.set_witness(presence_witness(&(Arc::clone(&region) as Arc<dyn Pinned>)));
                    Some(region)
                }
                Err(error) => {
                    tracing::warn!("store {}: no presence table: {error}", store.name);
                    None
                }
            };
            let mut call = StoreCall::new(0, StoreAsk::Restart(start));
            call.store = Some(Box::new(anew));
            self.calls.send((at, place), (poller, device), call, pollers);
        }
    }

    /// A session has ended: its requests get no answer, and open nothing at its place in the
    /// pollers' tables, where it had one.
    pub(crate) fn session_ended(&mut self, session: u64, slot: Option<SessionSlot>) {
        self.handles.forget(session);
        self.end_holds(session);
        slot.into_iter().for_each(|slot| self.calls.revoke(slot));
        for store in &mut self.stores {
            store.listings.forget(session);
            let mut first = true;
            store.jobs.retain_mut(|job| {
                let is_first = std::mem::take(&mut first);
                let own = job.asker.is_some_and(|asker| asker.session == session);
                if own {
                    job.asker = None;
                }
                is_first || !own
            });
        }
    }

    /// Answers what only stalled pollers keep from being answered.
    pub(crate) fn answer_past(&mut self, watch: &Watch) -> Vec<Reply> {
        let stalled = watch.stalled();
        let mut replies = Vec::new();
        for store in self.stores.iter_mut().filter(|store| store.waits_for().is_some_of(stalled)) {
            let words = watch.words(store.waits_for());
            let mut askers = store.listings.give_up();
            let mut first = true;
            store.jobs.retain_mut(|job| {
                askers.extend(job.asker.take());
                // A job that was begun is waited for.
                std::mem::take(&mut first)
            });
            replies.extend(askers.into_iter().map(|Asker { session, seq, .. }| {
                let message = format!(
                    "store {}: {words} does not turn, and has a member of it; ask again when it \
                     does (see `kvrail status`)",
                    store.name
                );
                Reply::failure(session, seq, (Status::DeviceDegraded, message))
            }));
        }
        replies
    }
}

/// The result of a request.
#[derive(Debug)]
enum JobEnd {
    ControlReply(ControlReply),
    /// It goes on as a listing.
    Listing(Box<PendingListing>),
}

/// Logs a change of a namespace, and its user. Clients make, clear and remove at any rate, so lines
/// that come too fast are only counted.
fn log_change(log: &mut RateLimit, store: &str, job: &StoreJob, what: &str) {
    if let Some(suppressed) = log.admit(Instant::now()) {
        let (by, name) = (&job.by, job.name().unwrap_or_default());
        tracing::info!(target: AUDIT, by, suppressed, "store {store}: namespace {name:?} {what}");
    }
}

impl Stores {
    /// Logs for each member when its drive begins to refuse writes, and when it takes them again.
    pub(crate) fn look_at_refusals(&mut self, handles: &[PollerHandle], now: Instant) {
        for store in &mut self.stores {
            for shard in &mut store.shards {
                let handle = &handles[shard.poller];
                let refused = handle.stats.devices[shard.device].store.refused.get();
                let status = u16::try_from(refused).ok().filter(|code| *code != 0);
                let device = &handle.devices[shard.device].1.name;
                shard.refusals.log(&store.name, device, status, now);
            }
        }
    }
}

/// Whether the states of all members allow a request to go on: room for a new namespace, and, for a
/// client with write permission only, that it made the namespace that it removes.
fn may_go_on(
    job: &mut StoreJob,
    (volume, shards): (u16, &[Shard]),
    makers: &BTreeMap<(u16, String), u32>,
) -> Result<(), Failure> {
    match &mut job.wish {
        Wish::Open { name, create: Create::Allowed, rights, .. } if job.stage == JobStage::New => {
            let is_new = shards.iter().all(|shard| shard.find(name).is_none());
            let room = shards.first().map_or(0, |shard| shard.served.config.spaces as usize);
            let all = || list(shards.iter().flat_map(Shard::spaces), |_| 0);
            if is_new { rights.check_room(name, &all(), room) } else { Ok(()) }
        }
        Wish::Remove { name, otherwise } => {
            let Some(failure) = otherwise.take() else { return Ok(()) };
            job.stage = JobStage::New; // it was counted, and nothing has changed
            let made = makers.get(&(volume, name.clone())).copied();
            let own = made.is_some() && made == job.asker.map(|asker| asker.uid);
            let has_blocks = |shard: &Shard| shard.find(name).is_some_and(|space| space.blocks > 0);
            if own || !shards.iter().any(has_blocks) { Ok(()) } else { Err(failure) }
        }
        _ => Ok(()),
    }
}

/// The session of the request is gone.
fn session_gone() -> Failure {
    (Status::Internal, "its asker is gone".into())
}

fn shard(served: ServedShard, pollers: &[PollerHandle], store: &str) -> Result<Shard, String> {
    let mut all = pollers.iter().enumerate().flat_map(|(poller, handle)| {
        handle.devices.iter().enumerate().map(move |(device, (index, _))| (poller, device, *index))
    });
    let found = all.find(|(.., index)| *index == served.device);
    let (poller, device, _) =
        found.ok_or_else(|| format!("store {store}: no poller drives {}", served.device))?;
    let sizing = Sizing::of(&served.config).map_err(|error| format!("store {store}: {error}"))?;
    let refusals = RefusalLog::default();
    Ok(Shard {
        served,
        sizing,
        poller,
        device,
        spaces: None,
        mark: 0,
        logged_small: false,
        refusals,
    })
}

/// The sizes of members' memory, 0 where there is none, and the files of those that is there.
fn shown<'a>(
    regions: impl Iterator<Item = Option<&'a Arc<Region>>> + Clone,
) -> Result<(Vec<u64>, Vec<OwnedFd>), Failure> {
    let bytes = |region: Option<&Arc<Region>>| region.map_or(0, |region| region.bytes() as u64);
    let members = regions.clone().map(bytes).collect();
    let fds = regions.flatten().map(|region| region.fd().try_clone_to_owned());
    let fds = fds.collect::<Result<Vec<_>, _>>();
    let fds = fds.map_err(|error| (Status::Internal, format!("descriptors: {error}")))?;
    Ok((members, fds))
}

/// The pool of a namespace.
fn pool_of(shards: &[Shard], name: &str) -> PoolPlace {
    let mut members = shards.iter().enumerate();
    let place = |(member, shard): (usize, &Shard)| {
        shard.find(name).map(|space| PoolPlace { member, number: space.pool })
    };
    members.find_map(place).unwrap_or_default()
}
