//! Operations in flight: cut into pieces the device takes, continued where a piece came back short,
//! and joined again into one ending. Shared by every device that moves bytes.
//!
//! Invariants 1 (exactly once) and 3 (OK means every byte) are kept here and nowhere else.

use std::collections::VecDeque;

use kvrail_memory::PageSize;
use kvrail_ring::limits::ENTRY_BYTES;
use kvrail_ring::{Opcode, Status};

use crate::contract::{BufferIndex, Finished, Operation, WINDOW_BYTES};
use crate::slots::{SlotId, Slots};

/// How often one piece may come back untouched ("try again") before that is an error. Some
/// milliseconds of a busy queue are thousands of tries; an endless loop is none of them.
const RETRIES_MAX: u32 = 1 << 20;

/// The smallest page of memory.
const PAGE: u64 = PageSize::Base.bytes() as u64;

/// Largest piece of an operation that is cut: with two of them in its window the device always has
/// the next one.
const PIECE_BYTES: u32 = WINDOW_BYTES / 2;

/// How often a piece is done again that failed in a way that may pass. As many tries as the
/// kernel's NVMe driver gives block requests (nvme_core.max_retries).
const TRANSIENT_MAX: u8 = 5;

/// Limits of one device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceLimits {
    /// Largest piece in bytes, a multiple of `granule`.
    pub(crate) transfer_bytes_max: u32,
    /// Bytes of as many pages as a piece may touch, a multiple of `granule`: where each page of a
    /// buffer is a memory segment of its own and the segments of a request are few.
    pub(crate) paged_bytes_max: u32,
    /// Unit in which progress counts: the logical block, below which direct I/O cannot go on.
    pub(crate) granule: u32,
    /// Operations at once.
    pub(crate) depth: u32,
    /// Pieces at once, at least `depth`.
    pub(crate) pieces: u32,
}

/// How the device answered one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It moved that many bytes, perhaps fewer than requested.
    Moved(u32),
    /// It did nothing and may be repeated.
    Again,
    /// Its effect is in doubt: it is repeated after a pause.
    Later,
    /// It failed and may succeed on repetition.
    Transient(Status),
    /// It failed.
    Failed(Status),
}

/// The consequence of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The piece, or what is left of it, must be handed to the device again under the same id.
    Reissue,
    /// Other pieces of the operation are in flight or to be cut.
    Open,
    /// The operation ended.
    Ended(Finished, Option<BufferIndex>),
}

/// The pieces of a new operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is one piece: issue it.
    Whole(SlotId),
    /// It is several: issue what `cut` gives.
    Parts,
}

#[derive(Clone, Copy, Debug)]
struct OperationPiece {
    /// The rest of the operation; begins further on after each short transfer.
    rest: Operation,
    done: u32,
    retries: u32,
    /// Failures that may have passed.
    failures: u8,
    /// Whether it is all of a read or write: `join` is none, and bytes are moved.
    whole: bool,
    join: Option<SlotId>,
}

/// An operation of several pieces.
#[derive(Clone, Copy, Debug)]
struct SplitOperation {
    operation: Operation,
    /// First byte not yet cut into a piece.
    next: u32,
    /// Pieces in flight.
    open: u32,
    /// Their bytes, at most `WINDOW_BYTES`.
    open_bytes: u32,
    /// Whether it is among those that are to be cut now.
    queued: bool,
    /// The earliest byte that failed, with the reason.
    failed: Option<(u32, Status)>,
}

/// Everything prepared and not yet ended.
#[derive(Debug)]
pub(crate) struct Flights {
    limits: DeviceLimits,
    /// An operation of no more bytes is one piece wherever its buffer begins, unless it crosses a
    /// table entry's border.
    surely_whole: u32,
    /// One more piece goes into an operation's window while no more bytes are in it.
    refill_below: u32,
    pieces: Slots<OperationPiece>,
    joins: Slots<SplitOperation>,
    /// Operations that may have more pieces in flight. Nothing new is taken before they have, so
    /// order and space stay simple.
    cutting: VecDeque<SlotId>,
    in_flight: u32,
}

