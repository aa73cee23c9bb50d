//! Gets of hot blocks from a sidecar's memory tier, beside what they are made of: a copy of the
//! same bytes, their checksum, and what other caches do, reads from the page cache and from the
//! drive. One thread, one block after the other, the ways in turns.

mod plain;
mod store;

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use self::plain::PlainBytes;
pub(crate) use self::store::CheckedBlocks;
use self::store::{AT_ONCE, HotStore, PutWay};
pub use self::store::{LATE_NAMES, TieredStore};
use crate::statistics::median;

/// Blocks take a part of the volume's bytes, up to a limit that is far above processors' caches.
const VOLUME_SHARE: u64 = 16;
const HOT_BYTES_MAX: u64 = 256 << 20;
/// No more blocks of any size than those of this one: a directory has one entry for these bytes.
const COUNTED_BYTES_MIN: u64 = 64 << 10;
/// A tier for these blocks: sets of its directory fill unevenly, a block comes in only where a few
/// visits find it a place, and late puts are limited where less than an eighth is free.
const ROOM: u64 = 4;

/// A way to the bytes of hot blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryWay {
    /// A copy from the same process's memory.
    Memcpy,
    /// The same, and the checksum that a get compares.
    VerifiedCopy,
    /// A file that lies in the page cache.
    PageCache,
    /// The store, of blocks that were not asked for before.
    Drive,
    /// The memory tier.
    HotGet,
    /// The memory tier, read in place: without a copy.
    View,
    /// A copy of bytes that were just written into memory as large as that of hot blocks.
    MemcpyIn,
    /// Puts that are answered once the drive has them.
    Put,
    /// Puts that are acknowledged from the memory tier.
    LatePut,
    /// As `Put`, `AT_ONCE` in flight.
    PutOf8,
    /// As `LatePut`, `AT_ONCE` in flight.
    LatePutOf8,
}

impl MemoryWay {
    const ALL: [Self; 11] = [
        Self::Memcpy,
        Self::VerifiedCopy,
        Self::PageCache,
        Self::Drive,
        Self::HotGet,
        Self::View,
        Self::MemcpyIn,
        Self::Put,
        Self::LatePut,
        Self::PutOf8,
        Self::LatePutOf8,
    ];

    /// As the report names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memcpy => "memcpy",
            Self::VerifiedCopy => "verified_copy",
            Self::PageCache => "page_cache",
            Self::Drive => "drive",
            Self::HotGet => "hot_get",
            Self::View => "view",
            Self::MemcpyIn => "memcpy_in",
            Self::Put => "put",
            Self::LatePut => "late_put",
            Self::PutOf8 => "put_of_8",
            Self::LatePutOf8 => "late_put_of_8",
        }
    }
}

/// What one way gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaySpeed {
    /// `memcpy`; `verified_copy`, with the checksum; `page_cache`, reads of a file that lies in it;
    /// `drive`, first gets of the store; `hot_get`, gets that the memory tier serves; `view`, the
    /// same blocks read in place, of which no byte is copied; `memcpy_in`, a copy of what was just
    /// written into memory as large as that of hot blocks; `put`, until the drive has the bytes;
    /// `late_put`, until memory has them, where the sidecar's `memory_tier.write_late` names
    /// `late-bench-*`; `put_of_8` and `late_put_of_8`, the same of 8 that are in flight at once.
    pub name: String,
    /// Median over rounds.
    pub bytes_per_second: f64,
    /// Nanoseconds for each block, median over rounds.
    pub block_ns: f64,
}

/// Rates of hot gets / of another way in the same round, medians over rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryRatios {
    /// Of a bare copy.
    pub throughput_per_memcpy: f64,
    /// Of a copy with its checksum.
    pub throughput_per_verified_copy: f64,
    /// Of reads from the page cache, which verify nothing.
    pub throughput_per_page_cache: f64,
    /// Of gets from the drive.
    pub throughput_per_drive: f64,
}

impl MemoryRatios {
    /// The ratio to a way.
    pub(crate) fn of(&self, way: &str) -> Option<f64> {
        let all = [
            (MemoryWay::Memcpy, self.throughput_per_memcpy),
            (MemoryWay::VerifiedCopy, self.throughput_per_verified_copy),
            (MemoryWay::PageCache, self.throughput_per_page_cache),
            (MemoryWay::Drive, self.throughput_per_drive),
        ];
        all.iter().find(|(one, _)| one.name() == way).map(|(_, ratio)| *ratio)
    }
}

/// Rates of late puts / of `memcpy_in` in the same round, medians over rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatePutRatios {
    /// One at a time.
    pub throughput_per_memcpy_in: f64,
    /// With 8 in flight.
    pub throughput_of_8_per_memcpy_in: f64,
}

