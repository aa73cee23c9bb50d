//! Arenas: made or brought, attached to every device, detached when nothing can touch them.

use std::os::fd::AsFd;
use std::sync::Arc;

use kvrail_device::BufferIndex;
use kvrail_memory::{MemoryError, PageSize, Pinned, Region};
use kvrail_poller::{Command, SessionSlot};
use kvrail_protocol::Answer;
use kvrail_ring::{RegionId, Status};

use crate::asks::Failure;
use crate::config::PagePolicy;
use crate::maker::{Made, Recipe};
use crate::pollers::PollerSet;
use crate::regions::{Grant, Shortage};
use crate::server::Server;

/// Whose memory file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Ours; the client gets the descriptor with the answer.
    Sidecar,
    /// The client's.
    Client,
}

/// One arena.
#[derive(Debug)]
pub(crate) struct Arena {
    grant: Grant,
    /// Kept until every poller has detached, and then a little longer for unmapping.
    region: Option<Arc<Region>>,
    stage: Stage,
}

/// Life of an arena. Answers go to the ask with this `seq`.
#[derive(Debug)]
enum Stage {
    /// The memory thread is at work.
    Making { seq: u64, origin: Origin },
    /// Pollers register it with their devices.
    Attaching(Attaching),
    /// A device refused it; those that took it give it back.
    Unwinding { seq: u64, waiting: PollerSet, failure: Failure },
    /// In use.
    Live,
    /// Pollers finish what uses it.
    Detaching { seq: u64, waiting: PollerSet },
}

#[derive(Debug)]
struct Attaching {
    seq: u64,
    origin: Origin,
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

    /// Whether the memory thread still works on it.
    pub(crate) fn is_being_made(&self) -> bool {
        matches!(self.stage, Stage::Making { .. })
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
        self.seat(id)?;
        let session = self.sessions.get_mut(&id).expect("an asking session lives");
        let (most, most_bytes) =
            (self.limits.arenas_per_session, self.limits.arena_bytes_per_session);
        if session.arenas.len() >= most {
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
        let region = grant.id;
        let origin = match &recipe {
            Recipe::Create { .. } => Origin::Sidecar,
            Recipe::Import(..) => Origin::Client,
        };
        let arena = Arena { grant, region: None, stage: Stage::Making { seq, origin } };
        session.arenas.insert(region, arena);
        self.maker.make(id, region, recipe);
        Ok(())
    }

    /// The memory thread answered.
    pub(crate) fn made(&mut self, made: Made) {
        let Made { session: id, region: number, outcome } = made;
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let reclaiming = session.is_reclaiming();
        let Some(arena) = session.arenas.get_mut(&number) else { return };
        let Stage::Making { seq, origin } = arena.stage else { return };
        let made = match outcome {
            Ok(made) if !reclaiming => made,
            Ok((region, _)) => {
                self.maker.unmap(Arc::new(region));
                self.drop_arena(id, number);
                return self.reclaimed(id);
            }
            Err(error) => {
                self.drop_arena(id, number);
                self.fail(id, seq, (status_of(&error), error.to_string()));
                return self.reclaimed(id);
            }
        };
        let (region, unfulfilled) = made;
        let region = Arc::new(region);
        self.regions.settle(&mut arena.grant, region.bytes() as u64);
        let whys: Vec<_> = unfulfilled.iter().map(|(_, why)| why.to_string()).collect();
        let note = Some(whys.join("; ")).filter(|note| !note.is_empty());
        arena.region = Some(Arc::clone(&region));
        let (waiting, took) = (self.pollers.all(), PollerSet::default());
        let failure = None;
        arena.stage = Stage::Attaching(Attaching { seq, origin, note, waiting, took, failure });
        let slot = session.slot.expect("a session with an arena has a slot");
        let buffer = BufferIndex(arena.grant.buffers.start);
        self.pollers.send_each(waiting, || Command::Attach {
            session: slot,
            region: number,
            buffer,
            memory: Arc::clone(&region) as Arc<dyn Pinned>,
        });
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
        let Stage::Attaching(attaching) = &mut arena.stage else { return };
        attaching.waiting.remove(poller);
        match outcome {
            Ok(()) => attaching.took.insert(poller),
            Err(failure) => attaching.failure = Some(failure),
        }
        if attaching.waiting.is_empty() {
            self.attach_settled(id, slot, number);
        }
    }

    /// All pollers answered: the arena is live, or those that took it give it back.
    fn attach_settled(&mut self, id: u64, slot: SessionSlot, number: RegionId) {
        let session = self.sessions.get_mut(&id).expect("just seen");
        let arena = session.arenas.get_mut(&number).expect("just seen");
        let Stage::Attaching(attaching) = std::mem::replace(&mut arena.stage, Stage::Live) else {
            return;
        };
        let Attaching { seq, origin, note, took, failure, .. } = attaching;
        match failure {
            None => {
                let region = Arc::clone(arena.region.as_ref().expect("made before attached"));
                let bytes = region.bytes() as u64;
                tracing::info!(session = id, region = %number, bytes, ?origin, "arena attached");
                let page_bytes = region.page().bytes() as u64;
                let answer = Answer::Arena { region: number.0, bytes, page_bytes, note };
                match origin {
                    Origin::Sidecar => self.reply(id, seq, answer, &[region.fd().as_fd()]),
                    Origin::Client => self.reply(id, seq, answer, &[]),
                }
            }
            Some(failure) if took.is_empty() => {
                self.drop_arena(id, number);
                self.fail(id, seq, failure);
            }
            Some(failure) => {
                arena.stage = Stage::Unwinding { seq, waiting: took, failure };
                self.pollers.send_each(took, || Command::Detach(slot, number));
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
                arena.stage = Stage::Detaching { seq, waiting };
                self.pollers.send_each(waiting, || Command::Detach(slot, number));
                Ok(())
            }
            _ => Err((Status::Invalid, format!("this client has no attached arena {region}"))),
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
            Stage::Unwinding { seq, failure, .. } => {
                self.drop_arena(id, number);
                self.fail(id, seq, failure);
            }
            Stage::Detaching { seq, .. } => {
                self.drop_arena(id, number);
                tracing::info!(session = id, region = %number, "arena detached");
                self.reply(id, seq, Answer::Detached { region: number.0 }, &[]);
            }
            _ => {}
        }
    }

    /// Gives back what an arena had. Nothing can touch it any more.
    pub(crate) fn drop_arena(&mut self, id: u64, number: RegionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(arena) = session.arenas.remove(&number) else { return };
        self.regions.free(arena.grant);
        if let Some(region) = arena.region {
            self.maker.unmap(region);
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

fn status_of(error: &MemoryError) -> Status {
    match error {
        MemoryError::NoPages { .. } | MemoryError::Map { .. } | MemoryError::Place { .. } => {
            Status::NoSpace
        }
        _ => Status::Invalid,
    }
}
