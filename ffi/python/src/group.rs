//! A group: requests for many blocks that one call made, and that end together.

use std::time::Duration;

use kvrail_client::{
    BlockKey, BlockNote, BlockRequest, ClientError, Completed, Decline, Lease, Namespace, Queue,
    Status, SubmitErrorKind,
};

use pyo3::prelude::*;

use crate::bounce::Bounce;
use crate::call_options::{BlockDependency, CallOptions};
use crate::errors::raised::RequestError;
use crate::places::{Bytes, Places};
use crate::results::{End, Results};

/// What is done with the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockWork {
    Put,
    Get,
    Drop,
}

/// Requests for many blocks.
#[derive(Debug)]
pub(crate) struct Group {
    space: Namespace,
    work: BlockWork,
    options: CallOptions,
    keys: Vec<BlockKey>,
    places: Places,
    ends: Vec<End>,
    /// Requests that were submitted, or never will be.
    staged: usize,
    /// Puts that found the namespace cleared, and go out once more after it was opened anew.
    cleared: Vec<usize>,
    renewed: bool,
    ended: usize,
    copied_bytes: u64,
    /// Bytes that came and that nobody gave memory for.
    kept: Option<Lease>,
    /// Higher half of the tags.
    number: u64,
    /// First ticket of its requests.
    first: Option<u64>,
}

/// Whether the rest of a chain need not be put now. A store with little write budget takes what it
/// has been asked for before: it has to be asked for the rest too, or each call would bring in one
/// block more.
fn ends_chain(status: Status, note: BlockNote) -> bool {
    let rationed = BlockNote::Declined(Decline::FirstSight) == note
        || BlockNote::Declined(Decline::Budget) == note;
    status == Status::Declined && !rationed
}

/// Why a group cannot go on: none of its requests was taken from here on.
#[derive(Debug)]
pub(crate) enum Halt {
    Refused(SubmitErrorKind),
    Failed(ClientError),
}

impl Group {
    pub(crate) fn new(
        space: &Namespace,
        work: BlockWork,
        options: CallOptions,
        keys: Vec<BlockKey>,
        places: Places,
    ) -> Self {
        let ends = vec![End::OPEN; keys.len()];
        let space = space.clone();
        Self {
            space,
            work,
            options,
            keys,
            places,
            ends,
            staged: 0,
            cleared: Vec::new(),
            renewed: false,
            ended: 0,
            copied_bytes: 0,
            kept: None,
            number: 0,
            first: None,
        }
    }

    /// Checks what can be checked without the sidecar.
    pub(crate) fn checked(self) -> PyResult<Self> {
        let max = self.space.store().block_bytes_max();
        let too_long = |index: &usize| self.places.bytes(*index) as u64 > u64::from(max);
        if self.work != BlockWork::Put {
            return Ok(self);
        }
        let Some(index) = (0..self.keys.len()).find(too_long) else { return Ok(self) };
        Err(RequestError::new_err(format!(
            "block {index}: {} bytes, this store takes up to {max}; put less, or make the store \
             with a larger --segment",
            self.places.bytes(index)
        )))
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.options.timeout()
    }

    /// Gives it a number, by which a queue knows its completions.
    pub(crate) fn numbered(self, number: u32) -> Self {
        Self { number: u64::from(number) << 32, ..self }
    }

    /// The number of the group whose completion this is.
    pub(crate) fn number_of(done: &Completed) -> u32 {
        u32::try_from(done.tag >> 32).expect("half of it")
    }

    pub(crate) fn space(&self) -> &Namespace {
        &self.space
    }

    /// Bytes of the longest block that has to be copied; 0 if there is none.
    pub(crate) fn longest_to_copy(&self) -> usize {
        self.places.longest_to_copy()
    }

    pub(crate) fn count(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.ended == self.keys.len()
    }

    pub(crate) fn is_staged(&self) -> bool {
        self.staged == self.keys.len() && self.cleared.is_empty()
    }

    /// Whether the rest waits for the namespace to be opened anew: somebody cleared it.
    pub(crate) fn is_cleared(&self) -> bool {
        !self.renewed && !self.cleared.is_empty()
    }

    /// The namespace was opened anew, or cannot be. That is done once.
    pub(crate) fn renew(&mut self, opened: bool) {
        self.renewed = true;
        if !opened {
            let (status, note) = (Status::Declined, BlockNote::Stale);
            self.end_cleared(End { status, note, ..End::OPEN });
        }
    }

    fn end_cleared(&mut self, end: End) {
        for index in self.cleared.drain(..) {
            self.ends[index] = end;
            self.ended += 1;
        }
    }

    /// The next request to submit.
    fn next(&self) -> Option<usize> {
        let again = self.cleared.last().filter(|_| self.renewed).copied();
        if self.staged < self.keys.len() { Some(self.staged) } else { again }
    }