/// Hot blocks of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HotBlocks {
    /// Bytes of each.
    pub block_bytes: u32,
    /// Their number.
    pub blocks: u64,
    /// Gets and views of the rounds that the memory tier did not serve.
    pub not_served: u64,
    /// The ways, in their order.
    pub ways: Vec<WaySpeed>,
    /// Hot gets against the others.
    pub ratios: MemoryRatios,
    /// Late puts against a copy, where the sidecar acknowledges puts from memory.
    pub late_puts: Option<LatePutRatios>,
}

/// Everything about the memory tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Rounds in turns.
    pub rounds: u32,
    /// Sizes of blocks, in the order of the cases.
    pub sizes: Vec<HotBlocks>,
}

/// Blocks of one size that are hot at once, with a volume of this length.
fn blocks_of(block_bytes: u32, volume_bytes: u64) -> u64 {
    let bytes = u64::from(block_bytes).max(COUNTED_BYTES_MIN);
    (hot_bytes(volume_bytes) / bytes).max(1)
}

fn hot_bytes(volume_bytes: u64) -> u64 {
    (volume_bytes / VOLUME_SHARE).min(HOT_BYTES_MAX)
}

/// Bytes of a memory tier in which the blocks of a benchmark have room.
#[must_use]
pub fn tier_bytes(volume_bytes: u64) -> u64 {
    hot_bytes(volume_bytes) * ROOM
}

/// Measures blocks of these sizes. The page cache's file lies in the folder. The second value is
/// what a comparison of all bytes found.
///
/// # Errors
/// When the client sees no memory tier, the blocks have no room in it, or the sidecar ends.
pub(crate) fn measure(
    tiered: &TieredStore,
    sizes: &[u32],
    (volume_bytes, rounds): (u64, u32),
    folder: &Path,
) -> Result<(MemoryReport, CheckedBlocks)> {
    let mut checked = CheckedBlocks::default();
    let longest = tiered.client.store(&tiered.name)?.block_bytes_max();
    let sizes = sizes.iter().filter(|block_bytes| **block_bytes <= longest);
    let measured = sizes.map(|block_bytes| {
        let blocks = blocks_of(*block_bytes, volume_bytes);
        let (hot, found) = of_size(tiered, (*block_bytes, blocks), rounds, folder)?;
        checked.add(&found);
        Ok(hot)
    });
    let sizes = measured.collect::<Result<_>>()?;
    Ok((MemoryReport { rounds, sizes }, checked))
}

fn of_size(
    tiered: &TieredStore,
    (block_bytes, wanted): (u32, u64),
    rounds: u32,
    folder: &Path,
) -> Result<(HotBlocks, CheckedBlocks)> {
    let mut store = HotStore::open(tiered, (block_bytes, wanted), rounds)?;
    let measured = in_store(&mut store, block_bytes, rounds, folder);
    // Also when something went wrong: the store may be another program's.
    let removed = store.remove();
    measured.and_then(|measured| removed.map(|()| measured))
}

fn in_store(
    store: &mut HotStore<'_>,
    block_bytes: u32,
    rounds: u32,
    folder: &Path,
) -> Result<(HotBlocks, CheckedBlocks)> {
    store.put_all()?;
    let blocks = store.heat()?;
    let mut plain = PlainBytes::new(block_bytes as usize, blocks, folder)?;
    let mut seconds = MemoryWay::ALL.map(|_| Vec::new());
    let mut not_served = 0;
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..MemoryWay::ALL.len()).collect();
        if !round.is_multiple_of(2) {
            order.reverse();
        }
        for way in order {
            let took = match MemoryWay::ALL[way] {
                MemoryWay::Memcpy => plain.copy(),
                MemoryWay::VerifiedCopy => plain.copy_verified(),
                MemoryWay::PageCache => plain.read()?,
                MemoryWay::Drive => store.get_cold(round)?,
                MemoryWay::HotGet => {
                    let (seconds, from_drive) = store.get_hot()?;
                    not_served += from_drive.len() as u64;
                    seconds
                }
                MemoryWay::View => {
                    let (seconds, missed) = store.view_hot();
                    not_served += missed;
                    seconds
                }
                MemoryWay::MemcpyIn => plain.copy_in(),
                MemoryWay::Put => store.put_new(PutWay::Written, 1)?,
                MemoryWay::PutOf8 => store.put_new(PutWay::Written, AT_ONCE)?,
                MemoryWay::LatePut | MemoryWay::LatePutOf8 if !store.writes_late() => continue,
                MemoryWay::LatePut => store.put_new(PutWay::Late, 1)?,
                MemoryWay::LatePutOf8 => store.put_new(PutWay::Late, AT_ONCE)?,
            };
            seconds[way].push(took);
        }
    }
    let checked = store.compare()?;
    let (ways, ratios) = (speeds(&seconds, (block_bytes, blocks)), ratios(&seconds));
    let late_puts = store.writes_late().then(|| late_put_ratios(&seconds));
    Ok((HotBlocks { block_bytes, blocks, not_served, ways, ratios, late_puts }, checked))
}

