//! The two halves of a lane: what the client may do with it, and what the sidecar may.
//!
//! A lane is one request ring and one completion ring between one client thread and one poller.
//! Invariant 1 (exactly once) starts here: a request is taken only while a completion slot is
//! reserved for it, so completions always have room.

use crate::shm::{CompletionRing, RequestRing, ShmWord};
use crate::slot::{Completion, FLAG_NOTICE, Request};
use crate::spsc::{Consumer, LaneFault, Producer};
use crate::wake::{Sleeper, Waker};

/// Whether the other side sleeps and must be woken with its bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Ring {
    /// It sleeps: ring its bell.
    Now,
    /// It is awake, or was rung already.
    No,
}

impl From<bool> for Ring {
    fn from(must: bool) -> Self {
        if must { Self::Now } else { Self::No }
    }
}

/// The sidecar's half.
#[derive(Debug)]
pub struct ServerLane {
    requests: Consumer<RequestRing>,
    completions: Producer<CompletionRing>,
    poller_word: ShmWord,
    client_word: ShmWord,
    sleeper: Sleeper,
    waker: Waker,
    /// Requests taken and not completed; each owns one completion slot.
    reserved: u32,
}

impl ServerLane {
    pub(crate) fn new(
        requests: Consumer<RequestRing>,
        completions: Producer<CompletionRing>,
        poller_word: ShmWord,
        client_word: ShmWord,
    ) -> Self {
        let (sleeper, waker) = (Sleeper::default(), Waker::default());
        Self { requests, completions, poller_word, client_word, sleeper, waker, reserved: 0 }
    }

    /// Requests that can be taken now: those published, as far as completion slots are free.
    ///
    /// # Errors
    /// `LaneFault` when the client's indices are impossible; the session must end.
    #[inline]
    pub fn ready(&mut self) -> Result<u32, LaneFault> {
        let published = self.requests.ready()?;
        if published == 0 {
            return Ok(0);
        }
        let free = self.completions.free(self.reserved + published)?;
        Ok(published.min(free.saturating_sub(self.reserved)))
    }

    /// Takes one request as a private copy and reserves its completion slot. The caller has asked
    /// `ready` and takes no more than it said.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Request> {
        let request = self.requests.take()?;
        self.reserved += 1;
        Some(request)
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
        self.completions.stage(completion);
    }

    /// Stages a LATE notice if a slot beyond the reserved ones is free; drops it otherwise.
    ///
    /// # Errors
    /// `LaneFault` when the client's indices are impossible.
    #[inline]
    pub fn notify(&mut self, notice: Completion) -> Result<(), LaneFault> {
        debug_assert!(notice.flags & FLAG_NOTICE != 0, "a completion is no notice");
        if self.completions.free(self.reserved + 1)? > self.reserved {
            self.completions.stage(notice);
        }
        Ok(())
    }

    /// Publishes what is staged; says whether the client sleeps.
    #[inline]
    pub fn publish(&mut self) -> Ring {
        if self.completions.publish() == 0 {
            return Ring::No;
        }
        self.waker.must_ring(self.client_word.get()).into()
    }

    /// Tells the client that this poller is about to sleep. Then: `wake::settle`, `refresh`.
    #[inline]
    pub fn announce_sleep(&mut self) {
        self.sleeper.announce(self.poller_word.get());
    }

    /// Tells the client that this poller is awake.
    #[inline]
    pub fn retract_sleep(&mut self) {
        self.sleeper.retract(self.poller_word.get());
    }

    /// The second look before sleeping: requests published by now that can be taken.
    ///
    /// # Errors
    /// As `ready`.
    #[inline]
    pub fn refresh(&mut self) -> Result<u32, LaneFault> {
        self.requests.refresh()?;
        self.ready()
    }
}

/// The client's half.
#[derive(Debug)]
pub struct ClientLane {
    requests: Producer<RequestRing>,
    completions: Consumer<CompletionRing>,
    poller_word: ShmWord,
    waker: Waker,
}

impl ClientLane {
    pub(crate) fn new(
        requests: Producer<RequestRing>,
        completions: Consumer<CompletionRing>,
        poller_word: ShmWord,
    ) -> Self {
        Self { requests, completions, poller_word, waker: Waker::default() }
    }

    /// Request slots free now; looks again at the sidecar's index if fewer than `wanted` are known.
    ///
    /// # Errors
    /// `LaneFault` when the sidecar's indices are impossible.
    #[inline]
    pub fn free(&mut self, wanted: u32) -> Result<u32, LaneFault> {
        self.requests.free(wanted)
    }

    /// Writes a request that the sidecar sees after `publish`. The caller has asked `free`.
    #[inline]
    pub fn stage(&mut self, request: Request) {
        self.requests.stage(request);
    }

    /// Publishes what is staged with one store; says whether the poller sleeps.
    #[inline]
    pub fn publish(&mut self) -> Ring {
        if self.requests.publish() == 0 {
            return Ring::No;
        }
        self.waker.must_ring(self.poller_word.get()).into()
    }

    /// Completions that can be taken now.
    ///
    /// # Errors
    /// `LaneFault` when the sidecar's indices are impossible.
    #[inline]
    pub fn ready(&mut self) -> Result<u32, LaneFault> {
        self.completions.ready()
    }

    /// As `ready`, always looking at the sidecar's index: the second look before sleeping.
    ///
    /// # Errors
    /// As `ready`.
    #[inline]
    pub fn refresh(&mut self) -> Result<u32, LaneFault> {
        self.completions.refresh()
    }

    /// Takes one completion or notice.
    #[inline]
    pub fn take(&mut self) -> Option<Completion> {
        self.completions.take()
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

    /// Tells all pollers that this thread is about to sleep. Then: `wake::settle`, `refresh` on
    /// each lane.
    #[inline]
    pub fn announce(&mut self) {
        self.sleeper.announce(self.word.get());
    }

    /// Tells all pollers that this thread is awake.
    #[inline]
    pub fn retract(&mut self) {
        self.sleeper.retract(self.word.get());
    }
}
