//! Which version every piece of the volume must have: the benchmark's own memory of its writes.

use crate::pattern::{Mismatch, Pattern};
use crate::plan::Case;

/// The version of a piece whose last write failed: old, new, or a mixture. Not verified until it
/// is written again.
const UNKNOWN: u32 = u32::MAX;
/// Versions start again here after the largest one; 4 billion writes of one block lie between.
const FIRST: u32 = 1;

/// The versions of a whole pattern area.
#[derive(Debug)]
pub struct VersionMap {
    unit_bytes: u32,
    versions: Vec<u32>,
}

impl VersionMap {
    /// All pieces unknown: to be filled first.
    ///
    /// # Panics
    /// If the area holds more pieces than this machine can address.
    #[must_use]
    pub fn new(span_bytes: u64, unit_bytes: u32) -> Self {
        let units = usize::try_from(span_bytes / u64::from(unit_bytes)).expect("fits into memory");
        Self { unit_bytes, versions: vec![UNKNOWN; units] }
    }

    /// Bytes of one piece.
    #[must_use]
    pub fn unit_bytes(&self) -> u32 {
        self.unit_bytes
    }

    /// Bytes of the area.
    #[must_use]
    pub fn span_bytes(&self) -> u64 {
        self.versions.len() as u64 * u64::from(self.unit_bytes)
    }

    /// The whole area as one share.
    pub fn whole(&mut self) -> ClientShare<'_> {
        ClientShare { base: 0, unit_bytes: self.unit_bytes, versions: &mut self.versions }
    }

    /// One disjoint share for each client of the case, of equally many whole blocks.
    ///
    /// # Panics
    /// If the case's blocks are no multiple of the unit: the plan computed the unit from them.
    pub fn shares(&mut self, case: &Case) -> Vec<ClientShare<'_>> {
        assert!(case.block_bytes.is_multiple_of(self.unit_bytes), "the unit divides every block");
        let blocks = self.span_bytes() / u64::from(case.block_bytes) / u64::from(case.clients);
        let bytes = blocks * u64::from(case.block_bytes);
        let unit_bytes = self.unit_bytes;
        let units = usize::try_from(bytes / u64::from(unit_bytes)).expect("part of the map");
        self.versions
            .chunks_exact_mut(units)
            .take(case.clients as usize)
            .zip(0..)
            .map(|(versions, client)| ClientShare { base: client * bytes, unit_bytes, versions })
            .collect()
    }
}

/// A part of the area that only one client reads and writes.
#[derive(Debug)]
pub struct ClientShare<'a> {
    base: u64,
    unit_bytes: u32,
    versions: &'a mut [u32],
}

