//! The device over a ring.

mod open;
mod refit;

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use kvrail_memory::{PinLimit, Pinned};
use kvrail_ring::{Opcode, Status};
use rustix::io::Errno;

use crate::buffer_table::{BufferPlace, BufferTable, Leave};
use crate::contract::{
    Attached, AttachedBytes, BufferIndex, Description, Device, Event, Events, Finished, Operation,
    Wait,
};
use crate::error::{DeviceError, DeviceResult};
use crate::failure::Failure;
use crate::removal::Removal;
use crate::replacement::Replacement;
use crate::slots::SlotId;
use crate::split::{Flights, Outcome, Settled, Taken, buffer_of, moves_bytes};
use crate::target::Target;
use crate::uring::held::{self, HeldPieces};
use crate::uring::mode::ModeName;
use crate::uring::registering::Registering;
use crate::uring::ring::{Completing, EntriesLeft, Ring, RingCompletion};
use crate::uring::ring_mode::{Interrupt, Mode, RingMode};
use crate::uring::setup::{REGISTERED_RING, SIDE_ENTRIES};
use crate::uring::sqe::{Block, SqeFormat};
use crate::uring::{cqe_result, setup_hints};

pub use open::UringOptions;

/// Longest sleep in the main ring while something is in flight on the side ring, which does not
/// wake it: well below what a flush takes.
const ASIDE_NAP_NS: u64 = 50_000;

/// A file or block device driven through one io_uring instance in mode `M`.
///
/// May be opened on one thread and driven on another: the thread that first calls `submit` owns it
/// from then on.
#[derive(Debug)]
pub struct Uring<M: Mode> {
    ring: Ring<M::SqeFormat>,
    /// Polled rings and those of passthrough take reads and writes only: flush and discard go
    /// here.
    side: Option<Ring<Block>>,
    /// Pieces in flight on the side ring, or to be.
    aside: u32,
    flights: Flights,
    table: BufferTable,
    /// Pieces to be pushed by the next `submit`; never more than there are pieces.
    staged: Vec<SlotId>,
    staged_aside: Vec<SlotId>,
    /// Pieces, of the side ring too, that are repeated later.
    pub(super) held: HeldPieces,
    /// Regions whose entries are being emptied, one in each `reap`.
    emptying: VecDeque<BufferIndex>,
    /// Regions to be forgotten that the kernel may still use.
    forgetting: u32,
    registering: Registering,
    target: Target,
    pub(super) removal: Removal,
    /// The last failure that was not taken yet.
    failure: Option<Failure>,
    description: Description,
    mode: PhantomData<M>,
}

impl<M: Mode> Uring<M> {
    /// Whether the device can sleep in its ring's own call.
    const BLOCKS: bool = matches!(M::NAME, ModeName::Interrupt | ModeName::Passthrough);

    /// System calls made so far to drive the device.
    #[must_use]
    pub fn system_calls(&self) -> u64 {
        self.ring.enters() + self.side.as_ref().map_or(0, Ring::enters)
    }

    /// Whether the operation belongs on the side ring.
    #[inline]
    fn goes_aside(opcode: Opcode) -> bool {
        M::NAME.has_side_ring() && matches!(opcode, Opcode::Flush | Opcode::Discard)
    }

    fn stage_parts(&mut self) {
        while let Some(id) = self.flights.cut() {
            self.staged.push(id);
        }
    }

    #[inline(never)]
    fn push_staged(&mut self) {
        for id in self.staged.drain(..) {
            let piece = self.flights.piece(id);
            let place = match buffer_of(piece) {
                Some(at) => self.table.place(at, piece.buffer_offset, piece.length),
                None => BufferPlace::NONE,
            };
            self.ring.push(piece, place, id.to_u64());
        }
    }

    /// Corrects the description: a thread has room for 16 registered rings.
    #[cold]
    fn tell_unregistered(&mut self, errno: Errno) {
        let claimed = self.description.features.iter_mut().find(|text| *text == REGISTERED_RING);
        if let Some(claim) = claimed {
            *claim = format!("ring not registered ({errno})");
        }
    }

