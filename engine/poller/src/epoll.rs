//! The one place where a poller blocks: an epoll set of its devices, its clients' doorbells and
//! its mailbox.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

/// Wake-ups one call brings back at most; their number does not matter, only that there was one.
const WAKES_MAX: usize = 64;

/// The set.
pub(crate) struct EpollSet {
    epoll: OwnedFd,
    wakes: Vec<epoll::Event>,
}

impl fmt::Debug for EpollSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EpollSet").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

impl EpollSet {
    pub(crate) fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, wakes: Vec::with_capacity(WAKES_MAX) })
    }

    /// Wakes on every ring of an eventfd, which is never read.
    pub(crate) fn watch_edge(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)
    }

    /// The set itself, for a device that watches it.
    pub(crate) fn duplicate(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.epoll, 0)
    }

    /// Wakes while a device has something to reap.
    pub(crate) fn watch_device(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(1), EventFlags::IN)
    }

    /// Is not woken by an eventfd any more. A client may hold a duplicate of the descriptor, so
    /// closing ours would not be enough. It stays in the set until the client closes its own: to
    /// take it out needs a lock that the client holds while it rings, as long as it has watchers.
    pub(crate) fn unwatch(&self, fd: BorrowedFd<'_>) {
        let never = EventFlags::ET | EventFlags::ONESHOT; // errors are always reported, but once
        let gone = epoll::modify(&self.epoll, fd, EventData::new_u64(0), never);
        debug_assert!(gone.is_ok(), "only what is watched is forgotten: {gone:?}");
    }

    /// Blocks until something happens or the time is over.
    pub(crate) fn block(&mut self, timeout_ns: u64) {
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout_ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(timeout_ns % 1_000_000_000).expect("below a second"),
        };
        self.wakes.clear();
        // EINTR is a wake-up like any other.
        let _woken = epoll::wait(&self.epoll, spare_capacity(&mut self.wakes), Some(&timeout));
    }
}
