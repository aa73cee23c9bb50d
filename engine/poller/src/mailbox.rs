//! What the control thread tells a poller, and what it hears back.
//!
//! Two bounded queues and two eventfds. Whatever was allocated by the control thread goes back to
//! it, so a poller never frees memory (invariant 6).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use kvrail_device::{BufferIndex, DeviceError, Failure, RemoteMemory, Replacement};
use kvrail_memory::Pinned;
use kvrail_ring::{Doorbell, LaneFault, RegionId, ServerLane, ThreadWaker};
use kvrail_store::{Key, NAME_BYTES_MAX};

use crate::bells::QueueDoorbell;
use crate::late_loss::LateLoss;
use crate::limits::{
    DEVICES_MAX, LANES_MAX, REGIONS_MAX, SESSIONS_MAX, STORE_CALLS_MAX, SessionSlot, TenantSlot,
};
use crate::store_call::StoreCall;
use crate::store_page::GoneRows;
use crate::trace::Tracer;

/// Failures kept for the control thread; there may be thousands, and a few tell enough.
const FAILURES_MAX: usize = 64;

/// Batches of blocks that are gone, of one poller at once.
const GONE_BATCHES_MAX: usize = 8;

/// Commands in flight at once.
const COMMANDS_MAX: usize = 4096;

/// Notices that a poller may owe at once. What it is owed for a lane, a region or a session, the
/// control thread reads before it gives that out anew: a lane was added, broken and closed; a
/// region attached and detached; a session handed to the ringer and closed; a device replaced and
/// released; a light tracer and a full one given back; all drained.
pub const NOTICES_MAX: usize =
    3 * LANES_MAX + 2 * REGIONS_MAX + 2 * SESSIONS_MAX + 2 * DEVICES_MAX + STORE_CALLS_MAX + 3;

// A lane is added and closed, a region attached and detached, a session closed, a device replaced,
// retired and released, the slow log and a trace begun, a trace ended, and the poller drained and
// stopped.
const _: () = assert!(
    2 * LANES_MAX + 2 * REGIONS_MAX + SESSIONS_MAX + 3 * DEVICES_MAX + STORE_CALLS_MAX + 5
        <= COMMANDS_MAX
);

/// A lane with what is needed to serve it.
#[derive(Debug)]
pub struct LaneSeat {
    /// Number of the queue within its session.
    pub queue: u32,
    /// The sidecar's half.
    pub lane: ServerLane,
    /// Wakes the client; one for all lanes of the queue.
    pub bell: Arc<QueueDoorbell>,
    /// What the client rings; the poller only watches it.
    pub doorbell: Doorbell,
    /// The arena whose pages take the tails of blocks, a page of 4 KiB each.
    pub tails: Option<RegionId>,
    /// Whose share of the devices' time its session has a part of; the same for all its lanes.
    pub tenant: TenantSlot,
}

/// From the control thread.
#[derive(Debug)]
pub enum PollerCommand {
    /// Serve this lane from now on. Answer: `LaneAdded`.
    AddLane(SessionSlot, Box<LaneSeat>),
    /// Take nothing more from this lane, complete what was taken. Answer: `LaneClosed`.
    CloseLane(SessionSlot, u32),
    /// Make a region usable by requests of this session. Answer: `Attached`.
    Attach {
        /// Its owner.
        session: SessionSlot,
        /// Its name in requests.
        region: RegionId,
        /// Its place in every device's buffer table.
        buffer: BufferIndex,
        /// The memory; the control thread keeps another reference until `Detached`.
        memory: Arc<dyn Pinned>,
    },
    /// Makes memory of a GPU usable by requests of this session. Answer: `Attached`.
    AttachRemote {
        /// Its owner.
        session: SessionSlot,
        /// Its name in requests.
        region: RegionId,
        /// Its place among remote memory, from `BUFFERS_MAX` on.
        buffer: BufferIndex,
        /// The memory; the control thread keeps another reference until `Detached`, so that it is
        /// closed there.
        memory: Arc<dyn RemoteMemory>,
    },
    /// Refuse requests that name this region, finish those in flight, forget it. Answer:
    /// `Detached`, when neither poller nor hardware can touch it any more.
    Detach(SessionSlot, RegionId),
    /// The client is gone: drop its waiting requests, finish those in flight, detach its regions
    /// and give back its lanes. Answers: `LaneClosed` and `Detached` for each, then
    /// `SessionClosed`.
    CloseSession(SessionSlot),
    /// Answer new requests with DRAINING, finish what was accepted. Answer: `Drained`.
    Drain,
    /// Go on with this in the place of a device that is gone, by its local number. Answer:
    /// `Replaced`.
    Replace(usize, Box<Replacement>),
    /// Take the device of this local number out of service for good, whether or not it is there:
    /// what it was given ends as usual, the rest with DEVICE_GONE. No answer:
    /// `DeviceStats::retired` shows it.
    Retire(usize),
    /// Have a device that was retired let go of its file, which nothing takes the place of. Answer:
    /// `Released`.
    Release(usize, Box<Replacement>),
    /// Do this with the store on the device of this local number. Answer: `Store`.
    Store(usize, Box<StoreCall>),
    /// Trace slow requests with this from now on. Answer: `Traced`, if there was a tracer before.
    Trace(Box<Tracer>),
    /// Leave the thread once nothing is in flight. Answer: the thread ends.
    Stop,
}

