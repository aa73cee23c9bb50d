//! One io_uring instance, with the memory the kernel may touch through it.
//!
//! Everything unsafe about io_uring is in this file, behind safe calls. They are safe because
//! requests name registered buffers only, which the kernel checks against its own table, and
//! because a registered region is held here from its registration to the kernel's proof (the tag)
//! that nothing uses it any more, or leaked when that proof does not come.
#![expect(unsafe_code, reason = "io_uring: queue entries, enter, registration of memory")]
// UNSAFETY: the kernel reads and writes registered memory by itself; each block says who holds it.

use std::cell::Cell;
use std::mem::{ManuallyDrop, forget};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::without_provenance_mut;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};
use std::{fmt, ptr};

use io_uring::{IoUring, cqueue, opcode, types};
use kvrail_memory::Pinned;
use kvrail_ring::limits::REGISTERED_BYTES_MAX;
use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags, IoringRegisterOp, io_uring_enter, io_uring_enter_arg, io_uring_getevents_arg,
    io_uring_ptr, io_uring_register, io_uring_rsrc_update,
};
use rustix::time::Timespec;

use crate::contract::{BUFFERS_MAX, BufferIndex, Operation};
use crate::uring::request::entry;

/// Completions whose `user_data` has this bit are not answers to pieces (`SlotId` never sets it):
/// below it is the first table entry of a region whose buffer was freed, or `BELL`.
const TAG: u64 = 1 << 63;

/// `user_data` of the poll request on the second descriptor of `block`.
const BELL: u64 = TAG | 1 << 62;

/// How long a dropped ring waits for what is in flight before it leaks it. The kernel gives up a
/// dead NVMe command after 30 s; a poller that stops has drained long before it drops.
const DRAIN: Duration = Duration::from_secs(5);

/// A completion, told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// The answer to the request pushed under this name.
    Answer {
        /// As pushed.
        name: u64,
        /// Bytes moved, or a negative errno.
        result: i32,
    },
    /// The kernel has dropped its last use of every entry of the region registered here.
    Freed(BufferIndex),
}

/// Who takes entries off the submission queue.
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

/// A region the kernel may know, by its first table entry.
#[derive(Default)]
struct Held {
    region: Option<Arc<dyn Pinned>>,
    /// Entries registered whose tag has not come yet.
    tags: u16,
    /// Its registration failed half-way: nobody waits to hear that it is gone.
    undone: bool,
}

/// A ring. Driven by one thread from its first submission on.
pub struct Ring {
    io: ManuallyDrop<IoUring>,
    submission: Submission,
    completing: Completing,
    held: Box<[Held]>,
    /// Pushed and not yet handed to the kernel (always 0 with a kernel thread).
    queued: u32,
    /// Pushed and not yet answered.
    open: u32,
    /// The registered index or the descriptor that `enter` uses, with the flag that says which.
    enter_fd: i32,
    enter_flags: IoringEnterFlags,
    /// The driving thread, 0 before the first `enter`.
    home: usize,
    /// Why the ring's descriptor is not registered, if it is not and nobody has been told.
    unregistered: Option<Errno>,
    /// Signalled by the kernel for completions while `armed`. The ring's own descriptor does not
    /// wake its issuer for deferred work (6.3 and later), so rings with one need this.
    event: Option<OwnedFd>,
    armed: Cell<bool>,
    bell: Option<OwnedFd>,
    bell_armed: bool,
    /// Requests for the bell that may still be among `queued`; they are not in `open`.
    bell_queued: u32,
}

thread_local! {
    /// Its address tells threads apart in one instruction.
    static HERE: Cell<u8> = const { Cell::new(0) };
}

#[inline]
fn here() -> usize {
    HERE.with(|here| ptr::from_ref(here) as usize)
}

impl Ring {
    /// Wraps a ring whose file 0 and sparse buffer table (if any) are registered. One set up
    /// disabled is enabled by the first thread that submits.
    pub(crate) fn new(io: IoUring, submission: Submission, completing: Completing) -> Self {
        let enter_fd = io.as_raw_fd();
        Self {
            io: ManuallyDrop::new(io),
            submission,
            completing,
            held: (0..BUFFERS_MAX).map(|_| Held::default()).collect(),
            queued: 0,
            open: 0,
            enter_fd,
            enter_flags: IoringEnterFlags::empty(),
            home: 0,
            unregistered: None,
            event: None,
            armed: Cell::new(true), // as the kernel has it
            bell: None,
            bell_armed: false,
            bell_queued: 0,
        }
    }

