//! Listings of the control thread, a page at a time, and what is gone before each.

use std::collections::VecDeque;

use kvrail_store::{Now, Phase, Reason, Status};

use super::calls::GONE;
use super::{Shard, State};
use crate::limits::STORE_CALLS_MAX;
use crate::mailbox::Mailbox;
use crate::store_call::{StoreAsk, StoreCall};
use crate::store_page::StoreFound;

/// Blocks that are gone are told so often, and as soon as half of the feed is full.
const TELL_NS: u64 = 2_000_000;
const TELL_ROWS: usize = 256;

/// Listings in the order in which they were asked for.
#[derive(Debug)]
pub(super) struct Listings {
    calls: VecDeque<Box<StoreCall>>,
    /// The first one is with the store.
    asked: bool,
    told_ns: u64,
    told_lost: u64,
}

impl Listings {
    pub(super) fn new() -> Self {
        Self {
            calls: VecDeque::with_capacity(STORE_CALLS_MAX),
            asked: false,
            told_ns: 0,
            told_lost: 0,
        }
    }

    pub(super) fn push(&mut self, call: Box<StoreCall>) {
        self.calls.push_back(call);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The store is another one: what it was asked is asked again.
    pub(super) fn begin_anew(&mut self) {
        (self.asked, self.told_lost) = (false, 0);
    }
}

impl Shard {
    /// Tells of blocks that are gone: all of them before a page of a listing is handed out.
    pub(in super::super) fn tell_gone(&mut self, mailbox: &Mailbox, now_ns: u64) {
        let (rows, lost) = (self.store.evictions(), self.store.evictions_lost());
        let due = now_ns >= self.listings.told_ns + TELL_NS;
        if rows == 0 && lost == self.listings.told_lost
            || !due && rows < TELL_ROWS && self.listings.is_empty()
        {
            return;
        }
        self.listings.told_ns = now_ns;
        while (self.store.evictions() > 0 || lost != self.listings.told_lost)
            && let Some(mut batch) = mailbox.spare_batch()
        {
            while batch.has_room()
                && let Some(gone) = self.store.next_evicted()
            {
                batch.push(&gone);
            }
            (batch.device, batch.lost) = (self.device.into(), lost);
            self.listings.told_lost = lost;
            mailbox.report_gone(batch);
        }
    }

    /// Goes on with the first listing; returns it when its page is there.
    pub(in super::super) fn next_listed(&mut self, now: Now) -> Option<Box<StoreCall>> {
        if self.state == State::Gone {
            // The store has forgotten nothing: it is begun anew before it is asked again.
            return (self.in_flight == 0).then(|| self.end_listing(GONE)).flatten();
        }
        if !self.listings.asked {
            return self.begin_listing(now);
        }
        // Who keeps books must hear first of what is gone.
        if self.store.evictions() > 0 {
            return None;
        }
        let page = self.store.listed()?;
        if let Some(StoreFound::Blocks(rows)) =
            self.listings.calls.front_mut().map(|call| &mut call.found)
        {
            rows.fill(&page);
        }
        self.end_listing(Status::Ok)
    }

    fn begin_listing(&mut self, now: Now) -> Option<Box<StoreCall>> {
        let StoreAsk::List { space, from } = self.listings.calls.front()?.ask else {
            return self.end_listing(Status::Invalid(kvrail_store::Fault::Limit));
        };
        match self.store.phase() {
            Phase::Starting => return None,
            Phase::Failed(_) => return self.end_listing(Status::Declined(Reason::Starting)),
            Phase::Warming | Phase::Serving => {}
        }
        self.dirty = true;
        match self.store.list(Some(space), from, now) {
            Ok(()) => self.listings.asked = true,
            Err(Status::Declined(Reason::Busy)) => {}
            Err(status) => return self.end_listing(status),
        }
        None
    }

    fn end_listing(&mut self, status: Status) -> Option<Box<StoreCall>> {
        let mut call = self.listings.calls.pop_front()?;
        self.listings.asked = false;
        self.close(&mut call, status);
        Some(call)
    }
}