impl Flights {
    pub(crate) fn new(limits: DeviceLimits) -> Self {
        assert!(limits.depth <= limits.pieces && limits.granule > 0, "{limits:?}");
        assert!(limits.transfer_bytes_max.is_multiple_of(limits.granule), "{limits:?}");
        assert!(u64::from(limits.paged_bytes_max) >= PAGE, "{limits:?}");
        let (pieces, joins) = (Slots::new(limits.pieces), Slots::new(limits.depth));
        let page = u32::try_from(PAGE).expect("a small constant");
        let surely_whole = limits.transfer_bytes_max.min(limits.paged_bytes_max - (page - 1));
        let surely_whole = surely_whole.min(WINDOW_BYTES);
        let cutting = VecDeque::with_capacity(limits.depth as usize);
        let refill_below = WINDOW_BYTES - limits.transfer_bytes_max.min(PIECE_BYTES);
        Self { limits, surely_whole, refill_below, pieces, joins, cutting, in_flight: 0 }
    }

    /// Operations taken and not yet ended.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Pieces handed out and not yet settled to their end.
    #[inline]
    pub(crate) fn pieces(&self) -> u32 {
        self.pieces.claimed()
    }

    /// Takes a read or write that is one piece for sure, if there is room; any other operation is
    /// for `take`.
    #[inline(always)]
    pub(crate) fn take_whole(&mut self, operation: &Operation) -> Option<SlotId> {
        let in_entry = operation.buffer_offset % ENTRY_BYTES;
        let simple = moves_bytes(operation.opcode)
            && operation.length <= self.surely_whole
            && in_entry + u64::from(operation.length) <= ENTRY_BYTES
            && self.in_flight < self.limits.depth
            && self.cutting.is_empty();
        if !simple {
            return None;
        }
        let rest = operation.anew();
        let piece =
            OperationPiece { rest, done: 0, retries: 0, failures: 0, whole: true, join: None };
        let id = self.pieces.claim(piece).ok()?;
        self.in_flight += 1;
        Some(id)
    }

    /// Takes an operation, or gives it back when there is no room now.
    pub(crate) fn take(&mut self, operation: Operation) -> Result<Taken, Operation> {
        if self.in_flight >= self.limits.depth || !self.cutting.is_empty() {
            return Err(operation);
        }
        if self.first_cut(&operation) < operation.length {
            return self.take_parts(operation);
        }
        let whole = moves_bytes(operation.opcode);
        let piece =
            OperationPiece { rest: operation, done: 0, retries: 0, failures: 0, whole, join: None };
        let id = self.pieces.claim(piece).map_err(|piece| piece.rest)?;
        self.in_flight += 1;
        Ok(Taken::Whole(id))
    }

    fn take_parts(&mut self, operation: Operation) -> Result<Taken, Operation> {
        if self.pieces.is_full() {
            return Err(operation);
        }
        let join = SplitOperation {
            operation,
            next: 0,
            open: 0,
            open_bytes: 0,
            queued: true,
            failed: None,
        };
        let id = self.joins.claim(join).map_err(|join| join.operation)?;
        self.cutting.push_back(id);
        self.in_flight += 1;
        Ok(Taken::Parts)
    }

    /// Bytes of the first piece of `rest`.
    #[inline]
    fn first_cut(&self, rest: &Operation) -> u32 {
        if !moves_bytes(rest.opcode) {
            return rest.length;
        }
        let to_border = ENTRY_BYTES - rest.buffer_offset % ENTRY_BYTES;
        let to_border = u32::try_from(to_border).expect("at most 64 MiB");
        // Regions begin with a page. A range that does not takes one page more.
        let in_page = u32::try_from(rest.buffer_offset % PAGE).expect("below a page");
        let paged = self.limits.paged_bytes_max - in_page;
        let most = if rest.length > WINDOW_BYTES { PIECE_BYTES } else { rest.length };
        most.min(self.limits.transfer_bytes_max).min(paged).min(to_border)
    }

