//! Doorbells: descriptors that wake a sleeping peer. Ringing never blocks, whatever the peer does.
//!
//! Client to poller is an eventfd: the poller only watches it (edge-triggered) and never reads or
//! writes it. Poller to client is an eventfd too, but one that the client never gets: both would
//! share one open file, and a hostile client could clear O_NONBLOCK, fill the counter and block the
//! poller in `write`. The client gets an epoll set that watches the eventfd. A pipe would not do:
//! its reader holds the pipe's lock while it copies, for as long as its own memory takes to fault
//! in, and the poller would wait for that lock. A set has one more virtue: the kernel lets no more
//! than 500 other sets watch it, and each of them adds to the cost of a ring.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::{Errno, read, write};

/// Most events of a set: a ring, and the hang-up of a socket.
const HEARD_MAX: usize = 2;

/// The end that rings.
#[derive(Debug)]
pub struct Doorbell {
    fd: OwnedFd,
}

impl Doorbell {
    /// An eventfd bell; its descriptor serves both ends.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out.
    pub fn eventfd() -> Result<Self, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd })
    }

    /// A bell for a peer: the ringing end, and the set that the peer waits on. `drain_doorbell_set`
    /// silences it.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out.
    pub fn heard() -> Result<(Self, OwnedFd), Errno> {
        let (bell, set) = (Self::eventfd()?, epoll::create(CreateFlags::CLOEXEC)?);
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&set, &bell, EventData::new_u64(0), flags)?;
        Ok((bell, set))
    }

    /// Wraps a ringing end received from a peer.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Rings. A full counter is fine: the peer has a pending ring. A missing peer is fine too: its
    /// death is noticed on its socket.
    pub fn ring(&self) {
        let _heard_or_dead = write(&self.fd, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Takes every ring off an eventfd, so that the next wait blocks again.
pub fn drain_doorbell(fd: BorrowedFd<'_>) {
    let mut rings = [0_u8; 512];
    while matches!(read(fd, &mut rings), Ok(taken) if taken == rings.len()) {}
}

/// As `drain_doorbell`, for a peer's set.
pub fn drain_doorbell_set(set: BorrowedFd<'_>) {
    let mut events = [const { MaybeUninit::uninit() }; HEARD_MAX];
    let _taken = epoll::wait(set, &mut events, Some(&Timespec::default()));
}

/// Has the set of a doorbell wake its owner as well when this descriptor's peer hangs up;
/// `drain_doorbell_set` does not silence that.
///
/// # Errors
/// The kernel's; `EINVAL` for what is no set.
pub fn watch_hangup(set: BorrowedFd<'_>, of: BorrowedFd<'_>) -> Result<(), Errno> {
    epoll::add(set, of, EventData::new_u64(1), EventFlags::RDHUP)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::{Errno, read, write};

    use super::{Doorbell, drain_doorbell_set, watch_hangup};

    fn hears(set: &OwnedFd) -> bool {
        let at_once = Timespec::default();
        poll(&mut [PollFd::new(set, PollFlags::IN)], Some(&at_once)).unwrap() == 1
    }

    #[test]
    fn a_peer_hears_each_ring_until_it_takes_it_off() {
        let (bell, set) = Doorbell::heard().unwrap();
        assert!(!hears(&set));
        for rings in [1, 3] {
            (0..rings).for_each(|_| bell.ring());
            assert!(hears(&set));
            drain_doorbell_set(set.as_fd());
            assert!(!hears(&set), "taken off");
        }
        drop(bell);
        drain_doorbell_set(set.as_fd());
        assert!(!hears(&set));
    }

    #[test]
    fn a_hangup_is_heard_and_stays() {
        let (_bell, set) = Doorbell::heard().unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        watch_hangup(set.as_fd(), ours.as_fd()).unwrap();
        assert!(!hears(&set));
        drop(theirs);
        assert!(hears(&set));
        drain_doorbell_set(set.as_fd());
        assert!(hears(&set));
    }

    /// A reader of a pipe holds its lock while the reader's memory faults in, and a peer with write
    /// access could fill the counter: the ringing side would wait for the peer, without a limit.
    #[test]
    fn a_peer_can_neither_read_nor_write_what_it_hears() {
        let (_bell, set) = Doorbell::heard().unwrap();
        assert_eq!(read(&set, &mut [0; 8]), Err(Errno::INVAL));
        assert_eq!(write(&set, &[1; 8]), Err(Errno::INVAL));
    }

    /// A ring visits every watcher of the bell, one after the other.
    #[test]
    fn a_peer_cannot_hang_thousands_of_watchers_on_a_bell() {
        let (bell, set) = Doorbell::heard().unwrap();
        let copies: Vec<_> = (0..200).map(|_| set.try_clone().unwrap()).collect();
        let watchers: Vec<_> =
            (0..20).map(|_| epoll::create(CreateFlags::CLOEXEC).unwrap()).collect();
        let watch = |watcher: &OwnedFd, copy: &OwnedFd| {
            epoll::add(watcher, copy, EventData::new_u64(0), EventFlags::IN)
        };
        let every =
            watchers.iter().flat_map(|watcher| copies.iter().map(move |copy| (watcher, copy)));
        let added = every.map_while(|(watcher, copy)| watch(watcher, copy).ok()).count();
        assert!(added <= 1000, "{added} watchers, and no end");
        bell.ring();
        assert!(hears(&set));
    }
}
