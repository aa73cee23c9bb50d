//! Layouts: where the bytes of a paged KV cache lie in GPU memory.
//!
//! A KV block is scattered: one fragment for every layer and for K and V, one for a layer of an
//! MLA model, others again in a hybrid group. A layout names each fragment once, by where it lies
//! for block 0 and how far the next block is. The bytes of a block are numbered fragment after
//! fragment, in the order given; requests and volumes know these numbers only.

mod check;
mod table;
mod walk;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use table::FragmentRow;
pub use walk::{Run, Runs};

/// Most fragments of a layout: 512 layers with K and V.
pub const FRAGMENTS_MAX: usize = 1024;
/// Most memories (allocations) one layout spans: one for each K and V tensor of 128 layers.
pub const MEMORIES_MAX: usize = 256;
/// Fewest bytes of a fragment.
pub const FRAGMENT_BYTES_MIN: u64 = 512;
/// Unit of every address, stride and size: what one GPU thread moves at once.
pub const UNIT_BYTES: u64 = 16;
/// Unit of a whole block: the smallest logical block of a volume.
pub const BLOCK_UNIT_BYTES: u64 = 512;

/// One fragment of every block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fragment {
    /// Which of the region's memories it lies in.
    pub memory: u16,
    /// First byte of block 0's fragment in that memory, a multiple of 16.
    pub base: u64,
    /// Bytes from one block's fragment to the next block's, a multiple of 16.
    pub stride: u64,
    /// Bytes of the fragment, at least 512 and a multiple of 16.
    pub bytes: u64,
}

/// A checked layout: no fragment leaves its memory or overlaps another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    fragments: Arc<[Fragment]>,
    /// Number of each fragment's first byte within a block.
    starts: Arc<[u64]>,
    blocks: u32,
    block_bytes: u64,
}

/// What is wrong with a layout.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// None, or too many of something.
    #[error("a layout has {least} to {most} {what}, not {found}")]
    Count {
        /// Of what.
        what: &'static str,
        /// Fewest.
        least: u64,
        /// Most.
        most: u64,
        /// How many there were.
        found: u64,
    },
    /// A number that is not a multiple of what it must be, or too small.
    #[error(
        "fragment {index}: {what} = {value} bytes must be a multiple of 16{}",
        if *.least == 0 { String::new() } else { format!(" and at least {least}") }
    )]
    Misaligned {
        /// Which fragment.
        index: usize,
        /// `base`, `stride` or `bytes`.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The least it may be; 0 where any will do.
        least: u64,
    },
    /// The block is no multiple of 512 bytes.
    #[error(
        "the fragments of a block add up to {bytes} bytes, not to a multiple of 512, so no volume \
         could hold it without a rest; pad one of them"
    )]
    Ragged {
        /// Their sum.
        bytes: u64,
    },
    /// A fragment reaches beyond its memory.
    #[error(
        "fragment {index}: its last block ends at byte {end} of memory {memory}, which has {bytes} \
         bytes"
    )]
    Outside {
        /// Which fragment.
        index: usize,
        /// Where it would end; `u64::MAX` beyond all numbers.
        end: u64,
        /// The memory.
        memory: u16,
        /// Its size, 0 where there is no such memory.
        bytes: u64,
    },
    /// Two fragments share bytes.
    #[error("fragments {first} and {second} overlap in memory {memory}")]
    Overlap {
        /// The one.
        first: usize,
        /// The other; the same when a fragment overlaps its own next block.
        second: usize,
        /// Where.
        memory: u16,
    },
    /// Two fragments interleave with different strides.
    #[error(
        "fragments {first} and {second} lie between each other in memory {memory} with different \
         strides; use one stride, or let them lie apart"
    )]
    Interleaved {
        /// The one.
        first: usize,
        /// The other.
        second: usize,
        /// Where.
        memory: u16,
    },
}

impl Layout {
    /// Checks a layout of `blocks` blocks over memories of these sizes in bytes.
    ///
    /// # Errors
    /// `LayoutError` names the fragment and the limit.
    pub fn new(
        fragments: Vec<Fragment>,
        blocks: u32,
        memories: &[u64],
    ) -> Result<Self, LayoutError> {
        check::check(&fragments, blocks, memories)?;
        let mut block_bytes = 0;
        let mut starts = Vec::with_capacity(fragments.len());
        for fragment in &fragments {
            starts.push(block_bytes);
            block_bytes += fragment.bytes;
        }
        Ok(Self { fragments: fragments.into(), starts: starts.into(), blocks, block_bytes })
    }

    /// Memory that is no paged cache: one block, one fragment, all of it from `base` on.
    ///
    /// # Errors
    /// `LayoutError` when base or size are no multiples.
    pub fn contiguous(base: u64, bytes: u64) -> Result<Self, LayoutError> {
        let fragment = Fragment { memory: 0, base, stride: bytes, bytes };
        let end = base.saturating_add(bytes);
        Self::new(vec![fragment], 1, &[end])
    }

    /// The fragments of a block, in order.
    #[must_use]
    pub fn fragments(&self) -> &[Fragment] {
        &self.fragments
    }

    /// Blocks of the cache.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Bytes of one block, all its fragments together.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Whether a block of this index holds this range; offset and length in multiples of 16.
    #[must_use]
    pub fn holds(&self, block: u32, offset: u64, length: u32) -> bool {
        let units =
            offset.is_multiple_of(UNIT_BYTES) && u64::from(length).is_multiple_of(UNIT_BYTES);
        let end = offset.checked_add(u64::from(length));
        units && block < self.blocks && end.is_some_and(|end| end <= self.block_bytes)
    }
}

#[cfg(test)]
mod tests;
