//! Pinned memory from the heap.
#![expect(unsafe_code, reason = "takes blocks from the heap and gives them back")]
// UNSAFETY: one allocation per block, owned by it alone and freed in its drop.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use rustix::io::Errno;

use crate::copy::{load, store};
use crate::pinned::Pinned;

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

// SAFETY: the block is plain memory without thread affinity; code that shares it uses atomics.
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

    fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), Errno> {
        load(self, offset, out);
        Ok(())
    }

    fn copy_to(
        &self,
        offset: usize,
        to: &dyn Pinned,
        to_offset: usize,
        bytes: usize,
    ) -> Result<(), Errno> {
        let mut between = vec![0; bytes];
        load(self, offset, &mut between);
        store(to, to_offset, &between);
        Ok(())
    }
}
