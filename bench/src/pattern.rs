//! The pattern in every 512 bytes of a volume: owner, place and number of the write.
//!
//! ```text
//! word 0      tag of the volume: the two halves of its uuid, folded
//! word 1      volume offset of this sector, in bytes
//! word 2      version: 1 for the first fill, one more for each write of the block
//! word 3      key: the three above, mixed
//! word 4..64  fixed random words xor key: incompressible, and different in every sector
//! ```
//! All words little-endian. A block that is no multiple of 512 bytes ends within a sector.
//! A stale sector has an old version, a misdirected one another offset, a
//! torn one a body that does not follow its key.

use std::fmt;

use uuid::Uuid;

/// Bytes of one self-describing piece: the smallest logical block there is.
pub const SECTOR_BYTES: usize = 512;
const WORDS: usize = SECTOR_BYTES / 8;
const HEADER_WORDS: usize = 4;

/// The fixed words of the body: splitmix64 from a fixed seed.
const BODY: [u64; WORDS] = {
    let mut words = [0; WORDS];
    let mut index = 0;
    while index < WORDS {
        words[index] = mix((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        index += 1;
    }
    words
};

/// The finalizer of splitmix64: every input bit reaches every output bit.
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The pattern of one volume.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    tag: u64,
}

/// The content of a wrong sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongSector {
    /// A sector of this volume from another place.
    Misdirected {
        /// Where it belongs.
        offset: u64,
        /// Its version.
        version: u64,
    },
    /// This sector as it was before.
    Stale {
        /// Its version.
        version: u64,
    },
    /// This sector with a version that no reader expects yet.
    Newer {
        /// Its version.
        version: u64,
    },
    /// A sector of another volume.
    Foreign {
        /// Where it belongs there.
        offset: u64,
        /// Its version.
        version: u64,
    },
    /// The header is right, the body is not.
    Torn {
        /// First wrong byte within the sector.
        at: usize,
    },
    /// Only zeroes: never written, or discarded.
    Zeroes,
    /// Nothing that was ever a pattern.
    Garbage {
        /// Its first eight bytes.
        first: u64,
    },
}

/// One sector that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Volume offset of the sector.
    pub offset: u64,
    /// The version it should have.
    pub version: u64,
    /// The content that was found.
    pub found: WrongSector,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected offset {} version {}, found ", self.offset, self.version)?;
        match self.found {
            WrongSector::Misdirected { offset, version } => {
                write!(f, "offset {offset} version {version}: misdirected")
            }
            WrongSector::Stale { version } => write!(f, "version {version}: stale"),
            WrongSector::Newer { version } => write!(f, "version {version}: newer than expected"),
            WrongSector::Foreign { offset, version } => {
                write!(f, "another volume's offset {offset} version {version}")
            }
            WrongSector::Torn { at } => write!(f, "a body that is wrong from byte {at} on: torn"),
            WrongSector::Zeroes => f.write_str("zeroes"),
            WrongSector::Garbage { first } => write!(f, "no pattern (first word {first:#018x})"),
        }
    }
}

impl Pattern {
    /// The pattern of the volume with this uuid.
    #[must_use]
    pub fn new(volume: Uuid) -> Self {
        let (high, low) = volume.as_u64_pair();
        Self { tag: mix(high) ^ low }
    }

    /// Writes the pattern of `buffer.len()` bytes at `offset`, all with one version.
    pub fn fill(&self, buffer: &mut [u8], offset: u64, version: u32) {
        let (sectors, tail) = buffer.as_chunks_mut::<SECTOR_BYTES>();
        let tail_offset = offset + (sectors.len() * SECTOR_BYTES) as u64;
        for (sector, at) in sectors.iter_mut().zip(sector_offsets(offset)) {
            self.fill_sector(sector, at, version);
        }
        tail.copy_from_slice(&self.sector(tail_offset, version)[..tail.len()]);
    }

