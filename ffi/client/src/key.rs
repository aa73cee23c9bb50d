//! Keys of blocks: 128 uniform bits.

use std::fmt;

/// The key of a block within its namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey(kvrail_store::Key);

impl BlockKey {
    /// Folds any bytes, for engines whose own keys are not uniform: the first 128 bits of their
    /// BLAKE3.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::first_of(blake3::hash(bytes).as_bytes())
    }

    /// Takes the first 128 bits of a hash that is uniform by itself, such as SHA-256. `None` when
    /// it has fewer. The first 64 must be uniform by themselves: of more than 16 keys that share
    /// them some find no room in a store's index.
    #[must_use]
    pub fn uniform(hash: &[u8]) -> Option<Self> {
        hash.first_chunk::<16>().map(Self::first_of)
    }

    fn first_of<const BYTES: usize>(hash: &[u8; BYTES]) -> Self {
        let mut bits = [0; 16];
        bits.copy_from_slice(&hash[..16]);
        Self(kvrail_store::Key::new(u128::from_le_bytes(bits)))
    }

    /// The key of these bits.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(kvrail_store::Key::new(bits))
    }

    /// All bits.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0.bits()
    }

    /// Lower and upper half, as slots have them.
    pub(crate) fn halves(self) -> [u64; 2] {
        [self.0.lo(), self.0.hi()]
    }

    /// The lower half, which lookups use.
    pub(crate) fn lo(self) -> u64 {
        self.0.lo()
    }

    /// What the CRC of a payload becomes in this namespace.
    pub(crate) fn check(self, payload_crc: u64, uid: u64, length: u32) -> u64 {
        kvrail_store::check(payload_crc, uid, self.0, length)
    }
}

impl fmt::Display for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::BlockKey;

    #[test]
    fn keys_of_bytes_are_folded_and_uniform_ones_are_cut() {
        assert_ne!(BlockKey::of(b"a"), BlockKey::of(b"b"));
        assert_ne!(BlockKey::of(b""), BlockKey::default());
        let hash: Vec<u8> = (0..32).collect();
        let key = BlockKey::uniform(&hash).unwrap();
        assert_eq!(key, BlockKey::uniform(&hash[..16]).unwrap());
        assert_eq!(key.halves(), [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        assert_eq!(BlockKey::uniform(&hash[..15]), None);
        assert_eq!(key.to_string(), "0f0e0d0c0b0a09080706050403020100");
    }
}