/// Seconds for all blocks in each round, by ways.
type Seconds = [Vec<f64>; MemoryWay::ALL.len()];

/// Medians over rounds.
fn speeds(seconds: &Seconds, (block_bytes, blocks): (u32, u64)) -> Vec<WaySpeed> {
    let bytes = f64::from(block_bytes) * blocks as f64;
    let measured = MemoryWay::ALL.iter().zip(seconds).filter(|(_, rounds)| !rounds.is_empty());
    let ways = measured.map(|(way, rounds)| {
        let took = median(rounds).unwrap_or(f64::NAN);
        let (bytes_per_second, block_ns) = (bytes / took, took * 1e9 / blocks as f64);
        WaySpeed { name: way.name().to_owned(), bytes_per_second, block_ns }
    });
    ways.collect()
}

/// The rate of one way / of another, the median over rounds.
fn ratio(seconds: &Seconds, one: MemoryWay, other: MemoryWay) -> f64 {
    let rounds = seconds[one as usize].iter().zip(&seconds[other as usize]);
    let ratios: Vec<f64> = rounds.map(|(one, other)| other / one).collect();
    median(&ratios).unwrap_or(f64::NAN)
}

fn ratios(seconds: &Seconds) -> MemoryRatios {
    let per = |other| ratio(seconds, MemoryWay::HotGet, other);
    MemoryRatios {
        throughput_per_memcpy: per(MemoryWay::Memcpy),
        throughput_per_verified_copy: per(MemoryWay::VerifiedCopy),
        throughput_per_page_cache: per(MemoryWay::PageCache),
        throughput_per_drive: per(MemoryWay::Drive),
    }
}

fn late_put_ratios(seconds: &Seconds) -> LatePutRatios {
    let per = |late| ratio(seconds, late, MemoryWay::MemcpyIn);
    LatePutRatios {
        throughput_per_memcpy_in: per(MemoryWay::LatePut),
        throughput_of_8_per_memcpy_in: per(MemoryWay::LatePutOf8),
    }
}

#[cfg(test)]
mod tests {
    use super::{blocks_of, late_put_ratios, ratios, speeds, tier_bytes};

    #[test]
    fn ratios_are_of_the_same_round() {
        // The machine is twice as slow in the second round, for all alike.
        let seconds = [vec![1.0, 2.0], vec![2.0, 4.0], vec![4.0, 8.0], vec![40.0, 80.0]];
        let [memcpy, verified, cache, drive] = seconds;
        let (gets, views) = (vec![2.0, 4.0], vec![0.001, 0.002]);
        let (puts, late) = (vec![9.0, 18.0], Vec::new());
        let (copied_in, of_8) = (vec![3.0, 6.0], vec![4.0, 8.0]);
        let [one, late_one] = [puts.clone(), late.clone()];
        let seconds =
            [memcpy, verified, cache, drive, gets, views, copied_in, one, late_one, puts, of_8];
        let (ways, hot) = (speeds(&seconds, (1 << 20, 1000)), ratios(&seconds));
        let found = [
            hot.throughput_per_memcpy,
            hot.throughput_per_verified_copy,
            hot.throughput_per_page_cache,
            hot.throughput_per_drive,
        ];
        assert_eq!(found, [0.5, 1.0, 2.0, 20.0]);
        let late = late_put_ratios(&seconds);
        assert!((late.throughput_of_8_per_memcpy_in - 0.75).abs() < 1e-9);
        assert!(late.throughput_per_memcpy_in.is_nan(), "it was not measured");
        let names: Vec<&str> = ways.iter().map(|way| way.name.as_str()).collect();
        let copies = ["memcpy", "verified_copy", "page_cache", "drive"];
        let others = ["hot_get", "view", "memcpy_in", "put", "put_of_8", "late_put_of_8"];
        let expected = [&copies[..], &others].concat();
        assert_eq!(names, expected, "what was not measured is left out");
        assert!((ways[0].block_ns - 1.5e6).abs() < 1.0, "{ways:?}");
    }

    #[test]
    fn blocks_have_room_in_their_tier() {
        for volume in [64 << 20, 1 << 30, 512 << 30] {
            assert!(tier_bytes(volume) <= 1 << 30, "the largest is bounded");
            for block in [4096, 65_536, 1 << 20, 4 << 20] {
                let blocks = blocks_of(block, volume);
                assert!(blocks > 0 && blocks * u64::from(block) <= tier_bytes(volume));
            }
        }
    }
}
