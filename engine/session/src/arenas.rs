//! Arenas and regions of GPU memory: made or brought, attached to every device, detached when
//! nothing can touch them.

use std::os::fd::AsFd;
use std::sync::Arc;

use kvrail_device::{BufferIndex, RemoteMemory};
use kvrail_memory::{MemoryError, PageSize, Pinned};
use kvrail_poller::{Command, SessionSlot};
use kvrail_protocol::Answer;
use kvrail_ring::{RegionId, Status};

use crate::asks::Failure;
use crate::config::PagePolicy;
use crate::maker::{Memory, Outcome, Recipe};
use crate::pollers::PollerSet;
use crate::regions::{Grant, Shortage};
use crate::server::Server;

/// Where its memory is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Ours; the client gets the descriptor with the answer.
    Sidecar,
    /// The client's.
    Client,
    /// The client's, on the GPU of this place.
    Gpu(usize),
}

/// One arena, or one region of GPU memory.
#[derive(Debug)]
pub(crate) struct Arena {
    grant: Grant,
    origin: Origin,
    /// Kept until every poller has detached, and then a little longer for closing.
    memory: Option<Memory>,
    stage: Stage,
}

/// Life of an arena. Answers go to the ask with this `seq`; none where it was answered before.
#[derive(Debug)]
enum Stage {
    /// A memory thread is at work.
    Making { seq: u64 },
    /// Pollers register it with their devices.
    Attaching(Attaching),
    /// A device refused it; those that took it give it back.
    Unwinding { seq: Option<u64>, waiting: PollerSet, failure: Failure },
    /// In use.
    Live,
    /// Pollers finish what uses it.
    Detaching { seq: Option<u64>, waiting: PollerSet },
    /// A memory thread closes handles of a GPU: only then may their owner free the memory.
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
    /// Bytes counted against the limits.
    pub(crate) fn bytes(&self) -> u64 {
        self.grant.bytes
    }

    /// The place of the GPU it is on.
    pub(crate) fn gpu(&self) -> Option<usize> {
        match self.origin {
            Origin::Sidecar | Origin::Client => None,
            Origin::Gpu(at) => Some(at),
        }
    }

    /// Whether an ask waits for these pollers, and for no other.
    pub(crate) fn waits_only_for(&self, pollers: PollerSet) -> bool {
        match &self.stage {
            Stage::Attaching(Attaching { waiting, .. })
            | Stage::Unwinding { seq: Some(_), waiting, .. }
            | Stage::Detaching { seq: Some(_), waiting } => waiting.is_some_of(pollers),
            _ => false,
        }
    }

    /// Whether a memory thread still works on it.
    pub(crate) fn is_with_maker(&self) -> bool {
        matches!(self.stage, Stage::Making { .. } | Stage::Closing { .. })
    }
}

impl Server {
    /// Asks for new memory.
    pub(crate) fn create_arena(
        &mut self,
        id: u64,
        seq: u64,
        bytes: u64,
        pages: PagePolicy,
    ) -> Result<(), Failure> {
        let page = match pages {
            PagePolicy::Best => PageSize::Huge2MiB,
            PagePolicy::Exactly(page) => page,
        };
        let rounded = bytes.checked_next_multiple_of(page.bytes() as u64);
        let (Some(rounded), Ok(exact)) = (rounded, usize::try_from(bytes)) else {
            return Err((Status::Invalid, MemoryError::TooLarge { bytes }.to_string()));
        };
        self.add_arena(id, seq, rounded, Recipe::Create { bytes: exact, pages })
    }

