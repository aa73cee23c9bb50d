//! A region: a sealed memfd, mapped shared, prefaulted; the only memory two processes share.
#![expect(unsafe_code, reason = "says of itself that it is pinned, and shared between threads")]
// UNSAFETY: the mapping is the region's own, and never changes its address or length.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{
    FallocateFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create,
};
use rustix::io::{Errno, pread};

use crate::error::MemoryError;
use crate::mapping::Mapping;
use crate::page::PageSize;
use crate::pinned::{Pinned, assert_within};

/// Seals every shared region must carry: its size can never change and the set of seals is final,
/// so no peer can take pages away under a mapping (that would be SIGBUS).
pub const REQUIRED_SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Seals of a region that its peer is still to map for writing.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Requirements on memory that another process made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sealing {
    /// All of `REQUIRED_SEALS`.
    #[default]
    Required,
    /// Against other sizes: the process that made it adds the others once it is mapped here.
    Size,
    /// Any file in memory. Its owner can shrink it, and a load from the mapping then gets SIGBUS:
    /// only for memory that is read by `read_at` and hardware alone, or that is our own.
    Optional,
}

/// A sealed, mapped, shared memory file.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
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
        let (region, gathered) = Self::make(name, bytes, page, REQUIRED_SEALS)?;
        gathered.map(|()| region)
    }

    /// As `create`, of ordinary pages, but nothing forbids new mappings and holes until `close`,
    /// when its peer has mapped it.
    ///
    /// # Errors
    /// As `create`.
    pub fn create_open(name: &str, bytes: usize) -> Result<Self, MemoryError> {
        Ok(Self::make(name, bytes, PageSize::Base, SIZE_SEALS)?.0)
    }

    /// Seals the memory against holes and new writable mappings; existing mappings stay as they
    /// are. Allocates pages again where holes were punched before: from now on a load never faults.
    ///
    /// # Errors
    /// `Seal` when the peer sealed it for good; `Map` when pages run out.
    pub fn close(&self) -> Result<(), MemoryError> {
        fcntl_add_seals(&self.fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
            .map_err(|errno| MemoryError::Seal { errno })?;
        self.mapping.populate().map_err(map_error)
    }

    /// 2 MiB hugepages where the host has enough free ones, else transparent ones as far as there
    /// is room for them, else ordinary pages. The second value is a remark for the operator when
    /// reserved hugepages were not to be had.
    ///
    /// # Errors
    /// As `create`, for ordinary pages.
    pub fn create_best(
        name: &str,
        bytes: usize,
    ) -> Result<(Self, Option<MemoryError>), MemoryError> {
        Self::best(name, bytes, REQUIRED_SEALS)
    }

    /// As `create_best`, but nothing forbids new mappings and holes until `close`.
    ///
    /// # Errors
    /// As `create_best`.
    pub fn create_best_open(
        name: &str,
        bytes: usize,
    ) -> Result<(Self, Option<MemoryError>), MemoryError> {
        Self::best(name, bytes, SIZE_SEALS)
    }

    fn best(
        name: &str,
        bytes: usize,
        seals: SealFlags,
    ) -> Result<(Self, Option<MemoryError>), MemoryError> {
        let huge = Self::make(name, bytes, PageSize::Huge2MiB, seals);
        let reason = match huge.and_then(|(region, gathered)| gathered.map(|()| region)) {
            Ok(region) => return Ok((region, None)),
            Err(reason) => reason,
        };
        let (mut region, gathered) = Self::make(name, bytes, PageSize::Transparent2MiB, seals)?;
        if gathered.is_err() {
            region.page = PageSize::Base;
        }
        Ok((region, Some(reason)))
    }

    /// A region, and whether its pages were gathered, if they are to be.
    fn make(
        name: &str,
        bytes: usize,
        page: PageSize,
        seals: SealFlags,
    ) -> Result<(Self, Result<(), MemoryError>), MemoryError> {
        let whole = rounded(bytes, page)?;
        let exhausted = |errno| match errno {
            // The limit of file sizes, which memory files have too.
            Errno::FBIG => MemoryError::File { name: name.to_owned(), errno },
            errno => {
                let free_pages = page.free_pages();
                MemoryError::NoPages { page, wanted_bytes: whole, free_pages, errno }
            }
        };
        // Taking more pages than there are would not fail where none are reserved: it would wake
        // the kernel's out-of-memory killer. (Where procfs cannot be read there is nothing to
        // compare with.)
        let pages = (whole / page.bytes()) as u64;
        if !page.is_reserved() && (1..pages).contains(&page.free_pages()) {
            return Err(exhausted(Errno::NOMEM));
        }
        let fd = memfd_create(name, page.memfd_flags()).map_err(|errno| match errno {
            // The kernel has no pages of that size (ENODEV) or no hugepages at all (ENOSYS).
            Errno::NODEV | Errno::NOSYS if page.is_reserved() => exhausted(errno),
            _ => MemoryError::File { name: name.to_owned(), errno },
        })?;
        ftruncate(&fd, whole as u64).map_err(exhausted)?;
        let mapping = Self::map(&fd, whole, page).map_err(|errno| match errno {
            // Hugepages are set aside when they are mapped.
            Errno::NOMEM if page.is_reserved() => exhausted(errno),
            _ => map_error(errno),
        })?;
        let gathered = match page {
            PageSize::Transparent2MiB => mapping.gather(fd.as_fd()).map_err(exhausted),
            PageSize::Base | PageSize::Huge2MiB | PageSize::Huge1GiB => Ok(()),
        };
        // Pages are taken now, not at the first fault: a full hugepage pool must be an error here,
        // never a SIGBUS later.
        fallocate(&fd, FallocateFlags::empty(), 0, whole as u64).map_err(exhausted)?;
        fcntl_add_seals(&fd, seals).map_err(|errno| MemoryError::Seal { errno })?;
        mapping.populate().map_err(map_error)?;
        Ok((Self { mapping, page, fd }, gathered))
    }

    /// Maps a region another process made, after checking what it is: a memfd with the required
    /// seals whose size is `bytes` and whose pages are all there.
    ///
    /// The peer can still punch holes into it: what forbids that (F_SEAL_FUTURE_WRITE, `close`)
    /// forbids mapping it for writing, too. A touched hole in ordinary pages is a page of zeroes;
    /// in hugepages it takes one from the pool, and SIGBUS comes when the pool is empty. So a
    /// process that must survive its peers reads with `read_at`, or lets hardware do it, whose
    /// pinned pages stay what they were.
    ///
    /// # Errors
    /// `MemoryError::Unsealed`, `NotMemfd`, `WrongSize`, `Sparse` or `Map` for what a peer got
    /// wrong.
    pub fn import(fd: OwnedFd, bytes: u64) -> Result<Self, MemoryError> {
        Self::import_with(fd, bytes, Sealing::Required)
    }

    /// As `import`, where the seals are a matter of trust.
    ///
    /// # Errors
    /// As `import`. A file that is not in memory (tmpfs, hugetlbfs) is `NotMemfd` in any case.
    pub fn import_with(fd: OwnedFd, bytes: u64, sealing: Sealing) -> Result<Self, MemoryError> {
        let seals = fcntl_get_seals(&fd).map_err(|_| MemoryError::NotMemfd)?;
        let needed = match sealing {
            Sealing::Required => REQUIRED_SEALS,
            Sealing::Size => SIZE_SEALS,
            Sealing::Optional => SealFlags::empty(),
        };
        if !seals.contains(needed) {
            return Err(MemoryError::Unsealed { present: seals.bits() });
        }
        let stat = fstat(&fd).map_err(map_error)?;
        let actual = u64::try_from(stat.st_size).unwrap_or(0);
        if actual != bytes || actual == 0 {
            return Err(MemoryError::WrongSize { announced: bytes, actual });
        }
        // st_blocks counts units of 512 bytes (stat(2)), whatever the page size.
        let present = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        if present < actual {
            return Err(MemoryError::Sparse { announced: bytes, present });
        }
        let page = match stat.st_blksize {
            0x20_0000 => PageSize::Huge2MiB,
            0x4000_0000 => PageSize::Huge1GiB,
            _ => PageSize::Base,
        };
        let bytes = usize::try_from(bytes).map_err(|_| MemoryError::TooLarge { bytes })?;
        let mapping = Self::map(&fd, bytes, page).map_err(map_error)?;
        mapping.populate().map_err(map_error)?;
        Ok(Self { mapping, page, fd })
    }

    fn map(fd: &OwnedFd, bytes: usize, page: PageSize) -> Result<Mapping, Errno> {
        let map = if page.is_reserved() { Mapping::new } else { Mapping::aligned };
        let mapping = map(fd.as_fd(), bytes)?;
        // A core dump is for finding a fault; clients' data and gigabytes of it stay out.
        mapping.keep_from_dumps()?;
        Ok(mapping)
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
        self.mapping.bytes()
    }

    /// Address of the first byte in this process, as a number. Hardware may write there at any
    /// time; reading it through a reference needs a `Lease`.
    #[must_use]
    pub fn address(&self) -> usize {
        self.mapping.base().as_ptr() as usize
    }
}

