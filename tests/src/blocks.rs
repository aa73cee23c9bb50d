//! Which thread owns which blocks of the volume: disjoint, of mixed sizes, everywhere aligned to
//! 512 bytes and to nothing more.

use std::ops::Range;

/// Blocks that every thread has. 1,124,352 bytes is a KV block of DeepSeek: 2,196 x 512, so that
/// all blocks after it miss every larger alignment.
const EVERY_THREAD: [usize; 5] = [512, 4096, 65_536, 262_144, 1_124_352];

/// One thread of a group has a block of this size too.
pub const LARGE_BYTES: usize = 4 << 20;

/// Threads that share a large block's place.
const GROUP: u32 = 4;

/// A range of the volume that one thread alone reads and writes, always as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// First byte in the volume.
    pub offset: u64,
    /// Length.
    pub bytes: usize,
}

fn own_bytes() -> u64 {
    EVERY_THREAD.iter().map(|bytes| *bytes as u64).sum()
}

fn group_bytes() -> u64 {
    u64::from(GROUP) * own_bytes() + LARGE_BYTES as u64
}

/// Bytes of the volume that the blocks of this number of threads cover.
#[must_use]
pub fn span_bytes(threads: u32) -> u64 {
    u64::from(threads.div_ceil(GROUP)) * group_bytes()
}

/// The blocks of these threads, thread by thread.
#[must_use]
pub fn blocks_of(threads: Range<u32>) -> Vec<Vec<Block>> {
    threads.map(blocks_of_one).collect()
}

fn blocks_of_one(thread: u32) -> Vec<Block> {
    let base = u64::from(thread / GROUP) * group_bytes();
    let place = u64::from(thread % GROUP);
    let mut at = base + place * own_bytes();
    let mut blocks = Vec::new();
    for bytes in EVERY_THREAD {
        blocks.push(Block { offset: at, bytes });
        at += bytes as u64;
    }
    if place == 0 {
        let offset = base + u64::from(GROUP) * own_bytes();
        blocks.push(Block { offset, bytes: LARGE_BYTES });
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::{blocks_of, span_bytes};

    #[test]
    fn blocks_are_disjoint_aligned_and_within_the_span() {
        let mut all: Vec<_> = blocks_of(0..64).into_iter().flatten().collect();
        all.sort_by_key(|block| block.offset);
        for pair in all.windows(2) {
            assert!(pair[0].offset + pair[0].bytes as u64 <= pair[1].offset, "{pair:?}");
        }
        assert!(all.iter().all(|block| block.offset % 512 == 0 && block.bytes % 512 == 0));
        let last = all.last().unwrap();
        assert_eq!(last.offset + last.bytes as u64, span_bytes(64));
    }
}
