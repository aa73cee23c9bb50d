//! Arenas and regions of GPU memory: made or imported, attached to every device, detached when
//! nothing can touch them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvrail_device::{BufferIndex, RemoteMemory};
use kvrail_memory::{MemoryError, PageSize, Pinned, Sealing};
use kvrail_poller::{PollerCommand, SessionSlot};
use kvrail_protocol::{ControlReply, GpuMemory, GpuRegionInfo, GpuRoute};
use kvrail_ring::limits::TAIL_BYTES;
use kvrail_ring::{RegionId, Status};

use crate::failure::{Failure, invalid, quota};
use crate::gpus::{ServedGpu, spec};
use crate::kept::Kept;
use crate::memory_worker::MemoryWorker;
use crate::policy::{Limits, PagePolicy};
use crate::pollers::{PollerSet, Pollers};
use crate::region_spec::{Built, Downgrade, Memory, RegionKey, RegionSpec};
use crate::region_table::{RegionEntries, RegionTable, Shortage};
use crate::reply::Reply;
use crate::watch::Watch;

/// Where its memory is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemorySource {
    /// Ours; the client gets the descriptor with the answer.
    Sidecar,
    /// The client's.
    Client,
    /// The client's, on the GPU of this place.
    Gpu(usize),
}

/// One arena, or one region of GPU memory.
#[derive(Debug)]
struct Arena {
    grant: RegionEntries,
    source: MemorySource,
    /// Its session's place in the pollers' tables.
    slot: SessionSlot,
    /// The thread that makes and closes its memory.
    worker: MemoryWorker,
    /// Kept until every poller has detached, and then a little longer for closing.
    memory: Option<Memory>,
    stage: ArenaStage,
}

/// Life of an arena. Answers go to the request with this `seq`; none where it was answered before.
#[derive(Debug)]
enum ArenaStage {
    /// A memory worker is at it.
    Building { seq: u64 },
    /// Pollers register it with their devices.
    Attaching(Attaching),
    /// A device refused it; those that took it give it back.
    Unwinding { seq: Option<u64>, waiting: PollerSet, failure: Failure },
    /// In use.
    Live,
    /// Pollers finish what uses it.
    Detaching { seq: Option<u64>, waiting: PollerSet },
    /// A memory worker closes handles of a GPU: only then may their owner free the memory.
    Closing { seq: Option<u64>, outcome: Result<(), Failure> },
}

#[derive(Debug)]
struct Attaching {
    seq: u64,
    note: Option<String>,
    waiting: PollerSet,
    took: PollerSet,
    failure: Option<Failure>,
}

impl Arena {
    fn gpu(&self) -> Option<usize> {
        match self.source {
            MemorySource::Sidecar | MemorySource::Client => None,
            MemorySource::Gpu(at) => Some(at),
        }
    }

    /// Whether a request waits for these pollers, and for no other.
    fn waits_only_for(&self, pollers: PollerSet) -> bool {
        match &self.stage {
            ArenaStage::Attaching(Attaching { waiting, .. })
            | ArenaStage::Unwinding { seq: Some(_), waiting, .. }
            | ArenaStage::Detaching { seq: Some(_), waiting } => waiting.is_some_of(pollers),
            _ => false,
        }
    }
}

/// Specification of a new region, within the limits. Without a seat yet, so that a refused request
/// takes none.
#[derive(Debug)]
pub(crate) struct Granted {
    grant: RegionEntries,
    source: MemorySource,
    material: Material,
}

impl Granted {
    /// The place of the GPU it is on.
    pub(crate) fn gpu(&self) -> Option<usize> {
        match self.source {
            MemorySource::Sidecar | MemorySource::Client => None,
            MemorySource::Gpu(at) => Some(at),
        }
    }
}

/// Descriptors of a client stay with the thread that closes them until a worker takes them.
#[derive(Debug)]
enum Material {
    New { bytes: usize, pages: PagePolicy },
    File { fds: Kept<Vec<OwnedFd>>, bytes: u64, sealing: Sealing },
    Gpu { info: GpuRegionInfo, fds: Kept<Vec<OwnedFd>> },
}

/// Memory of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RegionUse {
    pub(crate) arenas: usize,
    pub(crate) arena_bytes: u64,
    pub(crate) gpu_regions: usize,
    pub(crate) gpu_bytes: u64,
}

