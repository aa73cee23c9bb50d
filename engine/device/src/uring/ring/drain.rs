//! The end of a ring: what is in flight is waited for, or its memory is kept for ever.

use std::mem::forget;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::io_uring::{IoringEnterFlags, IoringRegisterOp};
use rustix::time::Timespec;

use crate::uring::ring::{Completing, Ring, Submission, here, is_busy};
use crate::uring::sqe::SqeFormat;

/// How long a dropped ring waits for what is in flight before it leaks it. The kernel gives up a
/// dead NVMe command after 30 s; a poller that stops has drained long before it drops.
const DRAIN: Duration =
    if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(5) };

/// How long it sleeps at a time.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

impl<W: SqeFormat> Ring<W> {
    /// Requests the kernel may still be working on.
    pub(super) fn taken(&self) -> u32 {
        match self.submission {
            Submission::Caller => {
                self.open - (self.queued - self.sleep.bell_queued()).min(self.open)
            }
            Submission::KernelThread => self.open,
        }
    }

    /// Whether this thread may drive the ring to its end: its issuer may, and any thread where a
    /// kernel thread issues.
    fn take_over(&mut self) -> bool {
        if self.home == here() {
            return true;
        }
        // A registered index means another ring on this thread.
        self.home = here();
        self.enter_fd = self.io.as_raw_fd();
        self.enter_flags = IoringEnterFlags::empty();
        self.submission == Submission::KernelThread
    }

    /// Waits until the kernel works on nothing, at most `DRAIN`. Entries that were never handed
    /// over simply stay here.
    fn drain(&mut self) {
        if self.submission == Submission::KernelThread && self.queued > 0 {
            self.wake();
        }
        let deadline = Instant::now() + DRAIN;
        while self.taken() > 0 && Instant::now() < deadline {
            let entered = match self.completing {
                Completing::Interrupts => self.enter_timed(0, &TICK),
                Completing::Polling => self.enter(0, 0, IoringEnterFlags::GETEVENTS),
            };
            if entered.is_err_and(|errno| !is_busy(errno)) {
                return;
            }
            while self.pop().is_some() {}
        }
    }
}

impl<W: SqeFormat> Drop for Ring<W> {
    fn drop(&mut self) {
        let registered = self.enter_flags.contains(IoringEnterFlags::REGISTERED_RING);
        if self.home == here() && registered {
            let index = u32::try_from(self.enter_fd).expect("an index");
            // A failure keeps the ring until the thread ends; nothing uses it.
            let _kept = self.ring_table(IoringRegisterOp::UnregisterRingFds, index);
            self.enter_fd = self.io.as_raw_fd();
            self.enter_flags = IoringEnterFlags::empty();
        }
        if self.taken() > 0 && self.take_over() {
            self.drain();
        }
        let left = self.taken();
        if left == 0 {
            // The kernel takes a closed ring apart later, and a lock on the file lives as long as
            // the registration. Without it the file is free when its descriptor is closed; a
            // failure (another thread's ring) only costs that.
            let _kept = self.io.submitter().unregister_files();
            return;
        }
        // Invariant 2: the hardware may still write. Closing the ring would not stop it. With the
        // duplicate the kernel keeps the ring; without one it still may not touch freed memory.
        let kept = self.fd().try_clone_to_owned().map(forget).is_ok();
        let regions = self.registered.leak();
        tracing::error!(
            left,
            regions,
            kept,
            "a ring was dropped with requests in flight; its memory is kept until the process ends"
        );
    }
}
