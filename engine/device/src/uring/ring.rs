//! One io_uring instance, with the memory the kernel may touch through it.
//!
//! Everything unsafe about io_uring is in this file and in `registered`, behind safe calls. They
//! are safe because requests name registered buffers, which the kernel checks against its own
//! table, or ranges of addressed regions, which are checked here; and because a region is held here
//! from its registration to the kernel's proof (the tag) that nothing uses it any more, or an
//! addressed one until it is let go with no request open; or leaked when that proof does not come.
#![expect(unsafe_code, reason = "io_uring: queue entries, enter, registration of the ring")]
// UNSAFETY: the kernel reads and writes registered memory by itself; each block names the holder of
// the memory.

mod drain;
mod make;
mod registered;
mod sleep;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::mem::forget;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::without_provenance_mut;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::{fmt, ptr};

use io_uring::squeue::EntryMarker as _;
use io_uring::{CompletionQueue, IoUring, SubmissionQueue, cqueue, opcode, types};
use kvrail_memory::Pinned;
use kvrail_ring::Opcode;
use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags, IoringRegisterOp, io_uring_enter, io_uring_enter_arg, io_uring_getevents_arg,
    io_uring_ptr, io_uring_register, io_uring_rsrc_update,
};
use rustix::time::Timespec;

use crate::buffer_table::{Access, BufferPlace};
use crate::contract::{BUFFERS_MAX, BufferIndex, Operation};
use crate::uring::sqe::SqeFormat;

pub(super) use make::errno_of;
pub(crate) use make::{RingSetup, make_plain, make_wide};

/// Completions whose `user_data` has this bit are not answers to pieces (`SlotId` never sets it):
/// below it is the first table entry of a region whose buffer was freed, or `BELL`.
const TAG: u64 = 1 << 63;

/// `user_data` of the poll request on the second descriptor of `block`.
const BELL: u64 = TAG | 1 << 62;

/// A region the kernel may know, by its first table entry.
#[derive(Default)]
struct HeldRegion {
    region: Option<Arc<dyn Pinned>>,
    /// Entries registered.
    filled: u16,
    /// Entries emptied again.
    emptied: u16,
    /// Tags that came.
    tags: u16,
    fate: Fate,
}

/// The fate of a region after the last of its tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    /// It is gone, and the caller of `detach` awaits the notice.
    #[default]
    Notified,
    /// Its registration failed half-way: it is gone, and no notice is awaited.
    Silent,
    /// It stays: requests name it by address.
    Addressed,
}

/// Entries of a region that are still registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntriesLeft {
    Some,
    None,
}

/// Every region the kernel may know.
struct RegisteredRegions {
    held: Box<[HeldRegion]>,
}

impl Default for RegisteredRegions {
    fn default() -> Self {
        Self { held: (0..BUFFERS_MAX).map(|_| HeldRegion::default()).collect() }
    }
}

impl RegisteredRegions {
    fn at(&mut self, at: BufferIndex) -> &mut HeldRegion {
        &mut self.held[usize::from(at.0)]
    }

    /// The kernel has dropped its last use of one entry of the region at `at`. After the last entry
    /// the region is released, and its index is returned if a notice is awaited.
    fn tag_came(&mut self, at: BufferIndex) -> Option<BufferIndex> {
        let held = self.at(at);
        held.tags += 1;
        assert!(held.tags <= held.emptied, "invariant 2: a tag comes once, for what was emptied");
        if held.tags < held.filled {
            return None;
        }
        match held.fate {
            Fate::Addressed => {
                (held.filled, held.emptied, held.tags) = (0, 0, 0);
                None
            }
            fate => {
                *held = HeldRegion::default();
                (fate == Fate::Notified).then_some(at)
            }
        }
    }

    /// Keeps every region for ever; returns their number.
    fn leak(&mut self) -> usize {
        let held = std::mem::take(&mut self.held);
        let regions = held.iter().filter(|held| held.region.is_some()).count();
        std::mem::forget(held);
        regions
    }
}

