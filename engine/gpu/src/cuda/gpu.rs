//! One GPU by CUDA: the control thread's calls.

use std::sync::Arc;

use kvrail_cufile::{Compat, CuFile};
use kvrail_layout::{Fragment, Layout};

use super::context::PrimaryContext;
use super::copier::Copier;
use super::direct::CuFileGpu;
use super::exporter::{ExportMethod, Exported};
use super::import::OpenedMemory;
use super::mover::{Copies, CudaMover};
use crate::contract::{DirectGpu, Gpu, GpuIdentity, Mover, OwnMemory};
use crate::error::GpuError;
use crate::handle::GpuHandle;
use crate::region::{Backing, GpuRegion, RegionMemory};
use crate::staging::Staging;

/// One GPU.
#[derive(Debug)]
pub struct Cuda {
    context: Arc<PrimaryContext>,
    direct: Option<CuFileGpu>,
    copies: Copies,
}

impl Cuda {
    /// Opens the GPU with this index.
    ///
    /// # Errors
    /// `GpuError` when there is no driver, no such GPU, or the GPU is not usable.
    pub fn open(index: u32) -> Result<Self, GpuError> {
        Ok(Self { context: PrimaryContext::open(index)?, direct: None, copies: Copies::Auto })
    }

    /// Opens cuFile too. Before any region is imported, once per process.
    ///
    /// # Errors
    /// `GpuError::CuFile` when it is missing or its driver cannot be opened.
    pub fn with_direct(self, compat: Compat) -> Result<Self, GpuError> {
        self.context.enter()?;
        self.with_cufile(CuFile::open(compat)?)
    }

    /// Uses the cuFile that another GPU of this process opened.
    ///
    /// # Errors
    /// `GpuError::CuFile` when it does not report its capabilities.
    pub fn with_cufile(mut self, library: Arc<CuFile>) -> Result<Self, GpuError> {
        self.context.enter()?;
        self.direct = Some(CuFileGpu::new(&self.context, library)?);
        Ok(self)
    }

    /// Has bytes moved in another way than the usual.
    #[must_use]
    pub fn with_copies(mut self, copies: Copies) -> Self {
        self.copies = copies;
        self
    }

    /// The opened cuFile.
    #[must_use]
    pub fn cufile(&self) -> Option<&Arc<CuFile>> {
        self.direct.as_ref().map(CuFileGpu::library)
    }

    /// Plain copies to and from this staging memory, for comparisons.
    ///
    /// # Errors
    /// `GpuError` when the GPU refuses.
    pub fn copier(&self, staging: &Arc<Staging>) -> Result<Copier, GpuError> {
        Copier::new(&self.context, staging)
    }

    /// Own memory, exported in this way.
    ///
    /// # Errors
    /// `GpuError` when there is not that much.
    pub fn allocate_for(
        &self,
        export: ExportMethod,
        bytes: u64,
    ) -> Result<Box<dyn OwnMemory>, GpuError> {
        Ok(Box::new(Exported::new(&self.context, bytes, export)?))
    }
}

impl Gpu for Cuda {
    fn identity(&self) -> &GpuIdentity {
        &self.context.identity
    }

    fn import(
        &self,
        memories: Vec<GpuHandle>,
        fragments: Vec<Fragment>,
        blocks: u32,
    ) -> Result<Arc<GpuRegion>, GpuError> {
        let sizes: Vec<u64> = memories.iter().map(GpuHandle::bytes).collect();
        let layout = Layout::new(fragments, blocks, &sizes)?;
        let opened = memories
            .into_iter()
            .enumerate()
            .map(|(index, handle)| OpenedMemory::import(&self.context, handle, index).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<u64> = opened.iter().map(|memory| memory.address).collect();
        let table = OpenedMemory::table(&self.context, &layout.rows(&addresses))?;
        let memory = |opened: &Arc<OpenedMemory>| {
            let buffer = self.direct.as_ref().map(|direct| direct.register_memory(opened));
            let backing = Backing::Gpu(buffer.transpose()?.map(Arc::new));
            Ok(RegionMemory { address: opened.address, bytes: opened.bytes, backing })
        };
        let memories = opened.iter().map(memory).collect::<Result<Vec<_>, GpuError>>()?;
        let address = table.address;
        let keep = Box::new((opened, table));
        Ok(Arc::new(GpuRegion::new(self.identity().uuid, layout, memories, address, keep)))
    }

    fn mover(&self, staging: &Arc<Staging>, launches: u16) -> Result<Box<dyn Mover>, GpuError> {
        Ok(Box::new(CudaMover::new(&self.context, staging, launches, self.copies)?))
    }

    fn direct(&self) -> Option<&dyn DirectGpu> {
        self.direct.as_ref().map(|direct| direct as &dyn DirectGpu)
    }

    fn allocate(&self, bytes: u64) -> Result<Box<dyn OwnMemory>, GpuError> {
        self.allocate_for(ExportMethod::Vmm, bytes)
    }
}
