//! Which unused blocks are written when they leave memory.
//!
//! A block that was never used may be asked for yet: by a session that pauses for longer than
//! memory lasts. Where the store has room, each should be written. Where it has not, each written
//! one pushes out a used one. A key that is offered again is evidence: it was dropped too early, or
//! the store evicted it. The first raises the share of unused blocks that is written, the second
//! lowers it, as ARC moves its border between recency and frequency.

/// What happened to a block that left memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It was written to the store.
    Written,
    /// It was not.
    Dropped,
}

/// The share, and the keys that it follows: as many as the store has blocks.
#[derive(Debug)]
pub(crate) struct WriteShare {
    /// 0 to 1.
    share: f64,
    /// One evidence moves the share by this: the whole range in a store's length of them.
    step: f64,
    fates: Vec<Option<(Fate, u64)>>,
    /// Blocks written so far.
    written: u64,
    remembers: u64,
}

/// The least share: without a written one there would be no evidence that writing is of use.
const LEAST: f64 = 1.0 / 64.0;
/// Bits of a hash that a share is compared with.
const HASH_BITS: u32 = 24;

impl WriteShare {
    /// For a store of `store_blocks` blocks. Everything is written at first.
    pub(crate) fn new(store_blocks: u64, distinct: u32) -> Self {
        let step = 1.0 / store_blocks.max(1) as f64;
        let fates = vec![None; distinct as usize];
        Self { share: 1.0, step, fates, written: 0, remembers: store_blocks }
    }

    /// Whether an unused block is written. Blocks that came together, behind the same first one,
    /// have one answer: half a prefix is of no use.
    pub(crate) fn takes(&self, first: u32) -> bool {
        let hash = first.wrapping_mul(0x9e37_79b1) >> (u32::BITS - HASH_BITS);
        f64::from(hash) < self.share * f64::from(1 << HASH_BITS)
    }

    /// A block left memory.
    pub(crate) fn left(&mut self, block: u32, fate: Fate) {
        self.written += u64::from(fate == Fate::Written);
        self.fates[block as usize] = Some((fate, self.written));
    }

    /// A block is offered that is not in memory.
    pub(crate) fn offered(&mut self, block: u32) {
        let Some((fate, when)) = self.fates[block as usize].take() else { return };
        if self.written - when > self.remembers {
            return;
        }
        let moved = match fate {
            Fate::Dropped => self.share + self.step,
            Fate::Written => self.share - self.step,
        };
        self.share = moved.clamp(LEAST, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::{Fate, LEAST, WriteShare};

    fn taken(share: &WriteShare) -> usize {
        (0..10_000).filter(|first| share.takes(*first)).count()
    }

    #[test]
    fn evidence_moves_the_share_and_fades() {
        let mut share = WriteShare::new(100, 1000);
        assert_eq!(taken(&share), 10_000, "everything at first");
        for block in 0..50 {
            share.left(block, Fate::Written);
            share.offered(block);
        }
        assert!(taken(&share).abs_diff(5_000) < 200, "{}", taken(&share));
        share.offered(7);
        assert!((share.share - 0.5).abs() < 1e-9, "evidence counts once");
        for block in 0..25 {
            share.left(block, Fate::Dropped);
            share.offered(block);
        }
        assert!((share.share - 0.75).abs() < 1e-9);
        share.left(1, Fate::Dropped);
        (100..201).for_each(|block| share.left(block, Fate::Written));
        share.offered(1);
        assert!((share.share - 0.75).abs() < 1e-9, "too long ago");
        for _ in 0..200 {
            share.left(1, Fate::Written);
            share.offered(1);
        }
        assert!((share.share - LEAST).abs() < 1e-9);
    }
}
