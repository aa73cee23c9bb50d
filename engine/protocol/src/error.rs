//! Errors of the session socket.

use rustix::io::Errno;
use thiserror::Error;

use crate::printable::printable;

/// Bytes of one packet at most.
pub const PACKET_BYTES_MAX: usize = 64 << 10;

/// Why a message could not be sent or received. Except for `WouldBlock`, the socket must be closed
/// afterwards: the two sides no longer agree on the messages that were exchanged.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// Nothing to receive, or no room to send, now.
    #[error("the session socket is not ready")]
    WouldBlock,
    /// The other side closed the socket or is gone.
    #[error("the other side closed the session socket")]
    Closed,
    /// A packet, or a message to be sent, is too long.
    #[error("a message is longer than the {PACKET_BYTES_MAX} bytes of a packet")]
    Oversize,
    /// The packet is not one of our messages. Its text is quoted, so it is cleaned.
    #[error("the packet is not a message of this protocol: {}", printable(.0))]
    Malformed(String),
    /// A message came with more descriptors than it may have. All were closed.
    #[error("more descriptors than the {allowed} that a message here may carry; all were closed")]
    SurplusFds {
        /// How many may come.
        allowed: usize,
    },
    /// A message came without a descriptor that belongs to it.
    #[error("the message carries {present} descriptors, it needs {needed}")]
    MissingFds {
        /// How many came.
        present: usize,
        /// How many belong to it.
        needed: usize,
    },
    /// The kernel refused.
    #[error("the session socket failed: {0}")]
    Socket(Errno),
}

impl From<Errno> for ChannelError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN | Errno::INTR => Self::WouldBlock,
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => Self::Closed,
            Errno::MSGSIZE => Self::Oversize,
            other => Self::Socket(other),
        }
    }
}
