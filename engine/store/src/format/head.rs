//! The head of a segment: which life of the segment the pages before it belong to.

use std::mem::{offset_of, size_of};

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::PAGE_BYTES;
use super::seal::{is_whole, seal};

const MAGIC: [u8; 8] = *b"kvr-head";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Image {
    magic: [u8; 8],
    instance: [u8; 16],
    epoch: U64,
    floor: U64,
    drops: U64,
    segment: U32,
    time: U32,
    reserved: [u8; PAGE_BYTES - 64],
    crc: U64,
}

const _: () = assert!(size_of::<Image>() == PAGE_BYTES && offset_of!(Image, segment) == 48);

/// What a head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Which life of the segment: grows by one with each opening of any segment.
    pub(crate) epoch: u64,
    /// Segments of a lower epoch are not part of the ring any more.
    pub(crate) floor: u64,
    /// Drops (counted over the store's life) that were durable when the head was written.
    pub(crate) drops: u64,
    /// Seconds since 1970 when it was written.
    pub(crate) time: u32,
}

impl Head {
    pub(crate) fn encode(&self, instance: u128, segment: u32, page: &mut [u8]) {
        let mut image = Image {
            magic: MAGIC,
            instance: instance.to_le_bytes(),
            epoch: self.epoch.into(),
            floor: self.floor.into(),
            drops: self.drops.into(),
            segment: segment.into(),
            time: self.time.into(),
            reserved: [0; PAGE_BYTES - 64],
            crc: 0.into(),
        };
        seal(image.as_mut_bytes());
        page.copy_from_slice(image.as_bytes());
    }

    /// The head of this segment of this store, if the page holds one.
    pub(crate) fn decode(page: &[u8], instance: u128, segment: u32) -> Option<Self> {
        let image = Image::ref_from_bytes(page).ok()?;
        let ours = image.magic == MAGIC
            && image.instance == instance.to_le_bytes()
            && image.segment.get() == segment
            && is_whole(page);
        ours.then(|| Self {
            epoch: image.epoch.get(),
            floor: image.floor.get(),
            drops: image.drops.get(),
            time: image.time.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Head, PAGE_BYTES};

    #[test]
    fn a_head_is_taken_by_its_own_segment_and_store_only() {
        let head = Head { epoch: u64::MAX - 1, floor: 3, drops: 9, time: 77 };
        let mut page = [0xee; PAGE_BYTES];
        head.encode(5, 8, &mut page);
        assert_eq!(Head::decode(&page, 5, 8), Some(head));
        assert_eq!(Head::decode(&page, 4, 8), None);
        assert_eq!(Head::decode(&page, 5, 9), None);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut page = [0; PAGE_BYTES];
        Head { epoch: 1, floor: 1, drops: 0, time: 0 }.encode(5, 8, &mut page);
        for bit in 0..PAGE_BYTES * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Head::decode(&page, 5, 8), None, "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
