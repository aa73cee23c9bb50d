//! Calls of the control thread to one shard, until they have ended.

use std::collections::VecDeque;

use kvrail_store::Status;

use crate::limits::{STORE_CALLS_MAX, SessionSlot};
use crate::store_call::StoreCall;

/// Calls of one shard, in the order in which they came.
#[derive(Debug)]
pub(super) struct CallQueue {
    calls: VecDeque<Box<StoreCall>>,
    first: First,
}

/// How far the first call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// It waits.
    Waits,
    /// It is with the store.
    Asked,
    /// The store has answered it.
    Answered,
}

impl CallQueue {
    pub(super) fn new() -> Self {
        Self { calls: VecDeque::with_capacity(STORE_CALLS_MAX), first: First::Waits }
    }

    pub(super) fn push(&mut self, call: Box<StoreCall>) {
        debug_assert!(self.calls.len() < STORE_CALLS_MAX, "the control thread sends no more");
        self.calls.push_back(call);
    }

    /// A session is gone.
    pub(super) fn forget(&mut self, session: SessionSlot) {
        self.calls.iter_mut().for_each(|call| call.revoke(session));
    }

    /// Whether the first call is with the store.
    pub(super) fn is_asked(&self) -> bool {
        self.first == First::Asked
    }

    /// Takes the first call out to try it, if it waits.
    pub(super) fn take_waiting(&mut self) -> Option<Box<StoreCall>> {
        if self.first == First::Waits { self.calls.pop_front() } else { None }
    }

    /// Puts the call back that was tried.
    pub(super) fn put_back(&mut self, call: Box<StoreCall>, first: First) {
        self.calls.push_front(call);
        self.first = first;
    }

    /// The store has answered the first call.
    pub(super) fn answer(&mut self, status: Status) {
        if self.first == First::Asked
            && let Some(call) = self.calls.front_mut()
        {
            call.status = status;
            self.first = First::Answered;
        }
    }

    /// The status of the first call, if the store has answered it.
    pub(super) fn answered(&self) -> Option<Status> {
        let call = self.calls.front().filter(|_| self.first == First::Answered)?;
        Some(call.status)
    }

    /// Takes the first call, which has ended.
    pub(super) fn pop(&mut self) -> Option<Box<StoreCall>> {
        self.first = First::Waits;
        self.calls.pop_front()
    }
}
