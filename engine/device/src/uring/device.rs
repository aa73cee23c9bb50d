//! The device over a ring.

use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvrail_memory::{HeapBlock, Pinned};
use kvrail_ring::{Opcode, Status};
use rustix::io::Errno;

use crate::contract::{BufferIndex, Description, Device, DirectIo, Event, Events, Operation, Wait};
use crate::error::DeviceError;
use crate::queue::Polling;
use crate::slots::SlotId;
use crate::split::{Flights, Limits, Outcome, Settled, Taken, buffer_of, moves_bytes};
use crate::table::{Leave, Table};
use crate::target::{Io, Kind, Target};
use crate::trial;
use crate::uring::mode::{Interrupt, KernelThread, Mode, ModeName};
use crate::uring::ring::{Completing, Completion, Ring};
use crate::uring::setup::{Plan, REGISTERED_RING, SIDE_ENTRIES, main_ring, side_ring};
use crate::uring::{mode::Drive, remedy, verdict};

/// Most operations a device takes at once.
const DEPTH_MAX: u32 = 4096;

/// Pieces in flight are at least this many, so that a few large operations fill the device too.
/// With one entry to spare for the bell the submission queue has 128 then.
const PIECES_MIN: u32 = 127;

/// What to open and how to drive it.
#[derive(Debug)]
pub struct UringOptions {
    /// Name for messages: the path as configured.
    pub path: String,
    /// The file or block device, open for reading and writing; claimed by whoever opened it.
    pub fd: OwnedFd,
    /// How O_DIRECT is to be treated.
    pub direct: DirectIo,
    /// Operations at once, 1 to 4096.
    pub depth: u32,
    /// Largest piece in bytes, if it must be smaller than the device's limit.
    pub transfer_bytes_max: Option<u32>,
    /// For modes with a kernel thread.
    pub thread: KernelThread,
    /// Why this mode; printed at start.
    pub reason: String,
}

impl UringOptions {
    /// O_DIRECT required, 128 operations at once, the device's own limits.
    #[must_use]
    pub fn new(path: impl Into<String>, fd: OwnedFd) -> Self {
        Self {
            path: path.into(),
            fd,
            direct: DirectIo::Required,
            depth: 128,
            transfer_bytes_max: None,
            thread: KernelThread::default(),
            reason: "configured".into(),
        }
    }

    /// The same device once more, for a trial.
    pub(crate) fn duplicate(&self) -> Result<Self, DeviceError> {
        let fd = self.fd.try_clone().map_err(|error| DeviceError::Open {
            path: self.path.clone(),
            errno: super::ring::errno_of(error),
            remedy: "descriptors have run out: raise LimitNOFILE (ulimit -n)".into(),
        })?;
        let (path, reason) = (self.path.clone(), self.reason.clone());
        Ok(Self { path, fd, reason, ..*self })
    }
}

/// A file or block device driven through one io_uring instance in mode `M`.
///
/// May be opened on one thread and driven on another: the thread that first calls `submit` owns it
/// from then on.
#[derive(Debug)]
pub struct Uring<M: Mode> {
    ring: Ring,
    /// Polled rings take reads and writes only: flush and discard go here.
    side: Option<Ring>,
    /// Pieces in flight on the side ring.
    aside: u32,
    flights: Flights,
    table: Table,
    /// Pieces to be pushed by the next `submit`; never more than there are pieces.
    staged: Vec<SlotId>,
    staged_aside: Vec<SlotId>,
    /// Regions the kernel could not be told to forget yet.
    unforgotten: Vec<BufferIndex>,
    /// Regions the kernel was told to forget.
    forgetting: u32,
    target: Target,
    gone: Gone,
    description: Description,
    mode: PhantomData<M>,
}

/// Whether the device is known to have been taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    No,
    Yes,
}

impl<M: Mode> Uring<M> {
    /// Opens a device. For polled modes one block is read to see that polling works.
    ///
    /// # Errors
    /// `DeviceError` with the likely cause and the remedy.
    pub fn open(options: UringOptions) -> Result<Self, DeviceError> {
        if M::COMPLETING == Completing::Polling {
            Self::assemble(options.duplicate()?)?.check_polling()?;
        }
        Self::assemble(options)
    }

