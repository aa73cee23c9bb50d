//! The ledger: requests that have not ended. Exactly once means that every end finds its entry, and
//! that no entry is left.

use std::collections::HashMap;

use kvrail_client::{Completed, Ticket};

/// What a request does to its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads it.
    Read,
    /// Writes it with this version.
    Write(u32),
}

/// One request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Which of the thread's blocks.
    pub(crate) block: usize,
    pub(crate) kind: Kind,
    /// The block's version before, where it was known.
    pub(crate) before: Option<u32>,
    pub(crate) wants_checksum: bool,
}

/// Everything in flight in one queue.
#[derive(Debug, Default)]
pub struct Ledger {
    open: HashMap<Ticket, Entry>,
}

impl Ledger {
    /// Books a request.
    pub(crate) fn book(&mut self, ticket: Ticket, entry: Entry) -> Result<(), String> {
        match self.open.insert(ticket, entry) {
            None => Ok(()),
            Some(other) => Err(format!("{ticket:?} was given twice: {other:?} and {entry:?}")),
        }
    }

    /// Strikes out the request that ended.
    pub(crate) fn settle(&mut self, done: &Completed) -> Result<Entry, String> {
        let Some(entry) = self.open.remove(&done.ticket) else {
            return Err(format!("{:?} ended twice, or was never submitted: {done:?}", done.ticket));
        };
        if done.tag == entry.block as u64 {
            return Ok(entry);
        }
        Err(format!("{:?} came back with tag {} of {entry:?}", done.ticket, done.tag))
    }

    /// Requests that have not ended.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }
}