    /// Gives the ring an event descriptor to wake its issuer with, unarmed.
    pub(crate) fn register_event(&mut self, event: OwnedFd) -> Result<(), Errno> {
        self.io.submitter().register_eventfd(event.as_raw_fd()).map_err(errno_of)?;
        self.event = Some(event);
        self.disarm();
        Ok(())
    }

    /// The descriptor that becomes readable for the next completion; `None` when there may be one
    /// already.
    pub(crate) fn arm(&self) -> Option<BorrowedFd<'_>> {
        let Some(event) = &self.event else { return Some(self.fd()) };
        if !self.armed.replace(true) {
            self.with_completions(|queue| queue.enable_eventfd());
            // The flag was stored, completions are looked for below. Pairs with the full barrier
            // between the kernel's queueing of work and its look at the flag.
            fence(Ordering::SeqCst);
        }
        let ready = self.has_work() || !self.is_empty();
        (!ready).then_some(event.as_fd())
    }

    /// Has the kernel no longer signal the event descriptor.
    #[inline]
    pub(crate) fn disarm(&self) {
        if self.armed.get() {
            self.silence();
        }
    }

    #[cold]
    fn silence(&self) {
        let Some(event) = &self.event else { return };
        self.with_completions(|queue| queue.disable_eventfd());
        self.armed.set(false);
        // Not readable is fine: it was not signalled.
        let _signals = rustix::io::read(event, &mut [0; 8]);
    }

    /// The ring's own descriptor.
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to `io`, which lives as long as the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(self.io.as_raw_fd()) }
    }

    /// Looks at the completion queue without taking from it.
    #[inline]
    fn with_completions<T>(&self, look: impl FnOnce(&io_uring::CompletionQueue<'_>) -> T) -> T {
        // SAFETY: no other view of the queue exists: views live only within calls of this file,
        // the type is not Sync, and `look` cannot reach the ring.
        let queue = unsafe { self.io.completion_shared() };
        let seen = look(&queue);
        forget(queue); // dropping it would store the head again, in a line shared with the kernel
        seen
    }

    /// Looks at the submission queue's flags.
    #[inline]
    fn with_submissions<T>(&self, look: impl FnOnce(&io_uring::SubmissionQueue<'_>) -> T) -> T {
        // SAFETY: as in `with_completions`.
        let queue = unsafe { self.io.submission_shared() };
        let seen = look(&queue);
        forget(queue); // dropping it would store the tail again, in a line shared with the kernel
        seen
    }

    /// Says once, after the first submission, that the ring's descriptor could not be registered.
    #[inline]
    pub(crate) fn take_unregistered(&mut self) -> Option<Errno> {
        self.unregistered.take()
    }

    /// Registers a region as the entries from `at` on, each with a tag; one entry a call, since a
    /// larger update that fails half-way is reported as done.
    ///
    /// # Errors
    /// The kernel's; EBUSY while an earlier registration there that failed is not yet forgotten.
    pub(crate) fn register(
        &mut self,
        at: BufferIndex,
        region: &Arc<dyn Pinned>,
    ) -> Result<(), Errno> {
        if self.held[usize::from(at.0)].region.is_some() {
            return Err(Errno::BUSY);
        }
        let bytes = region.bytes();
        let most = usize::try_from(REGISTERED_BYTES_MAX).expect("1 GiB fits");
        self.held[usize::from(at.0)].region = Some(Arc::clone(region));
        for (start, index) in (0..bytes).step_by(most).zip(at.0..) {
            let iov_base = region.base().as_ptr().wrapping_add(start).cast();
            let entry = libc::iovec { iov_base, iov_len: most.min(bytes - start) };
            if let Err(errno) = self.update(index, entry, TAG | u64::from(at.0)) {
                self.undo(at);
                return Err(errno);
            }
            self.held[usize::from(at.0)].tags += 1;
        }
        Ok(())
    }

    /// Forgets what `register` had done before it failed.
    #[cold]
    fn undo(&mut self, at: BufferIndex) {
        let held = &mut self.held[usize::from(at.0)];
        if held.tags == 0 {
            held.region = None;
            return;
        }
        held.undone = true;
        if let Err(errno) = self.unregister(at) {
            // Held, and so refused by `register`, until the ring is dropped.
            tracing::error!(%errno, entry = at.0, "a half-registered region cannot be removed");
        }
    }

    /// Makes the entries of the region at `at` empty. `Completion::Freed` follows when the kernel
    /// has dropped its last use of them. May be repeated after an error.
    pub(crate) fn unregister(&mut self, at: BufferIndex) -> Result<(), Errno> {
        let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let tags = self.held[usize::from(at.0)].tags;
        (at.0..at.0 + tags).try_for_each(|index| self.update(index, empty, 0))
    }

    /// Puts one entry, or nothing, into the kernel's buffer table.
    fn update(&self, index: u16, entry: libc::iovec, tag: u64) -> Result<(), Errno> {
        let (entries, tags) = ([entry], [tag]);
        let submitter = self.io.submitter();
        // SAFETY: the entry is empty or lies within a region that `held` keeps alive until the
        // entry's tag has come (`tagged`), or for ever (`drop`).
        let done =
            unsafe { submitter.register_buffers_update(u32::from(index), &entries, Some(&tags)) };
        done.map_err(errno_of)
    }

    /// Queues requests for the kernel; each comes with the address its buffer range has and the
    /// name its completion will carry. A kernel thread may begin with them at once.
    ///
    /// # Panics
    /// If the queue is full: it has an entry for every piece there can be.
    #[inline]
    pub(crate) fn push<'a>(&mut self, requests: impl Iterator<Item = (&'a Operation, usize, u64)>) {
        let mut pushed = 0;
        let mut queue = self.io.submission();
        for (operation, address, name) in requests {
            let entry = entry(operation, address).user_data(name);
            // SAFETY: the entry names registered memory by address and table entry; the kernel
            // refuses (EFAULT) what is not within that entry, and `held` keeps the region alive
            // until the kernel has freed the entry. All other entries name no memory.
            let full = unsafe { queue.push(&entry) };
            assert!(full.is_ok(), "the submission queue has an entry for each piece in flight");
            pushed += 1;
        }
        drop(queue); // publishes the tail
        self.open += pushed;
        match self.submission {
            Submission::Caller => self.queued += pushed,
            Submission::KernelThread => self.wake(),
        }
    }

    /// Requests pushed and not yet handed over.
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
        match self.enter(self.queued, 0, flags) {
            Ok(taken) => self.count_taken(taken),
            Err(errno) => expect_busy(errno),
        }
    }

    /// Counts what the kernel took, which may be less than was queued.
    #[inline]
    fn count_taken(&mut self, taken: u32) {
        self.queued -= taken;
        if self.queued == 0 {
            self.bell_queued = 0;
        }
    }

    /// Makes the kernel post the completions it has.
    #[inline]
    pub(crate) fn collect(&mut self) {
        self.hand_over(IoringEnterFlags::GETEVENTS);
    }

    /// Wakes the kernel thread if it sleeps.
    fn wake(&mut self) {
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
        self.with_submissions(|queue| queue.taskrun() || queue.cq_overflow())
    }

    /// Whether no completion waits to be popped.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.with_completions(|queue| queue.is_empty())
    }

    /// The next completion, if one was posted.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        loop {
            let mut queue = self.io.completion();
            let Some(entry) = queue.next() else {
                forget(queue); // as in `with_completions`
                return None;
            };
            drop(queue); // publishes the head
            let name = entry.user_data();
            if name & TAG == 0 {
                self.open -= 1;
                return Some(Completion::Answer { name, result: entry.result() });
            }
            if let Some(at) = self.tagged(name, &entry) {
                return Some(Completion::Freed(at));
            }
        }
    }

    #[cold]
    fn tagged(&mut self, name: u64, entry: &cqueue::Entry) -> Option<BufferIndex> {
        if name == BELL {
            self.bell_armed &= cqueue::more(entry.flags());
            return None;
        }
        let at = BufferIndex(u16::try_from(name & !TAG).expect("tags are table entries"));
        let held = &mut self.held[usize::from(at.0)];
        held.tags = held.tags.checked_sub(1).expect("invariant 2: a tag comes once");
        if held.tags > 0 {
            return None;
        }
        let held = std::mem::take(held);
        (!held.undone).then_some(at)
    }

    /// Has `block` also return when this descriptor becomes readable (edge-triggered).
    pub(crate) fn watch(&mut self, bell: OwnedFd) {
        self.bell = Some(bell);
        self.bell_armed = false;
    }

    /// Hands over what is queued and sleeps until a completion, the bell, or the end of the time.
    pub(crate) fn block(&mut self, timeout_ns: u64) {
        self.arm_bell();
        if !self.is_empty() {
            return if self.queued > 0 {
                self.hand_over(IoringEnterFlags::empty())
            };
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout_ns / 1_000_000_000).expect("below 2^34 seconds"),
            tv_nsec: i64::try_from(timeout_ns % 1_000_000_000).expect("below a second"),
        };
        match self.enter_timed(self.queued, &timeout) {
            Ok(taken) => self.count_taken(taken),
            Err(errno) => expect_busy(errno),
        }
    }

    fn arm_bell(&mut self) {
        let Some(bell) = self.bell.as_ref().filter(|_| !self.bell_armed) else { return };
        let readable = u32::try_from(libc::POLLIN).expect("a positive constant");
        let fd = types::Fd(bell.as_raw_fd());
        let entry = opcode::PollAdd::new(fd, readable).multi(true).build().user_data(BELL);
        let mut queue = self.io.submission();
        // SAFETY: a poll request names no memory; its descriptor is owned by `self`.
        let pushed = unsafe { queue.push(&entry) };
        drop(queue);
        self.bell_armed = pushed.is_ok(); // a full queue: armed by the next call
        if self.bell_armed && self.submission == Submission::Caller {
            self.queued += 1;
            self.bell_queued = 1;
        }
    }

    #[inline]
    fn enter(&mut self, submit: u32, wait: u32, flags: IoringEnterFlags) -> Result<u32, Errno> {
        if self.home != here() {
            self.start();
        }
        // SAFETY: as `fd`; or an index, which the flag says and the kernel looks up in this
        // thread's own table (`home` is this thread).
        let fd = unsafe { BorrowedFd::borrow_raw(self.enter_fd) };
        // SAFETY: without EXT_ARG the call passes no memory; queue entries are valid (`push`).
        unsafe { io_uring_enter(fd, submit, wait, flags | self.enter_flags) }
    }

    fn enter_timed(&mut self, submit: u32, timeout: &Timespec) -> Result<u32, Errno> {
        if self.home != here() {
            self.start();
        }
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
    /// On another thread later: the contract says that one thread drives a device.
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

    /// Requests the kernel may still be working on.
    fn taken(&self) -> u32 {
        self.open - (self.queued - self.bell_queued).min(self.open)
    }

    /// Waits until the kernel works on nothing, at most `DRAIN`.
    fn drain(&mut self) {
        let deadline = Instant::now() + DRAIN;
        // What was never handed over stays with us: it is enough not to hand it over now.
        let tick = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        while self.taken() > 0 && Instant::now() < deadline {
            let entered = match self.completing {
                Completing::Interrupts => self.enter_timed(0, &tick),
                Completing::Polling => self.enter(0, 0, IoringEnterFlags::GETEVENTS),
            };
            if entered.is_err_and(|errno| !is_busy(errno)) {
                return;
            }
            while self.pop().is_some() {}
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let at_home = self.home == here() || self.submission == Submission::KernelThread;
        if self.taken() > 0 && at_home {
            self.drain();
        }
        let left = self.taken();
        if left > 0 {
            // Invariant 2: the hardware may still write. Closing the ring would not stop it.
            let held = std::mem::take(&mut self.held);
            let regions = held.iter().filter(|held| held.region.is_some()).count();
            tracing::error!(
                left,
                regions,
                "a ring was dropped while requests are in flight; its \
                memory and the ring are kept until the process ends"
            );
            forget(held);
            return;
        }
        if self.home == here() && self.enter_flags.contains(IoringEnterFlags::REGISTERED_RING) {
            let index = u32::try_from(self.enter_fd).expect("an index");
            // A failure keeps the ring until the thread ends; nothing uses it.
            let _kept = self.ring_table(IoringRegisterOp::UnregisterRingFds, index);
        }
        // SAFETY: dropped once, here; nothing is in flight, so the kernel touches no memory.
        unsafe { ManuallyDrop::drop(&mut self.io) }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("submission", &self.submission)
            .field("completing", &self.completing)
            .field("queued", &self.queued)
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

/// The kernel is out of request memory (EAGAIN), wants completions to be taken first (EBUSY), or a
/// signal came (EINTR). All normal; what was not taken stays queued.
fn is_busy(errno: Errno) -> bool {
    matches!(errno, Errno::AGAIN | Errno::BUSY | Errno::INTR | Errno::TIME)
}

/// # Panics
/// On anything else: the ring is not what this file made it.
#[inline]
fn expect_busy(errno: Errno) {
    assert!(is_busy(errno), "io_uring_enter on our own ring: {errno}");
}

pub(super) fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
