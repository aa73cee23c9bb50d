//! What a client can make slow to close: it is closed by a thread of that client's user.

use std::fmt::Debug;
use std::ops::Deref;
use std::os::fd::OwnedFd;

use kvrail_poller::{LaneSeat, QueueBell};
use kvrail_protocol::Channel;

use crate::hand::Hand;

/// What can be dropped by another thread.
pub(crate) trait Droppable: Debug + Send {}

impl<T: Debug + Send> Droppable for T {}

/// What nobody needs any more.
#[derive(Debug)]
pub(crate) enum Waste {
    /// Whatever is dropped to be closed.
    Any(Box<dyn Droppable>),
    /// A client's connection. What lies in its queue goes with it.
    Connection(Channel),
}

impl From<Channel> for Waste {
    fn from(connection: Channel) -> Self {
        Self::Connection(connection)
    }
}

/// Memory files that were looked at, but may be large.
impl From<Vec<OwnedFd>> for Waste {
    fn from(fds: Vec<OwnedFd>) -> Self {
        Self::Any(Box::new(fds))
    }
}

/// Its bell wakes everybody who waits at the client's end.
impl From<Box<LaneSeat>> for Waste {
    fn from(seat: Box<LaneSeat>) -> Self {
        Self::Any(Box::new(seat))
    }
}

/// The same, where the ringer had it last.
impl From<QueueBell> for Waste {
    fn from(bell: QueueBell) -> Self {
        Self::Any(Box::new(bell))
    }
}

/// A thing of a client's. Wherever it is dropped, it is closed by its user's thread.
#[derive(Debug)]
pub(crate) struct Kept<T: Into<Waste>> {
    it: Option<T>,
    hand: Hand,
}

impl<T: Into<Waste>> Kept<T> {
    pub(crate) fn new(it: T, hand: &Hand) -> Self {
        Self { it: Some(it), hand: hand.clone() }
    }

    /// Who closes it.
    pub(crate) fn hand(&self) -> &Hand {
        &self.hand
    }

    /// Gives it to who takes care of it from now on, away from the control thread.
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
            self.hand.discard(it.into());
        }
    }
}