    /// Checks the limits for at most `bytes` and gives the memory thread its job.
    pub(crate) fn add_arena(
        &mut self,
        id: u64,
        seq: u64,
        bytes: u64,
        recipe: Recipe,
    ) -> Result<(), Failure> {
        if bytes == 0 {
            return Err((Status::Invalid, MemoryError::Empty.to_string()));
        }
        let session = &self.sessions[&id];
        let (most, most_bytes) =
            (self.limits.arenas_per_session, self.limits.arena_bytes_per_session);
        if session.arena_count() >= most {
            return Err((
                Status::Quota,
                format!(
                    "this client has {most} arenas, the most it may have \
                 (limits.arenas_per_session); detach one or raise the limit"
                ),
            ));
        }
        let left = most_bytes.saturating_sub(session.arena_bytes());
        if bytes > left {
            return Err((
                Status::Quota,
                format!(
                    "{bytes} bytes asked for, {left} of this client's {most_bytes} are left \
                 (limits.arena_bytes_per_session); detach an arena or raise the limit"
                ),
            ));
        }
        let total = self.limits.arena_bytes_total;
        let grant = self.regions.grant(bytes).map_err(|short| shortage(short, bytes, total))?;
        let grant = self.seated(id, grant)?;
        let origin = match &recipe {
            Recipe::Create { .. } => Origin::Sidecar,
            Recipe::Import(..) | Recipe::Open(..) => Origin::Client,
        };
        self.add_region(id, seq, (origin, grant), recipe);
        Ok(())
    }

    /// Seats a session that is to have a region. Last, so that who is refused takes no seat.
    pub(crate) fn seated(&mut self, id: u64, grant: Grant) -> Result<Grant, Failure> {
        match self.seat(id) {
            Ok(_) => Ok(grant),
            Err(failure) => {
                self.regions.free(grant);
                Err(failure)
            }
        }
    }

    /// Gives a memory thread its job.
    pub(crate) fn add_region(
        &mut self,
        id: u64,
        seq: u64,
        (origin, grant): (Origin, Grant),
        recipe: Recipe,
    ) {
        let region = grant.id;
        let arena = Arena { grant, origin, memory: None, stage: Stage::Making { seq } };
        let session = self.sessions.get_mut(&id).expect("an asking session lives");
        session.arenas.insert(region, arena);
        self.hand(id, origin).make((id, region), recipe);
    }

