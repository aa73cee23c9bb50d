//! A single-producer single-consumer ring over memory that may be shared with a hostile peer.
//!
//! Free-running 32-bit counters, masked at access. A slot carries the lap of the producer that
//! wrote it, so one cache line holds both the signal and the entry: no index of the producer is
//! shared at all. The consumer's counter is shared, on a line of its own; the producer keeps a copy
//! and reads it again only when the ring looks full. Every value read is checked.
//!
//! A batch becomes visible with one release store, to the lap of its first slot: the consumer goes
//! in order, and there it waits. The slots behind carry their laps already.
//!
//! Orderings, by label:
//! - **P (publish)**: the producer stores the first slot's lap with Release; pairs with **T
//!   (take)**, the consumer's Acquire load of a lap: all slots of the batch are seen after T.
//! - **R (release)**: consumer stores `head` with Release; pairs with **F (free)**, the producer's
//!   Acquire load of `head`: slots read before R may be overwritten after F.

use crate::sync::{AtomicU32, Ordering};

/// Bytes fetched ahead of the slot being taken, eight cache lines: one from another core takes 50
/// to 250 ns, as long as ten requests, and the work on one is too long for the processor to look
/// past it by itself.
const READ_AHEAD_BYTES: usize = 512;

/// Slots fetched ahead of the one being written. Stores leave the core in order: one that waits for
/// its line holds up all stores behind it, and soon the core.
const WRITE_AHEAD: u32 = 8;

/// The peer wrote what cannot be. Such a lane cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneFault {
    /// It freed more slots than there are, or took some back.
    #[error("the peer's index is {peer:#x}, ours {ours:#x}, and the ring holds {depth} slots")]
    Index {
        /// The index the peer published.
        peer: u32,
        /// Our own index at that time.
        ours: u32,
        /// Slots in the ring.
        depth: u32,
    },
    /// The next slot is neither of this lap nor of the one before.
    #[error("slot {slot} carries lap {lap}, where {expected} is next")]
    Lap {
        /// Which slot.
        slot: u32,
        /// The lap in it.
        lap: u8,
        /// The lap a new slot carries there.
        expected: u8,
    },
}

/// Where a lap stands in a slot's signal word.
const LAP_SHIFT: u32 = 24;
const LAP_MASK: u64 = 0xff << LAP_SHIFT;

/// The signal word with this lap.
#[inline(always)]
pub(crate) fn with_lap(signal: u64, lap: u8) -> u64 {
    signal & !LAP_MASK | u64::from(lap) << LAP_SHIFT
}

#[expect(clippy::cast_possible_truncation, reason = "takes eight bits out of a word")]
#[inline(always)]
fn lap_in(signal: u64) -> u8 {
    (signal >> LAP_SHIFT) as u8
}

/// Purpose of fetching a slot: to write it, its line must be this core's alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchPurpose {
    /// To be read.
    Read,
    /// To be written.
    Write,
}

