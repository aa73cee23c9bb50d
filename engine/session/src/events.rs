//! Events of the control thread.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

/// Events one wait brings back at most.
const EVENTS_MAX: usize = 64;

/// The source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventSource {
    /// The listening socket.
    Listener,
    /// A poller, or the thread that makes memory.
    Notices,
    /// A call of the server's handle.
    Handle,
    /// A session's socket.
    Socket(u64),
    /// A session's process has ended.
    Process(u64),
}

const FIXED: u64 = 3;

impl EventSource {
    fn token(self) -> u64 {
        match self {
            Self::Listener => 0,
            Self::Notices => 1,
            Self::Handle => 2,
            Self::Socket(id) => FIXED + 2 * id,
            Self::Process(id) => FIXED + 2 * id + 1,
        }
    }

    fn from_token(token: u64) -> Self {
        match token {
            0 => Self::Listener,
            1 => Self::Notices,
            2 => Self::Handle,
            other if (other - FIXED).is_multiple_of(2) => Self::Socket((other - FIXED) / 2),
            other => Self::Process((other - FIXED) / 2),
        }
    }
}

/// The epoll set.
#[derive(Debug)]
pub(crate) struct EventLoop {
    epoll: OwnedFd,
}

impl EventLoop {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Reports this descriptor for as long as it is readable or hung up.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, source: EventSource) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(source.token()), EventFlags::IN)
    }

    /// A client may hold a duplicate of what we watch, so closing it would not be enough.
    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) {
        let gone = epoll::delete(&self.epoll, fd);
        debug_assert!(gone.is_ok(), "only what is watched is forgotten: {gone:?}");
    }

    /// Waits; returns the sources of events, none after a timeout.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<Vec<EventSource>, Errno> {
        let timeout = Timespec::try_from(timeout).unwrap_or_default();
        let mut ready: Vec<epoll::Event> = Vec::with_capacity(EVENTS_MAX);
        match epoll::wait(&self.epoll, spare_capacity(&mut ready), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(ready.iter().map(|event| EventSource::from_token(event.data.u64())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::EventSource;

    #[test]
    fn tokens_round_trip() {
        for source in [
            EventSource::Listener,
            EventSource::Notices,
            EventSource::Handle,
            EventSource::Socket(0),
            EventSource::Process(0),
            EventSource::Socket(1 << 40),
            EventSource::Process(1 << 40),
        ] {
            assert_eq!(EventSource::from_token(source.token()), source);
        }
    }
}