fn map_error(errno: Errno) -> MemoryError {
    MemoryError::Map { errno }
}

/// `bytes` in whole pages, if such a size can exist.
fn rounded(bytes: usize, page: PageSize) -> Result<usize, MemoryError> {
    if bytes == 0 {
        return Err(MemoryError::Empty);
    }
    // No mapping and no file can be longer than isize::MAX.
    bytes
        .checked_next_multiple_of(page.bytes())
        .filter(|whole| isize::try_from(*whole).is_ok())
        .ok_or(MemoryError::TooLarge { bytes: bytes as u64 })
}

// SAFETY: the mapping has no thread affinity; access is by atomics, leases or the kernel.
unsafe impl Send for Region {}
// SAFETY: as for Send; `&Region` gives out an address only.
unsafe impl Sync for Region {}

// SAFETY: the mapping is page-aligned, `bytes` long, sealed against shrinking, unmapped in `drop`.
unsafe impl Pinned for Region {
    fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Reads through the file: the kernel gives zeroes for a hole and takes no page for it.
    fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), Errno> {
        let bytes = out.len();
        assert_within("a read", offset, bytes, self.mapping.bytes());
        let mut done = 0;
        while done < bytes {
            match pread(&self.fd, &mut out[done..], (offset + done) as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// By the same call, whose end is the other memory.
    fn copy_to(
        &self,
        offset: usize,
        to: &dyn Pinned,
        to_offset: usize,
        bytes: usize,
    ) -> Result<(), Errno> {
        assert_within("a copy", offset, bytes, self.mapping.bytes());
        assert_within("a copy", to_offset, bytes, to.bytes());
        let mut done = 0;
        while done < bytes {
            let to = to.base().as_ptr().wrapping_add(to_offset + done).cast::<libc::c_void>();
            let from = i64::try_from(offset + done).expect("no file is longer");
            // SAFETY: the range lies within memory that `to` keeps mapped and writable; no
            // reference to it exists, and the kernel writes it as hardware does.
            let read = unsafe { libc::pread(self.fd.as_raw_fd(), to, bytes - done, from) };
            match usize::try_from(read) {
                Ok(0) => return Err(Errno::IO),
                Ok(read) => done += read,
                Err(_) => match Errno::from_io_error(&std::io::Error::last_os_error()) {
                    Some(Errno::INTR) => {}
                    errno => return Err(errno.unwrap_or(Errno::IO)),
                },
            }
        }
        Ok(())
    }
}