/// All arenas and GPU regions of all sessions.
#[derive(Debug)]
pub(crate) struct AttachedRegions {
    table: RegionTable,
    arenas: BTreeMap<RegionKey, Arena>,
    gpus: Vec<ServedGpu>,
    /// Bytes of the segments of each session's queues, which count as arenas' do.
    queues: BTreeMap<u64, u64>,
    /// Latest downgrade of memory, by kind.
    notes: BTreeMap<&'static str, String>,
}

impl AttachedRegions {
    /// Staging pools have the last `reserved` entries of the devices' buffer tables.
    pub(crate) fn new(bytes_max: u64, reserved: u16, gpus: Vec<ServedGpu>) -> Self {
        let (table, arenas) = (RegionTable::new(bytes_max, reserved), BTreeMap::new());
        Self { table, arenas, gpus, queues: BTreeMap::new(), notes: BTreeMap::new() }
    }

    /// Enters the present queue memory of all sessions.
    pub(crate) fn note_queues(&mut self, queues: BTreeMap<u64, u64>) {
        self.table.set_beside(queues.values().sum());
        self.queues = queues;
    }

    /// Checks the limits for the segment of one more queue.
    pub(crate) fn check_queue(
        &self,
        session: u64,
        bytes: u64,
        limits: &Limits,
    ) -> Result<(), Failure> {
        self.check_own(session, bytes, limits)?;
        let left = self.table.left();
        let short = (bytes > left).then_some(Shortage::Bytes(left));
        short.map_or(Ok(()), |short| Err(shortage(short, bytes, limits.arena_bytes_total)))
    }

    /// Checks that `bytes` more are within the limit of a session.
    fn check_own(&self, session: u64, bytes: u64, limits: &Limits) -> Result<(), Failure> {
        let most = limits.arena_bytes_per_session;
        let queues = self.queues.get(&session).copied().unwrap_or(0);
        let left = most.saturating_sub(self.used_by(session).arena_bytes + queues);
        if bytes <= left {
            return Ok(());
        }
        Err(quota(format!(
            "{bytes} bytes requested, {left} of this client's {most} are left, of which its queues \
             have {queues} (limits.arena_bytes_per_session); detach an arena or raise the limit"
        )))
    }

    /// Changes the limit of all arenas' bytes; what is granted already stays.
    pub(crate) fn limit(&mut self, bytes_max: u64) {
        self.table.limit(bytes_max);
    }

    pub(crate) fn table(&self) -> &RegionTable {
        &self.table
    }

    pub(crate) fn notes(&self) -> impl Iterator<Item = String> {
        self.notes.iter().map(|(what, why)| format!("{what}: {why}"))
    }

    fn of(&self, session: u64) -> impl Iterator<Item = (&RegionKey, &Arena)> {
        self.arenas.range((session, RegionId(0))..=(session, RegionId(u32::MAX)))
    }

    /// Memory of a session.
    pub(crate) fn used_by(&self, session: u64) -> RegionUse {
        self.of(session).fold(RegionUse::default(), |mut used, (_, arena)| {
            let (count, bytes) = match arena.gpu() {
                None => (&mut used.arenas, &mut used.arena_bytes),
                Some(_) => (&mut used.gpu_regions, &mut used.gpu_bytes),
            };
            *count += 1;
            *bytes += arena.grant.bytes;
            used
        })
    }

    /// Regions on a GPU, and their bytes.
    pub(crate) fn on_gpu(&self, at: usize) -> (usize, u64) {
        let there = self.arenas.values().filter(|arena| arena.gpu() == Some(at));
        there.fold((0, 0), |(count, bytes), arena| (count + 1, bytes + arena.grant.bytes))
    }

    /// Whether a worker is still at some memory of this session.
    pub(crate) fn is_with_worker(&self, session: u64) -> bool {
        self.of(session).any(|(_, arena)| {
            matches!(arena.stage, ArenaStage::Building { .. } | ArenaStage::Closing { .. })
        })
    }