    /// A memory thread answered.
    pub(crate) fn made(&mut self, id: u64, number: RegionId, outcome: Outcome) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let reclaiming = session.is_reclaiming();
        let Some(arena) = session.arenas.get_mut(&number) else { return };
        let Stage::Making { seq } = arena.stage else { return };
        let (memory, unfulfilled) = match outcome {
            Ok(made) => made,
            Err(failure) => {
                self.drop_arena(id, number);
                self.fail(id, seq, failure);
                return self.reclaimed(id);
            }
        };
        arena.memory = Some(memory.clone());
        if reclaiming {
            drop(memory);
            self.drop_arena(id, number);
            return self.reclaimed(id);
        }
        if let Memory::Host(region) = &memory {
            self.regions.settle(&mut arena.grant, region.bytes() as u64);
        }
        let whys: Vec<_> = unfulfilled.iter().map(|(_, why)| why.to_string()).collect();
        let note = Some(whys.join("; ")).filter(|note| !note.is_empty());
        let (waiting, took) = (self.pollers.all(), PollerSet::default());
        let failure = None;
        arena.stage = Stage::Attaching(Attaching { seq, note, waiting, took, failure });
        let slot = session.slot.expect("a session with an arena has a slot");
        let buffer = BufferIndex(arena.grant.buffers.start);
        self.pollers.send_each(waiting, || attach(slot, number, buffer, &memory));
        for (what, why) in unfulfilled {
            self.note_memory(what, why.to_string());
        }
    }

    /// Remembers, and says once, which wish memory did not fulfil.
    fn note_memory(&mut self, what: &'static str, why: String) {
        if !self.memory_notes.contains_key(what) {
            tracing::warn!("{what}: {why}");
        }
        self.memory_notes.insert(what, why);
    }

    /// A poller has, or could not, register the arena.
    pub(crate) fn attached(
        &mut self,
        poller: usize,
        slot: SessionSlot,
        number: RegionId,
        outcome: Result<(), Failure>,
    ) {
        let Some(session) = self.session_at(slot).filter(|session| !session.is_reclaiming()) else {
            return;
        };
        let id = session.id;
        let Some(arena) = session.arenas.get_mut(&number) else { return };
        let Stage::Attaching(attaching) = &mut arena.stage else {
            return self.attached_late(id, (poller, slot, number), outcome);
        };
        attaching.waiting.remove(poller);
        match outcome {
            Ok(()) => attaching.took.insert(poller),
            Err(failure) => attaching.failure = Some(failure),
        }
        if attaching.waiting.is_empty() {
            self.attach_settled(id, slot, number);
        }
    }

    /// A poller that was stalled has, or could not, register an arena that its client was told of.
    fn attached_late(
        &mut self,
        id: u64,
        (poller, slot, number): (usize, SessionSlot, RegionId),
        outcome: Result<(), Failure>,
    ) {
        let Err((_, why)) = outcome else { return };
        match self.sessions[&id].arenas[&number].stage {
            Stage::Live => {
                self.broke_word(id, poller, &format!("cannot take arena {number}: {why}"))
            }
            // It has nothing to let go of.
            _ => self.detached(poller, slot, number),
        }
    }

    /// All pollers answered: the arena is live, or those that took it give it back.
    fn attach_settled(&mut self, id: u64, slot: SessionSlot, number: RegionId) {
        let session = self.sessions.get_mut(&id).expect("just seen");
        let arena = session.arenas.get_mut(&number).expect("just seen");
        let Stage::Attaching(attaching) = std::mem::replace(&mut arena.stage, Stage::Live) else {
            return;
        };
        let Attaching { seq, note, waiting, took, failure } = attaching;
        match failure {
            None => self.attach_done(id, seq, number, note),
            // Stalled pollers will take it.
            Some(failure) if took.and(waiting).is_empty() => {
                self.let_go(id, Some(seq), number, Err(failure));
            }
            Some(failure) => {
                let waiting = took.and(waiting);
                arena.stage = Stage::Unwinding { seq: Some(seq), waiting, failure };
                self.detach_from(waiting, slot, number);
            }
        }
    }

    /// Tells the client of its new arena or region.
    fn attach_done(&mut self, id: u64, seq: u64, number: RegionId, note: Option<String>) {
        let arena = &self.sessions[&id].arenas[&number];
        let (origin, bytes) = (arena.origin, arena.bytes());
        tracing::info!(session = id, region = %number, bytes, ?origin, "attached");
        match arena.memory.clone().expect("made before attached") {
            Memory::Host(region) => {
                let page_bytes = region.page().bytes() as u64;
                let answer = Answer::Arena { region: number.0, bytes, page_bytes, note };
                match origin {
                    Origin::Sidecar => self.reply(id, seq, answer, &[region.fd().as_fd()]),
                    Origin::Client | Origin::Gpu(_) => self.reply(id, seq, answer, &[]),
                }
            }
            Memory::Gpu(region) => {
                let (blocks, block_bytes) =
                    (region.layout().blocks(), region.layout().block_bytes());
                let at = arena.gpu().expect("memory of a GPU");
                let routes = self.config.gpus[at].routes.clone();
                let answer = Answer::GpuRegion { region: number.0, blocks, block_bytes, routes };
                self.reply(id, seq, answer, &[]);
            }
        }
    }

    /// Asks all pollers to forget an arena.
    pub(crate) fn detach_arena(&mut self, id: u64, seq: u64, region: u32) -> Result<(), Failure> {
        let session = self.sessions.get_mut(&id).expect("an asking session lives");
        let (number, slot) = (RegionId(region), session.slot);
        let arena = session.arenas.get_mut(&number);
        match (arena, slot) {
            (Some(arena), Some(slot)) if matches!(arena.stage, Stage::Live) => {
                let waiting = self.pollers.all();
                arena.stage = Stage::Detaching { seq: Some(seq), waiting };
                self.detach_from(waiting, slot, number);
                Ok(())
            }
            // Asked again, while a stalled poller keeps it.
            (Some(Arena { stage: Stage::Detaching { seq: answered @ None, .. }, .. }), _) => {
                *answered = Some(seq);
                Ok(())
            }
            _ => Err((Status::Invalid, format!("this client has no attached arena {region}"))),
        }
    }

    /// Only stalled pollers keep an arena's ask from being answered.
    pub(crate) fn region_past(&mut self, id: u64, number: RegionId) {
        let session = self.sessions.get_mut(&id).expect("just seen");
        let slot = session.slot.expect("a session with an arena has a slot");
        let arena = session.arenas.get_mut(&number).expect("just seen");
        let (seq, failure) = match &mut arena.stage {
            Stage::Attaching(_) => return self.attach_settled(id, slot, number),
            Stage::Unwinding { seq, failure, .. } => (seq.take(), failure.clone()),
            Stage::Detaching { seq, waiting } => {
                let (seq, waiting) = (seq.take(), *waiting);
                (seq, self.kept(&format!("arena {number}"), waiting))
            }
            _ => return,
        };
        if let Some(seq) = seq {
            self.fail(id, seq, failure);
        }
    }

    /// A poller can no longer touch the arena.
    pub(crate) fn detached(&mut self, poller: usize, slot: SessionSlot, number: RegionId) {
        let Some(session) = self.session_at(slot).filter(|session| !session.is_reclaiming()) else {
            return;
        };
        let id = session.id;
        let Some(arena) = session.arenas.get_mut(&number) else { return };
        let (Stage::Detaching { waiting, .. } | Stage::Unwinding { waiting, .. }) =
            &mut arena.stage
        else {
            return;
        };
        waiting.remove(poller);
        if !waiting.is_empty() {
            return;
        }
        match std::mem::replace(&mut arena.stage, Stage::Live) {
            Stage::Unwinding { seq, failure, .. } => self.let_go(id, seq, number, Err(failure)),
            Stage::Detaching { seq, .. } => self.let_go(id, seq, number, Ok(())),
            _ => {}
        }
    }

    /// No poller has it any more. Handles of a GPU are closed before the client hears of it.
    fn let_go(
        &mut self,
        id: u64,
        seq: Option<u64>,
        number: RegionId,
        outcome: Result<(), Failure>,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(arena) = session.arenas.get_mut(&number) else { return };
        if arena.gpu().is_none() {
            return self.gone(id, seq, number, outcome);
        }
        let origin = arena.origin;
        arena.stage = Stage::Closing { seq, outcome };
        let memory = arena.memory.take().expect("it was attached");
        self.hand(id, origin).close((id, number), memory);
    }

    /// A memory thread closed it. The session may have ended meanwhile.
    pub(crate) fn closed(&mut self, id: u64, number: RegionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(arena) = session.arenas.get_mut(&number) else { return };
        if let Stage::Closing { seq, outcome } = std::mem::replace(&mut arena.stage, Stage::Live) {
            self.gone(id, seq, number, outcome);
            self.reclaimed(id);
        }
    }

    /// Nothing is left of it.
    fn gone(&mut self, id: u64, seq: Option<u64>, number: RegionId, outcome: Result<(), Failure>) {
        self.drop_arena(id, number);
        let Some(seq) = seq else {
            return tracing::info!(session = id, region = %number, "detached at last");
        };
        match outcome {
            Err(failure) => self.fail(id, seq, failure),
            Ok(()) => {
                tracing::info!(session = id, region = %number, "detached");
                self.reply(id, seq, Answer::Detached { region: number.0 }, &[]);
            }
        }
    }

    /// Gives back what an arena had. Nothing can touch it any more.
    pub(crate) fn drop_arena(&mut self, id: u64, number: RegionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(arena) = session.arenas.remove(&number) else { return };
        self.regions.free(arena.grant);
        if let Some(memory) = arena.memory {
            self.hand(id, arena.origin).close((id, number), memory);
        }
    }
}

/// What pollers are told of new memory.
fn attach(session: SessionSlot, region: RegionId, buffer: BufferIndex, memory: &Memory) -> Command {
    match memory {
        Memory::Host(memory) => {
            let memory = Arc::clone(memory) as Arc<dyn Pinned>;
            Command::Attach { session, region, buffer, memory }
        }
        Memory::Gpu(memory) => {
            let memory = Arc::clone(memory) as Arc<dyn RemoteMemory>;
            Command::AttachRemote { session, region, buffer, memory }
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
            "{bytes} bytes asked for, {left} of the sidecar's {total} are left \
             (limits.arena_bytes_total); detach arenas or raise the limit"
        ),
    };
    (Status::Quota, message)
}
