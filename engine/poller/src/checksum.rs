//! CRC-64/NVME of bytes in a client's arena, for requests that ask for it.
//!
//! The client may change the bytes, or punch holes, while we look: they are copied out piece by
//! piece through `Pinned::read_at`, which answers with an error where a mapping would fault.

use crc_fast::{CrcAlgorithm, Digest};
use kvrail_memory::Pinned;

/// Bytes copied at once: fits an L2 cache beside the tables of the poller.
const PIECE_BYTES: usize = 64 << 10;

/// A checksummer with its own scratch memory.
#[derive(Debug)]
pub(crate) struct Summer {
    scratch: Box<[u8]>,
}

impl Summer {
    pub(crate) fn new() -> Self {
        Self { scratch: vec![0; PIECE_BYTES].into_boxed_slice() }
    }

    /// CRC of `length` bytes from `offset`, or nothing where the memory cannot be read.
    pub(crate) fn sum(&mut self, memory: &dyn Pinned, offset: u64, length: u32) -> Option<u64> {
        let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
        let mut at = usize::try_from(offset).ok()?;
        let mut left = length as usize;
        while left > 0 {
            let piece = &mut self.scratch[..left.min(PIECE_BYTES)];
            memory.read_at(at, piece).ok()?;
            digest.update(piece);
            at += piece.len();
            left -= piece.len();
        }
        Some(digest.finalize())
    }
}