    /// Checks the limits for new memory.
    pub(crate) fn grant_new(
        &mut self,
        session: u64,
        bytes: u64,
        pages: PagePolicy,
        limits: &Limits,
    ) -> Result<Granted, Failure> {
        let page = match pages {
            PagePolicy::Best => PageSize::Huge2MiB,
            PagePolicy::Exactly(page) => page,
        };
        let rounded = bytes.checked_next_multiple_of(page.bytes() as u64);
        let (Some(rounded), Ok(exact)) = (rounded, usize::try_from(bytes)) else {
            return Err(invalid(MemoryError::TooLarge { bytes }.to_string()));
        };
        let grant = self.grant(session, rounded, limits)?;
        let material = Material::New { bytes: exact, pages };
        Ok(Granted { grant, source: MemorySource::Sidecar, material })
    }

    /// Checks the limits for a client's memory file.
    pub(crate) fn grant_import(
        &mut self,
        session: u64,
        (fds, bytes): (Kept<Vec<OwnedFd>>, u64),
        sealing: Sealing,
        limits: &Limits,
    ) -> Result<Granted, Failure> {
        let grant = self.grant(session, bytes, limits)?;
        let material = Material::File { fds, bytes, sealing };
        Ok(Granted { grant, source: MemorySource::Client, material })
    }

    fn grant(
        &mut self,
        session: u64,
        bytes: u64,
        limits: &Limits,
    ) -> Result<RegionEntries, Failure> {
        if bytes == 0 {
            return Err(invalid(MemoryError::Empty.to_string()));
        }
        let used = self.used_by(session);
        let most = limits.arenas_per_session;
        if used.arenas >= most {
            return Err(quota(format!(
                "this client has {most} arenas, the most it may have \
                 (limits.arenas_per_session); detach one or raise the limit"
            )));
        }
        self.check_own(session, bytes, limits)?;
        let total = limits.arena_bytes_total;
        self.table.grant(bytes).map_err(|short| shortage(short, bytes, total))
    }

    /// Checks the limits for a client's memory on the GPU of this place.
    pub(crate) fn grant_gpu(
        &mut self,
        session: u64,
        at: usize,
        (info, fds): (GpuRegionInfo, Kept<Vec<OwnedFd>>),
        limits: &Limits,
    ) -> Result<Granted, Failure> {
        let (present, needed) = (fds.len(), info.fds());
        if present != needed {
            return Err(invalid(format!(
                "{needed} memories are descriptors, but {present} descriptors came with them; send \
                 one for each, in their order"
            )));
        }
        let bytes = info.memories.iter().map(GpuMemory::bytes).fold(0, u64::saturating_add);
        let used = self.used_by(session);
        let (most, most_bytes) = (limits.gpu_regions_per_session, limits.gpu_bytes_per_session);
        if used.gpu_regions >= most {
            return Err(quota(format!(
                "this client has {most} regions of GPU memory, the most it may have \
                 (limits.gpu_regions_per_session); detach one or raise the limit"
            )));
        }
        let left = most_bytes.saturating_sub(used.gpu_bytes);
        if bytes > left {
            return Err(quota(format!(
                "{bytes} bytes of GPU memory named, {left} of this client's {most_bytes} are left \
                 (limits.gpu_bytes_per_session); detach a region or raise the limit"
            )));
        }
        let grant = self.table.grant_remote(bytes).map_err(|_: Shortage| {
            let most = kvrail_poller::REGIONS_MAX;
            quota(format!("the sidecar has {most} regions, the most it can have; detach some"))
        })?;
        let source = MemorySource::Gpu(at);
        Ok(Granted { grant, source, material: Material::Gpu { info, fds } })
    }

    /// Returns the grant of a request that got no seat.
    pub(crate) fn revoke(&mut self, granted: Granted) {
        self.table.free(granted.grant);
    }

    /// Has a worker make it, for the request `seq` of this session.
    pub(crate) fn build(
        &mut self,
        (session, slot): (u64, SessionSlot),
        seq: u64,
        granted: Granted,
        worker: &MemoryWorker,
    ) {
        let Granted { grant, source, material } = granted;
        let key = (session, grant.id);
        let stage = ArenaStage::Building { seq };
        let worker = worker.clone();
        let spec = match material {
            Material::New { bytes, pages } => RegionSpec::Create { bytes, pages },
            Material::File { fds, bytes, sealing } => {
                let fd = fds.take().pop().expect("as many descriptors as the request has");
                RegionSpec::Import(fd, bytes, sealing)
            }
            Material::Gpu { info, fds } => {
                let MemorySource::Gpu(at) = source else { unreachable!("GPU memory is on a GPU") };
                RegionSpec::Open(Arc::clone(&self.gpus[at].gpu), spec(info, fds.take()))
            }
        };
        debug_assert!(!self.arenas.contains_key(&key), "a region number is given once");
        worker.build(key, spec);
        self.arenas.insert(key, Arena { grant, source, slot, worker, memory: None, stage });
    }

