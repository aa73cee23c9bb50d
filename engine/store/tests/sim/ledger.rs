//! The set of present blocks by the books: blocks that were put, less the feed's evictions.

use std::collections::{BTreeMap, BTreeSet};

use kvrail_store::{Evicted, Gone, Key, Store};

use crate::world::World;

/// A key of one namespace.
pub(crate) type Name = (u64, Key);

/// The books since the store was started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    /// Puts less rows of the feed. A row may come before its put is answered.
    counts: BTreeMap<Name, i64>,
    metadata: BTreeMap<Key, Vec<u8>>,
    cleared: BTreeSet<u64>,
    /// Every row, in order.
    pub(crate) gone: Vec<Name>,
}

impl Ledger {
    /// A put was answered OK.
    pub(crate) fn put(&mut self, uid: u64, number: u64) {
        let key = World::key(number);
        *self.counts.entry((uid, key)).or_default() += 1;
        self.metadata.insert(key, World::metadata(number));
    }

    /// Takes what the feed has.
    pub(crate) fn drain(&mut self, store: &mut Store) {
        while let Some(row) = store.next_evicted() {
            self.row(&row);
        }
    }

    fn row(&mut self, row: &Evicted<'_>) {
        self.gone.push((row.uid, row.key));
        match row.why {
            Gone::Cleared => {
                self.cleared.insert(row.uid);
            }
            Gone::Evicted | Gone::Dropped => {
                *self.counts.entry((row.uid, row.key)).or_default() -= 1;
            }
        }
        if row.why == Gone::Evicted
            && let Some(metadata) = self.metadata.get(&row.key)
        {
            assert_eq!(row.metadata, metadata, "of an evicted block");
        }
    }

    /// Whether the block is among what a marker in `gone` has behind it.
    pub(crate) fn went(&self, since: usize, name: Name) -> bool {
        self.gone[since..].contains(&name) || self.cleared.contains(&name.0)
    }

    /// The present blocks.
    pub(crate) fn there(&self) -> BTreeSet<Name> {
        let open = self.counts.iter().filter(|((uid, _), _)| !self.cleared.contains(uid));
        let counted = open.filter(|(name, count)| {
            assert!(matches!(count, 0 | 1), "{name:?} is there {count} times");
            **count == 1
        });
        counted.map(|(name, _)| *name).collect()
    }
}
