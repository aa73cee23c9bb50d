//! Where a shard is: among this poller's shards, and on its device.

use kvrail_ring::Geometry;

use crate::admission::Masks;
use crate::task::DeviceExtent;

/// The place of a shard, which never changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardSite {
    number: u8,
    device: u8,
    member: u16,
    /// First byte of the store on the device.
    area_at: u64,
    masks: Masks,
}

impl ShardSite {
    /// # Panics
    /// If a unit is no power of two.
    pub(super) fn new(
        (number, device, member): (u8, usize, u16),
        geometry: &Geometry,
        logical_block: u32,
    ) -> Self {
        assert!(logical_block.is_power_of_two(), "masks are made of powers of two");
        assert!(geometry.memory_alignment.is_power_of_two(), "masks are made of powers of two");
        let memory = u64::from(geometry.memory_alignment) - 1;
        Self {
            number,
            device: u8::try_from(device).expect("256 devices"),
            member,
            area_at: geometry.data_offset,
            masks: Masks { block: logical_block - 1, memory },
        }
    }

    /// Number among this poller's shards.
    pub(super) fn number(&self) -> u8 {
        self.number
    }

    /// The poller's number of the device.
    pub(super) fn device(&self) -> u8 {
        self.device
    }

    /// Number among the store's members.
    pub(super) fn member(&self) -> u16 {
        self.member
    }

    /// First byte of the store on the device.
    pub(super) fn area_at(&self) -> u64 {
        self.area_at
    }

    /// What transfers and their memory are aligned to.
    #[inline(always)]
    pub(super) fn masks(&self) -> Masks {
        self.masks
    }

    /// Bytes among these that fill no logical block.
    #[inline(always)]
    pub(super) fn tail_of(&self, bytes: u32) -> u32 {
        bytes & self.masks.block
    }

    /// Bytes of a logical block.
    pub(super) fn block(&self) -> u32 {
        self.masks.block + 1
    }

    /// Where on the device an offset of the store is.
    #[inline(always)]
    pub(super) fn extent(&self, offset: u64) -> DeviceExtent {
        DeviceExtent { device: self.device, offset: self.area_at + offset }
    }
}