    /// A worker has made it, or not. Of a session that has ended meanwhile nothing is attached.
    pub(crate) fn built(
        &mut self,
        key: RegionKey,
        built: Built,
        has_ended: bool,
        pollers: &mut Pollers,
    ) -> Option<Reply> {
        let arena = self.arenas.get_mut(&key)?;
        let ArenaStage::Building { seq } = arena.stage else { return None };
        let (memory, downgrades) = match built {
            Ok(built) => built,
            Err(failure) => {
                self.forget(key);
                return Some(Reply::failure(key.0, seq, failure));
            }
        };
        debug_assert!(arena.memory.is_none(), "an arena is built once");
        arena.memory = Some(memory.clone());
        if has_ended {
            drop(memory);
            self.forget(key);
            return None;
        }
        if let Memory::Host(region) = &memory {
            self.table.settle(&mut arena.grant, region.bytes() as u64);
        }
        let whys: Vec<_> = downgrades.iter().map(|(_, why)| why.to_string()).collect();
        let note = Some(whys.join("; ")).filter(|note| !note.is_empty());
        let (waiting, took) = (pollers.all(), PollerSet::default());
        let attaching = Attaching { seq, note, waiting, took, failure: None };
        arena.stage = ArenaStage::Attaching(attaching);
        let (slot, buffer) = (arena.slot, BufferIndex(arena.grant.buffers.start));
        pollers.send_each(waiting, || attach(slot, key.1, buffer, &memory));
        downgrades.into_iter().for_each(|downgrade| self.note(downgrade));
        None
    }

    /// Remembers a downgrade of memory, and logs it once.
    fn note(&mut self, (what, why): Downgrade) {
        if !self.notes.contains_key(what) {
            tracing::warn!("{what}: {why}");
        }
        self.notes.insert(what, why.to_string());
    }

    /// A poller has registered the arena, or failed to. An error ends the session: after a stall
    /// the poller cannot do what the client's answer has promised.
    pub(crate) fn attached(
        &mut self,
        poller: usize,
        key: RegionKey,
        outcome: Result<(), Failure>,
        pollers: &mut Pollers,
    ) -> Result<Option<Reply>, String> {
        let Some(arena) = self.arenas.get_mut(&key) else { return Ok(None) };
        let ArenaStage::Attaching(attaching) = &mut arena.stage else {
            let live = matches!(arena.stage, ArenaStage::Live);
            return match outcome {
                Ok(()) => Ok(None),
                Err((_, why)) if live => Err(format!("cannot take arena {}: {why}", key.1)),
                // It has nothing to give back.
                Err(_) => Ok(self.detached(poller, key)),
            };
        };
        debug_assert!(attaching.waiting.contains(poller), "a poller answers an attach once");
        attaching.waiting.remove(poller);
        match outcome {
            Ok(()) => attaching.took.insert(poller),
            Err(failure) => attaching.failure = Some(failure),
        }
        let done = attaching.waiting.is_empty();
        Ok(if done { self.attach_settled(key, pollers) } else { None })
    }

    /// All pollers answered: the arena is live, or those that took it give it back.
    fn attach_settled(&mut self, key: RegionKey, pollers: &mut Pollers) -> Option<Reply> {
        let arena = self.arenas.get_mut(&key)?;
        let ArenaStage::Attaching(attaching) =
            std::mem::replace(&mut arena.stage, ArenaStage::Live)
        else {
            return None;
        };
        let Attaching { seq, note, waiting, took, failure } = attaching;
        let Some(failure) = failure else {
            return Some(attach_done(key, arena, &self.gpus, seq, note));
        };
        // Stalled pollers will take it.
        debug_assert!(took.common(waiting).is_empty(), "a poller that took it has answered");
        let waiting = took.and(waiting);
        if waiting.is_empty() {
            return self.released(key, Some(seq), Err(failure));
        }
        let slot = arena.slot;
        arena.stage = ArenaStage::Unwinding { seq: Some(seq), waiting, failure };
        pollers.send_each(waiting, || PollerCommand::Detach(slot, key.1));
        None
    }

