//! Nudges: wake one thread of this process that may sleep, and cost nothing while it is awake.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use crate::doorbell::Doorbell;
use crate::sync::AtomicU32;
use crate::wake::{Sleeper, Waker};

/// The word and the bell of a sleeping thread. The sleeper announces its sleep, calls
/// `wake::settle`, looks at its queues once more, and then blocks on the descriptor.
#[derive(Debug)]
pub struct ThreadWaker {
    word: AtomicU32,
    bell: Doorbell,
}

impl ThreadWaker {
    /// A nudge without a sleeper.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { word: AtomicU32::new(0), bell: Doorbell::eventfd()? })
    }

    /// After publishing to the thread: rings if it sleeps. Each waking thread has its own `Waker`.
    #[inline]
    pub fn wake(&self, waker: &mut Waker) {
        if waker.must_ring(&self.word) {
            self.bell.ring();
        }
    }

    /// Rings whether it sleeps or not: off the data path, for those without a `Waker`.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// Announces that the thread is about to sleep.
    pub fn announce(&self, sleeper: &mut Sleeper) {
        sleeper.announce(&self.word);
    }

    /// Announces that it is awake.
    pub fn retract(&self, sleeper: &mut Sleeper) {
        sleeper.retract(&self.word);
    }
}

impl AsFd for ThreadWaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::ThreadWaker;
    use crate::wake::{Sleeper, Waker};

    fn rung(nudge: &ThreadWaker) -> bool {
        let fd = nudge.as_fd();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&at_once)).unwrap() == 1
    }

    #[test]
    fn only_a_sleeper_costs_a_ring() {
        let nudge = ThreadWaker::new().unwrap();
        let (mut sleeper, mut waker) = (Sleeper::default(), Waker::default());
        nudge.wake(&mut waker);
        assert!(!rung(&nudge), "no thread sleeps");
        nudge.announce(&mut sleeper);
        nudge.wake(&mut waker);
        assert!(rung(&nudge));
        crate::drain_doorbell(nudge.as_fd());
        nudge.wake(&mut waker);
        assert!(!rung(&nudge), "rung once for one sleep");
        nudge.retract(&mut sleeper);
    }
}
