//! The table of arenas: their numbers, their places in the devices' buffer tables, their bytes.

use std::collections::VecDeque;
use std::ops::Range;

use kvrail_device::{BUFFERS_MAX, REMOTES_MAX};
use kvrail_poller::REGIONS_MAX;
use kvrail_ring::RegionId;
use kvrail_ring::limits::ENTRY_BYTES;
use range_alloc::RangeAllocator;

// A region of GPU memory has the entry of its place, behind those of host memory.
const _: () = assert!(REGIONS_MAX <= REMOTES_MAX as usize);

/// The entries of an arena, or a region of GPU memory, in the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RegionEntries {
    pub(crate) id: RegionId,
    /// Entries of every device's buffer table.
    pub(crate) buffers: Range<u16>,
    pub(crate) bytes: u64,
}

/// Which part of the table is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// No number is left.
    Regions,
    /// No row of buffer entries is left; this many would be needed.
    Buffers(u64),
    /// The bytes of all arenas reach the limit; this many are left.
    Bytes(u64),
}

/// All arenas and GPU regions of all sessions.
#[derive(Debug)]
pub(crate) struct RegionTable {
    /// Free places with the generation each will have next. First in, first out: a place rests as
    /// long as possible, so a number comes back after 33 million arenas at the earliest.
    free: VecDeque<(u16, u16)>,
    buffers: RangeAllocator<u16>,
    /// Regions of GPU memory.
    remotes: usize,
    /// Of arenas.
    bytes: u64,
    /// Of what else is counted with them: the segments of queues.
    beside: u64,
    bytes_max: u64,
}

impl RegionEntries {
    /// Whether it is of GPU memory, which belongs to its client and counts against no total.
    fn is_remote(&self) -> bool {
        self.buffers.start >= BUFFERS_MAX
    }
}

impl RegionTable {
    /// A table whose arenas leave the last `reserved` entries of the devices' tables alone.
    pub(crate) fn new(bytes_max: u64, reserved: u16) -> Self {
        assert!(reserved < BUFFERS_MAX, "staging pools leave entries to arenas");
        let places = u16::try_from(REGIONS_MAX).expect("a place is the low half of a region id");
        let free = (0..places).map(|place| (place, 0)).collect();
        let buffers = RangeAllocator::new(0..BUFFERS_MAX - reserved);
        Self { free, buffers, remotes: 0, bytes: 0, beside: 0, bytes_max }
    }

