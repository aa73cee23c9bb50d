//! The door: takes waiting connections, refuses those that no descriptor is left for, and pauses
//! when there are too many.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_memory::descriptor_remedy;
use rustix::io::Errno;

use crate::events::{EventLoop, EventSource};
use crate::rate::RateLimit;
use crate::socket::{Listener, spare};

/// Refused connections that wait to be closed. Beyond this none are taken for a moment, because
/// each is an open file.
const REFUSED: usize = 128;

/// That moment.
const MOMENT: Duration = Duration::from_millis(1);

/// How long nothing is taken when descriptors ran out.
const EXHAUSTED: Duration = Duration::from_millis(200);

/// Time between two looks whether the socket is still where clients look for it.
const LOOK: Duration = Duration::from_secs(1);

/// A connection that was taken.
#[derive(Debug)]
pub(crate) enum TakenConnection {
    /// It may become a session.
    Open(OwnedFd),
    /// It has the last descriptor, and can only be refused, for this reason.
    Last(OwnedFd, Errno),
}

/// The listening socket in the server's loop.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listener: Listener,
    events: Arc<EventLoop>,
    /// No connections are taken before this moment.
    after: Option<Instant>,
    log: RateLimit,
    /// A descriptor to close when all others are taken, so that a client can be refused with the
    /// reason instead of waiting for a reply.
    spare: Option<OwnedFd>,
    /// When the socket's path is looked at next, and what was wrong there.
    look_at: Instant,
    trouble: Option<String>,
}

impl Acceptor {
    pub(crate) fn new(listener: Listener, events: Arc<EventLoop>) -> Result<Self, Errno> {
        events.watch(listener.as_fd(), EventSource::Listener)?;
        let (log, look_at) = (RateLimit::default(), Instant::now() + LOOK);
        Ok(Self { listener, events, after: None, log, spare: spare(), look_at, trouble: None })
    }

    /// The next connection, unless `refused` refused ones already wait to be closed.
    pub(crate) fn next(&mut self, refused: usize) -> Option<TakenConnection> {
        if refused > REFUSED {
            self.pause(MOMENT);
            return None;
        }
        match self.listener.accept() {
            Ok(fd) => Some(TakenConnection::Open(fd)),
            // The socket stays readable if there are more.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => None,
            Err(errno) => {
                if let Some(suppressed) = self.log.admit(Instant::now()) {
                    tracing::error!(
                        suppressed,
                        "no connection can be taken: {errno}; {}",
                        descriptor_remedy(errno)
                    );
                }
                self.pause(EXHAUSTED);
                drop(self.spare.take()?);
                self.listener.accept().ok().map(|fd| TakenConnection::Last(fd, errno))
            }
        }
    }

    /// Stops taking connections for a moment instead of spinning on one that cannot be taken.
    fn pause(&mut self, pause: Duration) {
        self.events.forget(self.listener.as_fd());
        self.after = Some(Instant::now() + pause);
    }

    /// When connections are taken again, if they are not now.
    pub(crate) fn resumes(&self) -> Option<Instant> {
        self.after
    }

    /// Takes connections again once the moment is over.
    pub(crate) fn resume(&mut self, now: Instant) {
        if self.after.is_none_or(|after| after > now) {
            return;
        }
        self.spare = self.spare.take().or_else(spare);
        let watched = self.events.watch(self.listener.as_fd(), EventSource::Listener);
        self.after = watched.err().map(|_| now + EXHAUSTED);
    }

    /// Binds the socket again if its file was removed, as cleaners of temporary folders do: without
    /// it no client comes any more.
    pub(crate) fn look(&mut self, now: Instant) {
        if self.look_at > now {
            return;
        }
        self.look_at = now + LOOK;
        let socket = self.listener.path().display().to_string();
        match self.listener.restore() {
            Ok(None) => self.trouble = None,
            Ok(Some(old)) => {
                if self.after.is_none() {
                    self.events.forget(old.as_fd());
                }
                self.after = Some(now);
                self.resume(now);
                self.trouble = None;
                tracing::warn!(
                    socket,
                    "the session socket was removed; it is bound again. Keep cleaners away \
                     from it (tmpfiles.d: a line \"x\" with its path), or have it in /run"
                );
            }
            Err(error) => {
                let trouble = Some(error.to_string());
                if self.trouble != trouble {
                    tracing::error!(
                        socket,
                        "the session socket was removed, and it cannot be bound again: \
                         {error}. No client can attach until then; those that are attached go on"
                    );
                }
                self.trouble = trouble;
            }
        }
    }

    /// Stops accepting; returns the connections that were made and not yet accepted.
    pub(crate) fn shut(&mut self) -> impl Iterator<Item = OwnedFd> {
        self.listener.shut();
        std::iter::from_fn(|| self.listener.accept().ok())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Instant;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};

    use super::{Acceptor, EventLoop, LOOK, Listener};

    fn client(path: &Path) -> OwnedFd {
        let fd = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&fd, &SocketAddrUnix::new(path).unwrap()).unwrap();
        fd
    }

    fn is_hung_up(fd: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap();
        fds[0].revents().contains(PollFlags::HUP)
    }

    /// Nobody takes connections from a socket that was replaced: who waits there is to see that.
    #[test]
    fn who_waits_at_a_socket_that_was_removed_is_hung_up_on() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("s");
        let listener = Listener::bind(&path, 0o600).unwrap();
        let mut acceptor = Acceptor::new(listener, Arc::new(EventLoop::new().unwrap())).unwrap();
        let waits = client(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(!is_hung_up(&waits));
        acceptor.look(Instant::now() + LOOK);
        assert!(is_hung_up(&waits));
        assert!(!is_hung_up(&client(&path)), "the socket is bound again");
    }
}
