//! Resources that a client can make slow to close: a thread of that client's user closes them.

use std::ops::Deref;
use std::os::fd::OwnedFd;

use kvrail_poller::{LaneSeat, QueueDoorbell};
use kvrail_protocol::Channel;

use crate::memory_worker::{MemoryWorker, Waste};

impl From<Channel> for Waste {
    fn from(connection: Channel) -> Self {
        Self::Connection(connection)
    }
}

impl From<Vec<OwnedFd>> for Waste {
    fn from(fds: Vec<OwnedFd>) -> Self {
        Self::Files(fds)
    }
}

impl From<Box<LaneSeat>> for Waste {
    fn from(seat: Box<LaneSeat>) -> Self {
        Self::Lane(seat)
    }
}

impl From<QueueDoorbell> for Waste {
    fn from(bell: QueueDoorbell) -> Self {
        Self::Doorbell(bell)
    }
}

/// A thing of a client's. Wherever it is dropped, it is closed by its user's thread.
#[derive(Debug)]
pub(crate) struct Kept<T: Into<Waste>> {
    it: Option<T>,
    worker: MemoryWorker,
}

impl<T: Into<Waste>> Kept<T> {
    pub(crate) fn new(it: T, worker: &MemoryWorker) -> Self {
        Self { it: Some(it), worker: worker.clone() }
    }

    /// The thread that closes it.
    pub(crate) fn worker(&self) -> &MemoryWorker {
        &self.worker
    }

    /// Hands the value to a new owner outside the control thread.
    pub(crate) fn take(mut self) -> T {
        self.it.take().expect("there until it is taken or dropped")
    }
}

impl<T: Into<Waste>> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.it.as_ref().expect("there until it is taken or dropped")
    }
}

impl<T: Into<Waste>> Drop for Kept<T> {
    fn drop(&mut self) {
        if let Some(it) = self.it.take() {
            self.worker.discard(it.into());
        }
    }
}