    /// Requests of it that are in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.staged - self.ended - self.cleared.len()
    }

    pub(crate) fn ended(&self) -> usize {
        self.ended
    }

    /// Stages as many requests as there is room for.
    ///
    /// # Errors
    /// `Halt`: nothing of the rest can be submitted.
    pub(crate) fn stage(&mut self, queue: &mut Queue, bounce: &Bounce) -> Result<(), Halt> {
        while queue.outstanding() < queue.capacity()
            && !self.is_cleared()
            && let Some(index) = self.next()
        {
            let Some(request) = self.build(index, bounce).map_err(Halt::Failed)? else { break };
            match queue.stage(request) {
                Ok(ticket) => self.first = self.first.or(Some(ticket.0)),
                Err(refused) if matches!(refused.reason, SubmitErrorKind::Full { .. }) => break,
                Err(refused) => return Err(Halt::Refused(refused.reason)),
            }
            if index == self.staged {
                self.staged += 1;
            } else {
                self.cleared.pop();
            }
        }
        Ok(())
    }

    /// The next request; none while there is no memory to copy its bytes through.
    fn build(
        &mut self,
        index: usize,
        bounce: &Bounce,
    ) -> Result<Option<BlockRequest>, ClientError> {
        let lease = match self.work {
            BlockWork::Drop => None,
            BlockWork::Put | BlockWork::Get => match self.lease(index, bounce)? {
                None => return Ok(None),
                some => some,
            },
        };
        let (space, key) = (&self.space, self.keys[index]);
        let request = match (self.work, lease) {
            (BlockWork::Put, Some(lease)) => BlockRequest::put(space, key, lease),
            (_, Some(lease)) => BlockRequest::get(space, key, lease),
            (_, None) => BlockRequest::drop_block(space, key),
        };
        Ok(Some(self.options.apply(index, request).tag(self.number | index as u64)))
    }

    /// The memory of a block; for a put with its bytes.
    fn lease(&mut self, index: usize, bounce: &Bounce) -> Result<Option<Lease>, ClientError> {
        match self.places.get(index)? {
            Bytes::Lent(lease) => Ok(Some(lease)),
            Bytes::Room => Ok(bounce.lease(self.places.bytes(index))),
            Bytes::Copied(outside, row) => {
                let Some(mut lease) = bounce.lease(self.places.bytes(index)) else {
                    return Ok(None);
                };
                if self.work == BlockWork::Put {
                    outside.load(row, &mut lease);
                    self.copied_bytes += lease.len() as u64;
                }
                Ok(Some(lease))
            }
        }
    }

    /// Takes a completion of one of its requests.
    pub(crate) fn take(&mut self, mut done: Completed) {
        let theirs = self.first.is_none_or(|first| done.ticket.0 < first);
        if theirs || done.is_notice() {
            return; // of a call that was interrupted
        }
        let index = usize::try_from(done.tag & u64::from(u32::MAX)).expect("an index");
        let lease = done.lease.take();
        let Completed { status, note, bytes, checksum: crc, replaced_bytes, queue_ns, .. } = done;
        if self.work == BlockWork::Put && note == BlockNote::Stale && !self.renewed {
            return self.cleared.push(index);
        }
        self.ends[index] = End { status, note, bytes, crc, replaced_bytes, queue_ns };
        self.ended += 1;
        if let (BlockWork::Get, Status::Ok, Some(lease)) = (self.work, done.status, lease) {
            self.arrived(index, lease, done.bytes);
        }
        if self.options.dependency() == BlockDependency::Chain && ends_chain(done.status, done.note)
        {
            self.give_up();
        }
    }

    /// Brings the bytes of a block to where they are wanted, if they are not there.
    fn arrived(&mut self, index: usize, lease: Lease, bytes: u64) {
        let room = usize::try_from(bytes).expect("no more than the lease has");
        match self.places.get(index) {
            Ok(Bytes::Copied(outside, row)) => outside.store(row, &lease[..room]),
            Ok(Bytes::Room) => self.kept = Some(lease),
            Ok(Bytes::Lent(_)) | Err(_) => return,
        }
        self.copied_bytes += bytes;
    }

    /// The rest of a chain is not put: nobody would come to it.
    fn give_up(&mut self) {
        self.end_rest(End::BEHIND);
    }

    /// The rest cannot be submitted.
    pub(crate) fn fail(&mut self, status: Status) {
        let end = End { status, ..End::OPEN };
        self.end_cleared(end);
        self.end_rest(end);
    }

    fn end_rest(&mut self, end: End) {
        self.ends[self.staged..].fill(end);
        self.ended += self.keys.len() - self.staged;
        self.staged = self.keys.len();
    }

    /// Whether somebody cleared the namespace meanwhile.
    pub(crate) fn is_stale(&self) -> bool {
        self.ends.iter().any(|end| end.note == BlockNote::Stale)
    }

    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    pub(crate) fn into_results(self) -> Results {
        Results::new(self.ends, self.copied_bytes)
    }

    /// The end of the only request, and its bytes if nobody gave memory for them.
    pub(crate) fn into_one(mut self) -> (End, Option<Lease>) {
        (self.ends[0], self.kept.take())
    }
}
