//! Bells: descriptors that wake a sleeping peer. Ringing never blocks, whatever the peer does.
//!
//! Client to poller is an eventfd: the poller only watches it (edge-triggered) and never reads or
//! writes it. Poller to client is a pipe, not an eventfd: both processes would share one open
//! file, and a hostile client could clear O_NONBLOCK, fill the counter and block the poller in
//! `write`. The two ends of a pipe are separate open files, each with flags of its own. Values
//! are 8 bytes, so a reader that expects an eventfd works.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};

/// The end that rings.
#[derive(Debug)]
pub struct Bell {
    fd: OwnedFd,
}

impl Bell {
    /// An eventfd bell; its descriptor serves both ends.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out.
    pub fn eventfd() -> Result<Self, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd })
    }

    /// A pipe bell: the ringing end, and the end a peer waits on.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out.
    pub fn pipe() -> Result<(Self, OwnedFd), Errno> {
        let (hear, ring) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok((Self { fd: ring }, hear))
    }

    /// Wraps a ringing end received from a peer.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Rings. A full pipe or counter is fine: the peer has a ring it did not hear yet. A closed
    /// other end is fine too: a dead peer is noticed on its socket.
    pub fn ring(&self) {
        let _heard_or_dead = write(&self.fd, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Takes every ring off a hearing end, so that the next wait blocks again.
pub fn hush(fd: BorrowedFd<'_>) {
    let mut rings = [0_u8; 512];
    while matches!(read(fd, &mut rings), Ok(taken) if taken == rings.len()) {}
}