/// From a poller.
#[derive(Debug)]
pub enum Notice {
    /// The device of this local number goes on, and here is what it had before; or it does not,
    /// and here is what it was to have.
    Replaced(usize, Box<Replacement>, Result<(), DeviceError>),
    /// A retired device of this local number has let go of its file, and here it is to be closed;
    /// or not yet.
    Released(usize, Box<Replacement>, Result<(), DeviceError>),
    /// A call to the store on the device of this local number has ended.
    Store(usize, Box<StoreCall>),
    /// The lane is being served.
    LaneAdded(SessionSlot, u32),
    /// Nothing of this lane is left in the poller; here it is back.
    LaneClosed(SessionSlot, Box<LaneSeat>),
    /// The region is usable, or why not.
    Attached(SessionSlot, RegionId, Result<(), DeviceError>),
    /// Nothing in this poller and its devices can touch the region any more.
    Detached(SessionSlot, RegionId),
    /// Nothing of this session is left.
    SessionClosed(SessionSlot),
    /// The client broke this lane; it is no longer served and its session must be closed.
    LaneFault(SessionSlot, u32, LaneFault),
    /// To wake this session's client takes too long: the ringer does so from now on.
    DearBell(SessionSlot),
    /// It traces with this no more.
    Traced(Box<Tracer>),
    /// Everything accepted is complete; whatever comes is answered DRAINING.
    Drained,
}

/// An operation that a device failed, for the log.
#[derive(Clone, Copy, Debug)]
pub struct DeviceFailure {
    /// The poller's device, in local order.
    pub device: usize,
    /// What failed and why.
    pub failure: Failure,
    /// Operations of that device that did not end OK, so far.
    pub errors: u64,
}

/// A block that a reader reported, and that was wrong when the sidecar looked, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptBlock {
    /// The poller's device, in local order.
    pub device: usize,
    /// Its key.
    pub key: Key,
    /// Where it begins on the device, in bytes.
    pub offset: u64,
    name: [u8; NAME_BYTES_MAX],
    name_bytes: usize,
}

impl CorruptBlock {
    pub(crate) fn new(device: usize, name: &[u8], key: Key, offset: u64) -> Self {
        let name_bytes = name.len().min(NAME_BYTES_MAX);
        let mut kept = [0; NAME_BYTES_MAX];
        kept[..name_bytes].copy_from_slice(&name[..name_bytes]);
        Self { device, key, offset, name: kept, name_bytes }
    }

    /// Name of its namespace; empty where that was cleared meanwhile.
    #[must_use]
    pub fn namespace(&self) -> &[u8] {
        &self.name[..self.name_bytes]
    }
}

/// Both directions between the control thread and one poller.
#[derive(Debug)]
pub struct Mailbox {
    commands: ArrayQueue<PollerCommand>,
    notices: ArrayQueue<Notice>,
    failures: ArrayQueue<DeviceFailure>,
    corrupt: ArrayQueue<CorruptBlock>,
    losses: ArrayQueue<LateLoss>,
    gone: ArrayQueue<Box<GoneRows>>,
    batches: ArrayQueue<Box<GoneRows>>,
    overdue_ns: AtomicU64,
    to_poller: Arc<ThreadWaker>,
    to_control: Arc<Doorbell>,
}

impl Mailbox {
    /// A mailbox whose notices ring `to_control`, which several pollers may share.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out.
    pub fn new(to_control: Arc<Doorbell>) -> Result<Self, rustix::io::Errno> {
        let (commands, notices) = (ArrayQueue::new(COMMANDS_MAX), ArrayQueue::new(NOTICES_MAX));
        let (failures, corrupt) = (ArrayQueue::new(FAILURES_MAX), ArrayQueue::new(FAILURES_MAX));
        let losses = ArrayQueue::new(FAILURES_MAX);
        let (gone, batches) =
            (ArrayQueue::new(GONE_BATCHES_MAX), ArrayQueue::new(GONE_BATCHES_MAX));
        let to_poller = Arc::new(ThreadWaker::new()?);
        let overdue_ns = AtomicU64::new(u64::MAX);
        Ok(Self {
            commands,
            notices,
            failures,
            corrupt,
            losses,
            gone,
            batches,
            overdue_ns,
            to_poller,
            to_control,
        })
    }

