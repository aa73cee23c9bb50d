//! The table a kernel reads: one row for each fragment, with addresses.

use std::mem::size_of;

use zerocopy::{Immutable, IntoBytes};

use crate::Layout;

/// One fragment as the kernel sees it; `Fragment` in `kernels/move.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
pub struct FragmentRow {
    /// Address of block 0's fragment.
    pub base: u64,
    /// Bytes to the next block's.
    pub stride: u64,
    /// Number of its first byte within the block.
    pub start: u64,
    /// Its bytes.
    pub bytes: u64,
}

const _: () = assert!(size_of::<FragmentRow>() == 32);

impl Layout {
    /// The rows, for memories at these addresses.
    ///
    /// # Panics
    /// If there are fewer addresses than memories.
    #[must_use]
    pub fn rows(&self, addresses: &[u64]) -> Vec<FragmentRow> {
        let pairs = self.fragments.iter().zip(self.starts.iter());
        pairs
            .map(|(fragment, start)| FragmentRow {
                base: addresses[usize::from(fragment.memory)] + fragment.base,
                stride: fragment.stride,
                start: *start,
                bytes: fragment.bytes,
            })
            .collect()
    }
}
