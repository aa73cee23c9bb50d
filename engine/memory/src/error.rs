//! Errors of memory, each with its remedy.

use rustix::io::Errno;
use thiserror::Error;

use crate::page::PageSize;

/// Why a region could not be made, mapped or accepted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MemoryError {
    /// Zero bytes were requested.
    #[error("0 bytes of memory were requested; request at least one")]
    Empty,
    /// More bytes than this machine can address.
    #[error("{bytes} bytes do not fit into this machine's address space")]
    TooLarge {
        /// The requested size.
        bytes: u64,
    },
    /// The memory file could not be made at all.
    #[error("a memory file named `{name}` could not be made ({errno}); {}", file_remedy(*errno))]
    File {
        /// The requested name.
        name: String,
        /// The kernel's error.
        errno: Errno,
    },
    /// The host has not enough pages of that size.
    #[error(
        "no {wanted_bytes} bytes of {} pages: {free_pages} are free{}; {}",
        page.name(), unusual(*errno), remedy(*page, *wanted_bytes)
    )]
    NoPages {
        /// The requested page size.
        page: PageSize,
        /// Requested bytes, rounded up to whole pages.
        wanted_bytes: usize,
        /// Free pages of that size: from sysfs, for ordinary pages from `MemAvailable` and the
        /// control group.
        free_pages: u64,
        /// The kernel's error.
        errno: Errno,
    },
    /// The seals could not be set.
    #[error("the memory file could not be sealed ({errno}); allow fcntl in the seccomp filter")]
    Seal {
        /// The kernel's error.
        errno: Errno,
    },
    /// The mapping failed.
    #[error("the memory file could not be mapped ({errno}); {}", map_remedy(*errno))]
    Map {
        /// The kernel's error.
        errno: Errno,
    },
    /// A peer sent a descriptor that is not a memfd.
    #[error("the descriptor is not a memfd; make it with memfd_create(MFD_ALLOW_SEALING)")]
    NotMemfd,
    /// A peer sent a memfd that it could still shrink.
    #[error(
        "the memfd lacks seals (has {present:#x}); set F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL, \
         or, for memory that its owner cannot seal, memory.unsealed_imports = \"accept\" in the \
         sidecar's configuration"
    )]
    Unsealed {
        /// The seals it has, as in `fcntl(F_GET_SEALS)`.
        present: u32,
    },
    /// A peer announced another size than the file has.
    #[error("the memfd has {actual} bytes, {announced} were announced; announce its exact size")]
    WrongSize {
        /// The size in the message.
        announced: u64,
        /// The file's size.
        actual: u64,
    },
    /// A peer sent a memfd whose pages are not all there; the first touch could fail or take memory
    /// beyond the grants.
    #[error(
        "the memfd has only {present} of its {announced} bytes allocated; fallocate it before \
         it is passed"
    )]
    Sparse {
        /// Its size.
        announced: u64,
        /// Bytes that have pages.
        present: u64,
    },
    /// There is no such NUMA node.
    #[error("there is no NUMA node {node}; choose one of {nodes}")]
    NoNode {
        /// The requested node.
        node: u32,
        /// The nodes of this machine.
        nodes: String,
    },
    /// The pages could not be placed.
    #[error("memory could not be placed on NUMA node {node} ({errno}); {}", place_remedy(*errno))]
    Place {
        /// The requested node.
        node: u32,
        /// The kernel's error.
        errno: Errno,
    },
    /// No room in an arena for a lease.
    #[error(
        "the arena has no {wanted} contiguous bytes free ({free} free in all); drop leases or \
         make it larger"
    )]
    ArenaFull {
        /// Requested bytes, rounded up to the arena's alignment.
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
        PageSize::Transparent2MiB => {
            "free memory, raise the cgroup's memory.max, or ask for less; \
             where it is in pieces: echo 1 >/proc/sys/vm/compact_memory"
                .into()
        }
        PageSize::Huge2MiB => format!("reserve them: sysctl -w vm.nr_hugepages={pages}"),
        PageSize::Huge1GiB => {
            format!("reserve them at boot: hugepagesz=1G hugepages={pages} on the kernel line")
        }
    }
}

/// The kernel's error, unless it only means that there are not enough.
fn unusual(errno: Errno) -> String {
    if errno == Errno::NOMEM { String::new() } else { format!(" ({errno})") }
}

fn file_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n)",
        Errno::INVAL => "use a name of at most 249 bytes, none of them zero",
        Errno::NOSYS | Errno::PERM => "allow memfd_create in the seccomp filter",
        Errno::FBIG => {
            "raise the limit of file sizes, which memory files have too (LimitFSIZE=, \
                        ulimit -f)"
        }
        _ => "free memory, or raise the cgroup's memory.max",
    }
}

fn map_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS | Errno::PERM => {
            "pass it open for reading and writing, without F_SEAL_WRITE or F_SEAL_FUTURE_WRITE"
        }
        Errno::AGAIN => "raise the limit of locked memory (ulimit -l)",
        Errno::FAULT => "leave its pages in place: no holes, no shrinking",
        Errno::NOMEM => "raise vm.max_map_count or the address space limit (ulimit -v)",
        _ => "ask for less",
    }
}

fn place_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::IO => "reserve or free enough pages on that node, then start again",
        Errno::NOSYS => "this kernel is built without NUMA; leave the node out",
        Errno::PERM => "allow mbind in the seccomp filter",
        _ => "choose an online node that the cpuset's mems contain",
    }
}

#[cfg(test)]
mod tests {
    use super::file_remedy;
    use rustix::io::Errno;

    #[test]
    fn a_memory_file_above_the_limit_of_file_sizes_names_that_limit() {
        assert!(file_remedy(Errno::FBIG).contains("ulimit -f"));
    }
}
