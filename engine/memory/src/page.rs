//! Sizes of pages.

use std::path::Path;

use rustix::fs::MemfdFlags;

use crate::topology::{Root, available_bytes, hugepages};

/// Size of the pages behind a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// The base page of the machine, 4 KiB on x86-64.
    Base,
    /// 2 MiB that the kernel gathered from base pages, none of them reserved: one DMA segment each,
    /// as long as memory is not in pieces.
    Transparent2MiB,
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
            Self::Transparent2MiB | Self::Huge2MiB => 2 << 20,
            Self::Huge1GiB => 1 << 30,
        }
    }

    /// How people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "4KiB",
            Self::Transparent2MiB => "transparent 2MiB",
            Self::Huge2MiB => "2MiB",
            Self::Huge1GiB => "1GiB",
        }
    }

    pub(crate) fn memfd_flags(self) -> MemfdFlags {
        let common = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        match self {
            Self::Base | Self::Transparent2MiB => common,
            Self::Huge2MiB => common | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            Self::Huge1GiB => common | MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
        }
    }

    /// Whether such pages must be reserved before they can be had.
    pub(crate) const fn is_reserved(self) -> bool {
        matches!(self, Self::Huge2MiB | Self::Huge1GiB)
    }

    /// Pages of this size that can still be taken. Hugepages: free ones, from sysfs, 0 where the
    /// size is not offered. Others: what the host has available and the control group grants, 0
    /// where procfs cannot be read.
    #[must_use]
    pub fn free_pages(self) -> u64 {
        let root = Root::new(Path::new("/"));
        if !self.is_reserved() {
            return available_bytes(&root).map_or(0, |bytes| bytes / self.bytes() as u64);
        }
        let pools = hugepages(&root).unwrap_or_default();
        let ours = pools.iter().filter(|pool| pool.page_bytes == self.bytes() as u64);
        ours.map(|pool| pool.free).sum()
    }
}