    fn fill_sector(&self, sector: &mut [u8; SECTOR_BYTES], at: u64, version: u32) {
        let header = self.header(at, version.into());
        let words = sector.as_chunks_mut::<8>().0;
        for (word, body) in words.iter_mut().zip(BODY) {
            *word = (body ^ header[3]).to_le_bytes();
        }
        for (word, value) in words.iter_mut().zip(header) {
            *word = value.to_le_bytes();
        }
    }

    fn sector(&self, at: u64, version: u32) -> [u8; SECTOR_BYTES] {
        let mut sector = [0; SECTOR_BYTES];
        self.fill_sector(&mut sector, at, version);
        sector
    }

    /// Compares every byte. Returns the number of wrong sectors, and the first of them.
    #[must_use]
    pub fn verify(&self, buffer: &[u8], offset: u64, version: u32) -> (u64, Option<Mismatch>) {
        let mut wrong = 0;
        let mut first = None;
        let (sectors, tail) = buffer.as_chunks::<SECTOR_BYTES>();
        for (sector, at) in sectors.iter().zip(sector_offsets(offset)) {
            let header = self.header(at, version.into());
            let words = sector.as_chunks::<8>().0;
            let mut differs = 0;
            for (word, body) in words[HEADER_WORDS..].iter().zip(&BODY[HEADER_WORDS..]) {
                differs |= u64::from_le_bytes(*word) ^ (body ^ header[3]);
            }
            for (word, value) in words.iter().zip(header) {
                differs |= u64::from_le_bytes(*word) ^ value;
            }
            if differs != 0 {
                wrong += 1;
                first = first.or_else(|| Some(self.explain(sector, at, version.into())));
            }
        }
        let at = offset + (sectors.len() * SECTOR_BYTES) as u64;
        let right = self.sector(at, version);
        let (expected, version) = (&right[..tail.len()], version.into());
        if let Some(byte) = tail.iter().zip(expected).position(|(is, should)| is != should) {
            wrong += 1;
            first = first.or(Some(Mismatch {
                offset: at,
                version,
                found: WrongSector::Torn { at: byte },
            }));
        }
        (wrong, first)
    }

    /// Compares the headers of the first and the last sector only: two cache lines a block, cheap
    /// enough for a timed run. Finds stale, misdirected and missing blocks, not torn ones.
    #[must_use]
    pub fn sample(&self, buffer: &[u8], offset: u64, version: u32) -> Option<Mismatch> {
        let sectors = buffer.as_chunks::<SECTOR_BYTES>().0;
        let last = sectors.len().checked_sub(1)?;
        let last_offset = offset + (last * SECTOR_BYTES) as u64;
        for (sector, at) in [(&sectors[0], offset), (&sectors[last], last_offset)] {
            let header = self.header(at, version.into());
            let words = sector.as_chunks::<8>().0;
            if words.iter().zip(header).any(|(word, value)| u64::from_le_bytes(*word) != value) {
                return Some(self.explain(sector, at, version.into()));
            }
        }
        None
    }

    fn header(&self, offset: u64, version: u64) -> [u64; HEADER_WORDS] {
        [self.tag, offset, version, key(self.tag, offset, version)]
    }

    /// Describes a wrong sector. Off the fast path.
    #[cold]
    fn explain(&self, sector: &[u8; SECTOR_BYTES], offset: u64, version: u64) -> Mismatch {
        let word = |index: usize| u64::from_le_bytes(sector.as_chunks::<8>().0[index]);
        let (tag, at, is) = (word(0), word(1), word(2));
        let genuine = word(3) == key(tag, at, is);
        let found = if sector.iter().all(|byte| *byte == 0) {
            WrongSector::Zeroes
        } else if !genuine {
            WrongSector::Garbage { first: tag }
        } else if tag != self.tag {
            WrongSector::Foreign { offset: at, version: is }
        } else if at != offset {
            WrongSector::Misdirected { offset: at, version: is }
        } else if is < version {
            WrongSector::Stale { version: is }
        } else if is > version {
            WrongSector::Newer { version: is }
        } else {
            let body = |index: &usize| word(*index) != BODY[*index] ^ word(3);
            let wrong = (HEADER_WORDS..WORDS).find(body).unwrap_or(HEADER_WORDS);
            WrongSector::Torn { at: wrong * 8 }
        };
        Mismatch { offset, version, found }
    }
}

