//! How a volume lies on its members: pure arithmetic, the same on both sides of a lane.
//!
//! Stripes go round the members (RAID0): stripe `s` of the volume is stripe `s / members` of
//! member `s % members`, behind the label. Everything is in bytes.

use std::ops::Range;

/// The shape of a volume. Both processes compute with it; the sidecar trusts only its own copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Devices the volume is striped over, at least 1.
    pub members: u16,
    /// Bytes of one stripe, a multiple of the logical block. By default one KV block.
    pub stripe_bytes: u64,
    /// Usable bytes of each member behind its label, a multiple of `stripe_bytes`.
    pub member_bytes: u64,
    /// Where the usable bytes of a member begin.
    pub data_offset: u64,
    /// Unit of offsets and lengths: the largest logical block of the members. A power of two.
    pub logical_block: u32,
    /// Unit of buffer positions: the largest memory alignment of the members. A power of two.
    pub memory_alignment: u32,
}

/// Why a range of a volume cannot be one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Zero bytes.
    #[error("the length is 0")]
    Empty,
    /// Offset or length off the logical block.
    #[error("offset and length must be multiples of the volume's logical block")]
    Misaligned,
    /// Beyond the end of the volume.
    #[error("the range ends beyond the volume")]
    BeyondEnd,
    /// Over a stripe border of a volume with several members.
    #[error("the range crosses a stripe border; split it there")]
    CrossesStripe,
}

/// A range of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRange {
    /// Which member, 0 upwards.
    pub member: u16,
    /// First byte on that device, the label counted in.
    pub device_offset: u64,
}

/// A part of a volume range that lies on one member without a border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which member.
    pub member: u16,
    /// First byte in the volume.
    pub volume_offset: u64,
    /// Bytes; at most one stripe where there are several members.
    pub length: u64,
}

impl Geometry {
    /// Bytes the volume holds.
    #[must_use]
    #[inline]
    pub const fn capacity(&self) -> u64 {
        self.member_bytes * self.members as u64
    }

    /// Checks what every range must fulfil, stripe borders aside.
    ///
    /// # Errors
    /// `RangeError`, never `CrossesStripe`.
    #[inline]
    pub fn check(&self, offset: u64, length: u64) -> Result<(), RangeError> {
        debug_assert!(self.logical_block.is_power_of_two(), "as labels and messages have it");
        let inside_block = u64::from(self.logical_block) - 1; // a mask: no division per request
        if length == 0 {
            return Err(RangeError::Empty);
        }
        if (offset | length) & inside_block != 0 {
            return Err(RangeError::Misaligned);
        }
        match offset.checked_add(length) {
            Some(end) if end <= self.capacity() => Ok(()),
            _ => Err(RangeError::BeyondEnd),
        }
    }

    /// Where a range lies, if it is one request.
    ///
    /// # Errors
    /// `RangeError` describes the fault of the range.
    #[inline]
    pub fn locate(&self, offset: u64, length: u64) -> Result<MemberRange, RangeError> {
        self.check(offset, length)?;
        if self.members == 1 {
            return Ok(MemberRange { member: 0, device_offset: self.data_offset + offset });
        }
        let (stripe, inside) = (offset / self.stripe_bytes, offset % self.stripe_bytes);
        if inside + length > self.stripe_bytes {
            return Err(RangeError::CrossesStripe);
        }
        let members = u64::from(self.members);
        let device_offset = self.data_offset + (stripe / members) * self.stripe_bytes + inside;
        let member = u16::try_from(stripe % members).expect("smaller than members, a u16");
        Ok(MemberRange { member, device_offset })
    }

    /// Cuts a checked range at the stripe borders; one piece where there is one member.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece> + use<> {
        let Self { members, stripe_bytes, .. } = *self;
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let (member, border) = if members == 1 {
                (0, range.end)
            } else {
                let stripe = at / stripe_bytes;
                let member = stripe % u64::from(members);
                (u16::try_from(member).expect("below members"), (stripe + 1) * stripe_bytes)
            };
            let length = border.min(range.end) - at;
            let piece = Piece { member, volume_offset: at, length };
            at += length;
            Some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

    use super::{Geometry, MemberRange, RangeError};

    fn geometry(members: u16, stripe_bytes: u64) -> Geometry {
        Geometry {
            members,
            stripe_bytes,
            member_bytes: stripe_bytes * 7,
            data_offset: 1 << 20,
            logical_block: 512,
            memory_alignment: 4,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Pieces cover the range in order, none crosses a border, and two volume bytes never
        /// share a device byte.
        #[test]
        fn pieces_cover_without_overlap(
            members in 1_u16..6, blocks in 1_u64..9, from in 0_u64..60, count in 1_u64..60
        ) {
            let geometry = geometry(members, blocks * 512);
            let capacity = geometry.capacity() / 512;
            let (from, to) = (from % capacity, (from % capacity + count).min(capacity));
            let mut seen = std::collections::HashSet::new();
            let mut at = from * 512;
            for piece in geometry.pieces(from * 512..to * 512) {
                prop_assert_eq!(piece.volume_offset, at);
                let MemberRange { member, device_offset } =
                    geometry.locate(piece.volume_offset, piece.length).unwrap();
                prop_assert_eq!(member, piece.member);
                for block in 0..piece.length / 512 {
                    prop_assert!(seen.insert((member, device_offset + block * 512)));
                    let end = device_offset + piece.length;
                    prop_assert!(end <= geometry.data_offset + geometry.member_bytes);
                }
                at += piece.length;
            }
            prop_assert_eq!(at, to * 512);
        }
    }

    #[test]
    fn refuses_what_is_not_one_request() {
        let two = geometry(2, 4096);
        assert_eq!(two.locate(0, 0), Err(RangeError::Empty));
        assert_eq!(two.locate(100, 512), Err(RangeError::Misaligned));
        assert_eq!(two.locate(512, 100), Err(RangeError::Misaligned));
        assert_eq!(two.locate(u64::MAX - 511, 512), Err(RangeError::BeyondEnd));
        assert_eq!(two.locate(two.capacity(), 512), Err(RangeError::BeyondEnd));
        assert_eq!(two.locate(3584, 1024), Err(RangeError::CrossesStripe));
        assert!(geometry(1, 4096).locate(3584, 1024).is_ok());
    }
}