    #[cold]
    fn submit_aside(&mut self) {
        let Some(side) = &mut self.side else { return };
        for id in self.staged_aside.drain(..) {
            side.push(self.flights.piece(id), BufferPlace::NONE, id.to_u64());
        }
        Interrupt::submit(side);
    }

    /// Takes the common answers: an operation of one piece has moved all of its bytes. Returns the
    /// first completion of another kind.
    #[inline(always)]
    fn reap_whole(&mut self, events: &mut Events) -> Option<RingCompletion> {
        let Self { ring, flights, table, .. } = self;
        ring.answers(events.remaining_capacity(), |name, result| {
            let ended = flights.settle_whole(SlotId::from_u64(name), |piece| {
                M::SqeFormat::moved_all(result, piece.length)
                    && table.release_attached(piece.buffer)
            });
            match ended {
                Some(finished) => {
                    events.push(Event::Finished(finished));
                    true
                }
                None => false,
            }
        })
    }

    /// The operation has ended.
    fn end(&mut self, finished: Finished, buffer: Option<BufferIndex>, events: &mut Events) {
        events.push(Event::Finished(finished));
        if let Some(at) = buffer
            && self.table.release(at) == Leave::Now
        {
            self.forget(at);
        }
    }

    /// Takes any answer of the kernel, from a ring that carries `W`.
    #[inline(never)]
    fn answer<W: SqeFormat>(&mut self, name: u64, result: i32, events: &mut Events) {
        let id = SlotId::from_u64(name);
        let piece = self.flights.piece(id);
        let asked = if moves_bytes(piece.opcode) { piece.length } else { 0 };
        let aside = Self::goes_aside(piece.opcode);
        let mut outcome = W::outcome(result, asked);
        if cqe_result::is_suspect(outcome, asked) {
            outcome = self.suspect::<W>(id, outcome, result);
        }
        if aside {
            self.aside -= 1;
        }
        let settled = self.flights.settle(id, outcome);
        if aside && settled == Settled::Reissue {
            self.aside += 1;
        }
        match settled {
            Settled::Ended(finished, buffer) => self.end(finished, buffer, events),
            Settled::Reissue if outcome == Outcome::Later => self.held.put(id, Instant::now()),
            Settled::Reissue if aside => self.staged_aside.push(id),
            Settled::Reissue => self.staged.push(id),
            Settled::Open => {}
        }
    }

    /// Stages what was in doubt once more, when it has waited.
    #[cold]
    fn ask_held(&mut self) {
        for id in self.held.take(Instant::now()) {
            let aside = Self::goes_aside(self.flights.piece(id).opcode);
            if aside { self.staged_aside.push(id) } else { self.staged.push(id) }
        }
    }

    /// A failure, or a short transfer: determines its meaning, and notes it for the log if it is
    /// final.
    #[cold]
    fn suspect<W: SqeFormat>(&mut self, id: SlotId, outcome: Outcome, result: i32) -> Outcome {
        let &Operation { opcode, offset, length, .. } = self.flights.piece(id);
        let cause = W::cause(result);
        let outcome = self.removal.judge(&self.target, opcode, (outcome, cause));
        if let Some(status) = self.flights.failing(id, outcome) {
            self.failure = Some(Failure { opcode, offset, length, status, cause });
        }
        outcome
    }

    /// Has the kernel forget a region that no operation uses.
    #[cold]
    fn forget(&mut self, at: BufferIndex) {
        self.forgetting += 1;
        if !self.emptying.contains(&at) {
            self.emptying.push_back(at);
        }
    }

    /// Empties one entry, or lets go of a region that has none.
    #[cold]
    fn empty_one(&mut self, events: &mut Events) {
        let Some(at) = self.emptying.pop_front() else { return };
        let emptied =
            !self.ring.is_filled(at) || self.ring.unregister_one(at) == Ok(EntriesLeft::None);
        let leaves = self.table.is_addressed(at) && self.table.has_left(at);
        if emptied && !leaves {
            return;
        }
        if emptied && !events.is_full() && self.ring.let_go(at) {
            self.freed(at, events);
            return;
        }
        self.emptying.push_back(at); // what failed is met again, and others have their turn
    }

