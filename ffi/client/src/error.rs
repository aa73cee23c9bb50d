//! What can go wrong outside single requests, each with its remedy.

use std::path::PathBuf;
use std::time::Duration;

use kvrail_layout::LayoutError;
use kvrail_memory::MemoryError;
use kvrail_protocol::{ChannelError, RefusalCode, Version};
use kvrail_ring::{SegmentError, Status};
use rustix::io::Errno;
use thiserror::Error;

/// Why a call failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nothing answers at the socket.
    #[error("no sidecar at {}: {cause}; {remedy}", socket.display())]
    NoSidecar {
        /// The path.
        socket: PathBuf,
        /// What happened.
        cause: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The sidecar does not let us in.
    #[error("the sidecar refused this client: {message}")]
    NotAdmitted {
        /// Which kind of refusal.
        code: RefusalCode,
        /// The sidecar's words.
        message: String,
    },
    /// The sidecar is of an earlier release, which lacks the request. The session goes on: nothing
    /// was sent.
    #[error(
        "{what}: the sidecar ({sidecar}) is too old for this: it speaks protocol {speaks}, and \
         {needs} is needed; upgrade it and start it again"
    )]
    TooOld {
        /// The request.
        what: &'static str,
        /// The sidecar's release.
        sidecar: String,
        /// What it speaks with this client.
        speaks: Version,
        /// The first version that has it.
        needs: Version,
    },
    /// The sidecar refused the request; the session goes on.
    #[error("{what}: {status}: {message}")]
    Denied {
        /// The request.
        what: &'static str,
        /// The kind of failure.
        status: Status,
        /// The sidecar's words: which limit, which key, what to do.
        message: String,
    },
    /// No answer came in time. Whether it was done is unknown.
    #[error(
        "{what}: no answer within {after:?}; look at the sidecar (kvrail status), or allow it a \
         longer timeout"
    )]
    Timeout {
        /// The request.
        what: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The sidecar is gone or ended this session. Attach again.
    #[error("the session has ended: {reason}; attach again")]
    SidecarGone {
        /// What is known about it.
        reason: String,
    },
    /// The sidecar does not keep to the protocol.
    #[error("the sidecar broke the protocol, which is a bug in kvrail: {what}")]
    Protocol {
        /// What it did.
        what: String,
    },
    /// The memory could not be mapped, or the arena has no room.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The memory at an address cannot become an arena.
    #[error(
        "the memory at {address:#x} {why}; map a memfd or a file of /dev/shm with MAP_SHARED, or \
         copy the bytes through an arena of the client"
    )]
    NotShared {
        /// The address.
        address: usize,
        /// What it is.
        why: &'static str,
    },
    /// No such volume.
    #[error("the sidecar has no volume {name:?}; it has: {}", known.join(", "))]
    UnknownVolume {
        /// The requested name.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The volume is no store.
    #[error(
        "volume {name:?} is no store: its requests name offsets; make one with `kvrail volume \
         create NAME MEMBERS --kind store`"
    )]
    NoStore {
        /// Its name.
        name: String,
    },
    /// The identity document is none.
    #[error(transparent)]
    Identity(#[from] crate::identity::IdentityError),
    /// The sidecar serves no such GPU.
    #[error(
        "the sidecar serves no GPU {wanted}; it serves: {}; name one of them, or add the GPU to \
         the sidecar's configuration",
        if known.is_empty() { "none".to_owned() } else { known.join(", ") }
    )]
    NoGpu {
        /// The requested UUID.
        wanted: String,
        /// Those there are.
        known: Vec<String>,
    },
    /// The layout of a cache in GPU memory is wrong.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// This process is a fork of the one that attached.
    #[error("a client cannot be used across fork(); attach in the child")]
    Forked,
    /// The kernel refused.
    #[error("{what} failed: {errno}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
}

impl ClientError {
    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol { what: what.into() }
    }
}

impl From<ChannelError> for ClientError {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::Socket(errno) => Self::System { what: "the session socket", errno },
            other => Self::protocol(other.to_string()),
        }
    }
}

impl From<SegmentError> for ClientError {
    fn from(error: SegmentError) -> Self {
        Self::protocol(error.to_string())
    }
}
