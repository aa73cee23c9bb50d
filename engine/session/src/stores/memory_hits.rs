//! Gets that memory tiers have served, by namespace and by pool, as clients count them.

use std::collections::BTreeMap;

use kvrail_poller::PollerHandle;
use kvrail_protocol::PoolMemoryHits;

use super::Stores;

/// A pool as one member of its store numbers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PoolPlace {
    /// The member's place in the store.
    pub(super) member: usize,
    pub(super) number: u8,
}

/// Sums since the start.
#[derive(Debug, Default)]
pub(super) struct MemoryHits {
    /// By volume and name.
    spaces: BTreeMap<(u16, String), u64>,
    /// By volume: those of namespaces that are gone, too.
    pools: BTreeMap<(u16, PoolPlace), u64>,
}

impl MemoryHits {
    fn add(&mut self, (volume, name): (u16, &str), pool: PoolPlace, hits: u64) {
        *self.spaces.entry((volume, name.to_owned())).or_default() += hits;
        *self.pools.entry((volume, pool)).or_default() += hits;
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

impl Stores {
    /// A session has counted this many gets from memory under a handle: nonsense, where the session
    /// has no such handle.
    pub(crate) fn count_memory_hits(&mut self, (session, handle): (u64, u16), hits: u64) {
        if let Some((of, pool)) = self.handles.space(session, handle) {
            self.memory_hits.add(of, pool, hits);
        }
    }

    /// The gets from memory of all pools that have some.
    pub(crate) fn report_memory_hits(&self, handles: &[PollerHandle]) -> Vec<PoolMemoryHits> {
        let mut all: BTreeMap<(&str, String), u64> = BTreeMap::new();
        for ((volume, place), hits) in &self.memory_hits.pools {
            let store = self.stores.iter().find(|store| store.volume == *volume);
            let member = store.and_then(|store| Some((store, store.shards.get(place.member)?)));
            let Some((store, shard)) = member else { continue };
            let stats = &handles[shard.poller].stats.devices[shard.device].store;
            let pool = stats.pools[usize::from(place.number)].name();
            *all.entry((store.name.as_str(), pool)).or_default() += hits;
        }
        let report = all.into_iter().map(|((store, pool), hits)| PoolMemoryHits {
            store: store.to_owned(),
            pool,
            hits,
        });
        report.collect()
    }
}
