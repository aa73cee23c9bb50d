//! Memory that stays where it is: the contract that lanes and arenas stand on.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt::Debug;
use std::ptr::NonNull;

/// Memory whose address and length do not change while the value lives.
///
/// # Safety
/// `base` must point to `bytes` readable, writable, initialised bytes, aligned to 4096, until the
/// value is dropped. Other processes may write them at any time; this process touches them by the
/// copies of this crate, through a lease, or through the kernel only.
pub unsafe trait Pinned: Send + Sync + Debug {
    /// First byte, aligned to 4096.
    fn base(&self) -> NonNull<u8>;
    /// Length in bytes.
    fn bytes(&self) -> usize;
}

/// Process-private pinned memory from the heap, for tests and checkers that cannot map files.
#[derive(Debug)]
pub struct HeapBlock {
    base: NonNull<u8>,
    layout: Layout,
}

impl HeapBlock {
    /// Allocates `bytes` zeroed bytes, rounded up to whole pages of 4096.
    ///
    /// # Panics
    /// If `bytes` is zero or does not fit into the address space.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        assert!(bytes > 0, "an empty block has no address");
        let layout = Layout::from_size_align(bytes.next_multiple_of(4096), 4096)
            .expect("a block fits into the address space");
        // SAFETY: the layout has a non-zero size, asserted above.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { base, layout }
    }
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc_zeroed` with this layout in `new` and is freed only here.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

// SAFETY: the block is plain memory without thread affinity; whoever shares it uses atomics.
unsafe impl Send for HeapBlock {}
// SAFETY: as for Send; `&HeapBlock` gives out an address only.
unsafe impl Sync for HeapBlock {}

// SAFETY: the allocation is page-aligned, `layout.size()` long, and freed only in `drop`.
unsafe impl Pinned for HeapBlock {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn bytes(&self) -> usize {
        self.layout.size()
    }
}