/// Where the counter and the slots of one ring live. Slots are named by free-running counters; the
/// store masks them.
pub trait Store {
    /// The slot's type.
    type Slot: Copy;
    /// Where a slot is. Found once for each use: what is behind an atomic load is not known to be
    /// what it was before it, and would be looked up again.
    type Place<'a>: Copy
    where
        Self: 'a;
    /// Slots, a power of two.
    fn depth(&self) -> u32;
    /// Written by the consumer only.
    fn head(&self) -> &AtomicU32;
    /// The slot of a counter.
    fn place(&self, counter: u32) -> Self::Place<'_>;
    /// Stores a slot with this lap, in any order.
    fn write(place: Self::Place<'_>, slot: Self::Slot, lap: u8);
    /// Stores this lap into a slot that was written: P.
    fn mark(place: Self::Place<'_>, lap: u8);
    /// Loads the word with the lap: T.
    fn signal(place: Self::Place<'_>) -> u64;
    /// Loads the rest of a slot, each word once; `signal` was loaded before.
    fn read(place: Self::Place<'_>, signal: u64) -> Self::Slot;
    /// A hint that this slot is needed soon.
    fn prefetch(_place: Self::Place<'_>, _purpose: FetchPurpose) {}
}

/// The lap of the slot at this counter; the first is 1, and memory begins as 0. The lap before is
/// one less, also where laps wrap.
#[expect(clippy::cast_possible_truncation, reason = "laps count modulo 256")]
#[inline(always)]
fn lap_at(counter: u32, lap_shift: u32) -> u8 {
    ((counter >> lap_shift) as u8).wrapping_add(1)
}

/// Whether a slot was published that is to carry this lap next; nothing when its lap cannot be.
#[inline(always)]
fn is_published(signal: u64, expected: u8) -> Option<bool> {
    match expected.wrapping_sub(lap_in(signal)) {
        0 => Some(true),
        1 => Some(false),
        _ => None,
    }
}

/// The writing half. One exists per ring.
#[derive(Debug)]
pub struct Producer<S> {
    store: S,
    mask: u32,
    lap_shift: u32,
    /// Next slot to write; ahead of what is published while a batch is staged.
    tail: u32,
    published: u32,
    head_seen: u32,
    /// Slots free when the peer's counter was last read, less those staged since.
    room: u32,
}

impl<S: Store> Producer<S> {
    pub(crate) fn new(store: S, start: u32) -> Self {
        let depth = store.depth();
        let (mask, lap_shift) = (depth - 1, depth.trailing_zeros());
        let (tail, published, head_seen) = (start, start, start);
        Self { store, mask, lap_shift, tail, published, head_seen, room: depth }
    }

    /// Slots that can be staged now. Reads the peer's counter only when the cached one leaves
    /// fewer than `wanted`.
    ///
    /// # Errors
    /// `LaneFault` if the consumer claims to have read what was never published.
    #[inline(always)]
    pub fn free(&mut self, wanted: u32) -> Result<u32, LaneFault> {
        if self.room >= wanted { Ok(self.room) } else { self.look() }
    }

    /// Rare, but no call: the compiler assumes that a call may panic, and the caller would have to
    /// keep in memory everything to be dropped then.
    #[inline(always)]
    fn look(&mut self) -> Result<u32, LaneFault> {
        let depth = self.mask + 1;
        let head = self.store.head().load(Ordering::Acquire); // F, pairs with R
        if self.published.wrapping_sub(head) > self.published.wrapping_sub(self.head_seen) {
            return Err(LaneFault::Index { peer: head, ours: self.published, depth });
        }
        self.head_seen = head;
        self.room = depth - self.tail.wrapping_sub(head);
        Ok(self.room)
    }

    /// The slot that is staged next.
    #[inline(always)]
    pub(crate) fn next_slot(&self) -> u32 {
        self.tail & self.mask
    }

    /// Writes a slot; the peer sees it after `publish`. The caller has checked `free` first.
    ///
    /// # Panics
    /// If the ring is full: a slot would be lost.
    #[inline(always)]
    pub fn stage(&mut self, slot: S::Slot) {
        // Everything is loaded before the slot is stored: the compiler cannot know that the slot is
        // nothing of ours, and would load it again.
        let (tail, room) = (self.tail, self.room);
        assert!(room > 0, "staged into a full ring");
        (self.tail, self.room) = (tail.wrapping_add(1), room - 1);
        if room > WRITE_AHEAD {
            let ahead = self.store.place(tail.wrapping_add(WRITE_AHEAD));
            S::prefetch(ahead, FetchPurpose::Write);
        }
        // The first slot of a batch keeps the lap before, which hides all of the batch.
        let hidden = u8::from(tail == self.published);
        let lap = lap_at(tail, self.lap_shift).wrapping_sub(hidden);
        S::write(self.store.place(tail), slot, lap);
    }

    /// Makes everything staged visible with one store; returns how many slots that were.
    #[inline(always)]
    pub fn publish(&mut self) -> u32 {
        let staged = self.tail.wrapping_sub(self.published);
        if staged > 0 {
            let lap = lap_at(self.published, self.lap_shift);
            S::mark(self.store.place(self.published), lap); // P, pairs with T
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
    lap_shift: u32,
    head: u32,
    released: u32,
}

impl<S: Store> Consumer<S> {
    #[expect(clippy::cast_possible_truncation, reason = "at most READ_AHEAD_BYTES")]
    const AHEAD: u32 = (READ_AHEAD_BYTES / size_of::<S::Slot>()) as u32;

    pub(crate) fn new(store: S, start: u32) -> Self {
        let depth = store.depth();
        let (mask, lap_shift) = (depth - 1, depth.trailing_zeros());
        Self { store, mask, lap_shift, head: start, released: start }
    }

    /// The slot that is taken next.
    #[inline(always)]
    pub(crate) fn next_slot(&self) -> u32 {
        self.head & self.mask
    }

    /// Whether a slot can be taken now.
    ///
    /// # Errors
    /// `LaneFault` if the next slot carries a lap that cannot be.
    #[inline(always)]
    pub fn is_ready(&self) -> Result<bool, LaneFault> {
        let signal = S::signal(self.store.place(self.head)); // T, pairs with P
        is_published(signal, lap_at(self.head, self.lap_shift)).ok_or_else(|| self.fault(signal))
    }

    /// Takes the next slot and gives a private copy of it to `sink`; false when none is there.
    ///
    /// The copy is not returned: within a `Result` its words share their place with a fault's
    /// narrower fields, and are stored and loaded in different widths on their way.
    ///
    /// # Errors
    /// As `is_ready`.
    #[inline(always)]
    pub fn take(&mut self, sink: impl FnOnce(S::Slot)) -> Result<bool, LaneFault> {
        let (head, expected) = (self.head, lap_at(self.head, self.lap_shift));
        let place = self.store.place(head);
        let ahead = self.store.place(head.wrapping_add(Self::AHEAD));
        let signal = S::signal(place); // T, pairs with P
        if lap_in(signal) != expected {
            return is_published(signal, expected).ok_or_else(|| self.fault(signal));
        }
        S::prefetch(ahead, FetchPurpose::Read);
        let slot = S::read(place, with_lap(signal, 0));
        self.head = head.wrapping_add(1);
        sink(slot);
        Ok(true)
    }

    #[cold]
    fn fault(&self, signal: u64) -> LaneFault {
        let (lap, expected) = (lap_in(signal), lap_at(self.head, self.lap_shift));
        LaneFault::Lap { slot: self.head & self.mask, lap, expected }
    }

    /// Gives everything taken back to the producer with one store.
    #[inline(always)]
    pub fn release(&mut self) {
        if self.head != self.released {
            self.store.head().store(self.head, Ordering::Release); // R, pairs with F
            self.released = self.head;
        }
    }
}
