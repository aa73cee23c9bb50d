//! Gets that memory tiers have served, by namespace and by pool, as clients count them.

use std::collections::BTreeMap;

/// Sums since the start. Clients may count nonsense, so no sum comes round.
#[derive(Debug, Default)]
pub(super) struct MemoryHits {
    /// By volume and name, since the namespace was made or cleared.
    spaces: BTreeMap<(u16, String), u64>,
    /// By volume and pool: those of namespaces that are gone, too.
    pools: BTreeMap<(u16, String), u64>,
}

impl MemoryHits {
    /// A namespace is there: it is counted from now on.
    pub(super) fn begin(&mut self, volume: u16, name: &str) {
        self.spaces.entry((volume, name.to_owned())).or_default();
    }

    /// A namespace is gone, or has been cleared. Handles of one that is gone stay.
    pub(super) fn forget(&mut self, volume: u16, name: &str) {
        self.spaces.remove(&(volume, name.to_owned()));
    }

    pub(super) fn add(&mut self, (volume, name): (u16, &str), pool: String, hits: u64) {
        let space = self.spaces.get_mut(&(volume, name.to_owned()));
        let pool = self.pools.entry((volume, pool)).or_default();
        for sum in space.into_iter().chain([pool]) {
            *sum = sum.saturating_add(hits);
        }
    }

    /// Those of a namespace.
    pub(super) fn of(&self, volume: u16, name: &str) -> u64 {
        self.spaces.get(&(volume, name.to_owned())).copied().unwrap_or(0)
    }

    /// The sums of all pools of a volume, by their names.
    pub(super) fn by_pool(&self, volume: u16) -> impl Iterator<Item = (&str, u64)> {
        let own = self.pools.iter().filter(move |((of, _), _)| *of == volume);
        own.map(|((_, pool), hits)| (pool.as_str(), *hits))
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryHits;

    #[test]
    fn a_namespace_that_is_gone_counts_for_its_pool_alone() {
        let mut hits = MemoryHits::default();
        hits.begin(1, "a");
        hits.add((1, "a"), "own".into(), 3);
        assert_eq!((hits.of(1, "a"), hits.of(2, "a")), (3, 0));
        hits.forget(1, "a");
        hits.add((1, "a"), "own".into(), 4);
        assert_eq!(hits.of(1, "a"), 0, "its handle is older than the next one of the name");
        assert!(hits.spaces.is_empty(), "names do not pile up");
        hits.begin(1, "a");
        hits.begin(1, "a");
        hits.add((1, "a"), "own".into(), 5);
        assert_eq!(hits.of(1, "a"), 5);
        assert_eq!(hits.by_pool(1).collect::<Vec<_>>(), [("own", 12)]);
        assert_eq!(hits.by_pool(2).count(), 0);
    }

    #[test]
    fn nonsense_does_not_come_round() {
        let mut hits = MemoryHits::default();
        hits.begin(1, "a");
        hits.add((1, "a"), "own".into(), u64::MAX / 2 + 1);
        hits.add((1, "a"), "own".into(), u64::MAX / 2 + 1);
        assert_eq!(hits.of(1, "a"), u64::MAX);
        assert_eq!(hits.by_pool(1).collect::<Vec<_>>(), [("own", u64::MAX)]);
    }
}