    /// Whether an arena can hold the tails of a queue of this depth.
    pub(crate) fn check_tails(&self, key: RegionKey, depth: u32) -> Result<(), Failure> {
        let needed = u64::from(depth) * u64::from(TAIL_BYTES);
        let arena = self.arenas.get(&key).filter(|arena| matches!(arena.stage, ArenaStage::Live));
        match arena {
            Some(it) if it.gpu().is_some() => Err(invalid(format!(
                "tails: region {} is memory of a GPU; name an arena of {needed} bytes",
                key.1.0
            ))),
            Some(it) if it.grant.bytes < needed => Err(invalid(format!(
                "tails: arena {} has {} bytes, a queue of depth {depth} needs {needed}; create a \
                 larger one",
                key.1.0, it.grant.bytes
            ))),
            Some(_) => Ok(()),
            None => {
                let region = key.1.0;
                Err(invalid(format!("tails: this client has no attached arena {region}")))
            }
        }
    }

    /// Requests all pollers to detach an arena.
    pub(crate) fn detach(
        &mut self,
        key: RegionKey,
        seq: u64,
        pollers: &mut Pollers,
    ) -> Result<(), Failure> {
        match self.arenas.get_mut(&key) {
            Some(Arena { stage: stage @ ArenaStage::Live, slot, .. }) => {
                let (waiting, slot) = (pollers.all(), *slot);
                *stage = ArenaStage::Detaching { seq: Some(seq), waiting };
                pollers.send_each(waiting, || PollerCommand::Detach(slot, key.1));
                Ok(())
            }
            // A repeated request, while a stalled poller keeps the arena.
            Some(Arena { stage: ArenaStage::Detaching { seq: answered @ None, .. }, .. }) => {
                *answered = Some(seq);
                Ok(())
            }
            _ => Err(invalid(format!("this client has no attached arena {}", key.1.0))),
        }
    }

    /// Answers what only stalled pollers keep from being answered, of sessions that live.
    pub(crate) fn answer_past(
        &mut self,
        watch: &Watch,
        lives: impl Fn(u64) -> bool,
        pollers: &mut Pollers,
    ) -> Vec<Reply> {
        let stalled = watch.stalled();
        let waits = |(key, arena): (&RegionKey, &Arena)| {
            (arena.waits_only_for(stalled) && lives(key.0)).then_some(*key)
        };
        let keys: Vec<_> = self.arenas.iter().filter_map(waits).collect();
        keys.into_iter().filter_map(|key| self.past(key, watch, pollers)).collect()
    }

    fn past(&mut self, key: RegionKey, watch: &Watch, pollers: &mut Pollers) -> Option<Reply> {
        let (seq, failure) = match &mut self.arenas.get_mut(&key)?.stage {
            ArenaStage::Attaching(_) => return self.attach_settled(key, pollers),
            ArenaStage::Unwinding { seq, failure, .. } => (seq.take()?, failure.clone()),
            ArenaStage::Detaching { seq, waiting } => {
                (seq.take()?, watch.kept(&format!("arena {}", key.1), *waiting))
            }
            _ => return None,
        };
        Some(Reply::failure(key.0, seq, failure))
    }

    /// A poller can no longer touch the arena.
    pub(crate) fn detached(&mut self, poller: usize, key: RegionKey) -> Option<Reply> {
        let arena = self.arenas.get_mut(&key)?;
        let (ArenaStage::Detaching { waiting, .. } | ArenaStage::Unwinding { waiting, .. }) =
            &mut arena.stage
        else {
            return None;
        };
        waiting.remove(poller);
        if !waiting.is_empty() {
            return None;
        }
        match std::mem::replace(&mut arena.stage, ArenaStage::Live) {
            ArenaStage::Unwinding { seq, failure, .. } => self.released(key, seq, Err(failure)),
            ArenaStage::Detaching { seq, .. } => self.released(key, seq, Ok(())),
            _ => None,
        }
    }

    /// No poller has it any more. Handles of a GPU are closed before the client is answered.
    fn released(
        &mut self,
        key: RegionKey,
        seq: Option<u64>,
        outcome: Result<(), Failure>,
    ) -> Option<Reply> {
        let arena = self.arenas.get_mut(&key)?;
        debug_assert!(arena.memory.is_some(), "memory stays until no poller has it");
        if arena.gpu().is_none() {
            return self.gone(key, seq, outcome);
        }
        arena.stage = ArenaStage::Closing { seq, outcome };
        arena.worker.close(key, arena.memory.take().expect("it was attached"));
        None
    }

