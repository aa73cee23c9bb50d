//! An allocator that counts its calls by thread, so that "no allocation after start" is measured.
#![expect(unsafe_code, reason = "an allocator is unsafe to implement")]
// UNSAFETY: every call is passed on unchanged to the system's allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Constant and without a destructor: touching it allocates nothing.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting. A program installs it with `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

/// Heap calls (allocations, reallocations, frees) of the calling thread so far; 0 for ever in a
/// program that did not install [`CountingAllocator`].
#[must_use]
pub fn heap_calls_of_this_thread() -> u64 {
    CALLS.get()
}

fn count() {
    CALLS.set(CALLS.get().wrapping_add(1));
}

// SAFETY: layouts and pointers go to `System` and come back as they are; counting touches only a
// cell of this thread.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise about the layout is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the block came from `System` through this allocator, with this layout.
        unsafe { System.realloc(block, layout, bytes) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count();
        // SAFETY: as in `realloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::{CountingAllocator, heap_calls_of_this_thread};

    #[global_allocator]
    static COUNTING: CountingAllocator = CountingAllocator;

    #[test]
    fn every_call_of_this_thread_counts_and_no_other() {
        let before = heap_calls_of_this_thread();
        let kept = std::hint::black_box(vec![1_u8; 100]);
        assert_eq!(heap_calls_of_this_thread(), before + 1);
        drop(kept);
        assert_eq!(heap_calls_of_this_thread(), before + 2);
        let elsewhere = std::thread::spawn(|| {
            drop(std::hint::black_box(vec![1_u8; 100]));
            heap_calls_of_this_thread()
        });
        assert!(elsewhere.join().unwrap() >= 2);
    }
}
