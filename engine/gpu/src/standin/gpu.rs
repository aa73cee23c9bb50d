//! The stand-in as a GPU.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use kvrail_layout::{Fragment, Layout};

use super::batch::HostBatch;
use super::memory::{StandinMemory, open};
use super::mover::HostMover;
use super::plan::GpuControl;
use crate::contract::{
    BatchIo, DirectGpu, DirectPath, FileIndex, Gpu, GpuIdentity, Mover, OwnMemory, Registered,
};
use crate::error::GpuError;
use crate::handle::{GpuHandle, GpuUuid};
use crate::region::{Backing, GpuRegion, RegionMemory};
use crate::staging::Staging;

/// A GPU that is host memory.
#[derive(Debug)]
pub struct EmulatedGpu {
    identity: GpuIdentity,
    control: Arc<GpuControl>,
    files: Mutex<Vec<Arc<OwnedFd>>>,
    path: DirectPath,
}

impl EmulatedGpu {
    /// The stand-in number `index`, whose direct I/O goes this way.
    #[must_use]
    pub fn new(index: u32, path: DirectPath) -> Self {
        let identity = GpuIdentity {
            index,
            uuid: Self::uuid(index),
            name: "stand-in (host memory)".to_owned(),
            pci_address: "none".to_owned(),
            memory_bytes: 1 << 40,
        };
        Self { identity, control: Arc::default(), files: Mutex::default(), path }
    }

    /// The UUID of stand-in number `index`, in every process.
    #[must_use]
    pub fn uuid(index: u32) -> GpuUuid {
        let mut bytes = [0x5d; 16];
        bytes[12..].copy_from_slice(&index.to_be_bytes());
        GpuUuid(bytes)
    }

    /// The control of its faults.
    #[must_use]
    pub fn control(&self) -> Arc<GpuControl> {
        Arc::clone(&self.control)
    }

    /// Own memory that exports as a legacy handle.
    ///
    /// # Errors
    /// `GpuError` when there is not that much.
    pub fn allocate_legacy(&self, bytes: u64) -> Result<Box<dyn OwnMemory>, GpuError> {
        Ok(Box::new(StandinMemory::new(bytes, true)?))
    }
}

impl Gpu for EmulatedGpu {
    fn identity(&self) -> &GpuIdentity {
        &self.identity
    }

    fn import(
        &self,
        memories: Vec<GpuHandle>,
        fragments: Vec<Fragment>,
        blocks: u32,
    ) -> Result<Arc<GpuRegion>, GpuError> {
        let sizes: Vec<u64> = memories.iter().map(GpuHandle::bytes).collect();
        let layout = Layout::new(fragments, blocks, &sizes)?;
        let memory = |(index, handle)| {
            let (region, address, bytes) = open(handle, index)?;
            Ok(RegionMemory { address, bytes, backing: Backing::Host(region) })
        };
        let memories =
            memories.into_iter().enumerate().map(memory).collect::<Result<Vec<_>, GpuError>>()?;
        Ok(Arc::new(GpuRegion::new(self.identity.uuid, layout, memories, 0, Box::new(()))))
    }

    fn mover(&self, staging: &Arc<Staging>, launches: u16) -> Result<Box<dyn Mover>, GpuError> {
        Ok(Box::new(HostMover::new(staging, launches, self.control())))
    }

    fn direct(&self) -> Option<&dyn DirectGpu> {
        Some(self)
    }

    fn allocate(&self, bytes: u64) -> Result<Box<dyn OwnMemory>, GpuError> {
        Ok(Box::new(StandinMemory::new(bytes, false)?))
    }
}

impl DirectGpu for EmulatedGpu {
    fn register(&self, file: OwnedFd, name: &str) -> Result<Registered, GpuError> {
        // Opened again without O_DIRECT: the stand-in's memory is not aligned for that.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let again = std::fs::OpenOptions::new().read(true).write(true).open(path);
        let again = again.map_err(|error| GpuError::NotDirect {
            device: name.to_owned(),
            gpu: self.identity.uuid,
            reason: error.to_string(),
        })?;
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.push(Arc::new(again.into()));
        let file = FileIndex(u16::try_from(files.len() - 1).expect("few devices"));
        let reason = match self.path {
            DirectPath::Direct => "a stand-in is set to direct I/O",
            DirectPath::Compat => "a stand-in bounces through host memory",
        };
        Ok(Registered { file, path: self.path, reason: reason.to_owned() })
    }

    fn batch(&self, entries: u32) -> Result<Box<dyn BatchIo>, GpuError> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Box::new(HostBatch::new(files, entries, self.control())))
    }
}
