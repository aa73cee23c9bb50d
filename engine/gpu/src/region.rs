//! A client's GPU memory, opened in this process, with its layout.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use kvrail_cufile::Buffer;
use kvrail_device::RemoteMemory;
use kvrail_layout::Layout;
use kvrail_memory::Region;

use crate::handle::GpuUuid;

/// One memory of a region.
#[derive(Debug)]
pub struct RegionMemory {
    /// Its address on the GPU, or in the stand-in's numbering.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// How it is reached beside kernels.
    pub backing: Backing,
}

/// How a memory is reached beside kernels.
#[derive(Debug)]
pub enum Backing {
    /// GPU memory; registered with cuFile where direct I/O is on.
    Gpu(Option<Arc<Buffer>>),
    /// Host memory that plays a GPU's.
    Host(Arc<Region>),
}

/// Keeps a region's memory open; dropped on the control thread.
pub type MemoryGuard = Box<dyn Any + Send + Sync>;

/// A region: memories, layout, and the table kernels read.
///
/// The control thread holds one reference until every poller has let go, so that closing the
/// handles, which may block, never happens on a poller.
pub struct GpuRegion {
    gpu: GpuUuid,
    layout: Layout,
    memories: Vec<RegionMemory>,
    table: u64,
    _keep: MemoryGuard,
}

impl GpuRegion {
    /// A region of opened memories; `table` is the address of its rows on the GPU and `keep` what
    /// holds all of it open.
    #[must_use]
    pub fn new(
        gpu: GpuUuid,
        layout: Layout,
        memories: Vec<RegionMemory>,
        table: u64,
        keep: MemoryGuard,
    ) -> Self {
        Self { gpu, layout, memories, table, _keep: keep }
    }

    /// The GPU it is on.
    #[must_use]
    pub fn gpu(&self) -> GpuUuid {
        self.gpu
    }

    /// Where its bytes are.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its memories, as the layout's fragments number them.
    #[must_use]
    pub fn memories(&self) -> &[RegionMemory] {
        &self.memories
    }

    /// Address of the fragment table on the GPU.
    #[must_use]
    pub fn table(&self) -> u64 {
        self.table
    }

    /// Bytes of all memories.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memories.iter().map(|memory| memory.bytes).sum()
    }

    /// Takes a place in the line of all blocks apart.
    #[must_use]
    pub fn place(&self, line: u64) -> (u32, u64) {
        let block_bytes = self.layout.block_bytes();
        let block = u32::try_from(line / block_bytes).expect("blocks are counted in 32 bits");
        (block, line % block_bytes)
    }
}

impl RemoteMemory for GpuRegion {
    fn line(&self, block: u32, offset: u64, length: u32) -> Option<u64> {
        let held = self.layout.holds(block, offset, length);
        held.then(|| u64::from(block) * self.layout.block_bytes() + offset)
    }
}

impl fmt::Debug for GpuRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuRegion")
            .field("gpu", &self.gpu.to_string())
            .field("blocks", &self.layout.blocks())
            .field("block_bytes", &self.layout.block_bytes())
            .finish_non_exhaustive()
    }
}
