//! Requests that were not submitted, and why.

use kvrail_ring::Opcode;
use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use thiserror::Error;

use crate::arena::Lease;
use crate::request::Request;

/// Why a request was not submitted. Nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Reason {
    /// As many pieces are under way as the queue holds. Poll, then try again.
    #[error(
        "the queue is full: {outstanding} of {capacity} pieces are under way; poll it, or open \
         a deeper one"
    )]
    Full {
        /// Pieces under way.
        outstanding: usize,
        /// Pieces the queue holds.
        capacity: usize,
    },
    /// The request has more pieces than the queue will ever hold.
    #[error(
        "the request falls into more than {capacity} pieces (at stripe borders and every \
         {REQUEST_LENGTH_MAX} bytes), the depth of the queue; split it, or open a deeper queue"
    )]
    TooManyPieces {
        /// Pieces the queue holds.
        capacity: usize,
    },
    /// Nothing to move.
    #[error("the length is 0; ask for at least one logical block")]
    Empty,
    /// Offset or length off the logical block.
    #[error(
        "offset {offset} and length {length} must be multiples of the volume's logical block, \
         {block} bytes"
    )]
    Misaligned {
        /// What was asked.
        offset: u64,
        /// What was asked.
        length: u64,
        /// The unit.
        block: u64,
    },
    /// Beyond the end of the volume.
    #[error("offset {offset} and length {length} end beyond the volume's {capacity} bytes")]
    BeyondEnd {
        /// What was asked.
        offset: u64,
        /// What was asked.
        length: u64,
        /// Bytes of the volume.
        capacity: u64,
    },
    /// More bytes than the lease has.
    #[error("{length} bytes asked for, the lease has {lease}; lease more or ask for less")]
    LeaseTooShort {
        /// What was asked.
        length: u64,
        /// Bytes of the lease.
        lease: u64,
    },
    /// The lease starts where this volume's devices cannot read or write.
    #[error("the lease starts at {offset}, the volume wants a multiple of {alignment}")]
    BufferMisaligned {
        /// Where it starts in its arena.
        offset: u64,
        /// The unit.
        alignment: u64,
    },
    /// The volume or the arena belongs to another client.
    #[error("the {what} belongs to another client; use this client's own")]
    Foreign {
        /// `volume` or `lease`.
        what: &'static str,
    },
    /// No such poller.
    #[error("poller {poller} does not exist; there are {count}")]
    NoPoller {
        /// What was asked.
        poller: usize,
        /// Pollers there are.
        count: usize,
    },
    /// The request asks for something that its operation does not have.
    #[error("{option} means nothing for a {}; leave it away", opcode.name())]
    Unfit {
        /// The option.
        option: &'static str,
        /// The operation.
        opcode: Opcode,
    },
    /// A checksum over several pieces.
    #[error(
        "a checksum is computed where the bytes pass, one piece at a time, and this request falls \
         into several; ask for one stripe at a time"
    )]
    ChecksumOverPieces,
    /// The sidecar is gone or ended the session.
    #[error("the session has ended; attach again")]
    SidecarGone,
    /// The sidecar broke the protocol on this queue.
    #[error("the queue is broken: the sidecar did not keep to the protocol; attach again")]
    Broken,
}

/// A request that was not submitted, with everything it owns.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct Refused {
    /// The request, unchanged.
    pub request: Request,
    /// Why.
    pub reason: Reason,
}

impl Refused {
    /// The request's memory.
    #[must_use]
    pub fn into_lease(self) -> Option<Lease> {
        self.request.lease
    }
}
