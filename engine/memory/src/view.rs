//! Shared memory that this process can only read: whatever it does, its writer sees no change.
#![expect(unsafe_code, reason = "maps memory and loads from it")]
// UNSAFETY: the mapping is the value's own, and its file is sealed against other sizes, so that no
// load faults. Loads are atomic: the writer stores at any time.

use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::error::MemoryError;

/// Seals of a file that only its maker can write: against other sizes and new writable mappings.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// A mapping of words for reading.
#[derive(Debug)]
pub struct WordView {
    base: NonNull<AtomicU32>,
    bytes: usize,
}

impl WordView {
    /// Maps what a peer made with `Region::create_open` and has closed.
    ///
    /// # Errors
    /// `MemoryError::Unsealed`, `NotMemfd`, `WrongSize` or `Map` for what the peer got wrong.
    pub fn open(fd: OwnedFd, bytes: u64) -> Result<Self, MemoryError> {
        let map_error = |errno| MemoryError::Map { errno };
        let seals = fcntl_get_seals(&fd).map_err(|_| MemoryError::NotMemfd)?;
        if !seals.contains(SEALS) {
            return Err(MemoryError::Unsealed { present: seals.bits() });
        }
        let actual = u64::try_from(fstat(&fd).map_err(map_error)?.st_size).unwrap_or(0);
        if actual != bytes || actual == 0 {
            return Err(MemoryError::WrongSize { announced: bytes, actual });
        }
        let bytes = usize::try_from(bytes).map_err(|_| MemoryError::TooLarge { bytes })?;
        // SAFETY: a fresh mapping at an address the kernel picks; nothing else refers to it.
        let raw =
            unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, &fd, 0) };
        let base = NonNull::new(raw.map_err(map_error)?.cast());
        let view = Self { base: base.expect("mmap never returns page zero"), bytes };
        // SAFETY: the range is this value's own; no byte of it changes.
        let mapped = unsafe { madvise(raw_of(&view), bytes, Advice::LinuxPopulateRead) };
        mapped.map_err(map_error)?;
        Ok(view)
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// One word of 32 bits.
    ///
    /// # Panics
    /// If it lies beyond the end, or for an ordering that is none of a load.
    #[inline]
    #[must_use]
    pub fn load(&self, word: usize, ordering: Ordering) -> u32 {
        assert!(word < self.bytes / 4, "word {word} of {} bytes", self.bytes);
        // SAFETY: inside the mapping, asserted above.
        let place = unsafe { self.base.add(word) };
        // SAFETY: the value keeps the mapping, which begins at a page, so the word is aligned. It
        // is only loaded from, as its pages allow.
        unsafe { place.as_ref() }.load(ordering)
    }
}

fn raw_of(view: &WordView) -> *mut std::ffi::c_void {
    view.base.as_ptr().cast()
}

impl Drop for WordView {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference outlives a call.
        let unmapped = unsafe { munmap(raw_of(self), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

// SAFETY: it only loads, atomically.
unsafe impl Send for WordView {}
// SAFETY: as for Send.
unsafe impl Sync for WordView {}
