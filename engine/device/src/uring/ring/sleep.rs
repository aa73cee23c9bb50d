//! Sleeping until a ring has something: on an event descriptor beside others, or in the ring
//! itself with one bell beside it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use io_uring::types;
use rustix::io::Errno;
use rustix::io_uring::IoringEnterFlags;
use rustix::time::Timespec;

use crate::uring::ring::make::errno_of;
use crate::uring::ring::{BELL, Ring, Submission, expect_busy};
use crate::uring::sqe::SqeFormat;

impl<W: SqeFormat> Ring<W> {
    /// Gives the ring an event descriptor to wake its issuer with, unarmed.
    pub(crate) fn register_event(&mut self, event: OwnedFd) -> Result<(), Errno> {
        self.io.submitter().register_eventfd(event.as_raw_fd()).map_err(errno_of)?;
        self.sleep.event = Some(event);
        self.disarm();
        Ok(())
    }

    /// The descriptor that becomes readable for the next completion; `None` when there may be one
    /// already.
    pub(crate) fn arm(&self) -> Option<BorrowedFd<'_>> {
        let Some(event) = &self.sleep.event else { return Some(self.fd()) };
        if !self.sleep.armed.replace(true) {
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
        if self.sleep.armed.get() {
            self.silence();
        }
    }

    #[cold]
    fn silence(&self) {
        let Some(event) = &self.sleep.event else { return };
        self.with_completions(|queue| queue.disable_eventfd());
        self.sleep.armed.set(false);
        // Not readable is fine: it was not signalled.
        let _signals = rustix::io::read(event, &mut [0; 8]);
    }

    /// Has `block` also return when this descriptor becomes readable (edge-triggered).
    pub(crate) fn watch(&mut self, bell: OwnedFd) {
        self.sleep.bell = Some(bell);
        self.sleep.bell_armed = false;
    }

    /// Hands over the queued entries and sleeps until a completion, the bell, or the end of the
    /// time. All completions up to then are posted: a wait for one completion returns with one
    /// (seen on 6.18), though an interrupt often brings many.
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
        self.collect_all();
    }

    /// Queues the poll request on the bell, if it is not with the kernel.
    fn arm_bell(&mut self) {
        if self.sleep.bell_armed {
            return;
        }
        let Some(bell) = &self.sleep.bell else { return };
        let fd = types::Fd(bell.as_raw_fd());
        self.sleep.bell_armed = self.push_poll(fd, BELL); // no room: the next call does it
        if self.sleep.bell_armed && self.submission == Submission::Caller {
            self.queued += 1;
            self.sleep.bell_queued = 1;
        }
    }
}
