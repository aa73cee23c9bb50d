//! An answer on its way to a client, with the descriptors that go with it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use kvrail_memory::Region;
use kvrail_protocol::{ControlReply, SidecarMessage};

use crate::failure::Failure;

/// The answer to one control request.
#[derive(Debug)]
pub(crate) struct Reply {
    session: u64,
    message: SidecarMessage,
    memory: Option<Arc<Region>>,
    fds: Vec<OwnedFd>,
}

impl Reply {
    pub(crate) fn new(session: u64, seq: u64, answer: ControlReply) -> Self {
        let message = SidecarMessage::Reply { seq, answer };
        Self { session, message, memory: None, fds: Vec::new() }
    }

    pub(crate) fn failure(session: u64, seq: u64, (status, message): Failure) -> Self {
        tracing::debug!(session, %status, message, "control request failed");
        Self::new(session, seq, ControlReply::Error { status, message })
    }

    /// Sends this memory first, then these descriptors.
    pub(crate) fn with(self, memory: Arc<Region>, fds: Vec<OwnedFd>) -> Self {
        Self { memory: Some(memory), fds, ..self }
    }

    /// Sends these descriptors.
    pub(crate) fn with_fds(self, fds: Vec<OwnedFd>) -> Self {
        Self { fds, ..self }
    }

    /// The session of the request.
    pub(crate) fn session(&self) -> u64 {
        self.session
    }

    pub(crate) fn message(&self) -> &SidecarMessage {
        &self.message
    }

    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let memory = self.memory.iter().map(|memory| memory.fd());
        memory.chain(self.fds.iter().map(AsFd::as_fd)).collect()
    }
}
