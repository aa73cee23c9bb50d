//! Pieces whose answer is in doubt: they wait here, and are then repeated all at once. Repeating
//! without a pause would take the processor that the kernel needs to settle its view.

use std::time::{Duration, Instant};

use crate::slots::SlotId;

/// Between two tries. Short compared with the second within which clients must be notified of a
/// removal, long compared with the microseconds that a try takes.
pub(super) const PAUSE_NS: u64 = 5_000_000;

/// As many as there are pieces, at most.
#[derive(Debug)]
pub(super) struct HeldPieces {
    pieces: Vec<SlotId>,
    /// When the first of them was put here.
    since: Instant,
}

impl HeldPieces {
    /// With room for that many.
    pub(super) fn new(pieces: usize) -> Self {
        Self { pieces: Vec::with_capacity(pieces), since: Instant::now() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Holds a piece.
    #[cold]
    pub(super) fn put(&mut self, piece: SlotId, now: Instant) {
        if self.pieces.is_empty() {
            self.since = now;
        }
        self.pieces.push(piece);
    }

    /// Those whose pause is over.
    #[cold]
    pub(super) fn take(&mut self, now: Instant) -> impl Iterator<Item = SlotId> {
        let over = now.duration_since(self.since) >= Duration::from_nanos(PAUSE_NS);
        let count = if over { self.pieces.len() } else { 0 };
        self.pieces.drain(..count)
    }
}
