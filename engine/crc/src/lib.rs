//! CRC-64/NVME: the check of each block, record and label.
//!
//! The library `crc_fast` computes it. On processors that fold 32 bytes with one instruction, and
//! have no AVX-512, the library folds 16: there `wide` folds all but the end, in half of the time.

#[cfg(target_arch = "x86_64")]
mod wide;

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// The CRC-64/NVME of these bytes.
#[must_use]
pub fn crc64(bytes: &[u8]) -> u64 {
    let mut crc = Crc64::default();
    crc.update(bytes);
    crc.finish()
}

/// The CRC-64/NVME of bytes that come piece by piece.
#[derive(Clone, Copy, Debug)]
pub struct Crc64 {
    /// The remainder so far, as the algorithm keeps it: of no bytes it is all ones.
    remainder: u64,
}

impl Default for Crc64 {
    fn default() -> Self {
        Self { remainder: u64::MAX }
    }
}

impl Crc64 {
    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        if let Some((folded, rest)) = wide::fold(self.remainder, bytes) {
            // The folded bytes have the remainder in them.
            self.remainder = narrow(0, &folded);
            self.remainder = narrow(self.remainder, rest);
            return;
        }
        self.remainder = narrow(self.remainder, bytes);
    }

    /// The CRC of all pieces.
    #[must_use]
    pub fn finish(self) -> u64 {
        !self.remainder
    }
}

/// The remainder behind more bytes, by the library.
fn narrow(remainder: u64, bytes: &[u8]) -> u64 {
    if remainder == u64::MAX {
        return !checksum(CrcAlgorithm::Crc64Nvme, bytes); // without the preparation of a digest
    }
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc64Nvme, remainder);
    digest.update(bytes);
    !digest.finalize()
}

#[cfg(test)]
mod tests {
    use crc_fast::{CrcAlgorithm, checksum};
    use proptest::prelude::*;

    use super::{Crc64, crc64};

    #[test]
    fn it_is_the_algorithm_of_that_name() {
        // The check value of the catalogue of parametrised CRCs (reveng), CRC-64/NVME.
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
        assert_eq!(crc64(b""), 0);
    }

    /// Around each length at which another part of the code takes over.
    #[test]
    fn each_length_agrees_with_the_library() {
        let bytes: Vec<u8> = (0..5000_u64).flat_map(|at| (at * at).to_le_bytes()).collect();
        for length in 0..5000 {
            let part = &bytes[length % 7..][..length];
            assert_eq!(crc64(part), checksum(CrcAlgorithm::Crc64Nvme, part), "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn pieces_agree_with_the_library(
            bytes in prop::collection::vec(any::<u8>(), 0..20_000),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        ) {
            let ends = [0, bytes.len()];
            let at = |cut: &prop::sample::Index| cut.index(bytes.len() + 1);
            let mut cuts: Vec<usize> = cuts.iter().map(at).chain(ends).collect();
            cuts.sort_unstable();
            let mut crc = Crc64::default();
            cuts.windows(2).for_each(|cut| crc.update(&bytes[cut[0]..cut[1]]));
            prop_assert_eq!(crc.finish(), checksum(CrcAlgorithm::Crc64Nvme, &bytes));
        }
    }
}