fn sector_offsets(from: u64) -> impl Iterator<Item = u64> {
    (from..).step_by(SECTOR_BYTES)
}

fn key(tag: u64, offset: u64, version: u64) -> u64 {
    mix(tag ^ mix(offset ^ mix(version ^ 0x6b76_7261_696c_0001)))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::{Pattern, SECTOR_BYTES, WrongSector};

    const AT: u64 = 3 << 20;

    fn pattern() -> Pattern {
        Pattern::new(Uuid::from_u128(0x1234_5678_9abc_def0_1122_3344_5566_7788))
    }

    fn block(offset: u64, version: u32) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        pattern().fill(&mut bytes, offset, version);
        bytes
    }

    fn found(bytes: &[u8], version: u32) -> WrongSector {
        let (wrong, first) = pattern().verify(bytes, AT, version);
        assert!(wrong > 0, "the mismatch was not seen");
        first.unwrap().found
    }

    #[test]
    fn what_was_filled_verifies() {
        let bytes = block(AT, 7);
        assert_eq!(pattern().verify(&bytes, AT, 7), (0, None));
        assert_eq!(pattern().sample(&bytes, AT, 7), None);
    }

    #[test]
    fn a_stale_block_is_told_from_a_misdirected_one() {
        assert_eq!(found(&block(AT, 6), 7), WrongSector::Stale { version: 6 });
        assert_eq!(found(&block(AT, 8), 7), WrongSector::Newer { version: 8 });
        let elsewhere = block(AT + 8192, 7);
        assert_eq!(
            found(&elsewhere, 7),
            WrongSector::Misdirected { offset: AT + 8192, version: 7 }
        );
        let (wrong, _) = pattern().verify(&elsewhere, AT, 7);
        assert_eq!(wrong, 8, "every sector is counted");
        assert!(pattern().sample(&elsewhere, AT, 7).is_some());
    }

    #[test]
    fn another_volume_zeroes_and_garbage_are_named() {
        let mut foreign = vec![0; 4096];
        Pattern::new(Uuid::from_u128(1)).fill(&mut foreign, AT, 7);
        assert_eq!(found(&foreign, 7), WrongSector::Foreign { offset: AT, version: 7 });
        assert_eq!(found(&[0; 4096], 7), WrongSector::Zeroes);
        assert!(matches!(found(&[0xa5; 4096], 7), WrongSector::Garbage { .. }));
    }

    #[test]
    fn every_single_byte_counts() {
        let good = block(AT, 7);
        for at in 0..SECTOR_BYTES {
            let mut bytes = good.clone();
            bytes[SECTOR_BYTES + at] ^= 1;
            let (wrong, first) = pattern().verify(&bytes, AT, 7);
            assert_eq!((wrong, first.unwrap().offset), (1, AT + 512), "byte {at}");
        }
        let mut torn = good;
        torn[100] ^= 1;
        assert_eq!(found(&torn, 7), WrongSector::Torn { at: 96 });
    }

    #[test]
    fn the_tail_of_an_odd_block_counts_too() {
        let mut bytes = vec![0; 1250];
        pattern().fill(&mut bytes, AT, 7);
        assert_eq!(pattern().verify(&bytes, AT, 7), (0, None));
        for at in [1024, 1249] {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            let (wrong, first) = pattern().verify(&bytes, AT, 7);
            assert_eq!((wrong, first.unwrap().found), (1, WrongSector::Torn { at: at - 1024 }));
        }
    }

    #[test]
    fn a_message_says_what_was_expected_and_what_was_found() {
        let said = pattern().verify(&block(AT, 6), AT, 7).1.unwrap().to_string();
        assert_eq!(said, "expected offset 3145728 version 7, found version 6: stale");
    }

    #[test]
    fn the_body_differs_between_sectors_and_versions() {
        let (a, b) = (block(AT, 7), block(AT, 8));
        assert_ne!(a[32..512], b[32..512]);
        assert_ne!(a[32..512], a[544..1024]);
    }
}
