//! Reading of stores outside of the requests about namespaces: listings, and evictions.

use kvrail_poller::{GoneRows, PollerHandle, StoreAsk, StoreCall};
use kvrail_protocol::{ControlReply, ListCursor};
use kvrail_store::Cursor;

use super::history::History;
use super::job::Asker;
use super::listings::PendingListing;
use super::{Shard, StoreJobs, Stores};
use crate::failure::Failure;
use crate::pollers::Pollers;
use crate::reply::Reply;

impl Stores {
    /// Enters a poller's report of evicted blocks.
    pub(super) fn take_evictions(&mut self, poller: usize, handle: &PollerHandle) {
        while let Some(batch) = handle.mailbox.next_gone() {
            let GoneRows { device, .. } = *batch;
            let here = |shard: &Shard| (shard.poller, shard.device) == (poller, device);
            for store in &mut self.stores {
                if let Some(member) = store.shards.iter().position(here) {
                    store.history.add(member, &batch);
                }
            }
            handle.mailbox.return_batch(batch);
        }
    }

    /// The same for all pollers.
    pub(crate) fn hear_all_gone(&mut self, handles: &[PollerHandle]) {
        handles.iter().enumerate().for_each(|(poller, handle)| self.take_evictions(poller, handle));
    }

    /// A member has ended a page of a listing.
    pub(super) fn listed(
        &mut self,
        at: usize,
        (place, failure): (usize, Option<Failure>),
        call: &StoreCall,
        pollers: &mut Pollers,
    ) -> Vec<Reply> {
        let StoreJobs { listings, shards, history, .. } = &mut self.stores[at];
        let mut replies = Vec::new();
        match failure {
            None => {
                let full = listings.answered(&call.found, shards.len());
                replies.extend(full.and_then(|listing| page(listing, shards.len(), history)));
            }
            Some(failure) => {
                // Its old state may not hold.
                shards[place].spaces = None;
                let refused = |asker: Asker| Reply::failure(asker.session, asker.seq, failure);
                replies.extend(listings.failed().map(refused));
            }
        }
        replies.extend(self.go_on_listing(at, pollers));
        replies
    }

    /// Sends a member the request for the next page of the next listing.
    pub(super) fn go_on_listing(&mut self, at: usize, pollers: &mut Pollers) -> Vec<Reply> {
        let mut replies = Vec::new();
        let Self { stores, calls, .. } = self;
        let StoreJobs { listings, shards, history, .. } = &mut stores[at];
        while let Some(mut listing) = listings.next() {
            let (name, ListCursor { member, epoch, page: of, record }) = listing.place();
            let Some(shard) = shards.get(usize::from(member)) else {
                replies.extend(page(listing, shards.len(), history));
                continue;
            };
            let Some(spaces) = &shard.spaces else {
                // The namespace changed meanwhile; the client's next request reads the page again.
                replies.extend(page(listing, shards.len(), history));
                continue;
            };
            let Some(space) = spaces.iter().find(|space| space.name == name).map(|space| space.id)
            else {
                listing.end_member();
                listings.push(listing);
                continue;
            };
            let from = Cursor { epoch, page: of, record };
            let call = StoreCall::new(0, StoreAsk::List { space, from });
            calls.send((at, member.into()), (shard.poller, shard.device), call, pollers);
            listings.asked(listing, member.into());
        }
        replies
    }
}

/// The answer of a listing, as far as it is.
fn page(listing: PendingListing, members: usize, history: &History) -> Option<Reply> {
    let (asker, page) = listing.end(members, history.position())?;
    Some(Reply::new(asker.session, asker.seq, ControlReply::Blocks(page)))
}