    /// A worker closed it. The session may have ended meanwhile.
    pub(crate) fn closed(&mut self, key: RegionKey) -> Option<Reply> {
        let arena = self.arenas.get_mut(&key)?;
        let stage = std::mem::replace(&mut arena.stage, ArenaStage::Live);
        let ArenaStage::Closing { seq, outcome } = stage else { return None };
        self.gone(key, seq, outcome)
    }

    /// Nothing is left of it.
    fn gone(
        &mut self,
        key: RegionKey,
        seq: Option<u64>,
        outcome: Result<(), Failure>,
    ) -> Option<Reply> {
        self.forget(key);
        let (session, region) = key;
        let Some(seq) = seq else {
            tracing::info!(session, %region, "detached at last");
            return None;
        };
        Some(match outcome {
            Err(failure) => Reply::failure(session, seq, failure),
            Ok(()) => {
                tracing::info!(session, %region, "detached");
                Reply::new(session, seq, ControlReply::Detached { region: region.0 })
            }
        })
    }

    /// Gives back what an arena had. Nothing can touch it any more.
    fn forget(&mut self, key: RegionKey) {
        let Some(arena) = self.arenas.remove(&key) else { return };
        self.table.free(arena.grant);
        if let Some(memory) = arena.memory {
            arena.worker.close(key, memory);
        }
    }

    /// Gives back all that a session had. Nothing can touch any of it any more.
    pub(crate) fn forget_all(&mut self, session: u64) {
        let keys: Vec<_> = self.of(session).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.forget(key));
    }
}

/// The answer to a client with its new arena or region.
fn attach_done(
    (session, region): RegionKey,
    arena: &Arena,
    gpus: &[ServedGpu],
    seq: u64,
    note: Option<String>,
) -> Reply {
    let (source, bytes) = (arena.source, arena.grant.bytes);
    tracing::info!(session, %region, bytes, ?source, "attached");
    match arena.memory.as_ref().expect("made before attached") {
        Memory::Host(memory) => {
            let page_bytes = memory.page().bytes() as u64;
            let answer = ControlReply::Arena { region: region.0, bytes, page_bytes, note };
            let reply = Reply::new(session, seq, answer);
            match source {
                MemorySource::Sidecar => reply.with(Arc::clone(memory), Vec::new()),
                MemorySource::Client | MemorySource::Gpu(_) => reply,
            }
        }
        Memory::Gpu(memory) => {
            let (blocks, block_bytes) = (memory.layout().blocks(), memory.layout().block_bytes());
            let at = arena.gpu().expect("memory of a GPU");
            let routes: Vec<GpuRoute> = gpus[at].routes.clone();
            let answer = ControlReply::GpuRegion { region: region.0, blocks, block_bytes, routes };
            Reply::new(session, seq, answer)
        }
    }
}

/// The pollers' command for new memory.
fn attach(
    session: SessionSlot,
    region: RegionId,
    buffer: BufferIndex,
    memory: &Memory,
) -> PollerCommand {
    match memory {
        Memory::Host(memory) => {
            let memory = Arc::clone(memory) as Arc<dyn Pinned>;
            PollerCommand::Attach { session, region, buffer, memory }
        }
        Memory::Gpu(memory) => {
            let memory = Arc::clone(memory) as Arc<dyn RemoteMemory>;
            PollerCommand::AttachRemote { session, region, buffer, memory }
        }
    }
}

fn shortage(shortage: Shortage, bytes: u64, total: u64) -> Failure {
    let message = match shortage {
        Shortage::Regions => format!(
            "the sidecar has {} arenas, the most it can have; detach some",
            kvrail_poller::REGIONS_MAX
        ),
        Shortage::Buffers(entries) => format!(
            "{bytes} bytes take {entries} of the {} entries of a device's buffer table, and no \
             such row is free; detach arenas or ask for less",
            kvrail_device::BUFFERS_MAX
        ),
        Shortage::Bytes(left) => format!(
            "{bytes} bytes requested, {left} of the sidecar's {total} are left \
             (limits.arena_bytes_total); detach arenas or raise the limit"
        ),
    };
    (Status::Quota, message)
}
