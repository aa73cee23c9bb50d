//! Content of blocks: a function of key and version, so that any process can check bytes.

use fastrand::Rng;
use kvrail_store::Key;

/// Separates the random numbers for lengths from those for content.
const LENGTHS: u64 = 0x6c65_6e67;

/// Numbers from here on belong to large blocks.
pub(super) const LARGE: u64 = 1 << 40;

/// The key of a number.
#[must_use]
pub fn key_of(number: u64) -> Key {
    let mut dice = Rng::with_seed(number);
    Key::of(dice.u64(..), dice.u64(..))
}

/// Bytes of a block: any length, most of some KiB; up to 2 MiB, of those with large ones.
#[must_use]
pub fn length_of(number: u64, version: u32) -> u32 {
    let mut dice = Rng::with_seed(number ^ u64::from(version) << 48 ^ LENGTHS);
    if number >= LARGE {
        return dice.u32(300 << 10..=2 << 20);
    }
    match dice.u8(..32) {
        0..4 => dice.u32(1..=600),
        4..8 => 4096 * dice.u32(1..=4),
        8 => dice.u32(1..=300 << 10),
        _ => dice.u32(1..=16 << 10),
    }
}

/// The first bytes of a block, in this number.
#[must_use]
pub fn bytes_of(number: u64, version: u32, length: u32) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    Rng::with_seed(number ^ u64::from(version) << 48).fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::{bytes_of, length_of};

    #[test]
    fn versions_and_keys_differ() {
        let all: Vec<Vec<u8>> = [(1, 1), (1, 2), (2, 1)].map(|(n, v)| bytes_of(n, v, 64)).into();
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
        let lengths: Vec<u32> = (0..1000).map(|number| length_of(number, 1)).collect();
        assert!(
            lengths.iter().any(|bytes| *bytes < 512)
                && lengths.iter().any(|bytes| *bytes > 64 << 10)
        );
        assert!(lengths.iter().any(|bytes| bytes.is_multiple_of(4096)));
    }
}
