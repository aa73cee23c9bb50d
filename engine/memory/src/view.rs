//! Shared memory that this process can only read: whatever it does, its writer sees no change.
#![expect(unsafe_code, reason = "maps memory and loads from it")]
// UNSAFETY: the mapping is the value's own, and its file is sealed against other sizes, so that no
// load faults. Loads are atomic: the writer stores at any time.

use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

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
    /// Maps what a peer made with `Region::create_open` and has closed, and touches all pages.
    ///
    /// # Errors
    /// `MemoryError::Unsealed`, `NotMemfd`, `WrongSize` or `Map` for what the peer got wrong.
    pub fn open(fd: OwnedFd, bytes: u64) -> Result<Self, MemoryError> {
        let view = Self::open_untouched(fd, bytes)?;
        // SAFETY: the range is this value's own; no byte of it changes.
        let mapped = unsafe { madvise(raw_of(&view), view.bytes, Advice::LinuxPopulateRead) };
        mapped.map_err(|errno| MemoryError::Map { errno })?;
        Ok(view)
    }

    /// The same, where pages are touched as they are needed: for memory so large that this takes
    /// seconds.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_untouched(fd: OwnedFd, bytes: u64) -> Result<Self, MemoryError> {
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
        Ok(Self { base: base.expect("mmap never returns page zero"), bytes })
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

    /// Where a range of it lies in this process, for reading as long as the value lives.
    ///
    /// # Panics
    /// If the range leaves the memory.
    #[must_use]
    pub fn address(&self, at: usize, length: usize) -> NonNull<u8> {
        let fits = at <= self.bytes && length <= self.bytes - at;
        assert!(fits, "{length} bytes at {at} of {}", self.bytes);
        // SAFETY: inside the mapping, asserted above.
        unsafe { self.base.byte_add(at) }.cast()
    }

    /// Copies bytes out, from byte `at` on; what the writer stores meanwhile may be torn between
    /// words.
    ///
    /// # Panics
    /// If `at` is no multiple of 8, or the range leaves the memory.
    #[inline]
    pub fn copy(&self, at: usize, out: &mut [u8]) {
        let fits = at <= self.bytes && out.len() <= self.bytes - at;
        assert!(fits && at.is_multiple_of(8), "{} bytes at {at} of {}", out.len(), self.bytes);
        let (words, tail) = out.as_chunks_mut::<8>();
        // SAFETY: inside the mapping, which begins at a page, asserted above.
        let first: NonNull<AtomicU64> = unsafe { self.base.byte_add(at) }.cast();
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: inside the range asserted above.
            let place = unsafe { first.add(index) };
            // SAFETY: aligned and inside the mapping that the value keeps; only loaded from.
            *word = unsafe { place.as_ref() }.load(Ordering::Relaxed).to_ne_bytes();
        }
        // SAFETY: the range's last bytes, asserted above.
        let rest: NonNull<AtomicU8> = unsafe { first.add(words.len()) }.cast();
        for (index, byte) in tail.iter_mut().enumerate() {
            // SAFETY: as above.
            let place = unsafe { rest.add(index) };
            // SAFETY: as above; bytes are always aligned.
            *byte = unsafe { place.as_ref() }.load(Ordering::Relaxed);
        }
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
