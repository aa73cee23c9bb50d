//! Keys, and the check that binds a block to its key.

use kvrail_crc::crc64;

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

    /// The lower half: the input of the index's hash, and the key of a lookup.
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

/// The value folded into a block's check: the CRC-64/NVME of namespace uid, key (low, then high
/// half) and length in bytes, little-endian. Another namespace, key or length gives another check
/// for the same payload.
#[must_use]
pub fn fold(uid: u64, key: Key, length: u32) -> u64 {
    let mut bytes = [0; 28];
    bytes[..8].copy_from_slice(&uid.to_le_bytes());
    bytes[8..24].copy_from_slice(&key.bits().to_le_bytes());
    bytes[24..].copy_from_slice(&length.to_le_bytes());
    crc64(&bytes)
}

/// The check of a block with this CRC-64/NVME of its payload.
#[must_use]
pub fn check(payload_crc: u64, uid: u64, key: Key, length: u32) -> u64 {
    payload_crc ^ fold(uid, key, length)
}

#[cfg(test)]
mod tests {
    use super::{Key, check};

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
