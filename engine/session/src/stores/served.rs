//! Configuration of the stores at the control thread's start.

use std::sync::Arc;

use kvrail_memory::{MemoryError, Region};
use kvrail_ring::{DeviceIndex, HoldTables, PresenceWriter, TIER_PAGE_BYTES, TierWriter};
use kvrail_store::{PoolRule, Sizing, Start, StoreConfig};

/// A volume that is a store.
#[derive(Clone, Debug)]
pub struct ServedStore {
    /// Its id.
    pub volume: u16,
    /// Its members, in order.
    pub shards: Vec<ServedShard>,
}

/// A member of a store.
#[derive(Clone, Debug)]
pub struct ServedShard {
    /// Its device.
    pub device: DeviceIndex,
    /// Its sizes.
    pub config: StoreConfig,
    /// Its pools.
    pub pools: Vec<PoolRule>,
    /// How it begins when its device is back after it was gone.
    pub restart: Start,
    /// Its presence table, if it has one.
    pub presence: Option<Arc<Region>>,
    /// Its memory tier, if it has one.
    pub tier: Option<ServedTier>,
    /// Its drive's five-year endurance, in thousandths of drive writes a day.
    pub rated: Option<u32>,
}

/// A memory tier as clients get it.
#[derive(Clone, Debug)]
pub struct ServedTier {
    /// The memory.
    pub memory: Arc<Region>,
    /// What clients read in place, of all tiers.
    pub holds: Arc<HoldTables>,
}

/// Memory for the tier of a member of a store of these sizes, and the bytes of its directory: from
/// now on only the sidecar can write it. The last value is a remark for the operator where there
/// are no hugepages behind it.
///
/// # Errors
/// `MemoryError` when pages run out.
pub fn memory_tier(
    bytes: usize,
    block_mean: u32,
) -> Result<(Arc<Region>, usize, Option<MemoryError>), MemoryError> {
    // A block has a page at least: entries for more would take the blocks' room.
    let block = block_mean.max(TIER_PAGE_BYTES);
    let directory = TierWriter::bytes_for(bytes as u64 / u64::from(block));
    let (region, remark) = Region::create_best_open("kvrail-tier", bytes)?;
    region.close()?;
    Ok((Arc::new(region), directory, remark))
}

/// Memory for the presence table of a store of these sizes: from now on only the sidecar can write
/// it.
///
/// # Errors
/// `MemoryError` when pages run out.
pub fn presence_table(sizing: &Sizing) -> Result<Arc<Region>, MemoryError> {
    let bytes = PresenceWriter::bytes_for(sizing.blocks);
    let region = Region::create_open("kvrail-presence", bytes)?;
    region.close()?;
    Ok(Arc::new(region))
}
