//! Fragments: what a block is made of.

use serde::{Deserialize, Serialize};

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
