//! A member's requirements on offsets, lengths and buffers.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, StatxFlags, ioctl_blksszget, statx};
use serde::Serialize;

use crate::kernel::Kernel;

/// The smallest logical block of any device, and what buffered files are given: the same volume
/// must open with O_DIRECT later.
pub(crate) const LOGICAL_BLOCK_MIN: u32 = 512;

/// Assumed alignment of a file where the kernel does not report one.
const FILE_BLOCK_FALLBACK: u32 = 4096;

/// How a claimed member moves its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IoPath {
    /// O_DIRECT.
    Direct,
    /// Through the page cache.
    Buffered,
}

/// The kind of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberKind {
    /// A block device, or a partition of one that is no NVMe namespace.
    Block,
    /// A regular file.
    File,
}

/// Units of a member, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Alignment {
    /// Unit of offsets and lengths.
    pub logical_block: u32,
    /// Unit of buffer addresses, `logical_block` at least.
    pub memory: u32,
}

impl Alignment {
    /// Those of what goes through the page cache.
    pub(crate) const BUFFERED: Self =
        Self { logical_block: LOGICAL_BLOCK_MIN, memory: LOGICAL_BLOCK_MIN };

    /// Reads it from the kernel: statx(STATX_DIOALIGN, Linux 6.1), else BLKSSZGET, else the disk
    /// under the file system, else 4096. Buffers are never aligned to less than a block: a transfer
    /// that is cut at a block border must stay aligned.
    pub(crate) fn probe(kernel: &Kernel, fd: impl AsFd, kind: MemberKind, io: IoPath) -> Self {
        if io == IoPath::Buffered {
            return Self::BUFFERED;
        }
        let told = told(&fd).filter(|told| told.logical_block != 0);
        let found = told.unwrap_or_else(|| {
            let block = Self::fallback(kernel, &fd, kind);
            Self { logical_block: block, memory: block }
        });
        let logical_block = found.logical_block.max(LOGICAL_BLOCK_MIN);
        Self { logical_block, memory: found.memory.max(logical_block) }
    }

    /// False only where statx reports that O_DIRECT on this file goes through the page cache.
    pub(crate) fn is_direct_possible(fd: impl AsFd) -> bool {
        told(fd).is_none_or(|told| told.logical_block != 0)
    }

    fn fallback(kernel: &Kernel, fd: impl AsFd, kind: MemberKind) -> u32 {
        match kind {
            MemberKind::Block => ioctl_blksszget(fd).unwrap_or(FILE_BLOCK_FALLBACK),
            MemberKind::File => rustix::fs::fstat(fd)
                .ok()
                .and_then(|stat| kernel.queue_number(stat.st_dev, "logical_block_size"))
                .unwrap_or(FILE_BLOCK_FALLBACK),
        }
    }

    /// The alignment that satisfies both.
    #[must_use]
    pub(crate) fn join(self, other: Self) -> Self {
        Self {
            logical_block: self.logical_block.max(other.logical_block),
            memory: self.memory.max(other.memory),
        }
    }
}

/// The alignment as statx reports it; `None` where it has none.
fn told(fd: impl AsFd) -> Option<Alignment> {
    let stat = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let knows = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    knows.then_some(Alignment {
        logical_block: stat.stx_dio_offset_align,
        memory: stat.stx_dio_mem_align,
    })
}

#[cfg(test)]
mod tests {
    use super::{Alignment, IoPath, MemberKind};
    use crate::kernel::Kernel;

    #[test]
    fn direct_files_get_powers_of_two_and_buffered_ones_512() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let kernel = Kernel::default();
        let direct = Alignment::probe(&kernel, &file, MemberKind::File, IoPath::Direct);
        assert!(direct.logical_block.is_power_of_two() && direct.logical_block >= 512);
        assert!(direct.memory.is_power_of_two() && direct.memory >= direct.logical_block);
        let buffered = Alignment::probe(&kernel, &file, MemberKind::File, IoPath::Buffered);
        assert_eq!(buffered, Alignment { logical_block: 512, memory: 512 });
        assert_eq!(direct.join(buffered), direct);
    }
}
