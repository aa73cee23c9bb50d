//! Lookups without a request: from the presence tables of a store.

use std::sync::Arc;

use kvrail_ring::Presence;

use crate::key::BlockKey;
use crate::store::{Namespace, Store};
use crate::tables::Tables;

impl Store {
    fn tables(&self) -> Option<Arc<Tables>> {
        let session = self.session();
        // Tables of a sidecar that is gone do not hold for the next one.
        let lives = session.control().was_seen();
        let volume = self.volume().id().0;
        if lives { self.shown().get(session, volume, self.members()) } else { None }
    }

    /// Gets the tables, if they are not there.
    pub(crate) fn fetch_presence(&self) {
        let _fetched = self.tables(); // without them probes are `Maybe`
    }

    /// Whether a member has a key of a uid that is in force, for a block that its memory tier has.
    /// By tables that are mapped; a member that was away has a new table, which is requested.
    pub(crate) fn has_open(&self, uid: u64, lo: u64) -> bool {
        let lives = self.session().control().was_seen();
        let Some(tables) = (if lives { self.shown().mapped() } else { None }) else { return false };
        let tables = match tables.is_retired_for(uid, lo) {
            true => self.shown().renewed(self.session(), (self.volume().id().0, self.members())),
            false => Some(tables),
        };
        tables.is_some_and(|tables| tables.probe_open(uid, lo) == Presence::Present)
    }

    fn known_tables(&self) -> Option<Arc<Tables>> {
        if self.session().control().was_seen() { self.shown().known() } else { None }
    }
}

impl Namespace {
    /// Whether a block is there, without a request to the sidecar: some tens of nanoseconds,
    /// whether it sleeps or not. The answer for a block that was acknowledged to any client before,
    /// and not dropped, cleared or evicted since, is never `Absent`. `Present` is a hint: a get may
    /// be a MISS. `Maybe` where only [`crate::Queue::lookup`] has the answer. The first call gets
    /// the tables of the store.
    #[must_use]
    pub fn probe(&self, key: BlockKey) -> Presence {
        probe(self.store().tables().as_deref(), self.uid(), key)
    }

    /// As [`Namespace::probe`], for many keys in their order, each when its turn comes.
    pub fn probe_many<K: IntoIterator<Item = BlockKey>>(
        &self,
        keys: K,
    ) -> impl Iterator<Item = Presence> + use<K> {
        let (uid, tables) = (self.uid(), self.store().tables());
        keys.into_iter().map(move |key| probe(tables.as_deref(), uid, key))
    }

    /// Gets the tables for probes, as quickly as the sidecar answers: the first probe of a store
    /// does so by itself.
    pub fn fetch_presence(&self) {
        self.store().fetch_presence();
    }

    /// Whether probes need nothing from the sidecar now.
    #[must_use]
    pub fn probes_at_once(&self) -> bool {
        self.store().known_tables().is_some()
    }

    /// How many keys from the first on may be there, by tables that are already mapped: a lookup
    /// has a time limit, and sends the control thread no request.
    pub(crate) fn probe_known(&self, keys: &[BlockKey]) -> usize {
        let (uid, tables) = (self.uid(), self.store().known_tables());
        let absent = |key: &BlockKey| probe(tables.as_deref(), uid, *key) == Presence::Absent;
        keys.iter().position(absent).unwrap_or(keys.len())
    }

    /// How many keys from the first on are there, by the tables.
    #[must_use]
    pub fn probe_prefix(&self, keys: &[BlockKey]) -> usize {
        let probed = self.probe_many(keys.iter().copied());
        probed.take_while(|presence| *presence == Presence::Present).count()
    }
}

fn probe(tables: Option<&Tables>, uid: u64, key: BlockKey) -> Presence {
    tables.map_or(Presence::Maybe, |tables| tables.probe(uid, key.lo()))
}