/// The means to wake a sleeper.
struct WakeSources {
    /// Signalled by the kernel for completions while `armed`. The ring's own descriptor does not
    /// wake its issuer for deferred work (seen on 6.18: a poll sleeps to its timeout), so rings
    /// with an issuer need this.
    event: Option<OwnedFd>,
    armed: Cell<bool>,
    bell: Option<OwnedFd>,
    bell_armed: bool,
    /// Requests for the bell that may still be queued; they are not answered like others.
    bell_queued: u32,
}

impl Default for WakeSources {
    fn default() -> Self {
        let armed = Cell::new(true); // as the kernel has it
        Self { event: None, armed, bell: None, bell_armed: false, bell_queued: 0 }
    }
}

impl WakeSources {
    /// A completion of the poll request on the bell.
    fn heard(&mut self, flags: u32) {
        self.bell_armed &= cqueue::more(flags);
    }

    /// Everything queued was taken by the kernel.
    #[inline]
    fn bell_taken(&mut self) {
        self.bell_queued = 0;
    }

    /// Requests for the bell that may still be queued.
    fn bell_queued(&self) -> u32 {
        self.bell_queued
    }
}

/// A completion, by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingCompletion {
    /// The answer to the request pushed under this name.
    Cqe {
        /// As pushed.
        name: u64,
        /// Bytes moved, or a negative errno.
        result: i32,
    },
    /// The kernel has dropped its last use of every entry of the region registered here.
    Freed(BufferIndex),
}

/// The consumer of the submission queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submission {
    /// The thread that calls `enter`; the first one that does so owns the ring.
    Caller,
    /// A kernel thread, by itself.
    KernelThread,
}

/// Where completions come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completing {
    /// Interrupts; the kernel can sleep until one comes.
    Interrupts,
    /// Polling; there is nothing to sleep on.
    Polling,
}

/// A ring. Driven by one thread from its first submission on.
pub struct Ring<W: SqeFormat> {
    io: IoUring<W::Entry, W::Cqe>,
    wire: W,
    submission: Submission,
    completing: Completing,
    registered: RegisteredRegions,
    /// Pushed and not yet handed to the kernel; with a kernel thread, which takes by itself: since
    /// it was last looked whether that thread sleeps.
    queued: u32,
    /// Pushed and not yet answered.
    open: u32,
    /// The registered index or the descriptor that `enter` uses, with the flag that selects one.
    enter_fd: i32,
    enter_flags: IoringEnterFlags,
    /// The driving thread, 0 before the first `enter`.
    home: usize,
    /// Why the ring's descriptor is not registered, if it is not and the reason was not taken yet.
    unregistered: Option<Errno>,
    sleep: WakeSources,
    /// System calls made to drive the ring.
    enters: u64,
}

thread_local! {
    /// Its address distinguishes threads in one instruction.
    static HERE: Cell<u8> = const { Cell::new(0) };
}

#[inline]
fn here() -> usize {
    HERE.with(|here| ptr::from_ref(here) as usize)
}

impl<W: SqeFormat> Ring<W> {
    /// Wraps a ring whose file 0 and sparse buffer table (if any) are registered. One set up
    /// disabled is enabled by the first thread that submits.
    pub(crate) fn new(
        io: IoUring<W::Entry, W::Cqe>,
        wire: W,
        submission: Submission,
        completing: Completing,
    ) -> Self {
        let enter_fd = io.as_raw_fd();
        Self {
            io,
            wire,
            submission,
            completing,
            registered: RegisteredRegions::default(),
            queued: 0,
            open: 0,
            enter_fd,
            enter_flags: IoringEnterFlags::empty(),
            home: 0,
            unregistered: None,
            sleep: WakeSources::default(),
            enters: 0,
        }
    }

