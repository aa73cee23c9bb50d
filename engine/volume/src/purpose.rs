//! The purpose of a volume, and the shape of a store.

use kvrail_store::{Budget, Discard, StoreConfig, Times};
use serde::Serialize;

/// Powers of two that a segment's bytes can be.
pub(crate) const SEGMENT_POWERS: std::ops::RangeInclusive<u32> = 16..=34;
/// Least mean: the unit of places on the medium.
pub(crate) const BLOCK_MEAN_MIN: u32 = 512;
/// Members below this get smaller tables.
const SMALL_BYTES: u64 = 1 << 30;
/// Part of the blocks that may be held at once, in large stores: one of this number.
const HELD_ONE_IN: u64 = 32;
/// Bytes of a member for each namespace it has room for.
const BYTES_OF_SPACE: u64 = 8 << 20;

/// The purpose of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Requests name places in it.
    Raw,
    /// Requests name keys; each member is a shard of its own.
    Store(StoreShape),
}

impl Purpose {
    /// One word for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Store(_) => "store",
        }
    }

    /// The shape of a store.
    #[must_use]
    pub fn store(self) -> Option<StoreShape> {
        match self {
            Self::Raw => None,
            Self::Store(shape) => Some(shape),
        }
    }
}

/// How the members of a store are cut: the same on all of them, from its creation on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StoreShape {
    /// Bytes of a segment: a power of two from 64 KiB to 16 GiB. A block takes half of one at most.
    pub segment_bytes: u64,
    /// Expected mean of block lengths in bytes: how many blocks the index is made for.
    pub block_mean: u32,
}

/// A member as a store sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreMember {
    /// Bytes behind the label.
    pub area_bytes: u64,
    /// Unit of transfers, in bytes.
    pub logical_block: u32,
    /// Slots for namespaces.
    pub spaces: u32,
}

impl StoreMember {
    /// A member that gets its store now.
    #[must_use]
    pub fn new(area_bytes: u64, logical_block: u32) -> Self {
        let wanted = u32::try_from(area_bytes / BYTES_OF_SPACE).unwrap_or(u32::MAX);
        let spaces = wanted.clamp(32, 256).next_power_of_two();
        Self { area_bytes, logical_block, spaces }
    }
}

impl StoreShape {
    /// Most bytes of a block.
    #[must_use]
    pub fn block_bytes_max(self) -> u32 {
        let half = u32::try_from(self.segment_bytes / 2).unwrap_or(u32::MAX);
        half.min(kvrail_store::BLOCK_BYTES_MAX)
    }

    /// The sizes of a member's store, with this many owners of requests. Nothing is discarded.
    #[must_use]
    pub fn config(self, member: StoreMember, owners: u16) -> StoreConfig {
        let share = if member.area_bytes < SMALL_BYTES { 4 } else { 1 };
        let blocks = member.area_bytes / u64::from(self.block_mean);
        // A move goes through a buffer in pieces: the largest block is two of them or more.
        let quarter = u32::try_from(self.segment_bytes / 4).unwrap_or(u32::MAX);
        StoreConfig {
            area_bytes: member.area_bytes,
            logical_block: member.logical_block,
            segment_bytes: self.segment_bytes,
            block_mean: self.block_mean,
            spaces: member.spaces,
            puts: 1024 / share,
            writes: 4096 / share,
            holds: u32::try_from(blocks / HELD_ONE_IN).unwrap_or(u32::MAX).clamp(8192, 65_536),
            owners,
            owner_holds: 4096,
            buffers: 6,
            buffer_bytes: quarter.clamp(16 << 10, 8 << 20),
            images: 64,
            times: Times::default(),
            discard: Discard::Off,
            budget: Budget::Unlimited,
        }
    }

    /// Whether a label can express this.
    pub(crate) fn is_possible(self) -> bool {
        let bytes = self.segment_bytes;
        bytes.is_power_of_two()
            && SEGMENT_POWERS.contains(&bytes.ilog2())
            && (BLOCK_MEAN_MIN..=self.block_bytes_max()).contains(&self.block_mean)
    }
}
