//! Why requests are not submitted.

use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::{METADATA_BYTES_MAX, Opcode};
use thiserror::Error;

/// Why a request was not submitted. Nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SubmitErrorKind {
    /// As many pieces are in flight as the queue holds. Poll, then try again.
    #[error(
        "the queue is full: {outstanding} of {capacity} pieces are in flight; poll it, or open \
         a deeper one"
    )]
    Full {
        /// Pieces in flight.
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
        /// The request's.
        offset: u64,
        /// The request's.
        length: u64,
        /// The unit.
        block: u64,
    },
    /// Beyond the end of the volume.
    #[error("offset {offset} and length {length} end beyond the volume's {capacity} bytes")]
    BeyondEnd {
        /// The request's.
        offset: u64,
        /// The request's.
        length: u64,
        /// Bytes of the volume.
        capacity: u64,
    },
    /// More bytes than the lease has.
    #[error("{length} bytes asked for, the lease has {lease}; lease more or ask for less")]
    LeaseTooShort {
        /// The request's.
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
    /// A block that the cache does not have.
    #[error("block {block} does not exist; the GPU region has {blocks}, counted from 0")]
    NoBlock {
        /// The request's.
        block: u32,
        /// Blocks there are.
        blocks: u32,
    },
    /// Bytes beyond the end of a block.
    #[error("{bytes} bytes from {start} on leave the block of {block_bytes} bytes; ask for less")]
    OutsideBlock {
        /// The request's.
        start: u64,
        /// The request's.
        bytes: u64,
        /// Bytes of every block, or of the range that was made of it.
        block_bytes: u64,
    },
    /// A range of a block starts where this volume's devices or the GPU cannot.
    #[error("the range starts at byte {start} of its block; it must be a multiple of {alignment}")]
    BlockMisaligned {
        /// Where it starts.
        start: u64,
        /// The unit.
        alignment: u64,
    },
    /// A checksum of bytes in GPU memory.
    #[error(
        "no checksum is computed of GPU memory, which this library does not read; leave it away, \
         or move the block through an arena"
    )]
    GpuChecksum,
    /// The volume or the memory belongs to another client.
    #[error("the {what} belongs to another client; use this client's own")]
    Foreign {
        /// `volume`, `lease` or `GPU region`.
        what: &'static str,
    },
    /// No such poller.
    #[error("poller {poller} does not exist; there are {count}")]
    NoPoller {
        /// The request's.
        poller: usize,
        /// Pollers there are.
        count: usize,
    },
    /// The request has an option that its operation lacks.
    #[error("{option} means nothing for a {}; leave it away", opcode.name())]
    Unfit {
        /// The option.
        option: &'static str,
        /// The operation.
        opcode: Opcode,
    },
    /// A block longer than the store takes.
    #[error(
        "a block of {bytes} bytes: this store takes up to {max}, half a segment; put less, or make \
         the store with a larger --segment"
    )]
    BlockTooLong {
        /// The request's.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// More metadata than a record has room for.
    #[error("{bytes} bytes of metadata, {METADATA_BYTES_MAX} at most")]
    MetadataTooLong {
        /// The request's.
        bytes: usize,
    },
    /// A place in a volume whose bytes belong to a store.
    #[error("this volume is a store: its blocks have keys; use `Client::store`")]
    IsStore,
    /// The sidecar is gone or ended the session.
    #[error("the session has ended; attach again")]
    SidecarGone,
    /// The sidecar broke the protocol on this queue.
    #[error("the queue is broken: the sidecar did not keep to the protocol; attach again")]
    Broken,
}
