//! Copies to and from memory that a peer may write at any moment: a hostile client, another
//! process, hardware.
//!
//! A reference or a `memcpy` would be a data race there. These copies use relaxed atomics: words in
//! the middle, bytes at the edges. The result may be torn between words when a peer writes at the
//! same time; it is never undefined. Ordering is not made here: the index of a lane or a completion
//! that was read with acquire before makes a peer's bytes visible.
//!
//! The bytes of a [`crate::Lease`] may be copied here while an operation owns the lease, as a
//! device does it; while the program holds the lease, the lease itself is the way to its bytes.
//!
//! In Rust, two simultaneous atomic accesses of different width to the same bytes, one of them a
//! store, are a race within one program. Two threads of one process that access the same bytes must
//! use the same offset and length on both sides.
#![expect(unsafe_code, reason = "sees shared bytes as atomics")]
// UNSAFETY: addresses within checked, borrowed `Pinned` memory become references to atomics.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::pinned::Pinned;

/// Bytes of one atomic word.
const WORD: usize = size_of::<u64>();

/// Copies `out.len()` bytes from `offset` on out of the memory.
///
/// # Panics
/// If the range does not lie within the memory.
pub fn load(memory: &dyn Pinned, offset: usize, out: &mut [u8]) {
    let cells = Cells::new(memory, offset, out.len());
    let (head, rest) = out.split_at_mut(cells.head());
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    let mut at = 0;
    for byte in head {
        *byte = cells.byte(at).load(Ordering::Relaxed);
        at += 1;
    }
    for word in words {
        *word = cells.word(at).load(Ordering::Relaxed).to_ne_bytes();
        at += WORD;
    }
    for byte in tail {
        *byte = cells.byte(at).load(Ordering::Relaxed);
        at += 1;
    }
}

/// Copies `data` into the memory from `offset` on.
///
/// # Panics
/// If the range does not lie within the memory.
pub fn store(memory: &dyn Pinned, offset: usize, data: &[u8]) {
    let cells = Cells::new(memory, offset, data.len());
    let (head, rest) = data.split_at(cells.head());
    let (words, tail) = rest.as_chunks::<WORD>();
    let mut at = 0;
    for byte in head {
        cells.byte(at).store(*byte, Ordering::Relaxed);
        at += 1;
    }
    for word in words {
        cells.word(at).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        at += WORD;
    }
    for byte in tail {
        cells.byte(at).store(*byte, Ordering::Relaxed);
        at += 1;
    }
}

/// A checked range of pinned memory, seen as atomic bytes and words.
struct Cells<'a> {
    first: *mut u8,
    bytes: usize,
    memory: PhantomData<&'a dyn Pinned>,
}

impl<'a> Cells<'a> {
    fn new(memory: &'a dyn Pinned, offset: usize, bytes: usize) -> Self {
        let whole = memory.bytes();
        assert!(
            offset <= whole && bytes <= whole - offset,
            "a copy of {bytes} bytes at offset {offset} leaves the memory of {whole} bytes"
        );
        // In bounds by the assert; nothing is read yet.
        let first = memory.base().as_ptr().wrapping_add(offset);
        Self { first, bytes, memory: PhantomData }
    }

    /// Bytes before the first whole word. Miri cannot follow atomics of two widths in one place,
    /// so there all copies go by bytes.
    fn head(&self) -> usize {
        let aligned = if cfg!(miri) { self.bytes } else { self.first.align_offset(WORD) };
        aligned.min(self.bytes)
    }

    fn byte(&self, at: usize) -> &'a AtomicU8 {
        debug_assert!(at < self.bytes, "copy loops stay in their range");
        let cell = self.first.wrapping_add(at);
        // SAFETY: `Pinned` promises the bytes for 'a, `at` is within the range checked in `new`,
        // and everyone else reaches them by atomics, from another process, or not at all now.
        unsafe { AtomicU8::from_ptr(cell) }
    }

    fn word(&self, at: usize) -> &'a AtomicU64 {
        debug_assert!(at + WORD <= self.bytes, "copy loops stay in their range");
        let cell = self.first.wrapping_add(at).cast::<u64>();
        debug_assert!(cell.is_aligned(), "words start behind the head");
        // SAFETY: as in `byte`; the word is aligned, because words start behind `head` bytes.
        unsafe { AtomicU64::from_ptr(cell) }
    }
}

#[cfg(test)]
mod tests {
    use super::{load, store};
    use crate::HeapBlock;

    #[test]
    fn every_alignment_and_length_round_trips_and_touches_nothing_else() {
        let block = HeapBlock::new(4096);
        let step = if cfg!(miri) { 7 } else { 1 };
        for offset in (0..17).step_by(step) {
            for length in (0..40_u8).step_by(step) {
                store(&block, 0, &[0xee; 128]);
                let data: Vec<u8> = (1..=length).collect();
                store(&block, offset, &data);
                let mut seen = [0; 128];
                load(&block, 0, &mut seen);
                let end = offset + usize::from(length);
                assert_eq!(&seen[offset..end], &data[..]);
                assert!(seen[..offset].iter().chain(&seen[end..]).all(|byte| *byte == 0xee));
                let mut back = vec![0; usize::from(length)];
                load(&block, offset, &mut back);
                assert_eq!(back, data);
            }
        }
    }

    #[test]
    fn the_last_byte_is_reachable_and_an_empty_copy_at_the_end_is_fine() {
        let block = HeapBlock::new(4096);
        store(&block, 4095, &[7]);
        let mut last = [0];
        load(&block, 4095, &mut last);
        assert_eq!(last, [7]);
        store(&block, 4096, &[]);
        load(&block, 4096, &mut []);
    }

    #[test]
    #[should_panic(expected = "a copy of 2 bytes at offset 4095 leaves the memory of 4096 bytes")]
    fn a_load_over_the_end_is_refused() {
        load(&HeapBlock::new(4096), 4095, &mut [0; 2]);
    }

    #[test]
    #[should_panic(expected = "leaves the memory")]
    fn a_store_whose_end_wraps_around_is_refused() {
        store(&HeapBlock::new(4096), usize::MAX, &[1, 2]);
    }

    #[test]
    fn a_racing_writer_is_seen_as_old_or_new_words() {
        let block = HeapBlock::new(4096);
        let rounds = if cfg!(miri) { 20 } else { 2_000 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..rounds {
                    store(&block, 0, &[if round % 2 == 0 { 0x55 } else { 0xaa }; 64]);
                }
            });
            let mut seen = [0_u8; 64];
            for _ in 0..rounds {
                load(&block, 0, &mut seen);
                // A word is never torn; by bytes (Miri) nothing larger than a byte is whole.
                let whole = if cfg!(miri) { 1 } else { 8 };
                for word in seen.chunks(whole) {
                    let old_or_new = [0, 0x55, 0xaa].contains(&word[0]);
                    assert!(old_or_new && word.iter().all(|byte| *byte == word[0]), "{word:?}");
                }
            }
        });
    }
}
