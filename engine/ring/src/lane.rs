//! The two halves of a lane: what the client may do with it, and what the sidecar may.
//!
//! A lane is one request ring and one completion ring between one client thread and one poller.
//! Invariant 1 (exactly once) starts here: a request is taken only while a completion slot is
//! reserved for it, so completions always have room.

use crate::keyed::Side;
use crate::shm::{CompletionRing, RequestRing, ShmWord};
use crate::side::{self, SideAreas, SideSlot};
use crate::slot::{Completion, FLAG_NOTICE, FLAG_SIDE, Packed, Request};
use crate::snapshot::{CompletionSnapshot, RequestSnapshot};
use crate::spsc::{Consumer, LaneFault, Producer};
use crate::wake::{Sleeper, Waker};

/// Whether the other side sleeps and must be woken with its bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum RingBell {
    /// It sleeps: ring its bell.
    Now,
    /// It is awake, or was rung already.
    No,
}

impl From<bool> for RingBell {
    fn from(must: bool) -> Self {
        if must { Self::Now } else { Self::No }
    }
}

/// The sidecar's half.
#[derive(Debug)]
pub struct ServerLane {
    requests: Consumer<RequestRing>,
    completions: Producer<CompletionRing>,
    sides: SideAreas,
    poller_word: ShmWord,
    client_word: ShmWord,
    sleeper: Sleeper,
    waker: Waker,
    /// Requests taken and not completed; each owns one completion slot.
    reserved: u32,
    /// Requests answered where they were taken, while `serve` runs. Few are: no register of its.
    answered: u32,
}

impl ServerLane {
    pub(crate) fn new(
        requests: Consumer<RequestRing>,
        completions: Producer<CompletionRing>,
        sides: SideAreas,
        [poller_word, client_word]: [ShmWord; 2],
    ) -> Self {
        Self {
            requests,
            completions,
            sides,
            poller_word,
            client_word,
            sleeper: Sleeper::default(),
            waker: Waker::default(),
            reserved: 0,
            answered: 0,
        }
    }

    /// Whether a request can be taken now: one is published, and a completion slot is free for it.
    ///
    /// # Errors
    /// `LaneFault` when the client wrote what cannot be; the session must end.
    #[inline(always)]
    pub fn is_ready(&mut self) -> Result<bool, LaneFault> {
        Ok(self.requests.is_ready()? && self.has_room()?)
    }

    /// Whether a completion slot is free for one more request.
    #[inline(always)]
    fn has_room(&mut self) -> Result<bool, LaneFault> {
        Ok(self.completions.free(self.reserved + 1)? > self.reserved)
    }

    /// Takes one request as a private copy and reserves its completion slot; nothing when none is
    /// ready.
    ///
    /// # Errors
    /// As `is_ready`.
    #[inline(always)]
    pub fn take(&mut self) -> Result<Option<RequestSnapshot>, LaneFault> {
        let mut request = None;
        if self.has_room()? {
            let taken = self.requests.take(|words| request = Some(RequestSnapshot(words)))?;
            self.reserved += u32::from(taken);
        }
        Ok(request)
    }

    /// As `take`, up to `max` times. A request for which `sink` returns a completion is answered
    /// with that; any other has its completion slot reserved. Returns the number of taken requests,
    /// and the client's fault, if any. Requests before a fault are taken.
    ///
    /// A side area is to be copied within `sink`: the client may overwrite it once the slot is
    /// released.
    #[inline(always)]
    pub fn serve(
        &mut self,
        max: u32,
        mut sink: impl FnMut(RequestSnapshot, SideSlot<'_>) -> Option<Completion>,
    ) -> (u32, Result<(), LaneFault>) {
        let room = match self.completions.free(self.reserved + max) {
            Ok(free) => free - self.reserved,
            Err(fault) => return (0, Err(fault)),
        };
        let max = max.min(room);
        let (mut taken, mut outcome) = (0, Ok(()));
        while taken < max {
            let Self { completions, answered, sides, .. } = self;
            let side = SideSlot::new(sides, self.requests.next_slot());
            let answer = |words| {
                if let Some(answer) = sink(RequestSnapshot(words), side) {
                    completions.stage(answer.pack());
                    *answered += 1;
                }
            };
            match self.requests.take(answer) {
                Ok(true) => taken += 1,
                Ok(false) => break,
                Err(fault) => {
                    outcome = Err(fault);
                    break;
                }
            }
        }
        self.reserved += taken - std::mem::take(&mut self.answered);
        (taken, outcome)
    }

    /// Gives the slots of all taken requests back to the client.
    #[inline]
    pub fn release(&mut self) {
        self.requests.release();
    }

    /// Requests taken and not yet completed.
    #[must_use]
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.reserved
    }

    /// Stages a completion into the slot reserved for it.
    ///
    /// # Panics
    /// If no request is outstanding: a completion would be posted twice (invariant 1).
    #[inline(always)]
    pub fn complete(&mut self, completion: Completion) {
        assert!(self.reserved > 0, "invariant 1: more completions than requests");
        self.reserved -= 1;
        self.completions.stage(completion.pack());
    }