    /// Gives the poller all batches that it tells of blocks with that are gone. Once, and where
    /// there are stores; without batches, what is gone is lost, and counted.
    pub fn lend_batches(&self) {
        for _ in 0..GONE_BATCHES_MAX {
            self.return_batch(Box::default());
        }
    }

    /// Takes the next blocks that are gone. What went before a page of a listing was taken comes
    /// before its notice. To be given back with `return_batch`.
    #[must_use]
    pub fn next_gone(&self) -> Option<Box<GoneRows>> {
        self.gone.pop()
    }

    /// Gives a batch back.
    pub fn return_batch(&self, mut batch: Box<GoneRows>) {
        batch.clear();
        // No more were lent than there is room for.
        let _kept = self.batches.push(batch);
    }

    /// A batch to fill. Only the poller calls this.
    pub(crate) fn spare_batch(&self) -> Option<Box<GoneRows>> {
        if self.batches.is_empty() { None } else { self.batches.pop() }
    }

    /// Tells the control thread of blocks that are gone. Only the poller calls this.
    pub(crate) fn report_gone(&self, batch: Box<GoneRows>) {
        // There are no more batches than there is room for.
        let _sent = self.gone.push(batch);
        self.to_control.ring();
    }

    /// Sends a command.
    ///
    /// # Errors
    /// Gives it back when the poller has not read the last 4,096.
    pub fn send(&self, command: PollerCommand) -> Result<(), PollerCommand> {
        self.commands.push(command)?;
        self.to_poller.ring();
        Ok(())
    }

    /// Takes the next notice.
    #[must_use]
    pub fn receive(&self) -> Option<Notice> {
        self.notices.pop()
    }

    /// Takes the next failure.
    #[must_use]
    pub fn next_failure(&self) -> Option<DeviceFailure> {
        self.failures.pop()
    }

    /// Takes the next block that was wrong.
    #[must_use]
    pub fn next_corrupt(&self) -> Option<CorruptBlock> {
        self.corrupt.pop()
    }

    /// Takes the next late blocks that a stop has lost.
    #[must_use]
    pub fn next_loss(&self) -> Option<LateLoss> {
        self.losses.pop()
    }

    /// What the poller watches while it sleeps.
    #[must_use]
    pub fn poller_bell(&self) -> BorrowedFd<'_> {
        self.to_poller.as_fd()
    }

    /// What other threads of this process wake the poller with: those that work for its devices.
    #[must_use]
    pub fn nudge(&self) -> &Arc<ThreadWaker> {
        &self.to_poller
    }

    /// Has the poller count requests older than so many nanoseconds from now on.
    pub fn set_overdue(&self, age_ns: u64) {
        self.overdue_ns.store(age_ns, Ordering::Relaxed); // a limit orders nothing
    }

    /// The age from which on requests are counted.
    pub(crate) fn overdue_ns(&self) -> u64 {
        self.overdue_ns.load(Ordering::Relaxed) // a limit orders nothing
    }

    /// Whether no command waits: the second look before sleeping.
    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Takes the next command. Only the poller calls this.
    #[must_use]
    #[inline]
    pub fn next_command(&self) -> Option<PollerCommand> {
        // `pop` passes a full fence even when it finds nothing; this is asked in every tick.
        if self.commands.is_empty() { None } else { self.commands.pop() }
    }

    /// Posts a notice. Only the poller calls this. There is room for all that it can owe.
    ///
    /// # Panics
    /// If the control thread left `NOTICES_MAX` notices unread.
    pub fn post(&self, notice: Notice) {
        let full = self.notices.push(notice).is_err();
        assert!(!full, "the control thread left {NOTICES_MAX} notices unread");
        self.to_control.ring();
    }

    /// Tells the control thread of a block that was wrong; dropped while it has 64 unread. Only the
    /// poller calls this.
    pub(crate) fn report_corrupt(&self, block: CorruptBlock) {
        if self.corrupt.push(block).is_ok() {
            self.to_control.ring();
        }
    }

    /// Reports late blocks that a stop has lost to the control thread. False while it has 64 such
    /// rows unread. Only the poller calls this.
    pub(crate) fn report_loss(&self, loss: LateLoss) -> bool {
        let is_sent = self.losses.push(loss).is_ok();
        if is_sent {
            self.to_control.ring();
        }
        is_sent
    }

    /// Tells the control thread of a failure; dropped while it has 64 unread. Only the poller
    /// calls this.
    pub(crate) fn report(&self, failure: DeviceFailure) {
        if self.failures.push(failure).is_ok() {
            self.to_control.ring();
        }
    }
}
