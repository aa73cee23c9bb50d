//! The form of requests and answers on a ring: block requests in the kernel's own terms, or NVMe
//! commands passed through. A ring carries one of the two.

mod block;
mod nvme;
mod transfer;

use std::fmt;
use std::os::fd::OwnedFd;

use io_uring::{IoUring, cqueue, squeue};
use kvrail_ring::limits::ENTRY_BYTES;
use rustix::io::Errno;

pub(crate) use block::Block;
pub(crate) use nvme::Nvme;

use crate::buffer_table::BufferPlace;
use crate::contract::Operation;
use crate::error::DeviceResult;
use crate::failure::Cause;
use crate::split::Outcome;
use crate::target::{DriveStream, Target};
use crate::uring::ring::RingSetup;

/// The device's file in the table of registered files.
const FILE: io_uring::types::Fixed = io_uring::types::Fixed(0);

/// The table entry that holds the beginning of the operation's buffer range. Entries of a region
/// follow each other, `ENTRY_BYTES` each; pieces do not cross their borders.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a region has no more entries than the table")]
fn table_entry(operation: &Operation) -> u16 {
    operation.buffer.0 + (operation.buffer_offset / ENTRY_BYTES) as u16
}

/// The language of one ring.
pub trait SqeFormat: Clone + fmt::Debug + Send + Sized + 'static {
    /// Queue entries.
    type Entry: squeue::EntryMarker;
    /// Completions.
    type Cqe: cqueue::EntryMarker;

    /// Opens the format for this device; the file is the destination of requests where that is not
    /// the target's own. Writes carry the stream, if there is one.
    fn open(target: &Target, stream: Option<DriveStream>) -> DeviceResult<(Self, Option<OwnedFd>)>;

    /// Makes a ring that carries it.
    fn make(setup: &RingSetup) -> Result<IoUring<Self::Entry, Self::Cqe>, Errno>;

    /// Largest request, in bytes, whatever the block layer's own limits are.
    fn request_bytes_max(&self, target: &Target) -> u32;

    /// The entry for a piece that reads into its buffer range.
    fn read(&self, operation: &Operation, place: BufferPlace) -> Self::Entry;

    /// The entry for a piece that writes from its buffer range.
    fn write(&self, operation: &Operation, place: BufferPlace) -> Self::Entry;

    /// The entry for what has no buffer.
    fn other(&self, operation: &Operation) -> Self::Entry;

    /// Whether `result` of a read or write of `asked` bytes means that all of them were moved.
    fn moved_all(result: i32, asked: u32) -> bool;

    /// The meaning of a completion's `res` for a piece of `asked` bytes.
    fn outcome(result: i32, asked: u32) -> Outcome;

    /// Why, for a result that is a failure.
    fn cause(result: i32) -> Cause;
}
