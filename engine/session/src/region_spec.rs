//! Specifications of arenas and regions of GPU memory, and their creation, which may take long.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvrail_gpu::{Fragment, Gpu, GpuError, GpuHandle, GpuRegion};
use kvrail_memory::{MemoryError, PageSize, Region, Sealing, place};
use kvrail_ring::{RegionId, Status};
use rustix::io::Errno;

use crate::failure::Failure;
use crate::policy::{NumaPolicy, PagePolicy};

/// Specification of an arena or a region.
#[derive(Debug)]
pub(crate) enum RegionSpec {
    /// New memory.
    Create {
        /// The minimum.
        bytes: usize,
        /// Which pages.
        pages: PagePolicy,
    },
    /// A client's memory file, the size it announced, and the seals it must have.
    Import(OwnedFd, u64, Sealing),
    /// A client's memory on a GPU.
    Open(Arc<dyn Gpu>, GpuSpec),
}

/// A client's description of its memory on a GPU.
#[derive(Debug)]
pub(crate) struct GpuSpec {
    pub(crate) handles: Vec<GpuHandle>,
    pub(crate) fragments: Vec<Fragment>,
    pub(crate) blocks: u32,
}

/// Memory that clients and hardware use.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// An arena.
    Host(Arc<Region>),
    /// A region on a GPU.
    Gpu(Arc<GpuRegion>),
}

/// Owner of the memory: session and region.
pub(crate) type RegionKey = (u64, RegionId);

/// Kind and cause of a downgrade of memory.
pub(crate) type Downgrade = (&'static str, MemoryError);

/// Memory, with what the operator should know of it; or why there is none.
pub(crate) type Built = Result<(Memory, Vec<Downgrade>), Failure>;

/// Makes, maps or opens it.
pub(crate) fn build(name: &str, spec: RegionSpec, numa: &NumaPolicy) -> Built {
    match spec {
        RegionSpec::Create { bytes, pages } => {
            let (region, downgrades) = create(name, bytes, pages, numa).map_err(failure)?;
            Ok((Memory::Host(Arc::new(region)), downgrades))
        }
        RegionSpec::Import(fd, bytes, sealing) => {
            let region = Region::import_with(fd, bytes, sealing).map_err(failure)?;
            Ok((Memory::Host(Arc::new(region)), Vec::new()))
        }
        RegionSpec::Open(gpu, GpuSpec { handles, fragments, blocks }) => {
            let region = gpu.import(handles, fragments, blocks).map_err(|error| refusal(&error))?;
            Ok((Memory::Gpu(region), Vec::new()))
        }
    }
}

fn create(
    name: &str,
    bytes: usize,
    pages: PagePolicy,
    numa: &NumaPolicy,
) -> Result<(Region, Vec<Downgrade>), MemoryError> {
    let (region, pages) = match pages {
        PagePolicy::Best => Region::create_best(name, bytes)?,
        PagePolicy::Exactly(page) => (Region::create(name, bytes, page)?, None),
    };
    let elsewhere = match numa {
        NumaPolicy::Anywhere => None,
        NumaPolicy::Near(node, topology) => place(&region, *node, topology).err(),
        NumaPolicy::On(node, topology) => {
            place(&region, *node, topology)?;
            None
        }
    };
    let got = match region.page() {
        PageSize::Transparent2MiB => "arenas get transparent 2 MiB pages",
        _ => "arenas get base pages",
    };
    let pages = pages.map(|why| (got, why));
    let elsewhere = elsewhere.map(|why| ("arenas lie far from the devices", why));
    Ok((region, pages.into_iter().chain(elsewhere).collect()))
}

fn failure(error: MemoryError) -> Failure {
    let status = match error {
        // The imported memory cannot be written.
        MemoryError::Map { errno: Errno::ACCESS | Errno::PERM } => Status::Invalid,
        MemoryError::NoPages { .. } | MemoryError::Map { .. } | MemoryError::Place { .. } => {
            Status::NoSpace
        }
        _ => Status::Invalid,
    };
    (status, error.to_string())
}

/// The failure of a request that a GPU refuses.
pub(crate) fn refusal(error: &GpuError) -> Failure {
    let status = match error {
        GpuError::WrongGpu { .. } | GpuError::Handle { .. } | GpuError::Layout(_) => {
            Status::Invalid
        }
        _ => Status::GpuError,
    };
    (status, error.to_string())
}
