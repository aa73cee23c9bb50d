//! Gets that memory tiers have served, by namespace and by pool, as clients count them.

use std::collections::BTreeMap;

use super::handles::PoolPlace;

/// Sums since the start.
#[derive(Debug, Default)]
pub(super) struct MemoryHits {
    /// By volume and name.
    spaces: BTreeMap<(u16, String), u64>,
    /// By volume: those of namespaces that are gone, too.
    pools: BTreeMap<(u16, PoolPlace), u64>,
}

impl MemoryHits {
    pub(super) fn add(&mut self, (volume, name): (u16, &str), pool: PoolPlace, hits: u64) {
        *self.spaces.entry((volume, name.to_owned())).or_default() += hits;
        *self.pools.entry((volume, pool)).or_default() += hits;
    }

    /// The sums of all pools, by volume.
    pub(super) fn by_pool(&self) -> impl Iterator<Item = (u16, PoolPlace, u64)> {
        self.pools.iter().map(|((volume, place), hits)| (*volume, *place, *hits))
    }

    /// Those of a namespace.
    pub(super) fn of(&self, volume: u16, name: &str) -> u64 {
        self.spaces.get(&(volume, name.to_owned())).copied().unwrap_or(0)
    }

    /// A namespace is gone.
    pub(super) fn forget(&mut self, volume: u16, name: &str) {
        self.spaces.remove(&(volume, name.to_owned()));
    }
}
