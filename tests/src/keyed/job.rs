//! One request of a process, with its purpose.

use super::content::{LARGE, bytes_of, key_of, length_of};
use super::seat::Op;

/// Bytes of the largest block that is put in one part.
const PART_BYTES: u32 = 300 << 10;
/// Bytes of the largest block.
const LARGE_BYTES: u32 = 2 << 20;

/// Purpose of a place.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Put { number: u64, version: u32, block: Vec<u8>, at: u32 },
    Get { number: u64 },
    Drop { number: u64 },
    Other { number: u64 },
}

impl Job {
    pub(super) fn put(number: u64, version: u32) -> Self {
        let block = bytes_of(number, version, length_of(number, version));
        Self::Put { number, version, block, at: 0 }
    }

    fn number(&self) -> u64 {
        match *self {
            Self::Put { number, .. }
            | Self::Get { number }
            | Self::Drop { number }
            | Self::Other { number } => number,
        }
    }

    /// Bytes that a get offers.
    pub(super) fn capacity(&self) -> u32 {
        if self.number() < LARGE { PART_BYTES } else { LARGE_BYTES }
    }

    /// Whether parts of it are written and others are not.
    pub(super) fn is_begun(&self) -> bool {
        matches!(self, Self::Put { at: 1.., .. })
    }

    /// The put of the next part.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Put { number, version, block, at } => {
                Self::Put { number, version, block, at: at + PART_BYTES }
            }
            other => other,
        }
    }

    pub(super) fn op(&self) -> Op<'_> {
        let key = key_of(self.number());
        match self {
            Self::Put { block, at, .. } => {
                let length = u32::try_from(block.len()).expect("at most 2 MiB");
                let bytes = PART_BYTES.min(length - at);
                Op::Put { key, block, at: *at, bytes, metadata: &[], flags: 0 }
            }
            Self::Get { .. } | Self::Other { .. } => Op::Get { key, capacity: self.capacity() },
            Self::Drop { .. } => Op::Drop { key },
        }
    }
}
