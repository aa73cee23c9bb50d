//! A shared mapping of a memory file, and how large the pages behind it are.
#![expect(unsafe_code, reason = "maps memory, advises the kernel on it, and unmaps it")]
// UNSAFETY: one mapping per value, owned by it alone and unmapped in its drop; no advice given here
// changes a byte.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Bytes that the kernel gathers into one page, and maps by one entry where the address is a
/// multiple.
const HUGE_BYTES: usize = 2 << 20;

/// Bytes gathered by one call. On a host without room for such pages the first call fails, and the
/// rest is not tried.
const PIECE_BYTES: usize = 128 << 20;

/// A page may be in use at that moment: the kernel's manual requires another try (madvise(2)).
const TRIES: u32 = 3;

/// Memory that can be read and written.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// First byte of the file.
    base: NonNull<u8>,
    bytes: usize,
    /// Addresses it lies in, all of them its own.
    room: NonNull<u8>,
    room_bytes: usize,
}

impl Mapping {
    /// Maps the first `bytes` bytes of a file, and takes no page yet.
    pub(crate) fn new(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address the kernel picks; nothing else refers to it.
        let raw = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, fd, 0) }?;
        let base = NonNull::new(raw.cast()).expect("mmap never returns page zero");
        Ok(Self { base, bytes, room: base, room_bytes: bytes })
    }

    /// As `new`, at a multiple of 2 MiB. The kernel does so by itself for hugepages only.
    pub(crate) fn aligned(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, Errno> {
        let room_bytes = bytes.checked_add(HUGE_BYTES).ok_or(Errno::NOMEM)?;
        let none = ProtFlags::empty();
        // SAFETY: as in `new`; no byte of it can be reached.
        let raw = unsafe { mmap_anonymous(ptr::null_mut(), room_bytes, none, MapFlags::PRIVATE) }?;
        let room = NonNull::new(raw.cast::<u8>()).expect("mmap never returns page zero");
        let aligned = raw.map_addr(|address| address.next_multiple_of(HUGE_BYTES));
        let base = NonNull::new(aligned.cast()).expect("behind the room's start");
        let mapping = Self { base, bytes, room, room_bytes };
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: within the room, which begins less than 2 MiB before and has that much more.
        unsafe { mmap(aligned, bytes, access, flags.union(MapFlags::FIXED), fd, 0) }?;
        Ok(mapping)
    }

    /// Takes every page, and every entry that maps one.
    pub(crate) fn populate(&self) -> Result<(), Errno> {
        self.advise(Advice::LinuxPopulateWrite)
    }

    /// Keeps it out of core dumps.
    pub(crate) fn keep_from_dumps(&self) -> Result<(), Errno> {
        self.advise(Advice::LinuxDontDump)
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the range is this value's own; neither advice changes a byte of it.
        unsafe { madvise(self.base.as_ptr().cast(), self.bytes, advice) }
    }

    /// Has the kernel make pages of 2 MiB of an empty file of ordinary ones, mapped `aligned`: in
    /// half the time that those take one by one (bench/NOTES.md).
    ///
    /// # Errors
    /// `EINVAL` before Linux 6.1; `ENOMEM` or `EAGAIN` where memory is short or in pieces. Gathered
    /// pages stay so; of the rest any page may be there or not.
    pub(crate) fn gather(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        for start in (0..self.bytes).step_by(PIECE_BYTES) {
            let piece = start..self.bytes.min(start + PIECE_BYTES);
            for page in piece.clone().step_by(HUGE_BYTES) {
                // It gathers around a page that is there, and nothing where none is.
                fallocate(fd, FallocateFlags::empty(), page as u64, 1)?;
            }
            let mut tries = (0..TRIES).map(|_| self.collapse(&piece));
            tries.find(|outcome| *outcome != Err(Errno::AGAIN)).unwrap_or(Err(Errno::AGAIN))?;
        }
        Ok(())
    }

    fn collapse(&self, piece: &Range<usize>) -> Result<(), Errno> {
        let first = self.base.as_ptr().wrapping_add(piece.start).cast();
        // SAFETY: a part of this value's own range; its bytes stay what they are.
        let done = unsafe { libc::madvise(first, piece.len(), libc::MADV_COLLAPSE) };
        if done == 0 { Ok(()) } else { Err(last_errno()) }
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The errno of the last call of libc.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the room is this value's own; every holder of an address of it (a ring, a lease)
        // has an `Arc` of the region, so this is the last user.
        let unmapped = unsafe { munmap(self.room.as_ptr().cast(), self.room_bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}
