//! Listings in the order in which they were asked for, and what was told before them.

use std::collections::VecDeque;

use kvrail_store::Listing;

use crate::limits::STORE_CALLS_MAX;
use crate::store_call::{StoreAsk, StoreCall};
use crate::store_page::StoreFound;

/// Blocks that are gone are told of so often, or when they are many. It wakes the control thread.
const TELL_NS: u64 = 20_000_000;

/// Listings of one shard.
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
        let calls = VecDeque::with_capacity(STORE_CALLS_MAX);
        Self { calls, asked: false, told_ns: 0, told_lost: 0 }
    }

    pub(super) fn push(&mut self, call: Box<StoreCall>) {
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
        self.asked = true;
    }

    /// The page of the first one is there.
    pub(super) fn fill(&mut self, page: &Listing<'_>) {
        if let Some(StoreFound::Blocks(rows)) = self.calls.front_mut().map(|call| &mut call.found) {
            rows.fill(page);
        }
    }

    /// The first one has ended.
    pub(super) fn pop(&mut self) -> Option<Box<StoreCall>> {
        self.asked = false;
        self.calls.pop_front()
    }

    /// The store is another one: what it was asked is asked again.
    pub(super) fn begin_anew(&mut self) {
        (self.asked, self.told_lost) = (false, 0);
    }

    /// Whether it is time to tell what is gone, however little.
    pub(super) fn is_telling_due(&self, now_ns: u64) -> bool {
        now_ns >= self.told_ns + TELL_NS
    }

    /// Whether it was told how many were lost.
    pub(super) fn has_told(&self, lost: u64) -> bool {
        self.told_lost == lost
    }

    pub(super) fn told(&mut self, lost: u64, now_ns: u64) {
        (self.told_lost, self.told_ns) = (lost, now_ns);
    }
}