    /// Nothing can touch the region any more.
    #[cold]
    fn freed(&mut self, at: BufferIndex, events: &mut Events) {
        self.forgetting -= 1;
        self.table.free(at);
        events.push(Event::Detached(at));
    }

    /// Has requests name a region by address.
    #[cold]
    fn attach_by_address(&mut self, at: BufferIndex) -> Attached {
        let region = Arc::clone(self.table.region(at));
        self.table.address_only(at);
        self.ring.address_only(at, region);
        Attached::Whole
    }

    /// The kernel refused an entry of a region: what it has of it is taken back. Where the limit of
    /// pinned memory is the cause, requests name the region by address from now on.
    #[cold]
    fn unregistered(&mut self, at: BufferIndex, errno: Errno) -> DeviceResult<Attached> {
        if self.ring.is_filled(at) && !self.emptying.contains(&at) {
            self.emptying.push_back(at);
        }
        if errno == Errno::NOMEM && PinLimit::of_this_process() != PinLimit::Unlimited {
            return Ok(self.attach_by_address(at));
        }
        let bytes = self.table.region(at).bytes() as u64;
        let leave = self.table.leave(at);
        debug_assert!(matches!(leave, Ok(Leave::Now)), "not used yet: {leave:?}");
        self.table.free(at);
        let remedy = setup_hints::register(errno);
        Err(DeviceError::Register { device: self.target.path.clone(), bytes, errno, remedy })
    }

    #[cold]
    fn reap_aside(&mut self, events: &mut Events) {
        while !events.is_full() {
            let Some(side) = &mut self.side else { return };
            side.disarm();
            Interrupt::collect(side, self.aside);
            match side.pop() {
                Some(RingCompletion::Cqe { name, result }) => {
                    self.answer::<Block>(name, result, events);
                }
                Some(RingCompletion::Freed(_)) => unreachable!("the side ring has no buffers"),
                None => return,
            }
        }
    }

    /// As `prepare`, for all that may come.
    #[inline(never)]
    fn prepare_any(&mut self, operation: Operation) -> Result<(), Operation> {
        let aside = Self::goes_aside(operation.opcode);
        if aside && self.aside >= SIDE_ENTRIES {
            return Err(operation);
        }
        match self.flights.take(operation)? {
            Taken::Whole(id) if aside => {
                self.aside += 1;
                self.staged_aside.push(id);
            }
            Taken::Whole(id) => self.staged.push(id),
            Taken::Parts => self.stage_parts(),
        }
        if let Some(at) = buffer_of(&operation) {
            self.table.place(at, operation.buffer_offset, operation.length); // checks the range
            self.table.acquire(at);
        }
        Ok(())
    }

    /// How long to sleep at most, whatever the main ring waits for.
    pub(super) fn longest_nap_ns(&self) -> u64 {
        if self.aside > 0 {
            ASIDE_NAP_NS
        } else if !self.held.is_empty() {
            held::PAUSE_NS
        } else {
            u64::MAX
        }
    }

    /// Whether anything waits for the next `submit`.
    fn has_staged(&self) -> bool {
        !self.staged.is_empty()
            || !self.staged_aside.is_empty()
            || self.ring.queued() > 0
            || self.side.as_ref().is_some_and(|side| side.queued() > 0)
    }
}

/// Moved bytes may be of a file that had lost them: nothing of it counts.
#[cold]
fn lose(events: &mut [Event]) {
    for event in events {
        if let Event::Finished(Finished { status, bytes, .. }) = event {
            (*status, *bytes) = (Status::DeviceGone, 0);
        }
    }
}

impl<M: Mode> Device for Uring<M> {
    fn description(&self) -> &Description {
        &self.description
    }