    /// Stages a LATE notice if a slot beyond the reserved ones is free; drops it otherwise.
    ///
    /// # Errors
    /// `LaneFault` when the client's indices are impossible.
    #[inline]
    pub fn notify(&mut self, notice: Completion) -> Result<(), LaneFault> {
        debug_assert!(notice.flags & FLAG_NOTICE != 0, "a completion is no notice");
        if self.completions.free(self.reserved + 1)? > self.reserved {
            self.completions.stage(notice.pack());
        }
        Ok(())
    }

    /// Publishes the staged entries; returns whether the client sleeps.
    #[inline]
    pub fn publish(&mut self) -> RingBell {
        if self.completions.publish() == 0 {
            return RingBell::No;
        }
        self.waker.must_ring(self.client_word.get()).into()
    }

    /// Announces to the client that this poller is about to sleep. Then: `wake::settle`,
    /// `is_ready`.
    #[inline]
    pub fn announce_sleep(&mut self) {
        self.sleeper.announce(self.poller_word.get());
    }

    /// Announces to the client that this poller is awake.
    #[inline]
    pub fn retract_sleep(&mut self) {
        self.sleeper.retract(self.poller_word.get());
    }
}

/// The client's half.
#[derive(Debug)]
pub struct ClientLane {
    requests: Producer<RequestRing>,
    completions: Consumer<CompletionRing>,
    sides: SideAreas,
    poller_word: ShmWord,
    waker: Waker,
}

impl ClientLane {
    pub(crate) fn new(
        requests: Producer<RequestRing>,
        completions: Consumer<CompletionRing>,
        sides: SideAreas,
        poller_word: ShmWord,
    ) -> Self {
        Self { requests, completions, sides, poller_word, waker: Waker::default() }
    }

    /// Request slots free now; looks again at the sidecar's index if fewer than `wanted` are known.
    ///
    /// # Errors
    /// `LaneFault` when the sidecar's indices are impossible.
    #[inline(always)]
    pub fn free(&mut self, wanted: u32) -> Result<u32, LaneFault> {
        self.requests.free(wanted)
    }

    /// Whether a request can be staged. If not, `free` returns the fault.
    #[inline(always)]
    pub fn has_room(&mut self) -> bool {
        self.requests.free(1).is_ok_and(|free| free > 0)
    }

    /// Writes a request that the sidecar sees after `publish`. The caller has checked `free`.
    #[inline(always)]
    pub fn stage(&mut self, request: Request) {
        self.requests.stage(request.pack());
    }

    /// As `stage`, with what stands in the slot's side area; sets `FLAG_SIDE`.
    ///
    /// # Panics
    /// With more than `METADATA_BYTES_MAX` of metadata.
    pub fn stage_with(&mut self, request: Request, side: &Side<'_>) {
        side::write(&self.sides, self.requests.next_slot(), side);
        self.stage(Request { flags: request.flags | FLAG_SIDE, ..request });
    }

    /// Publishes the staged requests with one store; returns whether the poller sleeps.
    #[inline]
    pub fn publish(&mut self) -> RingBell {
        if self.requests.publish() == 0 {
            return RingBell::No;
        }
        self.waker.must_ring(self.poller_word.get()).into()
    }

    /// Whether a completion or notice can be taken now.
    ///
    /// # Errors
    /// `LaneFault` when the sidecar wrote what cannot be.
    #[inline(always)]
    pub fn is_ready(&self) -> Result<bool, LaneFault> {
        self.completions.is_ready()
    }

    /// Takes one completion or notice, if there is one.
    ///
    /// # Errors
    /// As `is_ready`.
    pub fn take(&mut self) -> Result<Option<CompletionSnapshot>, LaneFault> {
        let mut completion = None;
        self.take_into(|words| completion = Some(words))?;
        Ok(completion)
    }

    /// As `take`, for the hot path: passes the completion to `sink`, and returns whether there was
    /// one.
    ///
    /// # Errors
    /// As `is_ready`.
    #[inline(always)]
    pub fn take_into(&mut self, sink: impl FnOnce(CompletionSnapshot)) -> Result<bool, LaneFault> {
        self.completions.take(|words| sink(CompletionSnapshot(words)))
    }

    /// Gives the slots of all taken completions back to the sidecar.
    #[inline]
    pub fn release(&mut self) {
        self.completions.release();
    }
}

/// The word a client thread sleeps on, one for all lanes of its queue.
#[derive(Debug)]
pub struct ClientSleep {
    word: ShmWord,
    sleeper: Sleeper,
}

impl ClientSleep {
    pub(crate) fn new(word: ShmWord) -> Self {
        Self { word, sleeper: Sleeper::default() }
    }

    /// Announces to all pollers that this thread is about to sleep. Then: `wake::settle`,
    /// `is_ready` on each lane.
    #[inline]
    pub fn announce(&mut self) {
        self.sleeper.announce(self.word.get());
    }

    /// Announces to all pollers that this thread is awake.
    #[inline]
    pub fn retract(&mut self) {
        self.sleeper.retract(self.word.get());
    }
}
