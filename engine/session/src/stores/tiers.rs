//! Memory tiers, as clients that may read all of a store get them.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use kvrail_memory::{Pinned, Region};
use kvrail_protocol::ControlReply;
use kvrail_ring::limits::ENTRY_BYTES;
use kvrail_ring::{HOLDS_BYTES, Status};

use super::{ServedTier, Stores, shown};
use crate::failure::{Failure, invalid, quota};
use crate::reply::Reply;
use crate::tenants::Rights;

impl Stores {
    /// The memory tiers of a store, in the order of its members.
    pub(crate) fn show_tier(
        &self,
        (session, seq): (u64, u64),
        volume: u16,
        rights: &Rights,
    ) -> Result<Reply, Failure> {
        let store = &self.stores[self.position(volume)?];
        if !self.handles.has_any(session, volume) {
            let message = "memory tiers need an open namespace of the store; open one first";
            return Err((Status::Denied, message.into()));
        }
        // Blocks of all namespaces lie side by side there.
        if !rights.read_all() {
            let message = "the memory tier is for clients that may read all of the store; this one \
                           gets its blocks from the drives";
            return Err((Status::Denied, message.into()));
        }
        let tiers = store.shards.iter().map(|shard| shard.served.tier.as_ref());
        let (members, fds) = shown(tiers.map(|tier| tier.map(|tier| &tier.memory)))?;
        Ok(Reply::new(session, seq, ControlReply::Tier { members }).with_fds(fds))
    }

    /// Memory in which a session names what it reads in place, of all memory tiers; the same until
    /// the session has mapped it.
    pub(crate) fn hold_blocks(
        &mut self,
        (session, seq): (u64, u64),
        volume: u16,
        rights: &Rights,
    ) -> Result<Reply, Failure> {
        let store = &self.stores[self.position(volume)?];
        let has_tier = store.shards.iter().any(|shard| shard.served.tier.is_some());
        // An open namespace has taken a place among the sessions, of which there are few.
        if !has_tier || !rights.read_all() || !self.handles.has_any(session, volume) {
            let message = "only a client that is shown a memory tier reads blocks in place there";
            return Err((Status::Denied, message.into()));
        }
        let memory = match self.holds.entry(session) {
            Entry::Occupied(held) => Arc::clone(held.get()),
            Entry::Vacant(none) => {
                let memory = Region::create_open("kvrail-holds", HOLDS_BYTES);
                let memory = memory.map_err(|error| quota(format!("memory for holds: {error}")))?;
                Arc::clone(none.insert(Arc::new(memory)))
            }
        };
        let bytes = memory.bytes() as u64;
        Ok(Reply::new(session, seq, ControlReply::Holds { bytes }).with(memory, Vec::new()))
    }

    /// A session has mapped its memory for holds. Closed, no hole can be made in it: a poller that
    /// looks there never faults.
    pub(crate) fn serve_holds(&mut self, (session, seq): (u64, u64)) -> Result<Reply, Failure> {
        let none = || invalid("there is no memory for holds; ask for it first".into());
        let memory = self.holds.get(&session).ok_or_else(none)?;
        memory.close().map_err(|error| invalid(format!("memory for holds: {error}")))?;
        let pinned: Arc<dyn Pinned> = Arc::<Region>::clone(memory);
        let ServedTier { holds, .. } = self.served_tiers().next().ok_or_else(none)?;
        if !holds.add(session, &pinned) {
            return Err(invalid("the memory for holds is mapped already".into()));
        }
        Ok(Reply::new(session, seq, ControlReply::HoldsServed))
    }

    /// Entries of devices' buffer tables that memory tiers take.
    pub(crate) fn tier_entries(&self) -> u16 {
        let bytes = self.served_tiers().map(|tier| tier.memory.bytes());
        let entries = bytes.max().map_or(0, |bytes| (bytes as u64).div_ceil(ENTRY_BYTES));
        u16::try_from(entries).expect("the configuration bounds tiers")
    }

    /// All tiers of the sidecar.
    fn served_tiers(&self) -> impl Iterator<Item = &ServedTier> {
        let shards = self.stores.iter().flat_map(|store| &store.shards);
        shards.filter_map(|shard| shard.served.tier.as_ref())
    }

    /// A session has ended: it reads nothing in place any more.
    pub(super) fn end_holds(&mut self, session: u64) {
        self.holds.remove(&session);
        // All tiers have the same tables.
        if let Some(ServedTier { holds, .. }) = self.served_tiers().next() {
            holds.end(session);
        }
    }
}
