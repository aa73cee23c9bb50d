//! Words and slot arrays at fixed places in shared memory.
#![expect(unsafe_code, reason = "places atomics into shared memory")]
// UNSAFETY: addresses inside a `Pinned` block become references to atomics. The block is kept
// alive by the `Arc` beside each address, and every process uses atomics only.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::arch::asm;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use kvrail_memory::Pinned;

use crate::slot::{COMPLETION_BYTES, REQUEST_BYTES, SIGNAL_WORD};
use crate::spsc::{FetchPurpose, Store, with_lap};

pub(crate) type RequestRing = ShmRing<{ REQUEST_BYTES / 8 }>;
pub(crate) type CompletionRing = ShmRing<{ COMPLETION_BYTES / 8 }>;

/// One shared 32-bit word.
#[derive(Debug)]
pub(crate) struct ShmWord {
    word: NonNull<AtomicU32>,
    _memory: Arc<dyn Pinned>,
}

impl ShmWord {
    pub(crate) fn at(memory: &Arc<dyn Pinned>, offset: usize) -> Self {
        assert!(offset.is_multiple_of(4) && offset + 4 <= memory.bytes());
        // SAFETY: the offset is inside the block, asserted above; the block is page-aligned.
        let word = unsafe { memory.base().add(offset) }.cast();
        Self { word, _memory: Arc::clone(memory) }
    }

    #[inline]
    pub(crate) fn get(&self) -> &AtomicU32 {
        // SAFETY: aligned and inside the block that `_memory` keeps alive; every process reaches
        // this word through atomics only.
        unsafe { self.word.as_ref() }
    }
}

// SAFETY: only atomic access goes through the pointer, and the block is Send + Sync itself.
unsafe impl Send for ShmWord {}
// SAFETY: as for Send.
unsafe impl Sync for ShmWord {}

/// A whole block of 32-bit words.
#[derive(Debug)]
pub(crate) struct ShmTable {
    words: NonNull<AtomicU32>,
    count: usize,
    _memory: Arc<dyn Pinned>,
}

impl ShmTable {
    pub(crate) fn at(memory: &Arc<dyn Pinned>) -> Self {
        let (words, count) = (memory.base().cast(), memory.bytes() / 4);
        Self { words, count, _memory: Arc::clone(memory) }
    }

    #[inline(always)]
    pub(crate) fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: inside the block, asserted above, which is page-aligned.
        let word = unsafe { self.words.add(index) };
        // SAFETY: aligned and inside the block that `_memory` keeps alive; every process reaches
        // it through atomics only.
        unsafe { word.as_ref() }
    }
}

// SAFETY: only atomic access goes through the pointer, and the block is Send + Sync itself.
unsafe impl Send for ShmTable {}
// SAFETY: as for Send.
unsafe impl Sync for ShmTable {}

/// An array of slots of `WORDS` 64-bit words. Slots are moved word by word through relaxed
/// atomics: plain moves on every machine we know, and no data race even when the peer scribbles.
#[derive(Debug)]
pub(crate) struct ShmWords<const WORDS: usize> {
    words: NonNull<AtomicU64>,
    /// One less than the slots there are, a power of two.
    mask: u32,
    _memory: Arc<dyn Pinned>,
}

impl<const WORDS: usize> ShmWords<WORDS> {
    pub(crate) fn at(memory: &Arc<dyn Pinned>, offset: usize, count: u32) -> Self {
        let end = offset + count as usize * WORDS * 8;
        assert!(offset.is_multiple_of(8) && end <= memory.bytes(), "slots inside the block");
        assert!(count.is_power_of_two(), "{count} slots cannot be masked");
        // SAFETY: the offset is inside the block, asserted above; the block is page-aligned.
        let words = unsafe { memory.base().add(offset) }.cast();
        Self { words, mask: count - 1, _memory: Arc::clone(memory) }
    }