    fn begin_attach(&mut self, at: BufferIndex, region: Arc<dyn Pinned>) -> DeviceResult<Attached> {
        self.table.attach(at, Arc::clone(&region))?;
        if self.registering == Registering::Never {
            return Ok(self.attach_by_address(at));
        }
        self.ring.register(at, &region).or_else(|errno| self.unregistered(at, errno))
    }

    fn attach_more(&mut self, at: BufferIndex) -> DeviceResult<Attached> {
        if self.table.is_addressed(at) {
            return Ok(Attached::Whole);
        }
        self.ring.register_more(at).or_else(|errno| self.unregistered(at, errno))
    }

    fn detach(&mut self, at: BufferIndex) -> DeviceResult<()> {
        if self.table.leave(at)? == Leave::Now {
            self.forget(at);
        }
        Ok(())
    }

    fn attached(&self) -> AttachedBytes {
        self.table.attached()
    }

    #[inline(always)]
    fn prepare(&mut self, operation: Operation) -> Result<(), Operation> {
        let Operation { buffer, buffer_offset, length, .. } = operation;
        let Some(place) = self.table.registered(buffer, buffer_offset, length) else {
            return self.prepare_any(operation.anew());
        };
        let Some(id) = self.flights.take_whole(&operation) else {
            return self.prepare_any(operation.anew());
        };
        self.table.acquire(buffer);
        self.ring.push(&operation, place, id.to_u64());
        Ok(())
    }

    #[inline]
    fn submit(&mut self) {
        if !self.staged.is_empty() {
            self.push_staged();
        }
        M::submit(&mut self.ring);
        if self.side.is_some() {
            self.submit_aside();
        }
        if let Some(errno) = self.ring.take_unregistered() {
            self.tell_unregistered(errno);
        }
    }

    #[inline]
    fn reap(&mut self, events: &mut Events) {
        let told = events.len();
        self.ring.disarm();
        M::collect(&mut self.ring, self.flights.pieces() - self.aside);
        while !events.is_full() && !self.ring.is_empty() {
            match self.reap_whole(events) {
                Some(RingCompletion::Cqe { name, result }) => {
                    self.answer::<M::SqeFormat>(name, result, events);
                }
                Some(RingCompletion::Freed(at)) => self.freed(at, events),
                None => {}
            }
        }
        if self.aside > 0 {
            self.reap_aside(events);
        }
        if events.len() > told && self.removal.is_truncated(&self.target) {
            lose(&mut events[told..]);
        }
        if !self.emptying.is_empty() {
            self.empty_one(events);
        }
        if !self.held.is_empty() {
            self.ask_held();
        }
        self.stage_parts();
        if self.has_staged() {
            self.submit(); // continued, repeated and further pieces do not wait for the caller
        }
    }

    fn in_flight(&self) -> u32 {
        self.flights.in_flight()
    }

    fn wait(&self) -> Wait<'_> {
        // Entries outside of the kernel make no descriptor readable.
        if self.has_staged() || !self.held.is_empty() || !self.emptying.is_empty() {
            return Wait::Poll;
        }
        let main = self.flights.pieces() > self.aside || self.forgetting > 0;
        let sleeper = match &self.side {
            Some(side) if !main => side.arm(),
            _ if M::COMPLETING == Completing::Polling => None,
            Some(_) if self.aside > 0 => None,
            _ => self.ring.arm(),
        };
        sleeper.map_or(Wait::Poll, Wait::Readable)
    }

    fn watch(&mut self, bell: OwnedFd) -> Result<(), OwnedFd> {
        if !Self::BLOCKS {
            return Err(bell);
        }
        self.ring.watch(bell);
        Ok(())
    }

    fn block(&mut self, timeout_ns: u64) {
        if !self.staged.is_empty() {
            self.push_staged();
        }
        if self.side.is_some() {
            self.submit_aside();
        }
        if self.emptying.is_empty() && Self::BLOCKS {
            self.ring.block(timeout_ns.min(self.longest_nap_ns()));
        }
    }

    fn replace(&mut self, with: &mut Replacement) -> DeviceResult<()> {
        self.refit(with)
    }

    fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }
}
