//! Listings in the order in which they were asked for, and the reports of blocks that are gone.

use std::collections::VecDeque;

use kvrail_store::ListingPage;

use crate::limits::STORE_CALLS_MAX;
use crate::store_call::{StoreAsk, StoreCall};
use crate::store_page::{BlockRows, StoreFound};

/// Blocks that are gone are reported this often, or when they are many: a report wakes the control
/// thread.
const REPORT_NS: u64 = 20_000_000;

/// Listings of one shard.
#[derive(Debug)]
pub(super) struct ShardListings {
    calls: VecDeque<Box<StoreCall>>,
    /// The first one is with the store.
    asked: bool,
    reported_ns: u64,
    reported_lost: u64,
}

impl ShardListings {
    pub(super) fn new() -> Self {
        let calls = VecDeque::with_capacity(STORE_CALLS_MAX);
        Self { calls, asked: false, reported_ns: 0, reported_lost: 0 }
    }

    pub(super) fn push(&mut self, call: Box<StoreCall>) {
        debug_assert!(self.calls.len() < STORE_CALLS_MAX, "the control thread sends no more");
        self.calls.push_back(call);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// What the first one asks.
    pub(super) fn first(&self) -> Option<&StoreAsk> {
        Some(&self.calls.front()?.ask)
    }

    /// Whether the first one is with the store.
    pub(super) fn is_asked(&self) -> bool {
        self.asked
    }

    /// The first one is with the store now.
    pub(super) fn ask(&mut self) {
        debug_assert!(!self.calls.is_empty() && !self.asked, "the first one is asked once");
        self.asked = true;
    }

    /// The page of the first one is there.
    pub(super) fn fill(&mut self, page: &ListingPage<'_>) {
        if let Some(StoreFound::Blocks(rows)) = self.calls.front_mut().map(|call| &mut call.found) {
            rows.fill(page);
        }
    }

    /// Blocks of memory are to be added to the page of the first one.
    pub(super) fn rows(&mut self) -> Option<&mut BlockRows> {
        match &mut self.calls.front_mut()?.found {
            StoreFound::Blocks(rows) => Some(rows),
            _ => None,
        }
    }

    /// The first one has ended.
    pub(super) fn pop(&mut self) -> Option<Box<StoreCall>> {
        self.asked = false;
        self.calls.pop_front()
    }

    /// The store is another one: what it was asked is asked again.
    pub(super) fn begin_anew(&mut self) {
        (self.asked, self.reported_lost) = (false, 0);
    }

    /// Whether it is time to report blocks that are gone, however few.
    pub(super) fn is_report_due(&self, now_ns: u64) -> bool {
        now_ns >= self.reported_ns + REPORT_NS
    }

    /// Whether the last report had this count of lost ones.
    pub(super) fn has_reported(&self, lost: u64) -> bool {
        self.reported_lost == lost
    }

    /// A report with this count of lost ones was made.
    pub(super) fn reported(&mut self, lost: u64, now_ns: u64) {
        (self.reported_lost, self.reported_ns) = (lost, now_ns);
    }
}
