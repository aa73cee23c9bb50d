//! A queue that is allocated once: its users prove that it cannot overflow.

use std::collections::VecDeque;

/// First in, first out; never grows.
#[derive(Debug)]
pub(crate) struct Fifo<T> {
    items: VecDeque<T>,
    limit: usize,
}

impl<T> Fifo<T> {
    pub(crate) fn with_limit(limit: usize) -> Self {
        Self { items: VecDeque::with_capacity(limit), limit }
    }

    /// # Panics
    /// When the queue is full: a bound of the caller's does not hold.
    pub(crate) fn push(&mut self, item: T) {
        assert!(self.items.len() < self.limit, "a queue of {} overflows", self.limit);
        self.items.push_back(item);
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.items.pop_front()
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.items.front()
    }

    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        self.items.get(at)
    }

    /// Position of the first item that is not before something; items must be in that order.
    pub(crate) fn partition_point(&self, is_before: impl FnMut(&T) -> bool) -> usize {
        self.items.partition_point(is_before)
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// # Panics
    /// As `push`.
    pub(crate) fn insert(&mut self, at: usize, item: T) {
        assert!(self.items.len() < self.limit, "a queue of {} overflows", self.limit);
        self.items.insert(at, item);
    }

    pub(crate) fn remove(&mut self, at: usize) -> Option<T> {
        self.items.remove(at)
    }

    pub(crate) fn sort_by_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K) {
        self.items.make_contiguous().sort_unstable_by_key(key);
    }
}
