//! A region: a sealed memfd, mapped shared, prefaulted; the only memory two processes share.

use std::ffi::c_void;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::io::{Errno, pread};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::MemoryError;
use crate::pinned::Pinned;

/// Seals every shared region must carry: its size can never change and the set of seals is final,
/// so no peer can take pages away under a mapping (that would be SIGBUS).
pub const REQUIRED_SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Size of the pages behind a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// The base page of the machine, 4 KiB on x86-64.
    Base,
    /// 2 MiB hugepages: one DMA segment each.
    Huge2MiB,
    /// 1 GiB hugepages: must be reserved at boot on most hosts.
    Huge1GiB,
}

impl PageSize {
    /// The page size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Base => 4096,
            Self::Huge2MiB => 2 << 20,
            Self::Huge1GiB => 1 << 30,
        }
    }

    /// How people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "4KiB",
            Self::Huge2MiB => "2MiB",
            Self::Huge1GiB => "1GiB",
        }
    }

    fn memfd_flags(self) -> MemfdFlags {
        let common = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        match self {
            Self::Base => common,
            Self::Huge2MiB => common | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            Self::Huge1GiB => common | MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
        }
    }

    /// Pages of this size that nobody has taken, from sysfs; 0 where the size is not offered.
    #[must_use]
    pub fn free_pages(self) -> u64 {
        let path =
            format!("/sys/kernel/mm/hugepages/hugepages-{}kB/free_hugepages", self.bytes() >> 10);
        fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}

/// A sealed, mapped, shared memory file.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
    page: PageSize,
    fd: OwnedFd,
}

impl Region {
    /// Makes a region of at least `bytes` bytes (rounded up to whole pages) of exactly this page
    /// size: memfd, size, all pages touched, sealed. `name` shows in `/proc/PID/maps` only.
    ///
    /// # Errors
    /// `MemoryError` names the size, what the host has, and the remedy.
    pub fn create(name: &str, bytes: usize, page: PageSize) -> Result<Self, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        let bytes = bytes.next_multiple_of(page.bytes());
        let exhausted = |errno| MemoryError::NoPages {
            page,
            wanted_bytes: bytes,
            free_pages: page.free_pages(),
            errno,
        };
        let fd = rustix::fs::memfd_create(name, page.memfd_flags()).map_err(exhausted)?;
        ftruncate(&fd, bytes as u64).map_err(exhausted)?;
        // Pages are taken now, not at the first fault: a full hugepage pool must be an error here,
        // never a SIGBUS later.
        rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)
            .map_err(exhausted)?;
        fcntl_add_seals(&fd, REQUIRED_SEALS).map_err(MemoryError::Seal)?;
        Self::map(fd, bytes, page)
    }

    /// 2 MiB hugepages where the host has enough free ones, else ordinary pages. The second value
    /// is what to tell the operator when hugepages were not to be had.
    ///
    /// # Errors
    /// As `create`, for ordinary pages.
    pub fn create_best(
        name: &str,
        bytes: usize,
    ) -> Result<(Self, Option<MemoryError>), MemoryError> {
        match Self::create(name, bytes, PageSize::Huge2MiB) {
            Ok(region) => Ok((region, None)),
            Err(reason) => Ok((Self::create(name, bytes, PageSize::Base)?, Some(reason))),
        }
    }

    /// Maps a region another process made, after checking what it is: a memfd with the required
    /// seals whose size is `bytes`.
    ///
    /// # Errors
    /// `MemoryError::Unsealed`, `NotMemfd` or `WrongSize` for what a peer got wrong.
    pub fn import(fd: OwnedFd, bytes: u64) -> Result<Self, MemoryError> {
        let seals = fcntl_get_seals(&fd).map_err(|_| MemoryError::NotMemfd)?;
        if !seals.contains(REQUIRED_SEALS) {
            return Err(MemoryError::Unsealed { present: seals.bits() });
        }
        let stat = fstat(&fd).map_err(MemoryError::Map)?;
        let actual = u64::try_from(stat.st_size).unwrap_or(0);
        if actual != bytes || actual == 0 {
            return Err(MemoryError::WrongSize { announced: bytes, actual });
        }
        let page = match stat.st_blksize {
            0x20_0000 => PageSize::Huge2MiB,
            0x4000_0000 => PageSize::Huge1GiB,
            _ => PageSize::Base,
        };
        let bytes = usize::try_from(bytes).map_err(|_| MemoryError::TooLarge { bytes })?;
        Self::map(fd, bytes, page)
    }

    fn map(fd: OwnedFd, bytes: usize, page: PageSize) -> Result<Self, MemoryError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a fresh mapping at an address the kernel picks; nothing else refers to it.
        let raw = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, &fd, 0) }
            .map_err(MemoryError::Map)?;
        let base = NonNull::new(raw.cast::<u8>()).expect("mmap never returns page zero");
        Ok(Self { base, bytes, page, fd })
    }

    /// The memfd, to be passed to a peer.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Size of the pages behind it.
    #[must_use]
    pub fn page(&self) -> PageSize {
        self.page
    }

    /// Length in bytes, a multiple of the page size for regions made here.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of the first byte in this process, as a number. What hardware writes there may
    /// change at any time; reading it through a reference needs a `Lease`.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let raw = self.base.as_ptr().cast::<c_void>();
        // SAFETY: `base` and `bytes` are this value's own mapping, made in `map`; whoever kept the
        // address (a ring, a lease) holds an `Arc` of the region, so this is the last user.
        let unmapped = unsafe { munmap(raw, self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

// SAFETY: the mapping has no thread affinity; access is by atomics, leases or the kernel.
unsafe impl Send for Region {}
// SAFETY: as for Send; `&Region` gives out an address only.
unsafe impl Sync for Region {}

// SAFETY: the mapping is page-aligned, `bytes` long, sealed against shrinking, unmapped in `drop`.
unsafe impl Pinned for Region {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), Errno> {
        assert!(offset.checked_add(out.len()).is_some_and(|end| end <= self.bytes));
        let mut done = 0;
        while done < out.len() {
            match pread(&self.fd, &mut out[done..], (offset + done) as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}
