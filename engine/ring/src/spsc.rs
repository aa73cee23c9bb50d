//! A single-producer single-consumer ring over memory that may be shared with a hostile peer.
//!
//! Free-running 32-bit counters, masked at access. Each side keeps its own counter privately and
//! only ever *writes* it to shared memory; the peer's counter is cached and read again only when
//! the ring looks full or empty, and what is read is checked before use. A whole batch becomes
//! visible with one release store.
//!
//! Orderings, by label:
//! - **P (publish)**: producer stores `tail` with Release; pairs with **T (take)**, the consumer's
//!   Acquire load of `tail`: slots written before P are seen after T.
//! - **R (release)**: consumer stores `head` with Release; pairs with **F (free)**, the producer's
//!   Acquire load of `head`: slots read before R may be overwritten after F.

use crate::sync::{AtomicU32, Ordering};

/// Slots fetched ahead of the one being taken: a line from another core takes as long as a few
/// requests, and the work on one is too long for the processor to look past it by itself.
const AHEAD: u32 = 4;

/// The peer moved its counter to where it cannot be: more slots filled or freed than there are.
/// Such a lane cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's index is {peer:#x}, ours {ours:#x}, and the ring holds {depth} slots")]
pub struct LaneFault {
    /// The index the peer published.
    pub peer: u32,
    /// Our own index at that time.
    pub ours: u32,
    /// Slots in the ring.
    pub depth: u32,
}

/// Where the counters and slots of one ring live.
pub trait Store {
    /// What a slot holds.
    type Slot: Copy;
    /// Slots, a power of two.
    fn depth(&self) -> u32;
    /// Written by the producer only.
    fn tail(&self) -> &AtomicU32;
    /// Written by the consumer only.
    fn head(&self) -> &AtomicU32;
    /// Stores a slot. `index` is masked.
    fn write(&self, index: u32, slot: Self::Slot);
    /// Loads a slot, each word once. `index` is masked.
    fn read(&self, index: u32) -> Self::Slot;
    /// A hint that this slot is read soon. `index` is masked.
    fn prefetch(&self, _index: u32) {}
}

/// The writing half. One exists per ring.
#[derive(Debug)]
pub struct Producer<S> {
    store: S,
    mask: u32,
    /// Next slot to write; ahead of what is published while a batch is staged.
    tail: u32,
    published: u32,
    head_seen: u32,
}

impl<S: Store> Producer<S> {
    pub(crate) fn new(store: S, start: u32) -> Self {
        let mask = store.depth() - 1;
        Self { store, mask, tail: start, published: start, head_seen: start }
    }

    /// Slots that can be staged now. Reads the peer's counter only when the cached one leaves
    /// fewer than `wanted`.
    ///
    /// # Errors
    /// `LaneFault` if the consumer claims to have read what was never published.
    #[inline]
    pub fn free(&mut self, wanted: u32) -> Result<u32, LaneFault> {
        let depth = self.mask + 1;
        let free = depth - self.tail.wrapping_sub(self.head_seen);
        if free >= wanted {
            return Ok(free);
        }
        let head = self.store.head().load(Ordering::Acquire); // F, pairs with R
        if self.published.wrapping_sub(head) > self.published.wrapping_sub(self.head_seen) {
            return Err(LaneFault { peer: head, ours: self.published, depth });
        }
        self.head_seen = head;
        Ok(depth - self.tail.wrapping_sub(head))
    }

    /// Slots published that the consumer was not yet seen to have read.
    #[must_use]
    #[inline]
    pub fn unread(&self) -> u32 {
        self.published.wrapping_sub(self.head_seen)
    }

    /// Writes a slot; the peer sees it after `publish`. The caller has asked `free` first.
    ///
    /// # Panics
    /// If the ring is full: a slot would be lost.
    #[inline(always)]
    pub fn stage(&mut self, slot: S::Slot) {
        assert!(self.tail.wrapping_sub(self.head_seen) <= self.mask, "staged into a full ring");
        self.store.write(self.tail & self.mask, slot);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Makes everything staged visible with one store; returns how many slots that were.
    #[inline]
    pub fn publish(&mut self) -> u32 {
        let staged = self.tail.wrapping_sub(self.published);
        if staged > 0 {
            self.store.tail().store(self.tail, Ordering::Release); // P, pairs with T
            self.published = self.tail;
        }
        staged
    }
}

/// The reading half. One exists per ring.
#[derive(Debug)]
pub struct Consumer<S> {
    store: S,
    mask: u32,
    head: u32,
    released: u32,
    tail_seen: u32,
}

impl<S: Store> Consumer<S> {
    pub(crate) fn new(store: S, start: u32) -> Self {
        let mask = store.depth() - 1;
        Self { store, mask, head: start, released: start, tail_seen: start }
    }

    /// Slots that can be taken now. Reads the peer's counter only when none are known.
    ///
    /// # Errors
    /// `LaneFault` if the producer claims more slots than the ring has, or takes some back.
    #[inline]
    pub fn ready(&mut self) -> Result<u32, LaneFault> {
        let known = self.tail_seen.wrapping_sub(self.head);
        if known > 0 {
            return Ok(known);
        }
        self.refresh()
    }

    /// As `ready`, but always looks at the peer's counter: the second look before sleeping.
    ///
    /// # Errors
    /// As `ready`.
    #[inline]
    pub fn refresh(&mut self) -> Result<u32, LaneFault> {
        // The next slot's line is fetched beside the index, not after it: where both were just
        // written, the two transfers overlap.
        self.store.prefetch(self.head & self.mask);
        let tail = self.store.tail().load(Ordering::Acquire); // T, pairs with P
        let depth = self.mask + 1;
        let filled = tail.wrapping_sub(self.released);
        if filled > depth || filled < self.tail_seen.wrapping_sub(self.released) {
            return Err(LaneFault { peer: tail, ours: self.head, depth });
        }
        self.tail_seen = tail;
        let ready = tail.wrapping_sub(self.head);
        for ahead in 0..ready.min(AHEAD) {
            self.store.prefetch(self.head.wrapping_add(ahead) & self.mask);
        }
        Ok(ready)
    }

    /// Takes the next slot as a private copy, or nothing when none is known to be ready.
    #[inline(always)]
    pub fn take(&mut self) -> Option<S::Slot> {
        if self.head == self.tail_seen {
            return None;
        }
        let slot = self.store.read(self.head & self.mask);
        if self.tail_seen.wrapping_sub(self.head) > AHEAD {
            self.store.prefetch(self.head.wrapping_add(AHEAD) & self.mask);
        }
        self.head = self.head.wrapping_add(1);
        Some(slot)
    }

    /// Gives everything taken back to the producer with one store.
    #[inline]
    pub fn release(&mut self) {
        if self.head != self.released {
            self.store.head().store(self.head, Ordering::Release); // R, pairs with F
            self.released = self.head;
        }
    }
}
