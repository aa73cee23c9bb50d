//! Lookups that ask nobody: from the presence tables of a store.

use std::sync::Arc;

use kvrail_ring::Presence;

use crate::key::BlockKey;
use crate::store::{Namespace, Store};
use crate::tables::Tables;

impl Store {
    fn tables(&self) -> Option<Arc<Tables>> {
        let session = self.session();
        // A sidecar that is gone tells nobody what the next one has.
        let lives = session.control().was_seen();
        if lives { self.shown().get(session, self.volume().id().0) } else { None }
    }

    fn known_tables(&self) -> Option<Arc<Tables>> {
        if self.session().control().was_seen() { self.shown().known() } else { None }
    }
}

impl Namespace {
    /// Whether a block is there, without asking the sidecar: some tens of nanoseconds, whether it
    /// sleeps or not. `Absent` is never said of a block that was acknowledged to anybody before,
    /// and not dropped, cleared or evicted since. `Present` is a hint: a get may be a MISS. `Maybe`
    /// where only [`crate::Queue::lookup`] knows. The first call gets the tables of the store.
    #[must_use]
    pub fn probe(&self, key: BlockKey) -> Presence {
        let uid = self.opened().uid;
        self.store().tables().map_or(Presence::Maybe, |tables| tables.probe(uid, key.lo()))
    }

    /// As [`Namespace::probe`], for many keys: calls `each` for each of them in their order, until
    /// it returns false.
    pub fn probe_each(&self, keys: &[BlockKey], mut each: impl FnMut(usize, Presence) -> bool) {
        let uid = self.opened().uid;
        let tables = self.store().tables();
        let probe = |key: &BlockKey| match &tables {
            Some(tables) => tables.probe(uid, key.lo()),
            None => Presence::Maybe,
        };
        let mut all = keys.iter().map(probe).enumerate();
        all.try_for_each(|(at, presence)| each(at, presence).then_some(()));
    }

    /// How many keys from the first on may be there, as far as tables say that are known already:
    /// a lookup has a time limit, and asks the control thread for nothing.
    pub(crate) fn probe_known(&self, keys: &[BlockKey]) -> usize {
        let uid = self.opened().uid;
        let absent = |tables: &Arc<Tables>| {
            keys.iter().position(|key| tables.probe(uid, key.lo()) == Presence::Absent)
        };
        self.store().known_tables().as_ref().and_then(absent).unwrap_or(keys.len())
    }

    /// How many keys from the first on are there, as far as the tables say so.
    #[must_use]
    pub fn probe_prefix(&self, keys: &[BlockKey]) -> usize {
        let mut prefix = 0;
        self.probe_each(keys, |at, presence| {
            let there = presence == Presence::Present;
            prefix = at + usize::from(there);
            there
        });
        prefix
    }
}