    fn assemble(options: UringOptions) -> Result<Self, DeviceError> {
        let UringOptions { path, fd, direct, depth, transfer_bytes_max, thread, reason } = options;
        if depth == 0 || depth > DEPTH_MAX {
            let what = format!("depth {depth} is out of range");
            let remedy = format!("choose 1 to {DEPTH_MAX}");
            return Err(DeviceError::Unfit { path, what, remedy });
        }
        let target = Target::examine(&path, fd, direct)?;
        let polled = M::COMPLETING == Completing::Polling;
        if polled && target.io == Io::Buffered {
            let what = format!("mode {} needs O_DIRECT", M::NAME);
            let remedy = "set direct = \"required\", or use mode interrupt".into();
            return Err(DeviceError::Unfit { path, what, remedy });
        }
        let limits = limits(&target, depth, transfer_bytes_max, M::COMPLETING);
        let entries = (limits.pieces + 1).next_power_of_two();
        let plan = Plan { path: &path, file: target.fd(), entries, thread };
        let made = main_ring::<M>(&plan)?;
        let side = if polled { Some(side_ring(&plan)?) } else { None };
        let mut features = made.features;
        if polled {
            features.push("second ring for flush and discard".into());
        }
        let description = describe::<M>(&target, &limits, reason, features);
        let pieces = limits.pieces as usize;
        Ok(Self {
            ring: made.ring,
            side,
            aside: 0,
            flights: Flights::new(limits),
            table: Table::new(),
            staged: Vec::with_capacity(pieces),
            staged_aside: Vec::with_capacity(SIDE_ENTRIES as usize),
            unforgotten: Vec::with_capacity(usize::from(crate::contract::BUFFERS_MAX)),
            forgetting: 0,
            target,
            gone: Gone::No,
            description,
            mode: PhantomData,
        })
    }

    /// System calls made so far to drive the device.
    #[must_use]
    pub fn system_calls(&self) -> u64 {
        self.ring.enters() + self.side.as_ref().map_or(0, Ring::enters)
    }

    /// Makes sure that the device can be polled: sysfs says so (a read alone proves nothing, it may
    /// meet a hole in a file and never reach the device), and a first read succeeds.
    fn check_polling(&mut self) -> Result<(), DeviceError> {
        if self.target.queue.as_ref().is_some_and(|queue| queue.polling == Polling::No) {
            return Err(self.refuse_polling());
        }
        let block = self.description.logical_block;
        self.attach(trial::AT, Arc::new(HeapBlock::new(block as usize)))?;
        match trial::read_once(self, 0, block) {
            Some(Status::Ok) => Ok(()),
            Some(Status::Unsupported) => Err(self.refuse_polling()), // EOPNOTSUPP
            other => Err(DeviceError::Unfit {
                path: self.target.path.clone(),
                what: format!(
                    "a first read ended with {}",
                    other.map_or("no answer", Status::name)
                ),
                remedy: "check the device (dmesg), or use mode interrupt".into(),
            }),
        }
    }

    fn refuse_polling(&self) -> DeviceError {
        DeviceError::Unfit {
            path: self.target.path.clone(),
            what: format!("mode {} does not work here", M::NAME),
            remedy: remedy::no_poll_queues(self.target.queue.as_ref()),
        }
    }

    /// Whether the operation belongs on the side ring.
    #[inline]
    fn goes_aside(opcode: Opcode) -> bool {
        M::COMPLETING == Completing::Polling && matches!(opcode, Opcode::Flush | Opcode::Discard)
    }

    fn stage_parts(&mut self) {
        while let Some(id) = self.flights.cut() {
            self.staged.push(id);
        }
    }

    #[inline]
    fn push_staged(&mut self) {
        let (flights, table) = (&self.flights, &self.table);
        let requests = self.staged.drain(..).map(|id| {
            let piece = flights.piece(id);
            let address = match buffer_of(piece) {
                Some(at) => table.address(at, piece.buffer_offset, piece.length),
                None => 0,
            };
            (piece, address, id.to_u64())
        });
        self.ring.push(requests);
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
        let flights = &self.flights;
        let staged = self.staged_aside.drain(..);
        side.push(staged.map(|id| (flights.piece(id), 0, id.to_u64())));
        Interrupt::submit(side);
    }

    /// Takes one answer of the kernel.
    #[inline]
    fn answer(&mut self, name: u64, result: i32, events: &mut Events) {
        let id = SlotId::from_u64(name);
        let mut outcome = verdict::outcome(result);
        let piece = self.flights.piece(id);
        let asked = if moves_bytes(piece.opcode) { piece.length } else { 0 };
        let aside = Self::goes_aside(piece.opcode);
        if verdict::is_suspect(outcome, asked) {
            outcome = self.judge(outcome);
        }
        if aside {
            self.aside -= 1;
        }
        match self.flights.settle(id, outcome) {
            Settled::Ended(finished, buffer) => {
                events.push(Event::Finished(finished));
                if let Some(at) = buffer
                    && self.table.release(at) == Leave::Now
                {
                    self.forget(at);
                }
            }
            Settled::Reissue if aside => {
                self.aside += 1;
                self.staged_aside.push(id);
            }
            Settled::Reissue => self.staged.push(id),
            Settled::Open => {}
        }
    }

    /// A device that was taken away fails in strange ways: all of them mean that it is gone.
    #[cold]
    fn judge(&mut self, outcome: Outcome) -> Outcome {
        if self.gone == Gone::No && self.target.is_gone() {
            self.gone = Gone::Yes;
        }
        match self.gone {
            Gone::No => outcome,
            Gone::Yes => Outcome::Failed(Status::DeviceGone),
        }
    }

