//! The device contract: the requests that a poller may make of a device, and the promises of the
//! device.
//!
//! A device is driven by one thread: it may be opened, and regions attached, on another one, and
//! belongs to the thread that first submits from then on, to its drop. `prepare` queues, `submit`
//! hands over, `reap` brings back.
//! Promises, checked by the conformance suite for every implementation:
//! - each prepared operation is finished exactly once, and only after the hardware's last event
//!   for it (invariants 1 and 2);
//! - `Status::Ok` means `bytes == length` (invariant 3);
//! - a buffer is `Detached` only when nothing can touch it any more (invariant 2);
//! - nothing allocates or blocks after opening (invariant 6).

use std::any::Any;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use kvrail_memory::Pinned;
use kvrail_ring::{Opcode, Status};
use serde::{Deserialize, Serialize};

pub use crate::buffer::{BUFFERS_MAX, BufferIndex, REMOTES_MAX};
use crate::error::{DeviceError, DeviceResult};
use crate::failure::Failure;
use crate::replacement::Replacement;

/// Events one `reap` brings back at most.
pub const EVENTS_MAX: usize = 128;

/// Most bytes of one read or write that the hardware has at once: a longer one goes piece by piece,
/// so that later requests do not wait for all of it.
pub const WINDOW_BYTES: u32 = 4 << 20;

/// Memory that is not the host's, such as a GPU's: its bytes are addressed by block and offset,
/// and an operation names them by one number, their place in the line of all blocks.
pub trait RemoteMemory: Any + Send + Sync + fmt::Debug {
    /// The place of a range in that line, if one block holds all of it.
    fn line(&self, block: u32, offset: u64, length: u32) -> Option<u64>;
}

/// Whether a write must be on stable media when it finishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Readable by everyone; lost with the power.
    #[default]
    Visible,
    /// On stable media (FUA, or a flush behind it).
    Durable,
}

/// One operation on a device. Checked by the caller: in range, aligned, buffer attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The caller's name for it; comes back in `Finished`.
    pub tag: u64,
    /// The kind of operation.
    pub opcode: Opcode,
    /// For writes.
    pub durability: Durability,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes to move.
    pub length: u32,
    /// The attached region.
    pub buffer: BufferIndex,
    /// First byte in that region.
    pub buffer_offset: u64,
}

impl Operation {
    /// A copy of the operation at another address: passing the copy's address keeps the original in
    /// registers.
    #[inline(always)]
    pub(crate) fn anew(&self) -> Self {
        let Self { tag, opcode, durability, offset, length, buffer, buffer_offset } = *self;
        // Nothing happens to the tag. But made of the same fields, it would be the same operation
        // to the compiler's first passes, and at the same place.
        let tag = tag.swap_bytes().swap_bytes();
        Self { tag, opcode, durability, offset, length, buffer, buffer_offset }
    }
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The operation's.
    pub tag: u64,
    /// How it ended.
    pub status: Status,
    /// Bytes moved: all of them when the status is OK, the contiguous beginning otherwise.
    pub bytes: u32,
}

/// An event of `reap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An operation ended.
    Finished(Finished),
    /// The region attached here can no longer be touched by anything; its entries are free.
    Detached(BufferIndex),
}

/// Room for the events of one `reap`.
pub type Events = ArrayVec<Event, EVENTS_MAX>;

/// How to learn that `reap` has something, while operations are in flight.
#[derive(Clone, Copy, Debug)]
pub enum Wait<'a> {
    /// Only by calling `reap`: a polled queue, a device without interrupts, or something is there
    /// already.
    Poll,
    /// The descriptor becomes readable; the next `reap` makes it unreadable again.
    Readable(BorrowedFd<'a>),
    /// Another thread of this process does the work, and wakes the thread that drives this device
    /// when `is_ready` has become true.
    ThreadWaker,
}

/// How O_DIRECT is to be treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DirectIo {
    /// Without it the device is refused.
    #[default]
    Required,
    /// Used where the file system has it; what was used is reported.
    Optional,
    /// Through the page cache.
    Off,
}

/// A device and the way it is driven. Printed at start, in `kvrail status` and by benchmarks
/// (invariant 3: the mode really used).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Path, or the name of a device that has none.
    pub name: String,
    /// `null`, `sim`, `file` or `block`.
    pub kind: String,
    /// The name of the ring mode (`ModeName`); `null` or `sim` for those.
    pub mode: String,
    /// Why this mode: configured, or what `auto` found.
    pub reason: String,
    /// Ring flags, registrations and kernel features in force.
    pub features: Vec<String>,
    /// `direct` or `buffered`.
    pub io: String,
    /// Bytes of the device.
    pub capacity_bytes: u64,
    /// Unit of offsets and lengths, in bytes.
    pub logical_block: u32,
    /// Unit of buffer addresses, in bytes.
    pub memory_alignment: u32,
    /// Largest piece handed to the device at once, in bytes; larger operations are split.
    pub transfer_bytes_max: u32,
    /// Operations the device takes at once.
    pub depth: u32,
    /// Bytes a second in its trial: reads of 256 KiB, eight at once. `None` without a trial.
    #[serde(default)]
    pub bytes_per_second: Option<u64>,
}

/// How far a region's attach has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// More entries are to be registered.
    Partly,
    /// Operations may use the region.
    Whole,
}

