//! Listings of the control thread, a page at a time, and what is gone before each.

use kvrail_store::{DeclineReason, Now, Phase, Status};

use super::Shard;
use super::calls::GONE;
use crate::mailbox::Mailbox;
use crate::store_call::{StoreAsk, StoreCall};

/// Blocks that are gone which are reported at once: half of what a store keeps.
const REPORT_ROWS: usize = 256;

impl Shard {
    /// Reports blocks that are gone: all of them before a page of a listing is handed out.
    pub(crate) fn report_gone(&mut self, mailbox: &Mailbox, now_ns: u64) {
        let (rows, lost) = (self.store.evictions(), self.store.evictions_lost());
        if rows == 0 && self.listings.has_reported(lost)
            || rows < REPORT_ROWS
                && self.listings.is_empty()
                && !self.listings.is_report_due(now_ns)
        {
            return;
        }
        while (self.store.evictions() > 0 || !self.listings.has_reported(lost))
            && let Some(mut batch) = mailbox.spare_batch()
        {
            while batch.has_room()
                && let Some(gone) = self.store.next_evicted()
            {
                batch.push(&gone);
            }
            (batch.device, batch.lost) = (self.site.device().into(), lost);
            self.listings.reported(lost, now_ns);
            mailbox.report_gone(batch);
        }
    }

    /// Goes on with the first listing; returns it when its page is there.
    pub(crate) fn next_listed(&mut self, now: Now) -> Option<Box<StoreCall>> {
        if self.is_gone() {
            // The store has forgotten nothing: it is begun anew before it is asked again.
            return (self.load.tasks() == 0).then(|| self.end_listing(GONE)).flatten();
        }
        if !self.listings.is_asked() {
            return self.begin_listing(now);
        }
        // The control thread keeps books: reports of blocks that are gone come first.
        if self.store.evictions() > 0 {
            return None;
        }
        let page = self.store.listed()?;
        self.listings.fill(&page);
        self.end_listing(Status::Ok)
    }

    fn begin_listing(&mut self, now: Now) -> Option<Box<StoreCall>> {
        let StoreAsk::List { space, from } = *self.listings.first()? else {
            return self.end_listing(Status::Invalid(kvrail_store::Fault::Limit));
        };
        match self.store.phase() {
            Phase::Starting => return None,
            Phase::Failed(_) => return self.end_listing(Status::Declined(DeclineReason::Starting)),
            Phase::Warming | Phase::Serving => {}
        }
        self.pulse.mark();
        if self.lists_memory(space, from) {
            // As before each page of the store's.
            if self.store.evictions() > 0 {
                return None;
            }
            self.list_memory(space, from);
            return self.end_listing(Status::Ok);
        }
        match self.store.list(Some(space), from, now) {
            Ok(()) => self.listings.ask(),
            Err(Status::Declined(DeclineReason::Busy)) => {}
            Err(status) => return self.end_listing(status),
        }
        None
    }

    fn end_listing(&mut self, status: Status) -> Option<Box<StoreCall>> {
        let mut call = self.listings.pop()?;
        self.close(&mut call, status);
        Some(call)
    }
}
