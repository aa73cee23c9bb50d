//! Keys, and the check that binds a block to its key.

use crc_fast::{CrcAlgorithm, checksum};

/// The 128 bits a block is known by within its namespace. The client library makes them uniform.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u128);

impl Key {
    /// A key of these bits.
    #[must_use]
    pub const fn new(bits: u128) -> Self {
        Self(bits)
    }

    /// A key of its two halves.
    #[must_use]
    pub const fn of(hi: u64, lo: u64) -> Self {
        Self((hi as u128) << 64 | lo as u128)
    }

    /// All bits.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// The lower half: what the index hashes, and what a lookup asks for.
    #[must_use]
    pub const fn lo(self) -> u64 {
        low(self.0)
    }

    /// The upper half.
    #[must_use]
    pub const fn hi(self) -> u64 {
        low(self.0 >> 64)
    }
}

/// The lower 64 bits of a number.
const fn low(bits: u128) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = bits.to_le_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// What a block's check is folded with: the CRC-64/NVME of namespace uid, key (low, then high
/// half) and length in bytes, little-endian. Another namespace, key or length gives another check
/// for the same payload.
#[must_use]
pub fn fold(uid: u64, key: Key, length: u32) -> u64 {
    let mut bytes = [0; 28];
    bytes[..8].copy_from_slice(&uid.to_le_bytes());
    bytes[8..24].copy_from_slice(&key.bits().to_le_bytes());
    bytes[24..].copy_from_slice(&length.to_le_bytes());
    checksum(CrcAlgorithm::Crc64Nvme, &bytes)
}

/// The check of a block whose payload has this CRC-64/NVME.
#[must_use]
pub fn check(payload_crc: u64, uid: u64, key: Key, length: u32) -> u64 {
    payload_crc ^ fold(uid, key, length)
}

/// Which of so many members has a key, by its lower half: the one of the highest weight, so that a
/// member more or less moves no key but its own.
#[must_use]
pub fn shard_of(uid: u64, lo: u64, members: u16) -> u16 {
    let key = mixed(uid ^ mixed(lo));
    let weight = |member: &u16| mixed(key ^ u64::from(*member).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    if members < 2 { 0 } else { (0..members).max_by_key(weight).unwrap_or(0) }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
const fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::{Key, check, shard_of};

    #[test]
    fn keys_spread_evenly_and_stay_when_a_member_joins() {
        let keys = 0..30_000_u64;
        let mut of = [0_u32; 3];
        for lo in keys.clone() {
            of[usize::from(shard_of(7, lo, 3))] += 1;
            let (three, four) = (shard_of(7, lo, 3), shard_of(7, lo, 4));
            assert!(four == three || four == 3, "{lo} went from {three} to {four}");
            assert_eq!(shard_of(7, lo, 1), 0);
        }
        assert!(of.iter().all(|count| (9_500..10_500).contains(count)), "{of:?}");
        let apart = keys.filter(|lo| shard_of(7, *lo, 3) != shard_of(8, *lo, 3)).count();
        assert!((18_000..22_000).contains(&apart), "namespaces spread apart: {apart}");
    }

    #[test]
    fn halves_make_the_key() {
        let key = Key::new(0x0123_4567_89ab_cdef_1122_3344_5566_7788);
        assert_eq!((key.hi(), key.lo()), (0x0123_4567_89ab_cdef, 0x1122_3344_5566_7788));
        assert_eq!(Key::of(key.hi(), key.lo()), key);
    }

    #[test]
    fn each_part_of_the_identity_changes_the_check() {
        let key = Key::of(1, 2);
        let all = [
            check(9, 7, key, 100),
            check(8, 7, key, 100),
            check(9, 6, key, 100),
            check(9, 7, Key::of(2, 1), 100),
            check(9, 7, Key::of(1, 3), 100),
            check(9, 7, key, 101),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| other != one), "{at}");
        }
    }
}
