//! Words and slot arrays at fixed places in shared memory.
#![expect(unsafe_code, reason = "places atomics into shared memory")]
// UNSAFETY: addresses inside a `Pinned` block become references to atomics. The block is kept
// alive by the `Arc` beside each address, and every process uses atomics only.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use kvrail_memory::Pinned;

use crate::slot::{COMPLETION_BYTES, Completion, Packed, REQUEST_BYTES, Request};
use crate::spsc::Store;

pub(crate) type RequestRing = ShmRing<Request, { REQUEST_BYTES / 8 }>;
pub(crate) type CompletionRing = ShmRing<Completion, { COMPLETION_BYTES / 8 }>;

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

/// An array of slots of `WORDS` 64-bit words. Slots are moved word by word through relaxed
/// atomics: plain moves on every machine we know, and no data race even when the peer scribbles.
#[derive(Debug)]
pub(crate) struct ShmWords<T, const WORDS: usize> {
    words: NonNull<AtomicU64>,
    count: u32,
    _memory: Arc<dyn Pinned>,
    _slot: PhantomData<fn(T) -> T>,
}

impl<T, const WORDS: usize> ShmWords<T, WORDS> {
    pub(crate) fn at(memory: &Arc<dyn Pinned>, offset: usize, count: u32) -> Self {
        const { assert!(size_of::<T>() == WORDS * 8) };
        let end = offset + count as usize * WORDS * 8;
        assert!(offset.is_multiple_of(8) && end <= memory.bytes(), "slots inside the block");
        // SAFETY: the offset is inside the block, asserted above; the block is page-aligned.
        let words = unsafe { memory.base().add(offset) }.cast();
        Self { words, count, _memory: Arc::clone(memory), _slot: PhantomData }
    }

    #[inline]
    fn words(&self, index: u32) -> &[AtomicU64; WORDS] {
        assert!(index < self.count);
        // SAFETY: `index` is inside the array, asserted above, and the array inside the block.
        let first = unsafe { self.words.add(index as usize * WORDS) };
        // SAFETY: aligned, inside the block that `_memory` keeps alive, reached by atomics only.
        unsafe { first.cast().as_ref() }
    }
}

impl<T: Packed<WORDS>, const WORDS: usize> ShmWords<T, WORDS> {
    #[inline(always)]
    pub(crate) fn read(&self, index: u32) -> T {
        let shared = self.words(index);
        T::unpack(std::array::from_fn(|word| shared[word].load(Ordering::Relaxed)))
    }

    #[inline]
    pub(crate) fn prefetch(&self, index: u32) {
        let line: *const AtomicU64 = self.words(index).as_ptr();
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a hint without architectural effect, on an address inside the block anyway.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _no_hint_here = line;
    }

    #[inline(always)]
    pub(crate) fn write(&self, index: u32, slot: &T) {
        for (word, value) in self.words(index).iter().zip(slot.pack()) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

// SAFETY: only atomic access goes through the pointer, and the block is Send + Sync itself.
unsafe impl<T, const WORDS: usize> Send for ShmWords<T, WORDS> {}

/// A ring in shared memory.
#[derive(Debug)]
pub(crate) struct ShmRing<T, const WORDS: usize> {
    tail: ShmWord,
    head: ShmWord,
    slots: ShmWords<T, WORDS>,
}

impl<T, const WORDS: usize> ShmRing<T, WORDS> {
    pub(crate) fn new(tail: ShmWord, head: ShmWord, slots: ShmWords<T, WORDS>) -> Self {
        Self { tail, head, slots }
    }
}

impl<T, const WORDS: usize> Store for ShmRing<T, WORDS>
where
    T: Packed<WORDS>,
{
    type Slot = T;

    #[inline]
    fn depth(&self) -> u32 {
        self.slots.count
    }

    #[inline]
    fn tail(&self) -> &AtomicU32 {
        self.tail.get()
    }

    #[inline]
    fn head(&self) -> &AtomicU32 {
        self.head.get()
    }

    #[inline]
    fn write(&self, index: u32, slot: T) {
        self.slots.write(index, &slot);
    }

    #[inline]
    fn read(&self, index: u32) -> T {
        self.slots.read(index)
    }

    #[inline]
    fn prefetch(&self, index: u32) {
        self.slots.prefetch(index);
    }
}