impl ClientShare<'_> {
    /// First byte of the share in the volume.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Bytes of the share.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.versions.len() as u64 * u64::from(self.unit_bytes)
    }

    fn units(&self, offset: u64, bytes: u32) -> std::ops::Range<usize> {
        let first = (offset - self.base) / u64::from(self.unit_bytes);
        let first = usize::try_from(first).expect("an index into the map");
        first..first + (bytes / self.unit_bytes) as usize
    }

    /// The version that a write of this range gives it: one more than any part of it has.
    #[must_use]
    pub fn next_version(&self, offset: u64, bytes: u32) -> u32 {
        let known = |version: &&u32| **version != UNKNOWN;
        let range = &self.versions[self.units(offset, bytes)];
        let newest = range.iter().filter(known).max();
        newest.map_or(FIRST, |version| if *version >= UNKNOWN - 1 { FIRST } else { version + 1 })
    }

    /// A write of the range with this version ended well.
    pub fn written(&mut self, offset: u64, bytes: u32, version: u32) {
        let units = self.units(offset, bytes);
        self.versions[units].fill(version);
    }

    /// A write of the range failed: anything may be there.
    pub fn lost(&mut self, offset: u64, bytes: u32) {
        self.written(offset, bytes, UNKNOWN);
    }

    /// Compares every byte of a block that was read. Returns the number of wrong sectors, and the
    /// first of them.
    #[must_use]
    pub fn verify(&self, pattern: &Pattern, buffer: &[u8], offset: u64) -> (u64, Option<Mismatch>) {
        let mut wrong = 0;
        let mut first = None;
        for (at, part, version) in self.known_parts(buffer, offset) {
            let (sectors, mismatch) = pattern.verify(part, at, version);
            wrong += sectors;
            first = first.or(mismatch);
        }
        (wrong, first)
    }

    /// Compares the first and the last header of a block that was read.
    #[must_use]
    pub fn sample(&self, pattern: &Pattern, buffer: &[u8], offset: u64) -> Option<Mismatch> {
        let unit = self.unit_bytes as usize;
        let last = buffer.len() - unit;
        let ends = [(&buffer[..unit], offset), (&buffer[last..], offset + last as u64)];
        ends.into_iter().find_map(|(part, at)| {
            let version = self.versions[self.units(at, self.unit_bytes).start];
            if version == UNKNOWN { None } else { pattern.sample(part, at, version) }
        })
    }

    fn known_parts<'b>(
        &'b self,
        buffer: &'b [u8],
        offset: u64,
    ) -> impl Iterator<Item = (u64, &'b [u8], u32)> {
        let first = self.units(offset, self.unit_bytes).start;
        buffer
            .chunks_exact(self.unit_bytes as usize)
            .zip((offset..).step_by(self.unit_bytes as usize))
            .zip(&self.versions[first..])
            .map(|((part, at), version)| (at, part, *version))
            .filter(|(_, _, version)| *version != UNKNOWN)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::{UNKNOWN, VersionMap};
    use crate::pattern::{Pattern, WrongSector};
    use crate::plan::{Case, Op};

    #[test]
    fn shares_are_disjoint_and_hold_whole_blocks() {
        let mut map = VersionMap::new(100 * 4096, 4096);
        let case = Case { clients: 3, ..Case::closed(Op::Mixed, 16 << 10, 2) };
        let mut end = 0;
        for share in map.shares(&case) {
            assert_eq!(share.base(), end);
            assert_eq!(share.bytes(), 8 * (16 << 10));
            end = share.base() + share.bytes();
        }
        assert_eq!(end, 24 * (16 << 10));
    }

    #[test]
    fn versions_rise_over_all_parts_of_a_block() {
        let mut map = VersionMap::new(1 << 20, 4096);
        let mut share = map.whole();
        assert_eq!(share.next_version(0, 8192), 1);
        share.written(0, 8192, 1);
        share.written(4096, 4096, 2);
        assert_eq!(share.next_version(0, 8192), 3);
        assert_eq!(share.next_version(0, 4096), 2);
        share.written(0, 4096, UNKNOWN - 1);
        assert_eq!(share.next_version(0, 4096), 1, "versions go round");
    }

    #[test]
    fn parts_with_different_versions_verify_each_with_its_own() {
        let pattern = Pattern::new(Uuid::from_u128(9));
        let mut map = VersionMap::new(1 << 20, 4096);
        let mut share = map.whole();
        share.written(8192, 4096, 3);
        share.written(12_288, 4096, 5);
        let mut bytes = vec![0; 8192];
        pattern.fill(&mut bytes[..4096], 8192, 3);
        pattern.fill(&mut bytes[4096..], 12_288, 5);
        assert_eq!(share.verify(&pattern, &bytes, 8192), (0, None));
        assert_eq!(share.sample(&pattern, &bytes, 8192), None);
        share.written(12_288, 4096, 6);
        let (wrong, first) = share.verify(&pattern, &bytes, 8192);
        assert_eq!((wrong, first.unwrap().found), (8, WrongSector::Stale { version: 5 }));
        assert!(share.sample(&pattern, &bytes, 8192).is_some());
    }

    #[test]
    fn what_a_failed_write_left_is_not_verified() {
        let pattern = Pattern::new(Uuid::from_u128(9));
        let mut map = VersionMap::new(1 << 20, 4096);
        let mut share = map.whole();
        share.written(0, 4096, 3);
        share.lost(0, 4096);
        assert_eq!(share.verify(&pattern, &[7; 4096], 0), (0, None));
        assert_eq!(share.sample(&pattern, &[7; 4096], 0), None);
    }
}