    /// Tells the kernel to forget a region that no operation uses.
    #[cold]
    fn forget(&mut self, at: BufferIndex) {
        match self.ring.unregister(at) {
            Ok(()) => self.forgetting += 1,
            Err(_) => self.unforgotten.push(at), // tried again by every `reap`
        }
    }

    #[cold]
    fn forget_again(&mut self) {
        for _ in 0..self.unforgotten.len() {
            let at = self.unforgotten.swap_remove(0);
            self.forget(at);
        }
    }

    #[cold]
    fn reap_aside(&mut self, events: &mut Events) {
        while !events.is_full() {
            let Some(side) = &mut self.side else { return };
            side.disarm();
            Interrupt::collect(side, self.aside);
            match side.pop() {
                Some(Completion::Answer { name, result }) => self.answer(name, result, events),
                Some(Completion::Freed(_)) => unreachable!("the side ring has no buffers"),
                None => return,
            }
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

impl<M: Mode> Device for Uring<M> {
    fn description(&self) -> &Description {
        &self.description
    }

    fn attach(&mut self, at: BufferIndex, region: Arc<dyn Pinned>) -> Result<(), DeviceError> {
        self.table.attach(at, Arc::clone(&region))?;
        self.ring.register(at, &region).map_err(|errno| {
            let leave = self.table.leave(at);
            debug_assert!(matches!(leave, Ok(Leave::Now)), "attached above: {leave:?}");
            self.table.free(at);
            let bytes = region.bytes() as u64;
            let remedy = remedy::register(errno, bytes);
            DeviceError::Register { device: self.target.path.clone(), bytes, errno, remedy }
        })
    }

    fn detach(&mut self, at: BufferIndex) -> Result<(), DeviceError> {
        if self.table.leave(at)? == Leave::Now {
            self.forget(at);
        }
        Ok(())
    }

    #[inline]
    fn prepare(&mut self, operation: Operation) -> Result<(), Operation> {
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
            self.table.acquire(at);
        }
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
        self.ring.disarm();
        M::collect(&mut self.ring, self.flights.pieces() - self.aside);
        while !events.is_full() {
            match self.ring.pop() {
                Some(Completion::Answer { name, result }) => self.answer(name, result, events),
                Some(Completion::Freed(at)) => {
                    self.forgetting -= 1;
                    self.table.free(at);
                    events.push(Event::Detached(at));
                }
                None => break,
            }
        }
        if self.aside > 0 {
            self.reap_aside(events);
        }
        if !self.unforgotten.is_empty() {
            self.forget_again();
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
        // What the kernel would not take makes no descriptor readable.
        if self.has_staged() || !self.unforgotten.is_empty() {
            return Wait::Poll;
        }
        let sleeper = match &self.side {
            None => self.ring.arm(),
            Some(side) if self.flights.pieces() == self.aside && self.forgetting == 0 => side.arm(),
            Some(_) => None,
        };
        sleeper.map_or(Wait::Poll, Wait::Readable)
    }

    fn watch(&mut self, bell: OwnedFd) -> Result<(), OwnedFd> {
        match M::NAME {
            ModeName::Interrupt => {
                self.ring.watch(bell);
                Ok(())
            }
            _ => Err(bell),
        }
    }

    fn block(&mut self, timeout_ns: u64) {
        if !self.staged.is_empty() {
            self.push_staged();
        }
        if self.unforgotten.is_empty() && M::NAME == ModeName::Interrupt {
            self.ring.block(timeout_ns);
        }
    }
}

fn limits(
    target: &Target,
    depth: u32,
    transfer_bytes_max: Option<u32>,
    completing: Completing,
) -> Limits {
    let device = match completing {
        Completing::Interrupts => target.transfer_bytes_max(),
        Completing::Polling => target.polled_bytes_max(),
    };
    let block = target.logical_block;
    let most = transfer_bytes_max.map_or(device, |wanted| wanted.min(device));
    let transfer_bytes_max = (most - most % block).max(block);
    let granule = if target.io == Io::Direct { block } else { 1 };
    let pieces = depth.max(PIECES_MIN);
    Limits { transfer_bytes_max, granule, depth, pieces }
}

fn describe<M: Mode>(
    target: &Target,
    limits: &Limits,
    reason: String,
    features: Vec<String>,
) -> Description {
    Description {
        name: target.path.clone(),
        kind: match target.kind {
            Kind::File => "file".into(),
            Kind::Block => "block".into(),
        },
        mode: M::NAME.to_string(),
        reason,
        features,
        io: match target.io {
            Io::Direct => "direct".into(),
            Io::Buffered => "buffered".into(),
        },
        capacity_bytes: target.capacity_bytes,
        logical_block: target.logical_block,
        memory_alignment: target.memory_alignment,
        transfer_bytes_max: limits.transfer_bytes_max,
        depth: limits.depth,
    }
}