    /// Changes the limit; what is granted already stays.
    pub(crate) fn limit(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    /// Changes what else is counted.
    pub(crate) fn set_beside(&mut self, bytes: u64) {
        self.beside = bytes;
    }

    /// Bytes that may still be granted.
    pub(crate) fn left(&self) -> u64 {
        self.bytes_max.saturating_sub(self.bytes + self.beside)
    }

    /// Arenas there are.
    pub(crate) fn used(&self) -> usize {
        debug_assert!(self.free.len() + self.remotes <= REGIONS_MAX, "no place is free twice");
        REGIONS_MAX - self.free.len() - self.remotes
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets aside what an arena of at most `bytes` needs.
    pub(crate) fn grant(&mut self, bytes: u64) -> Result<RegionEntries, Shortage> {
        let left = self.left();
        if bytes > left {
            return Err(Shortage::Bytes(left));
        }
        let &(place, generation) = self.free.front().ok_or(Shortage::Regions)?;
        let entries = bytes.div_ceil(ENTRY_BYTES).max(1);
        let short = Shortage::Buffers(entries);
        let count = u16::try_from(entries).map_err(|_| short)?;
        if count > BUFFERS_MAX {
            return Err(short);
        }
        let buffers = self.buffers.allocate_range(count).map_err(|_| short)?;
        debug_assert_eq!(buffers.len(), usize::from(count), "the row that was asked for");
        debug_assert!(buffers.end <= BUFFERS_MAX, "the entries behind are GPU memory's");
        self.free.pop_front();
        self.bytes += bytes;
        debug_assert!(self.bytes + self.beside <= self.bytes_max, "grants stay within the limit");
        Ok(RegionEntries { id: number(place, generation), buffers, bytes })
    }

    /// Sets aside what a region of GPU memory needs.
    pub(crate) fn grant_remote(&mut self, bytes: u64) -> Result<RegionEntries, Shortage> {
        let (place, generation) = self.free.pop_front().ok_or(Shortage::Regions)?;
        self.remotes += 1;
        let buffers = BUFFERS_MAX + place..BUFFERS_MAX + place + 1;
        Ok(RegionEntries { id: number(place, generation), buffers, bytes })
    }

    /// Gives back what was set aside beyond `bytes`, now that the size is known.
    pub(crate) fn settle(&mut self, grant: &mut RegionEntries, bytes: u64) {
        debug_assert!(!grant.is_remote(), "GPU memory is not counted here");
        debug_assert!(self.bytes >= grant.bytes, "the grant is in the sum");
        let bytes = bytes.min(grant.bytes);
        self.bytes -= grant.bytes - bytes;
        grant.bytes = bytes;
    }

    /// Takes an arena's share back.
    pub(crate) fn free(&mut self, grant: RegionEntries) {
        let [place, generation] = [grant.id.0 & 0xffff, grant.id.0 >> 16]
            .map(|half| u16::try_from(half).expect("half of 32 bits"));
        debug_assert!(usize::from(place) < REGIONS_MAX, "places are given by this table");
        debug_assert!(self.free.iter().all(|(free, _)| *free != place), "a place is freed once");
        self.free.push_back((place, generation.wrapping_add(1)));
        if grant.is_remote() {
            debug_assert!(self.remotes > 0, "the grant is in the count");
            self.remotes -= 1;
        } else {
            debug_assert!(self.bytes >= grant.bytes, "the grant is in the sum");
            self.buffers.free_range(grant.buffers);
            self.bytes -= grant.bytes;
        }
    }
}

/// A place and how often it was given out, as one number.
fn number(place: u16, generation: u16) -> RegionId {
    RegionId(u32::from(generation) << 16 | u32::from(place))
}

#[cfg(test)]
mod tests {
    use kvrail_device::BUFFERS_MAX;
    use kvrail_poller::REGIONS_MAX;
    use kvrail_ring::limits::ENTRY_BYTES;

    use super::{RegionTable, Shortage};

    #[test]
    fn every_resource_runs_out_with_its_own_name_and_comes_back() {
        let mut table = RegionTable::new(4 << 40, 0);
        let grants: Vec<_> = (0..REGIONS_MAX).map(|_| table.grant(4096).unwrap()).collect();
        assert_eq!(table.grant(4096), Err(Shortage::Regions));
        grants.into_iter().for_each(|grant| table.free(grant));
        assert_eq!((table.used(), table.bytes()), (0, 0));

        let big = table.grant(u64::from(BUFFERS_MAX) * ENTRY_BYTES).unwrap();
        assert_eq!(big.buffers, 0..BUFFERS_MAX);
        assert_eq!(table.grant(1), Err(Shortage::Buffers(1)));
        table.free(big);
        assert_eq!(table.grant(2 << 40), Err(Shortage::Buffers(32_768)));
        assert_eq!(table.grant(5 << 40), Err(Shortage::Bytes(4 << 40)));
        assert_eq!(table.grant(u64::MAX), Err(Shortage::Bytes(4 << 40)));
    }

    #[test]
    fn a_number_is_not_reused_soon() {
        let mut table = RegionTable::new(1 << 40, 0);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..10 * REGIONS_MAX {
            let grant = table.grant(ENTRY_BYTES + 1).unwrap();
            assert_eq!(grant.buffers.len(), 2);
            assert!(seen.insert(grant.id));
            table.free(grant);
        }
    }

    #[test]
    fn settling_gives_back_what_rounding_took() {
        let mut table = RegionTable::new(10 << 20, 0);
        let mut grant = table.grant(2 << 20).unwrap();
        table.settle(&mut grant, 4096);
        assert_eq!(table.bytes(), 4096);
        table.free(grant);
        assert_eq!(table.bytes(), 0);
    }

    #[test]
    fn gpu_memory_has_entries_of_its_own_and_staging_keeps_the_last_of_the_others() {
        let mut table = RegionTable::new(4 << 40, 2);
        let all = table.grant(u64::from(BUFFERS_MAX - 2) * ENTRY_BYTES).unwrap();
        assert_eq!(all.buffers, 0..BUFFERS_MAX - 2);
        assert_eq!(table.grant(1), Err(Shortage::Buffers(1)));
        let bytes = table.bytes();
        let remotes: Vec<_> =
            (1..REGIONS_MAX).map(|_| table.grant_remote(u64::MAX).unwrap()).collect();
        assert_eq!(table.grant_remote(1), Err(Shortage::Regions));
        assert_eq!((table.used(), table.bytes()), (1, bytes), "no arena has become more");
        let mut entries: Vec<_> = remotes.iter().map(|grant| grant.buffers.start).collect();
        entries.sort_unstable();
        entries.dedup();
        assert_eq!(entries.len(), REGIONS_MAX - 1);
        assert!(entries.iter().all(|entry| (BUFFERS_MAX..BUFFERS_MAX + 512).contains(entry)));
        remotes.into_iter().for_each(|grant| table.free(grant));
        table.free(all);
        assert_eq!((table.used(), table.bytes()), (0, 0));
    }
}