    /// The next piece to issue, if an operation may have one more in flight and there is room.
    pub(crate) fn cut(&mut self) -> Option<SlotId> {
        let id = *self.cutting.front()?;
        if self.pieces.is_full() {
            return None;
        }
        let join = self.joins.get(id).expect("invariant 1: the operation being cut is in flight");
        let mut rest = advance(&join.operation, join.next);
        rest.length = self.first_cut(&rest).min(PIECE_BYTES);
        let length = rest.length;
        let piece =
            OperationPiece { rest, done: 0, retries: 0, failures: 0, whole: false, join: Some(id) };
        let piece = self.pieces.claim(piece).expect("there was room");
        let join = self.joins.get_mut(id).expect("looked up above");
        join.next += length;
        join.open += 1;
        join.open_bytes += length;
        if join.next == join.operation.length || join.open_bytes > self.refill_below {
            join.queued = false;
            self.cutting.pop_front();
        }
        Some(piece)
    }

    /// The rest of the piece.
    ///
    /// # Panics
    /// If the id names no piece in flight.
    #[inline]
    pub(crate) fn piece(&self, id: SlotId) -> &Operation {
        match self.pieces.get(id) {
            Ok(piece) => &piece.rest,
            Err(stale) => panic!("invariant 1: issuing a piece that is not in flight: {stale}"),
        }
    }

    /// The status with which the answer would end the piece, if it would fail it.
    #[cold]
    pub(crate) fn failing(&self, id: SlotId, outcome: Outcome) -> Option<Status> {
        let &OperationPiece { retries, failures, .. } = self.pieces.get(id).ok()?;
        match outcome {
            Outcome::Failed(status) => Some(status),
            Outcome::Transient(status) => (failures >= TRANSIENT_MAX).then_some(status),
            Outcome::Again | Outcome::Later => (retries >= RETRIES_MAX).then_some(Status::IoError),
            Outcome::Moved(bytes) => (bytes < self.limits.granule).then_some(Status::IoError),
        }
    }

    /// Ends a piece that moves bytes and is all of its operation, if all of them were moved: the
    /// common case. Any other answer is for `settle`. `moved_all` is evaluated last.
    ///
    /// # Panics
    /// As `settle`.
    #[inline(always)]
    pub(crate) fn settle_whole(
        &mut self,
        id: SlotId,
        moved_all: impl FnOnce(&Operation) -> bool,
    ) -> Option<Finished> {
        let ended = self.pieces.release_if(id, |OperationPiece { rest, done, whole, .. }| {
            let whole = *whole && moved_all(rest);
            let bytes = done + rest.length;
            whole.then_some(Finished { tag: rest.tag, status: Status::Ok, bytes })
        });
        match ended {
            Ok(ended) => {
                self.in_flight -= u32::from(ended.is_some());
                ended
            }
            Err(stale) => panic!("invariant 1: a completion for nothing in flight: {stale}"),
        }
    }

    /// Takes the device's answer for a piece.
    ///
    /// # Panics
    /// If the id names no piece in flight: the device answered twice or with a wrong id.
    #[inline]
    pub(crate) fn settle(&mut self, id: SlotId, outcome: Outcome) -> Settled {
        let piece = match self.pieces.get_mut(id) {
            Ok(piece) => piece,
            Err(stale) => panic!("invariant 1: a completion for nothing in flight: {stale}"),
        };
        let status = match progress(piece, outcome, self.limits.granule) {
            PieceProgress::Done => Status::Ok,
            PieceProgress::More => return Settled::Reissue,
            PieceProgress::Failed(status) => status,
        };
        let piece = self.pieces.release(id).expect("looked up above");
        match piece.join {
            None => {
                self.in_flight -= 1;
                Settled::Ended(finished(&piece, status), buffer_of(&piece.rest))
            }
            Some(join) => self.settle_part(join, &piece, status),
        }
    }