    /// The ring's own descriptor.
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to `io`, which lives as long as the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(self.io.as_raw_fd()) }
    }

    /// Looks at the completion queue without taking from it.
    #[inline]
    fn with_completions<T>(&self, look: impl FnOnce(&CompletionQueue<'_, W::Cqe>) -> T) -> T {
        // SAFETY: no other view of the queue exists: views live only within calls of this file,
        // the type is not Sync, and `look` cannot reach the ring.
        let queue = unsafe { self.io.completion_shared() };
        let seen = look(&queue);
        forget(queue); // dropping it would store the head again, in a line shared with the kernel
        seen
    }

    /// Looks at the submission queue's flags.
    #[inline]
    fn with_submissions<T>(&self, look: impl FnOnce(&SubmissionQueue<'_, W::Entry>) -> T) -> T {
        // SAFETY: as in `with_completions`.
        let queue = unsafe { self.io.submission_shared() };
        let seen = look(&queue);
        forget(queue); // dropping it would store the tail again, in a line shared with the kernel
        seen
    }

    /// Has all further requests go to another file.
    pub(crate) fn change_file(&mut self, wire: W, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let changed = self.io.submitter().register_files_update(0, &[file.as_raw_fd()]);
        changed.map_err(errno_of)?;
        self.wire = wire;
        Ok(())
    }

    /// Lets go of the file: further requests fail.
    pub(crate) fn close_file(&mut self) -> Result<(), Errno> {
        let changed = self.io.submitter().register_files_update(0, &[-1]);
        changed.map(drop).map_err(errno_of)
    }

    /// The reason, once, after the first submission, if the ring's descriptor could not be
    /// registered.
    #[inline]
    pub(crate) fn take_unregistered(&mut self) -> Option<Errno> {
        self.unregistered.take()
    }

    /// System calls made so far to drive the ring.
    pub(crate) fn enters(&self) -> u64 {
        self.enters
    }

    /// Queues a request for the kernel, with the place of its buffer range and the name its
    /// completion will carry. A kernel thread may begin with it at once, unless it sleeps: then
    /// `wake` wakes it.
    ///
    /// # Panics
    /// If the queue is full: it has an entry for every piece there can be. If the place is an
    /// address outside the region that the operation names.
    #[inline(always)]
    pub(crate) fn push(&mut self, operation: &Operation, place: BufferPlace, name: u64) {
        if place.access == Access::Addressed {
            self.check_addressed(operation, place.address);
        }
        // Each kind by itself: an entry that is built here and pushed there goes over the stack.
        match operation.opcode {
            Opcode::Read => self.put(self.wire.read(operation, place), name),
            Opcode::Write => self.put(self.wire.write(operation, place), name),
            _ => self.put(self.wire.other(&operation.anew()), name),
        }
    }

    #[inline(always)]
    fn put(&mut self, mut entry: W::Entry, name: u64) {
        entry.set_user_data(name);
        let mut queue = self.io.submission();
        // SAFETY: the entry names registered memory by address and table entry; the kernel refuses
        // (EFAULT) what is not within that entry, and `held` keeps the region alive until the
        // kernel has freed the entry. Or it names a range of an addressed region, which `push` has
        // checked and `held` keeps until `let_go`. All other entries name no memory.
        let full = unsafe { queue.push(&entry) };
        assert!(full.is_ok(), "the submission queue has an entry for each piece in flight");
        drop(queue); // publishes the tail
        self.open += 1;
        self.queued += 1;
    }

    /// Requests pushed and not yet handed over, or whose kernel thread was not looked at since.
    #[inline]
    pub(crate) fn queued(&self) -> u32 {
        self.queued
    }

    /// Hands over what is queued, as far as the kernel takes it now, and collects completions with
    /// the same call if there is cause to.
    #[inline]
    pub(crate) fn hand_over(&mut self, mut flags: IoringEnterFlags) {
        if self.has_work() {
            flags |= IoringEnterFlags::GETEVENTS;
        }
        let submit = match self.submission {
            Submission::Caller => self.queued,
            Submission::KernelThread => 0, // these calls do not wake it
        };
        match self.enter(submit, 0, flags) {
            Ok(taken) => self.count_taken(taken),
            Err(errno) => expect_busy(errno),
        }
    }

    /// Counts what the kernel took, which may be less than was queued.
    #[inline]
    fn count_taken(&mut self, taken: u32) {
        self.queued -= taken;
        if self.queued == 0 {
            self.sleep.bell_taken();
        }
    }

    /// Makes the kernel post the completions it has.
    #[inline]
    pub(crate) fn collect(&mut self) {
        self.hand_over(IoringEnterFlags::GETEVENTS);
    }

    /// As `collect`, until a call brings nothing more. The kernel's flag alone is too broad: work
    /// that an interrupt queues while a call runs sets it, and may be done by that very call.
    fn collect_all(&mut self) {
        let posted = |ring: &Self| ring.with_completions(|queue| queue.len());
        while self.has_deferred() {
            let before = posted(self);
            self.collect();
            if posted(self) == before {
                return;
            }
        }
    }

    /// Wakes the kernel thread if it sleeps.
    pub(crate) fn wake(&mut self) {
        self.queued = 0;
        // The tail was stored; the flag is loaded below. Pairs with the full barrier between the
        // kernel thread's store of NEED_WAKEUP and its last look at the tail.
        fence(Ordering::SeqCst);
        let asleep = self.with_submissions(|queue| queue.need_wakeup_after_intermittent_seqcst());
        if asleep && let Err(errno) = self.enter(0, 0, IoringEnterFlags::SQ_WAKEUP) {
            expect_busy(errno);
        }
    }

    /// Whether an `enter` would post completions: deferred work, or an overflow list.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.has_deferred() || self.with_submissions(|queue| queue.cq_overflow())
    }

    /// Whether the kernel has deferred work, or had a moment ago.
    #[inline]
    fn has_deferred(&self) -> bool {
        self.with_submissions(|queue| queue.taskrun())
    }

    /// Whether no completion waits to be popped.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.with_completions(|queue| queue.is_empty())
    }

    /// The next completion, if one was posted.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<RingCompletion> {
        while !self.is_empty() {
            let told = self.answers(1, |_, _| false);
            if told.is_some() {
                return told;
            }
        }
        None
    }

    /// Gives up to `most` answers to `take`, by name and result, for as long as it takes them.
    /// Returns the completion that is no answer or was not taken; it is the caller's.
    #[inline(always)]
    pub(crate) fn answers(
        &mut self,
        most: usize,
        mut take: impl FnMut(u64, i32) -> bool,
    ) -> Option<RingCompletion> {
        let mut queue = self.io.completion();
        let mut answered = 0;
        let mut other = None;
        while (answered as usize) < most
            && let Some(entry) = queue.next()
        {
            let entry: cqueue::Entry = entry.into(); // the second half of a wide one is not used
            let (name, result) = (entry.user_data(), entry.result());
            if name & TAG != 0 || !take(name, result) {
                other = Some(entry);
                break;
            }
            answered += 1;
        }
        drop(queue); // publishes the head
        self.open -= answered;
        other.and_then(|entry| self.decode(&entry))
    }

    /// Decodes a completion; `None` for the ring's own ones.
    #[inline(never)]
    fn decode(&mut self, entry: &cqueue::Entry) -> Option<RingCompletion> {
        let name = entry.user_data();
        if name & TAG != 0 {
            return self.tagged(name, entry).map(RingCompletion::Freed);
        }
        self.open -= 1;
        Some(RingCompletion::Cqe { name, result: entry.result() })
    }

    #[cold]
    fn tagged(&mut self, name: u64, entry: &cqueue::Entry) -> Option<BufferIndex> {
        if name == BELL {
            self.sleep.heard(entry.flags());
            return None;
        }
        let at = u16::try_from(name & !TAG).expect("tags are table entries");
        self.registered.tag_came(BufferIndex(at))
    }

    /// Queues a poll request that completes each time the descriptor becomes readable. `false`:
    /// there was no room.
    fn push_poll(&mut self, fd: types::Fd, name: u64) -> bool {
        let readable = u32::try_from(libc::POLLIN).expect("a positive constant");
        let entry = opcode::PollAdd::new(fd, readable).multi(true).build().user_data(name);
        let entry = entry.into();
        let mut queue = self.io.submission();
        // SAFETY: a poll request names no memory, and the kernel holds its own reference to the
        // file behind the descriptor.
        unsafe { queue.push(&entry) }.is_ok()
    }

    #[inline]
    fn enter(&mut self, submit: u32, wait: u32, flags: IoringEnterFlags) -> Result<u32, Errno> {
        if self.home != here() {
            self.start();
        }
        self.enters += 1;
        // SAFETY: as `fd`; or an index, which the flag marks and the kernel looks up in this
        // thread's own table (`home` is this thread).
        let fd = unsafe { BorrowedFd::borrow_raw(self.enter_fd) };
        // SAFETY: without EXT_ARG the call passes no memory; queue entries are valid (`push`).
        unsafe { io_uring_enter(fd, submit, wait, flags | self.enter_flags) }
    }

    fn enter_timed(&mut self, submit: u32, timeout: &Timespec) -> Result<u32, Errno> {
        if self.home != here() {
            self.start();
        }
        self.enters += 1;
        let argument = io_uring_getevents_arg {
            ts: io_uring_ptr::new(ptr::from_ref(timeout).cast_mut().cast()),
            ..Default::default()
        };
        let flags = IoringEnterFlags::GETEVENTS | IoringEnterFlags::EXT_ARG | self.enter_flags;
        // SAFETY: as in `enter`.
        let fd = unsafe { BorrowedFd::borrow_raw(self.enter_fd) };
        // SAFETY: as in `enter`; the argument and the time it names outlive the call, and the
        // kernel only reads them.
        unsafe { io_uring_enter_arg(fd, submit, 1, flags, Some(&argument)) }
    }

    /// The first submission: this thread owns the ring from now on.
    ///
    /// # Panics
    /// On a second thread: by the contract one thread drives a device.
    #[cold]
    fn start(&mut self) {
        assert_eq!(self.home, 0, "a device is driven by the thread that first submits to it");
        self.home = here();
        if self.submission == Submission::Caller {
            // EBADFD: it was not set up disabled.
            let enabled = self.io.submitter().register_enable_rings().map_err(errno_of);
            assert!(matches!(enabled, Ok(()) | Err(Errno::BADFD)), "enabling a ring: {enabled:?}");
        }
        match self.ring_table(IoringRegisterOp::RegisterRingFds, u32::MAX) {
            Ok(index) => {
                self.enter_fd = i32::try_from(index).expect("a thread has 16 of them");
                self.enter_flags = IoringEnterFlags::REGISTERED_RING;
            }
            Err(errno) => self.unregistered = Some(errno),
        }
    }

    /// Adds this ring to the thread's table of registered rings, or removes it.
    fn ring_table(&self, what: IoringRegisterOp, index: u32) -> Result<u32, Errno> {
        let descriptor = usize::try_from(self.io.as_raw_fd()).expect("descriptors are positive");
        let data = io_uring_ptr::new(without_provenance_mut(descriptor));
        let mut update = io_uring_rsrc_update::default();
        update.offset = index;
        update.data = data;
        let argument = ptr::from_mut(&mut update).cast();
        // SAFETY: one update record, valid and writable for the call; the kernel writes back the
        // index it chose.
        unsafe { io_uring_register(self.fd(), what, argument, 1) }?;
        Ok(update.offset)
    }
}

impl<W: SqeFormat> fmt::Debug for Ring<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("wire", &self.wire)
            .field("submission", &self.submission)
            .field("completing", &self.completing)
            .field("queued", &self.queued)
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

/// The kernel is out of request memory (EAGAIN), completions must be taken first (EBUSY), or a
/// signal came (EINTR). All normal; entries that were not taken stay queued.
fn is_busy(errno: Errno) -> bool {
    matches!(errno, Errno::AGAIN | Errno::BUSY | Errno::INTR | Errno::TIME)
}

/// # Panics
/// On anything else: the ring is not what this file made it.
#[inline]
fn expect_busy(errno: Errno) {
    assert!(is_busy(errno), "io_uring_enter on our own ring: {errno}");
}