    #[inline(always)]
    fn words(&self, index: u32) -> &[AtomicU64; WORDS] {
        let place = (index & self.mask) as usize;
        // SAFETY: `place` is inside the array, masked above, and the array inside the block.
        let first = unsafe { self.words.add(place * WORDS) };
        // SAFETY: aligned, inside the block that `_memory` keeps alive, reached by atomics only.
        unsafe { first.cast().as_ref() }
    }

    pub(crate) fn read(&self, index: u32) -> [u64; WORDS] {
        let shared = self.words(index);
        std::array::from_fn(|word| shared[word].load(Ordering::Relaxed))
    }

    pub(crate) fn write(&self, index: u32, values: [u64; WORDS]) {
        store(self.words(index), values);
    }

    /// One word of a slot, loaded once.
    pub(crate) fn word(&self, index: u32, word: usize) -> u64 {
        self.words(index)[word].load(Ordering::Relaxed) // ordered by T, which came before
    }

    /// Stores one word of a slot.
    pub(crate) fn set_word(&self, index: u32, word: usize, value: u64) {
        self.words(index)[word].store(value, Ordering::Relaxed); // ordered by P, which follows
    }
}

#[inline(always)]
fn store<const WORDS: usize>(place: &[AtomicU64; WORDS], values: [u64; WORDS]) {
    for (word, value) in place.iter().zip(values) {
        word.store(value, Ordering::Relaxed); // ordered by P, which follows in a ring
    }
}

// SAFETY: only atomic access goes through the pointer, and the block is Send + Sync itself.
unsafe impl<const WORDS: usize> Send for ShmWords<WORDS> {}
// SAFETY: as for Send.
unsafe impl<const WORDS: usize> Sync for ShmWords<WORDS> {}

/// A ring in shared memory.
#[derive(Debug)]
pub(crate) struct ShmRing<const WORDS: usize> {
    head: ShmWord,
    slots: ShmWords<WORDS>,
}

impl<const WORDS: usize> ShmRing<WORDS> {
    pub(crate) fn new(head: ShmWord, slots: ShmWords<WORDS>) -> Self {
        Self { head, slots }
    }
}

impl<const WORDS: usize> Store for ShmRing<WORDS> {
    type Slot = [u64; WORDS];
    type Place<'a> = &'a [AtomicU64; WORDS];

    fn depth(&self) -> u32 {
        self.slots.mask + 1
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU32 {
        self.head.get()
    }

    #[inline(always)]
    fn place(&self, index: u32) -> &[AtomicU64; WORDS] {
        self.slots.words(index)
    }

    #[inline(always)]
    fn write(place: &[AtomicU64; WORDS], mut slot: [u64; WORDS], lap: u8) {
        slot[SIGNAL_WORD] = with_lap(slot[SIGNAL_WORD], lap);
        store(place, slot);
    }

    #[inline(always)]
    fn mark(place: &[AtomicU64; WORDS], lap: u8) {
        let word = &place[SIGNAL_WORD];
        let signal = word.load(Ordering::Relaxed); // our own store, or the peer harms itself
        word.store(with_lap(signal, lap), Ordering::Release); // P, pairs with T
    }

    #[inline(always)]
    fn signal(place: &[AtomicU64; WORDS]) -> u64 {
        place[SIGNAL_WORD].load(Ordering::Acquire) // T, pairs with P
    }

    #[inline(always)]
    fn read(place: &[AtomicU64; WORDS], signal: u64) -> [u64; WORDS] {
        std::array::from_fn(|word| match word {
            SIGNAL_WORD => signal,
            _ => place[word].load(Ordering::Relaxed), // ordered by T, which came before
        })
    }

    #[inline(always)]
    fn prefetch(place: &[AtomicU64; WORDS], purpose: FetchPurpose) {
        let line: *const AtomicU64 = place.as_ptr();
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        match purpose {
            // SAFETY: a hint without architectural effect, on an address inside the block anyway.
            FetchPurpose::Read => unsafe {
                asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
            },
            // SAFETY: as above. The intrinsic would need a target feature that every processor of
            // the last ten years has; older ones take the instruction for a no-operation.
            FetchPurpose::Write => unsafe {
                asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
            },
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _no_hint_here = (line, purpose);
    }
}