    fn settle_part(&mut self, id: SlotId, piece: &OperationPiece, status: Status) -> Settled {
        let join = self.joins.get_mut(id).expect("invariant 1: a piece of nothing in flight");
        join.open -= 1;
        join.open_bytes -= piece.done + piece.rest.length * u32::from(status != Status::Ok);
        if status != Status::Ok {
            let at = u32::try_from(piece.rest.offset - join.operation.offset);
            let at = at.expect("a piece lies within its operation");
            if join.failed.is_none_or(|(earliest, _)| at < earliest) {
                join.failed = Some((at, status));
            }
            join.next = join.operation.length;
            self.cutting.retain(|cutting| *cutting != id);
        } else if join.next < join.operation.length
            && !join.queued
            && join.open_bytes <= self.refill_below
        {
            join.queued = true;
            self.cutting.push_back(id);
        }
        if join.open > 0 || join.next < join.operation.length {
            return Settled::Open;
        }
        let join = self.joins.release(id).expect("looked up above");
        self.in_flight -= 1;
        let Operation { tag, length, .. } = join.operation;
        let (bytes, status) = join.failed.unwrap_or((length, Status::Ok));
        Settled::Ended(Finished { tag, status, bytes }, buffer_of(&join.operation))
    }
}

/// Whether the operation reads or writes a buffer.
#[inline]
pub(crate) fn moves_bytes(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Read | Opcode::Write)
}

/// The region an operation uses.
#[inline]
pub(crate) fn buffer_of(operation: &Operation) -> Option<BufferIndex> {
    moves_bytes(operation.opcode).then_some(operation.buffer)
}

enum PieceProgress {
    Done,
    More,
    Failed(Status),
}

#[inline]
fn progress(piece: &mut OperationPiece, outcome: Outcome, granule: u32) -> PieceProgress {
    match outcome {
        Outcome::Moved(_) if !moves_bytes(piece.rest.opcode) => PieceProgress::Done,
        Outcome::Moved(bytes) if bytes == piece.rest.length => {
            piece.done += bytes;
            PieceProgress::Done
        }
        Outcome::Moved(bytes) => continue_short(piece, bytes, granule),
        Outcome::Failed(status) => PieceProgress::Failed(status),
        Outcome::Transient(_) if piece.failures < TRANSIENT_MAX => {
            piece.failures += 1;
            PieceProgress::More
        }
        Outcome::Transient(status) => PieceProgress::Failed(status),
        Outcome::Again | Outcome::Later if piece.retries < RETRIES_MAX => {
            piece.retries += 1;
            PieceProgress::More
        }
        Outcome::Again | Outcome::Later => PieceProgress::Failed(Status::IoError),
    }
}

#[cold]
fn continue_short(piece: &mut OperationPiece, bytes: u32, granule: u32) -> PieceProgress {
    assert!(bytes <= piece.rest.length, "the device moved more than requested: {piece:?}");
    // A part of a logical block cannot be continued behind; it is moved again.
    let whole_blocks = bytes - bytes % granule;
    if whole_blocks == 0 {
        return PieceProgress::Failed(Status::IoError); // invariant 3: no progress is no success
    }
    piece.rest = advance(&piece.rest, whole_blocks);
    piece.done += whole_blocks;
    PieceProgress::More
}

/// The operation without its first `bytes` bytes.
fn advance(operation: &Operation, bytes: u32) -> Operation {
    let mut rest = *operation;
    rest.offset += u64::from(bytes);
    rest.buffer_offset += u64::from(bytes);
    rest.length -= bytes;
    rest
}

#[inline]
fn finished(piece: &OperationPiece, status: Status) -> Finished {
    let whole = !moves_bytes(piece.rest.opcode) && status == Status::Ok;
    let bytes = if whole { piece.rest.length } else { piece.done };
    Finished { tag: piece.rest.tag, status, bytes }
}

#[cfg(test)]
mod tests;
