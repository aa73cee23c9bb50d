//! How a new volume is cut: its stripes, or the segments of its store by the members' size.

use kvrail_store::Sizing;

use crate::error::{Reason, VolumeError};
use crate::purpose::{BLOCK_MEAN_MIN, SEGMENT_POWERS, StoreMember, StoreShape};

/// Default bytes of a segment, unless the volume is small.
const SEGMENT_BYTES: u64 = 256 << 20;
/// Segments that a smaller member is cut into at least, while that can be. Three or four of them
/// have no content; more of them would make the largest block smaller.
const SEGMENTS_WANTED: u32 = 8;
/// Default mean length of blocks. Longer blocks leave a part of the index unused; shorter ones
/// would leave a part of the medium unused, and cost hits.
const BLOCK_MEAN: u32 = 64 << 10;
/// Largest logical block that a store can have.
const LOGICAL_BLOCK_MAX: u32 = 4096;

/// The layout of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeLayout {
    /// Raw, in stripes.
    Raw {
        /// Bytes of one stripe; one KV block is a good choice.
        stripe_bytes: u64,
    },
    /// A store; unset sizes follow from the members' sizes.
    Store {
        /// Bytes of a segment.
        segment_bytes: Option<u64>,
        /// Expected mean of block lengths, in bytes.
        block_mean: Option<u64>,
    },
}

impl StoreShape {
    /// Cuts a member.
    ///
    /// # Errors
    /// `Reason` names the value, its limit and the remedy.
    pub(crate) fn choose(
        member: StoreMember,
        segment_bytes: Option<u64>,
        block_mean: Option<u64>,
    ) -> Result<Self, Reason> {
        let StoreMember { area_bytes, logical_block, .. } = member;
        if logical_block > LOGICAL_BLOCK_MAX {
            return Err(Reason::StoreBlock { logical_block });
        }
        let segment_bytes = match segment_bytes {
            Some(bytes) => Self::fixed(member, bytes)?,
            None => Self::fitting(member).ok_or(Reason::TooSmallForStore { area_bytes })?,
        };
        let most = Self { segment_bytes, block_mean: BLOCK_MEAN }.block_bytes_max();
        let block_mean = match block_mean {
            None => BLOCK_MEAN.min(most),
            Some(mean) => u32::try_from(mean)
                .ok()
                .filter(|mean| (BLOCK_MEAN_MIN..=most).contains(mean))
                .ok_or(Reason::BadMean { block_mean: mean, most })?,
        };
        Ok(Self { segment_bytes, block_mean })
    }

    /// Cuts a member with default sizes.
    ///
    /// # Errors
    /// `VolumeError` when it is too small.
    pub fn usual(member: StoreMember) -> Result<Self, VolumeError> {
        Self::choose(member, None, None).map_err(|reason| VolumeError::new("a store", reason))
    }

    fn fixed(member: StoreMember, segment_bytes: u64) -> Result<u64, Reason> {
        let power = segment_bytes.checked_ilog2().filter(|_| segment_bytes.is_power_of_two());
        if !power.is_some_and(|power| SEGMENT_POWERS.contains(&power)) {
            return Err(Reason::BadSegment { segment_bytes });
        }
        match Self::segments(member, segment_bytes) {
            Some(_) => Ok(segment_bytes),
            None => {
                let count = member.area_bytes / segment_bytes;
                Err(Reason::BadSegmentCount { segment_bytes, count })
            }
        }
    }

    /// The default, larger ones where a member has too many of it, else the largest that leaves
    /// enough segments.
    fn fitting(member: StoreMember) -> Option<u64> {
        let usual = SEGMENT_BYTES.ilog2();
        let powers = (usual..=*SEGMENT_POWERS.end()).chain((*SEGMENT_POWERS.start()..usual).rev());
        let sizes: Vec<u64> = powers.map(|power| 1 << power).collect();
        let count = |size: &u64| Self::segments(member, *size);
        let wanted = |size: &&u64| count(size).is_some_and(|count| count >= SEGMENTS_WANTED);
        let any = || sizes.iter().rev().find(|size| count(size).is_some());
        sizes.iter().find(wanted).or_else(any).copied()
    }

    /// Number of segments of that many bytes on a member, if a store can have so large a number.
    fn segments(member: StoreMember, segment_bytes: u64) -> Option<u32> {
        let shape = Self { segment_bytes, block_mean: BLOCK_MEAN };
        let sizing = Sizing::of(&shape.config(member, 1)).ok();
        sizing.map(|sizing| sizing.segments)
    }
}

#[cfg(test)]
mod tests {
    use kvrail_store::Sizing;

    use crate::error::Reason;
    use crate::purpose::{StoreMember, StoreShape};

    fn member(area_bytes: u64) -> StoreMember {
        StoreMember::new(area_bytes, 512)
    }

    #[test]
    fn segments_follow_the_size_of_the_member() {
        let cases = [
            (2_u64 << 20, 128_u64 << 10, 1_u32 << 16),
            (64 << 20, 4 << 20, 1 << 16),
            (1 << 30, 64 << 20, 1 << 16),
            (2 << 30, 128 << 20, 1 << 16),
            (3 << 30, 256 << 20, 1 << 16),
            (8 << 30, 256 << 20, 1 << 16),
            (1 << 40, 256 << 20, 1 << 16),
            (100 << 40, 2 << 30, 1 << 16),
        ];
        for (area, segment, mean) in cases {
            let shape = StoreShape::choose(member(area), None, None).unwrap();
            assert_eq!((shape.segment_bytes, shape.block_mean), (segment, mean), "{area}");
            Sizing::of(&shape.config(member(area), 65)).unwrap();
            assert!(shape.is_possible());
        }
    }

    #[test]
    fn what_no_store_can_have_is_refused() {
        let choose = |segment, mean| StoreShape::choose(member(1 << 30), segment, mean);
        for bytes in [0, 3 << 20, 32 << 10, 1 << 35] {
            let refused = choose(Some(bytes), None);
            assert!(matches!(refused, Err(Reason::BadSegment { .. })), "{refused:?}");
        }
        let few = choose(Some(512 << 20), None);
        assert!(matches!(few, Err(Reason::BadSegmentCount { count: 2, .. })), "{few:?}");
        for mean in [0, 511, 17 << 20, u64::MAX] {
            let refused = choose(Some(32 << 20), Some(mean));
            assert!(matches!(refused, Err(Reason::BadMean { most: 16_777_216, .. })));
        }
        let tiny = StoreShape::choose(member(512 << 10), None, None);
        assert!(matches!(tiny, Err(Reason::TooSmallForStore { .. })), "{tiny:?}");
        let block = StoreMember::new(1 << 30, 8192);
        let refused = StoreShape::choose(block, None, None);
        assert!(matches!(refused, Err(Reason::StoreBlock { logical_block: 8192 })));
    }

    #[test]
    fn a_small_store_takes_little_memory() {
        let area = member(64 << 20);
        let sizing = Sizing::of(&StoreShape::choose(area, None, None).unwrap().config(area, 65));
        let sizing = sizing.unwrap();
        let all = sizing.index_bytes + sizing.table_bytes + sizing.pool_bytes;
        assert!(all < 16 << 20, "{sizing}: {all}");
    }
}
