//! Waiting for completions: what one thread says of its sleep, and how long it spins before.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use kvrail_ring::{AdaptiveSpin, ClientSleep, drain_doorbell_set, wake};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use crate::control::Control;

/// Empty polls behind which what was staged is published; a power of two.
const EMPTY_POLLS: u32 = 256;

/// Time between two looks at the socket while polling.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Of a clock that advances with the kernel's tick: 5 ns a look here, where [`Instant`] takes 32.
fn coarse_now() -> Duration {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    Duration::try_from(now).unwrap_or_default()
}

/// The outcome of [`crate::Queue::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Armed {
    /// Something has completed already: poll, do not wait.
    Ready,
    /// [`crate::Queue::wait_fd`] becomes readable when something completes.
    Armed,
}

/// What woke a sleeper.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Woken {
    bell: bool,
    socket: bool,
}

impl Woken {
    /// Whether the socket has something to say.
    pub(crate) fn by_socket(self) -> bool {
        self.socket
    }
}

/// The waiting side of a queue.
#[derive(Debug)]
pub(crate) struct Waiter {
    sleep: ClientSleep,
    wake_fd: OwnedFd,
    /// The program waits on the wake fd.
    armed: bool,
    /// Polls in a row that brought nothing.
    empty_polls: u32,
    /// When the socket was looked at, by [`coarse_now`].
    looked: Duration,
    adaptive: AdaptiveSpin,
}

impl Waiter {
    pub(crate) fn new(sleep: ClientSleep, wake_fd: OwnedFd) -> Self {
        let (looked, adaptive) = (coarse_now(), AdaptiveSpin::default());
        Self { sleep, wake_fd, armed: false, empty_polls: 0, looked, adaptive }
    }

    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake_fd.as_fd()
    }

    #[inline(always)]
    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Says that this thread sleeps. Whoever does looks at the lanes once more afterwards.
    pub(crate) fn arm(&mut self) {
        if !self.armed {
            self.armed = true;
            self.sleep.announce();
        }
        wake::settle();
    }

    /// Something was there after all.
    pub(crate) fn unarm(&mut self) {
        debug_assert!(self.armed, "the sleep was announced");
        self.armed = false;
        self.sleep.retract();
    }

    /// The program is back from its event loop.
    #[cold]
    pub(crate) fn disarm(&mut self) {
        self.unarm();
        drain_doorbell_set(self.wake_fd.as_fd());
        // It may have been the end of the session: the next empty poll looks.
        self.looked = Duration::ZERO;
    }

    /// A poll brought something.
    #[inline(always)]
    pub(crate) fn polled(&mut self) {
        self.empty_polls = 0;
    }

    /// A poll brought nothing: whether it is time to look after the session. A program may poll
    /// often, or once a second.
    #[inline]
    pub(crate) fn polled_in_vain(&mut self) -> bool {
        self.empty_polls = self.empty_polls.wrapping_add(1);
        self.empty_polls.is_multiple_of(EMPTY_POLLS) || self.is_due(coarse_now())
    }

    /// Whether it is time to look at the socket, too, while polling.
    pub(crate) fn look_is_due(&mut self) -> bool {
        let now = coarse_now();
        let due = self.is_due(now);
        if due {
            self.looked = now;
        }
        due
    }

    fn is_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.looked) >= LOOK_EVERY
    }

    /// Whether spinning has paid of late.
    pub(crate) fn should_spin(&self) -> bool {
        self.adaptive.should_spin()
    }

    /// How long a wait took, of which so much may be spun.
    pub(crate) fn record(&mut self, waited: Duration, limit_ns: u64) {
        let waited_ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.adaptive.learn(waited_ns, limit_ns);
    }

    /// Blocks until the bell, the end of the session, or the deadline, unless `look` finds
    /// something that came before this thread said that it sleeps.
    pub(crate) fn block(
        &mut self,
        control: &Control,
        deadline: Option<Instant>,
        look: impl FnOnce() -> bool,
    ) -> Woken {
        debug_assert!(!self.armed, "a wait announces its own sleep");
        self.sleep.announce();
        wake::settle();
        let woken = if look() { Woken::default() } else { self.poll_fds(control, deadline) };
        self.sleep.retract();
        if woken.bell {
            drain_doorbell_set(self.wake_fd.as_fd());
        }
        woken
    }

    fn poll_fds(&self, control: &Control, deadline: Option<Instant>) -> Woken {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds =
            [PollFd::new(&self.wake_fd, PollFlags::IN), PollFd::new(control, PollFlags::RDHUP)];
        if poll(&mut fds, left.as_ref()).is_err() {
            return Woken::default(); // EINTR: like any other wake-up
        }
        let [bell, socket] = [0, 1].map(|at: usize| !fds[at].revents().is_empty());
        Woken { bell, socket }
    }
}
