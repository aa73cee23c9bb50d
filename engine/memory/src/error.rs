//! What can go wrong with memory, each with its remedy.

use rustix::io::Errno;
use thiserror::Error;

use crate::region::PageSize;

/// Why a region could not be made, mapped or accepted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MemoryError {
    /// Zero bytes were asked for.
    #[error("0 bytes of memory were asked for; ask for at least one")]
    Empty,
    /// More bytes than this machine can address.
    #[error("{bytes} bytes do not fit into this machine's address space")]
    TooLarge {
        /// What was asked for.
        bytes: u64,
    },
    /// The host has not enough pages of that size.
    #[error(
        "no {wanted_bytes} bytes of {} pages: {free_pages} are free ({errno}); {}",
        page.name(), remedy(*page, *wanted_bytes)
    )]
    NoPages {
        /// The page size asked for.
        page: PageSize,
        /// Bytes asked for, rounded up to whole pages.
        wanted_bytes: usize,
        /// Free pages of that size, from sysfs (0 for ordinary pages: not counted there).
        free_pages: u64,
        /// What the kernel said.
        errno: Errno,
    },
    /// The seals could not be set.
    #[error("the memory file could not be sealed: {0}")]
    Seal(Errno),
    /// The mapping failed.
    #[error("the memory file could not be mapped: {0}")]
    Map(Errno),
    /// A peer sent a descriptor that is not a memfd.
    #[error("the descriptor is not a memfd; make it with memfd_create(MFD_ALLOW_SEALING)")]
    NotMemfd,
    /// A peer sent a memfd that it could still shrink.
    #[error(
        "the memfd lacks seals (has {present:#x}); set F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL"
    )]
    Unsealed {
        /// The seals it has, as in `fcntl(F_GET_SEALS)`.
        present: u32,
    },
    /// A peer announced another size than the file has.
    #[error("the memfd has {actual} bytes, {announced} were announced; announce its exact size")]
    WrongSize {
        /// What the message said.
        announced: u64,
        /// What the file is.
        actual: u64,
    },
    /// No room in an arena for a lease.
    #[error(
        "the arena has no {wanted} contiguous bytes free ({free} free in all); drop leases or \
         make it larger"
    )]
    ArenaFull {
        /// Bytes asked for, rounded up to the arena's alignment.
        wanted: usize,
        /// Free bytes of the arena, in all pieces together.
        free: usize,
    },
    /// A range that was assumed does not lie within the memory.
    #[error("{bytes} bytes at offset {offset} leave the memory of {whole} bytes; stay within it")]
    Outside {
        /// First byte of the range.
        offset: usize,
        /// Length of the range.
        bytes: usize,
        /// Length of the memory.
        whole: usize,
    },
}

fn remedy(page: PageSize, wanted_bytes: usize) -> String {
    let pages = wanted_bytes.div_ceil(page.bytes());
    match page {
        PageSize::Base => "free memory, raise the cgroup's memory.max, or ask for less".into(),
        PageSize::Huge2MiB => format!("reserve them: sysctl -w vm.nr_hugepages={pages}"),
        PageSize::Huge1GiB => {
            format!("reserve them at boot: hugepagesz=1G hugepages={pages} on the kernel line")
        }
    }
}
