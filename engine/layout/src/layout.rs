//! A layout that was checked.

use std::sync::Arc;

use crate::UNIT_BYTES;
use crate::check;
use crate::error::LayoutError;
use crate::fragment::Fragment;

/// A checked layout: no fragment leaves its memory or overlaps another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(crate) fragments: Arc<[Fragment]>,
    /// Number of each fragment's first byte within a block.
    pub(crate) starts: Arc<[u64]>,
    blocks: u32,
    block_bytes: u64,
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
