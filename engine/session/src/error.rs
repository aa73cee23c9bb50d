//! Errors that keep the control thread from serving.

use std::fmt;
use std::path::PathBuf;

use kvrail_memory::{descriptor_remedy, thread_remedy};
use rustix::io::Errno;
use thiserror::Error;

/// A process, as far as it can be seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pid(pub Option<u32>);

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "pid {pid}"),
            None => f.write_str("its process cannot be seen from here"),
        }
    }
}

/// Why the server could not start or had to end.
#[derive(Debug, Error)]
pub enum ServerError {
    /// Another sidecar serves this socket.
    #[error(
        "{}: a sidecar already serves this socket ({pid}); stop it, or give this one another \
         socket", socket.display()
    )]
    Alive {
        /// The socket.
        socket: PathBuf,
        /// Its server's process.
        pid: Pid,
    },
    /// Something else listens at this socket.
    #[error(
        "{}: something that is not a kvrail sidecar listens there ({pid}); stop it, or give this \
         one another socket (sidecar.socket)", socket.display()
    )]
    Foreign {
        /// The socket.
        socket: PathBuf,
        /// The process that listens.
        pid: Pid,
    },
    /// The file at the lock's path is no lock file.
    #[error(
        "{}: it is {what} and no lock file of kvrail, so it is not written; move it away, or name \
         another socket (sidecar.socket)", lock.display()
    )]
    NotALock {
        /// The path of the lock file.
        lock: PathBuf,
        /// Its kind.
        what: String,
    },
    /// Something that is no socket lies where the socket should be.
    #[error("{}: exists and is no socket; move it away or name another path", socket.display())]
    NotASocket {
        /// The path.
        socket: PathBuf,
    },
    /// The path is too long for a Unix socket.
    #[error("{}: a socket path has at most 107 bytes; name a shorter one", socket.display())]
    PathTooLong {
        /// The path.
        socket: PathBuf,
    },
    /// The kernel refused a step of making the socket.
    #[error(
        "{}: {step} failed ({errno}); check that the directory is on a local file system and \
         that this user may write there", path.display()
    )]
    Socket {
        /// The path in question.
        path: PathBuf,
        /// Which step.
        step: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// A volume does not fit the pollers.
    #[error("volumes and pollers do not fit: {0}")]
    Volumes(String),
    /// The kernel refused what the loop itself needs.
    #[error("the control loop: {step} failed ({errno}); {}", descriptor_remedy(*errno))]
    Loop {
        /// Which step.
        step: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// The kernel refused a thread of the control loop.
    #[error("the control loop: {thread} could not be started ({errno}); {}", thread_remedy(*errno))]
    Thread {
        /// The thread's task.
        thread: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// A poller thread ended by itself.
    #[error(
        "poller {poller} ended by itself, which is a bug in kvrail; all clients were notified \
         that their requests are lost"
    )]
    PollerDied {
        /// Which.
        poller: usize,
    },
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::ServerError;

    #[test]
    fn a_thread_that_is_refused_names_its_limit() {
        let refused = ServerError::Thread { thread: "the ringer", errno: Errno::AGAIN }.to_string();
        assert!(refused.contains("the ringer") && refused.contains("TasksMax="), "{refused}");
    }
}
