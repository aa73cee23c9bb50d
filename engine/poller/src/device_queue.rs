//! One device: operations it has and has not submitted, whether it is there, and how to wait
//! for it.
//!
//! From the first DEVICE_GONE on nothing is given to a device any more: its tasks end with that
//! status at once. The control side looks for it and sends what takes its place.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use kvrail_device::{
    Attached, AttachedBytes, BufferIndex, Device, DeviceError, Failure, Operation, Replacement,
    Wait,
};
use kvrail_ring::Opcode;

use crate::epoll::EpollSet;
use crate::regions::Memory;
use crate::scheduler::Scheduler;
use crate::scheduler::budget::DeviceBudget;
use crate::stats::DeviceStats;
use crate::task::{MemoryKind, Task};

/// Operations handed to the hardware together. Whole batches of 32 end together too, and then
/// both the device and the client stand still in turns: on a virtio disk at 4 KiB and depth 32 a
/// bare ring makes 107,000 operations a second in whole batches and 131,000 in fours.
const SUBMIT_BATCH: u32 = 4;

/// From one report of a failure to the next: a report costs a system call and a line of the log,
/// and a device that fails does so thousands of times. Twice as long after each report, until no
/// failure came for the longest time.
const REPORT_EVERY_NS: u64 = 100_000_000;
const REPORT_EVERY_NS_MAX: u64 = 60_000_000_000;

/// A device.
#[derive(Debug)]
pub(crate) struct DeviceQueue<D> {
    device: D,
    scheduler: Scheduler,
    /// Operations that the device was given since the last submit.
    prepared: u32,
    /// Something was submitted in this tick, which may have ended at once.
    submitted: bool,
    /// Regions that the device has still to deregister.
    deregistering: u32,
    /// As far as anybody knows; false once it was taken away.
    online: bool,
    /// When the last failure was reported, and how long after that none is.
    reported: Option<(u64, u64)>,
    /// Descriptors of the device that are in the epoll set: one for each kind of answer of `wait`.
    watched: ArrayVec<RawFd, 2>,
}

impl<D: Device> DeviceQueue<D> {
    pub(crate) fn new(device: D, budget: DeviceBudget) -> Self {
        let scheduler = Scheduler::new(device.description(), budget);
        Self {
            device,
            scheduler,
            prepared: 0,
            submitted: false,
            deregistering: 0,
            online: true,
            reported: None,
            watched: ArrayVec::new(),
        }
    }

    /// What waits for the device, and what it may hold.
    #[inline(always)]
    pub(crate) fn scheduler(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// Gives a task to the device where none waits; false when it has to wait.
    #[inline(always)]
    pub(crate) fn begin(&mut self, task: &Task, kind: MemoryKind, operation: Operation) -> bool {
        self.scheduler.is_open(task, kind) && self.start(task, kind, operation)
    }

    /// Gives a task to the device, and submits when there are enough; false when the device takes
    /// no more now.
    #[inline(always)]
    pub(crate) fn start(&mut self, task: &Task, kind: MemoryKind, operation: Operation) -> bool {
        if !self.online || self.device.prepare(operation).is_err() {
            return false;
        }
        self.scheduler.charge(task, kind);
        self.prepared += 1;
        if self.prepared >= SUBMIT_BATCH {
            self.submit();
        }
        true
    }

    /// The same for a flush or discard, which moves no bytes.
    pub(crate) fn start_serial(&mut self, opcode: Opcode, operation: Operation) -> bool {
        if self.device.prepare(operation).is_err() {
            return false;
        }
        self.scheduler.begin_serial(opcode);
        self.prepared += 1;
        true
    }

    #[inline(never)]
    fn submit(&mut self) {
        self.device.submit();
        (self.prepared, self.submitted) = (0, true);
    }

    /// Submits what is left. Whether anything was submitted in this tick: it may have ended at
    /// once.
    pub(crate) fn submit_rest(&mut self) -> bool {
        if self.prepared > 0 {
            self.submit();
        }
        std::mem::take(&mut self.submitted)
    }

    /// Goes on with attaching a region, or begins.
    pub(crate) fn attach_step(
        &mut self,
        (buffer, memory): (BufferIndex, &Memory),
        begun: bool,
    ) -> Result<Attached, DeviceError> {
        match memory {
            _ if begun => self.device.attach_more(buffer),
            Memory::Host(memory) => self.device.begin_attach(buffer, Arc::clone(memory)),
            Memory::Remote(memory) => {
                let attached = self.device.attach_remote(buffer, Arc::clone(memory));
                attached.map(|()| Attached::Whole)
            }
        }
    }

    /// Counts the bytes of the regions that the device has.
    #[cold]
    pub(crate) fn count_attached(&mut self, stats: &DeviceStats) {
        let AttachedBytes { registered, addressed } = self.device.attached();
        stats.counters.registered_bytes.set(registered);
        // Requests name these regions by address.
        stats.counters.unregistered_bytes.set(addressed);
    }

    /// Has the device deregister a region.
    pub(crate) fn deregister(&mut self, buffer: BufferIndex) {
        self.device.detach(buffer).expect("what was attached can be detached");
        self.deregistering += 1;
        self.prepared += 1;
    }

    /// The device has deregistered a region.
    pub(crate) fn deregistered(&mut self) {
        let left = self.deregistering.checked_sub(1);
        self.deregistering =
            left.expect("invariant 2: a device deregistered a region that it had to keep");
    }

    /// The device's last failure, if none has been reported for a while.
    #[cold]
    pub(crate) fn failure_to_report(&mut self, now_ns: u64) -> Option<Failure> {
        let since = self.reported.map(|(at, pause)| (now_ns.saturating_sub(at), pause));
        if since.is_some_and(|(since, pause)| since < pause) {
            return None;
        }
        let failure = self.device.take_failure()?;
        let lasts = since.filter(|(since, _)| *since < REPORT_EVERY_NS_MAX);
        let pause = lasts.map_or(REPORT_EVERY_NS, |(_, pause)| pause * 2);
        self.reported = Some((now_ns, pause.min(REPORT_EVERY_NS_MAX)));
        Some(failure)
    }

    #[inline(always)]
    pub(crate) fn is_online(&self) -> bool {
        self.online
    }

    /// An operation ended with DEVICE_GONE.
    pub(crate) fn mark_removed(&mut self) {
        self.online = false;
    }

    /// Goes on with what takes the device's place.
    pub(crate) fn replace(&mut self, with: &mut Replacement) -> Result<(), DeviceError> {
        self.device.replace(with)?;
        self.online = true;
        Ok(())
    }

    /// Has a device that is not used again let go of its file.
    pub(crate) fn release(&mut self, with: &mut Replacement) -> Result<(), DeviceError> {
        self.device.replace(with)
    }

    /// Whether a poller may block while the device works: it has nothing to do, or wakes us. Puts
    /// a descriptor seen for the first time into the set.
    pub(crate) fn can_block(&mut self, epoll: &EpollSet) -> bool {
        if self.device.in_flight() == 0 && self.deregistering == 0 {
            return true;
        }
        match self.device.wait() {
            Wait::Poll => false,
            Wait::ThreadWaker => true,
            Wait::Readable(fd) => {
                let (raw, mut watched) = (fd.as_raw_fd(), true);
                if !self.watched.contains(&raw) {
                    watched = epoll.watch_device(fd).is_ok();
                    self.watched.extend(watched.then_some(raw));
                }
                watched
            }
        }
    }

    /// The device, to reap and to wait.
    #[inline(always)]
    pub(crate) fn device(&mut self) -> &mut D {
        &mut self.device
    }
}