/// Bytes of the regions a device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachedBytes {
    /// Of those that the kernel keeps pinned.
    pub registered: u64,
    /// Memory that the kernel pins again for each request, because this process may not keep that
    /// much memory pinned (RLIMIT_MEMLOCK).
    pub addressed: u64,
}

/// A driver of devices of any type.
pub trait Driver {
    /// Its result.
    type End;

    /// Drives them to the end.
    fn drive<D: Device>(self, devices: Vec<D>) -> Self::End;
}

/// A device, driven by one thread. See the module for what it promises.
pub trait Device: fmt::Debug {
    /// Its description.
    fn description(&self) -> &Description;

    /// Begins to make a region usable by operations as the entries from `at` on: registers the
    /// first entry. A poller serves others before it goes on with `attach_more`. A region that
    /// this process may not pin is attached all the same: `attached` counts it apart.
    ///
    /// # Errors
    /// `DeviceError` when entries are taken or the kernel refuses; nothing is attached then.
    fn begin_attach(&mut self, at: BufferIndex, region: Arc<dyn Pinned>) -> DeviceResult<Attached>;

    /// Goes on with a region that is attached partly: registers one more entry.
    ///
    /// # Errors
    /// `DeviceError` when the kernel refuses; nothing is attached then.
    fn attach_more(&mut self, _at: BufferIndex) -> DeviceResult<Attached> {
        Ok(Attached::Whole)
    }

    /// Makes a region usable at once: for callers with no other work, because a large region takes
    /// long.
    ///
    /// # Errors
    /// As `begin_attach`.
    fn attach(&mut self, at: BufferIndex, region: Arc<dyn Pinned>) -> DeviceResult<()> {
        let mut progress = self.begin_attach(at, region)?;
        while progress == Attached::Partly {
            progress = self.attach_more(at)?;
        }
        Ok(())
    }

    /// Starts to forget a region, also one that is attached partly. Operations already prepared go
    /// on; the caller prepares no new ones. Each `reap` takes one step; `Event::Detached` follows
    /// when nothing can touch the region any more, and the device has dropped its `Arc` by then.
    ///
    /// # Errors
    /// `DeviceError` when nothing is attached there or the kernel refuses.
    fn detach(&mut self, at: BufferIndex) -> DeviceResult<()>;

    /// Makes remote memory usable by operations as the entry `at`, from `BUFFERS_MAX` on. Left by
    /// `detach` like any region.
    ///
    /// # Errors
    /// `DeviceError` when the device reaches no such memory or the entry is taken.
    fn attach_remote(
        &mut self,
        _at: BufferIndex,
        _memory: Arc<dyn RemoteMemory>,
    ) -> DeviceResult<()> {
        Err(DeviceError::NoRemote { device: self.description().name.clone() })
    }

    /// Bytes of the attached regions, with those whose detach has not ended.
    fn attached(&self) -> AttachedBytes;

    /// Queues an operation.
    ///
    /// # Errors
    /// Gives the operation back when the device takes no more now.
    fn prepare(&mut self, operation: Operation) -> Result<(), Operation>;

    /// Hands everything queued to the hardware. The rest stays queued for the next call.
    fn submit(&mut self);

    /// Brings back what ended, up to the room in `events`.
    fn reap(&mut self, events: &mut Events);

    /// Operations prepared and not yet finished.
    fn in_flight(&self) -> u32;

    /// Whether a short part of an operation in flight is with another thread of this process now:
    /// input for the choice between spinning and sleeping.
    #[inline]
    fn has_handed_over(&self) -> bool {
        false
    }

    /// How to wait for the next result of `reap`. Call it again before each sleep: the call arms
    /// the descriptor, and the result changes with the operations in flight. The descriptor is the
    /// same for one device and kind of answer, so it may stay in an epoll set.
    fn wait(&self) -> Wait<'_>;

    /// Whether `reap` has a result that no descriptor signals, because another thread of this
    /// process handed it over. Checked once more before each sleep.
    fn is_ready(&self) -> bool {
        false
    }

    /// Prepares `block`, which will also return when `bell` becomes readable; edge-triggered: once
    /// for each time something is written there, and it need not be read. Once per device.
    ///
    /// # Errors
    /// Gives the descriptor back when the device cannot sleep like this: then there is `wait`.
    fn watch(&mut self, bell: OwnedFd) -> Result<(), OwnedFd> {
        Err(bell)
    }

    /// After `watch`: hands over what is queued and sleeps until `reap` has something, the bell
    /// rang, or the time is over. One system call where `submit`, a poll and a `reap` would be
    /// three. May return early.
    fn block(&mut self, _timeout_ns: u64) {}

    /// Goes on with what came back in the place of a device that was taken away. On success the
    /// argument holds what the device had before; to be dropped on another thread, because closing
    /// a device may take long. Takes no memory from the heap.
    ///
    /// # Errors
    /// `DeviceError` while operations are in flight, or when the device cannot be replaced.
    fn replace(&mut self, _with: &mut Replacement) -> DeviceResult<()> {
        let Description { name, .. } = self.description();
        Err(DeviceError::unfit(name, "cannot be replaced while it runs", "restart the sidecar"))
    }

    /// The last failure since the last call, in more words than a status.
    fn take_failure(&mut self) -> Option<Failure> {
        None
    }

    /// Passes devices to their driver. A type that stands for several passes them as their one
    /// actual type, so that no operation branches on the type.
    fn hand_to<R: Driver>(devices: Vec<Self>, driver: R) -> R::End
    where
        Self: Sized,
    {
        driver.drive(devices)
    }
}
