//! The caches that the store is compared with. They cache single blocks and know no segments.

mod belady;
mod lru;
mod s3fifo;
mod two_lru;

pub(crate) use belady::Belady;
pub(crate) use lru::{Lru, Order};
pub(crate) use s3fifo::S3Fifo;
pub(crate) use two_lru::TwoLru;

/// A cache of the given number of blocks.
pub(crate) trait PeerCache {
    /// A request asks for these blocks; those that are not there are put.
    fn request(&mut self, blocks: &[u32]) -> CacheResult;

    /// Hits that its memory served, if it has one above its drive.
    fn memory_hits(&self) -> Option<u64> {
        None
    }
}

/// The result of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheResult {
    /// Blocks that were there before the first one that was not.
    pub(crate) hits: u64,
    pub(crate) written: u64,
}

/// The result of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheAccess {
    /// It was there.
    Hit,
    /// It was not, and was written.
    Written,
    /// It was not, and was passed by.
    Passed,
}

/// Blocks are asked for, and put, one after the other.
fn in_turn(blocks: &[u32], mut access: impl FnMut(u32) -> CacheAccess) -> CacheResult {
    let (mut found, mut unbroken) = (CacheResult::default(), true);
    for block in blocks {
        let access = access(*block);
        unbroken &= access == CacheAccess::Hit;
        found.hits += u64::from(unbroken);
        found.written += u64::from(access == CacheAccess::Written);
    }
    found
}
