//! Calls to stores on their way: numbered, no more at one poller than it has room for.

use std::collections::{BTreeMap, VecDeque};

use kvrail_poller::{PollerCommand, STORE_CALLS_MAX, SessionSlot, StoreCall};

use crate::pollers::Pollers;

/// A member: place of its store, and its place there.
pub(super) type ShardKey = (usize, usize);

/// Calls of one poller.
#[derive(Debug, Default)]
struct PollerCalls {
    in_flight: usize,
    /// With the local numbers of their devices.
    waiting: VecDeque<(usize, Box<StoreCall>)>,
}

/// All calls that have not come back.
#[derive(Debug)]
pub(super) struct Calls {
    next: u64,
    shards: BTreeMap<u64, ShardKey>,
    lanes: Vec<PollerCalls>,
}

impl Calls {
    pub(super) fn new(pollers: usize) -> Self {
        // Number 0 has no caller: calls from before the server's start return under it.
        let lanes = (0..pollers).map(|_| PollerCalls::default()).collect();
        Self { next: 1, shards: BTreeMap::new(), lanes }
    }

    /// Sends a call to a member, now or as soon as its poller has room.
    pub(super) fn send(
        &mut self,
        shard: ShardKey,
        (poller, device): (usize, usize),
        mut call: Box<StoreCall>,
        pollers: &mut Pollers,
    ) {
        call.number = self.next;
        self.next += 1;
        self.shards.insert(call.number, shard);
        self.lanes[poller].waiting.push_back((device, call));
        self.flush(poller, pollers);
    }

    /// A call has come back: returns its caller.
    pub(super) fn ended(
        &mut self,
        poller: usize,
        number: u64,
        pollers: &mut Pollers,
    ) -> Option<ShardKey> {
        let shard = self.shards.remove(&number)?;
        self.lanes[poller].in_flight -= 1;
        self.flush(poller, pollers);
        Some(shard)
    }

    /// A session has ended: what still waits here grants nothing to its slot's next session. Its
    /// poller does the same with what was sent before the end.
    pub(super) fn revoke(&mut self, slot: SessionSlot) {
        let waiting = self.lanes.iter_mut().flat_map(|lane| &mut lane.waiting);
        waiting.for_each(|(_, call)| call.revoke(slot));
    }

    fn flush(&mut self, poller: usize, pollers: &mut Pollers) {
        let lane = &mut self.lanes[poller];
        while lane.in_flight < STORE_CALLS_MAX
            && let Some((device, call)) = lane.waiting.pop_front()
        {
            lane.in_flight += 1;
            pollers.send(poller, PollerCommand::Store(device, call));
        }
    }
}

#[cfg(test)]
mod tests {
    use kvrail_poller::{Permit, SessionSlot, StoreAsk, StoreCall};
    use kvrail_store::SpaceId;

    use super::Calls;

    #[test]
    fn a_grant_that_waits_for_its_poller_ends_with_its_session() {
        let mut calls = Calls::new(2);
        let grant = |session| {
            let (space, permit) = (SpaceId::NONE, Permit::Read);
            StoreCall::new(1, StoreAsk::Grant { session, handle: 0, space, permit })
        };
        let (ended, other) = (SessionSlot(3), SessionSlot(4));
        calls.lanes[1].waiting.extend([(0, grant(ended)), (0, grant(other))]);
        calls.revoke(ended);
        let of = |call: &StoreCall| match call.ask {
            StoreAsk::Grant { session, .. } => session,
            _ => panic!("{:?}", call.ask),
        };
        let left: Vec<_> = calls.lanes[1].waiting.iter().map(|(_, call)| of(call)).collect();
        assert!(left[0] != ended && left[1] == other, "{left:?}");
    }
}
