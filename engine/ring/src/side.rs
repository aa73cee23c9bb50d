//! Side areas: what a put has beside its slot. Each request slot of a lane has one.
//!
//! The client writes it before it publishes the slot, and does not touch it until the sidecar has
//! given the slot back; the slot's own ordering covers it. The sidecar copies it once, and looks
//! at the copy only.

use kvrail_units::METADATA_BYTES_MAX;
use zerocopy::IntoBytes;

use crate::keyed::Side;
use crate::limits::LANE_VERSION;
use crate::shm::ShmWords;
use crate::slot::{half, high, low};

/// Bytes of a side area: a header of 16, and the metadata.
pub(crate) const SIDE_BYTES: usize = 16 + METADATA_BYTES_MAX;
/// Words of one.
pub(crate) const SIDE_WORDS: usize = SIDE_BYTES / 8;
/// Words of its header: the block's bytes and the part's first one; bytes of metadata in 16 bits,
/// the worth in 8, 8 of zero, and the end of the worth.
const HEADER_WORDS: usize = 2;
/// The greatest number of a worth.
const WORTH_MAX: u8 = 2;

// The layout of lanes has side areas of this size: another size is another `LANE_VERSION`.
const _: () = assert!(SIDE_BYTES == 1040 && LANE_VERSION == 4);

/// The side areas of a lane.
pub(crate) type SideAreas = ShmWords<SIDE_WORDS>;

/// The side area of a request that was just taken.
#[derive(Clone, Copy, Debug)]
pub struct SideSlot<'a> {
    areas: &'a SideAreas,
    slot: u32,
}

/// A private copy of a side area. All its bits are the client's: any value may be there.
#[derive(Clone, Debug)]
pub struct SideCopy {
    block_bytes: u32,
    at: u32,
    worth: u8,
    until: u32,
    metadata_bytes: usize,
    metadata: [u64; METADATA_BYTES_MAX / 8],
}

impl SideCopy {
    /// Room for one.
    #[must_use]
    pub fn new() -> Self {
        let metadata = [0; METADATA_BYTES_MAX / 8];
        Self { block_bytes: 0, at: 0, worth: 0, until: 0, metadata_bytes: 0, metadata }
    }

    /// Its fields.
    #[must_use]
    pub fn side(&self) -> Side<'_> {
        let Self { block_bytes, at, worth, until, metadata_bytes, ref metadata } = *self;
        Side { block_bytes, at, worth, until, metadata: &metadata.as_bytes()[..metadata_bytes] }
    }
}

impl Default for SideCopy {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> SideSlot<'a> {
    pub(crate) fn new(areas: &'a SideAreas, slot: u32) -> Self {
        Self { areas, slot }
    }

    /// Copies the area, each word at most once. False when it cannot be one: more metadata than
    /// there is room for, a worth that there is not, or bits that must be zero.
    #[must_use]
    pub fn copy_into(&self, copy: &mut SideCopy) -> bool {
        let (sizes, lengths) = (self.areas.word(self.slot, 0), self.areas.word(self.slot, 1));
        let bytes = usize::from(half(lengths, 0));
        let [_, _, worth, stray, ..] = lengths.to_le_bytes();
        if bytes > METADATA_BYTES_MAX || worth > WORTH_MAX || stray != 0 {
            return false;
        }
        (copy.worth, copy.until) = (worth, high(lengths));
        (copy.block_bytes, copy.at) = (low(sizes), high(sizes));
        copy.metadata_bytes = bytes;
        for (at, word) in copy.metadata[..bytes.div_ceil(8)].iter_mut().enumerate() {
            *word = self.areas.word(self.slot, HEADER_WORDS + at);
        }
        true
    }
}

/// Writes a side area.
///
/// # Panics
/// With more metadata than there is room for, or a worth that there is not.
pub(crate) fn write(areas: &SideAreas, slot: u32, side: &Side<'_>) {
    let bytes = side.metadata.len();
    assert!(bytes <= METADATA_BYTES_MAX, "{bytes} bytes of metadata, {METADATA_BYTES_MAX} at most");
    areas.set_word(slot, 0, u64::from(side.block_bytes) | u64::from(side.at) << 32);
    assert!(side.worth <= WORTH_MAX, "a worth of {}, {WORTH_MAX} at most", side.worth);
    let (worth, until) = (u64::from(side.worth), u64::from(side.until));
    areas.set_word(slot, 1, bytes as u64 | worth << 16 | until << 32);
    for (at, piece) in side.metadata.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..piece.len()].copy_from_slice(piece);
        areas.set_word(slot, HEADER_WORDS + at, u64::from_le_bytes(word));
    }
}

const _: () = assert!(SIDE_BYTES == 1040 && SIDE_BYTES.is_multiple_of(8));

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvrail_memory::{HeapBlock, Pinned};

    use super::{SIDE_BYTES, SideAreas, SideCopy, SideSlot, write};
    use crate::keyed::Side;

    fn areas() -> SideAreas {
        let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(4 * SIDE_BYTES));
        SideAreas::at(&memory, 0, 4)
    }

    #[test]
    fn what_is_written_is_copied_and_leaves_its_neighbours_alone() {
        let (areas, mut copy) = (areas(), SideCopy::new());
        let all: Vec<u8> = (0..1024_u32).map(|at| (at % 251) as u8).collect();
        for bytes in [1024, 1, 0, 8, 511] {
            let metadata = &all[..bytes];
            let side = Side { block_bytes: 100 << 20, at: 64 << 20, worth: 2, until: !1, metadata };
            write(&areas, 1, &side);
            write(&areas, 2, &Side { block_bytes: 7, metadata: &[3], ..Side::default() });
            assert!(SideSlot::new(&areas, 1).copy_into(&mut copy));
            assert_eq!(copy.side(), side);
        }
        assert!(SideSlot::new(&areas, 0).copy_into(&mut copy));
        assert_eq!(copy.side(), Side::default());
    }

    #[test]
    fn a_length_that_cannot_be_is_refused() {
        let (areas, mut copy) = (areas(), SideCopy::new());
        for lengths in [1025, 0xffff, 3 << 16, 1 << 24, u64::MAX] {
            areas.set_word(3, 1, lengths);
            assert!(!SideSlot::new(&areas, 3).copy_into(&mut copy), "{lengths:#x}");
        }
    }
}
