//! Transfers in flight: an operation on GPU memory, cut into parts that each fit a slot, and
//! joined again into one ending. Invariants 1 and 3 are kept here for GPU memory.

use kvrail_device::{Finished, Operation, SlotId, Slots};
use kvrail_ring::Status;

use crate::port::JOBS_MAX;
use crate::staging::SlotIndex;

/// Transfers of one bridge at once. With parts of a slot each there are seldom more.
const TRANSFERS_MAX: u32 = 512;

/// An operation on GPU memory.
#[derive(Debug)]
struct GpuTransfer {
    operation: Operation,
    /// First byte not yet cut into a part.
    next: u32,
    /// Parts in flight.
    open: u32,
    /// The earliest byte that failed, with the reason.
    failed: Option<(u32, Status)>,
}

/// A piece of a transfer on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferPart {
    transfer: SlotId,
    /// Its part of the operation, as an operation: offset, length, buffer offset.
    pub(super) operation: Operation,
    /// First byte within the transfer.
    at: u32,
    pub(super) slot: Option<SlotIndex>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Transfers {
    transfers: Slots<GpuTransfer>,
    parts: Slots<TransferPart>,
    /// The transfer that is not yet cut to its end; nothing new is taken before it is.
    cutting: Option<SlotId>,
}

impl Transfers {
    pub(super) fn new() -> Self {
        let (transfers, parts) = (Slots::new(TRANSFERS_MAX), Slots::new(JOBS_MAX));
        Self { transfers, parts, cutting: None }
    }

    /// Whether another transfer could be taken.
    pub(super) fn is_open(&self) -> bool {
        self.cutting.is_none() && !self.transfers.is_full() && !self.parts.is_full()
    }

    /// Takes an operation, to be cut next.
    ///
    /// # Panics
    /// If it is not open.
    pub(super) fn take(&mut self, operation: Operation) {
        let transfer = GpuTransfer { operation, next: 0, open: 0, failed: None };
        let id = self.transfers.claim(transfer).expect("open, seen by the caller");
        self.cutting = Some(id);
    }

    /// The operation being cut.
    pub(super) fn cutting(&self) -> Option<&Operation> {
        let id = self.cutting?;
        Some(&self.transfers.get(id).expect("the one being cut is in flight").operation)
    }

    /// Whether there is room for another part.
    pub(super) fn has_parts(&self) -> bool {
        !self.parts.is_full()
    }

    /// Cuts the next part, of at most `most` bytes.
    ///
    /// # Panics
    /// If nothing is being cut or there is no room for parts.
    pub(super) fn cut(&mut self, most: u32, slot: Option<SlotIndex>) -> SlotId {
        let id = self.cutting.expect("something is being cut");
        let transfer = self.transfers.get_mut(id).expect("the one being cut is in flight");
        let at = transfer.next;
        let mut operation = transfer.operation;
        operation.offset += u64::from(at);
        operation.buffer_offset += u64::from(at);
        operation.length = (operation.length - at).min(most);
        transfer.next += operation.length;
        transfer.open += 1;
        if transfer.next == transfer.operation.length {
            self.cutting = None;
        }
        let part = TransferPart { transfer: id, operation, at, slot };
        self.parts.claim(part).expect("there is room, seen by the caller")
    }

    /// A part in flight.
    ///
    /// # Panics
    /// If the id names none.
    pub(super) fn part(&self, id: SlotId) -> &TransferPart {
        match self.parts.get(id) {
            Ok(part) => part,
            Err(stale) => panic!("invariant 1: an end for nothing in flight: {stale}"),
        }
    }

    /// Ends a part; gives the transfer's operation and end out when it was the last.
    pub(super) fn end(&mut self, id: SlotId, status: Status) -> Option<(Operation, Finished)> {
        let part = match self.parts.release(id) {
            Ok(part) => part,
            Err(stale) => panic!("invariant 1: a part ended twice: {stale}"),
        };
        let transfer = self.transfers.get_mut(part.transfer).expect("a part keeps its transfer");
        transfer.open -= 1;
        if status != Status::Ok {
            if transfer.failed.is_none_or(|(at, _)| part.at < at) {
                transfer.failed = Some((part.at, status));
            }
            // Pieces that are not cut yet are not begun any more.
            transfer.next = transfer.operation.length;
            if self.cutting == Some(part.transfer) {
                self.cutting = None;
            }
        }
        if transfer.open > 0 || transfer.next < transfer.operation.length {
            return None;
        }
        let transfer = self.transfers.release(part.transfer).expect("just seen");
        let (bytes, status) = transfer.failed.unwrap_or((transfer.operation.length, Status::Ok));
        let tag = transfer.operation.tag;
        Some((transfer.operation, Finished { tag, status, bytes }))
    }
}
