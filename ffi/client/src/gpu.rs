//! GPU memory: described, attached, named in requests.
//!
//! The memory is the program's: this library holds no bytes of it and does not use CUDA. The
//! program that allocated it exports the handles. While a request moves a block, its bytes belong
//! to the sidecar, and only the program can ensure that (no lease stands for them).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use kvrail_layout::{Fragment, Layout, LayoutError};
use kvrail_protocol::{
    ControlReply, ControlRequest, GPU_FDS_MAX, GpuFragment, GpuRegionInfo, GpuRoute,
    LEGACY_HANDLE_BYTES, LegacyHandle,
};
use kvrail_ring::RegionId;

use crate::error::ClientError;
use crate::session::Session;
use crate::submit_error_kind::SubmitErrorKind;
use crate::tag::ClientTag;
use crate::volume::Volume;

/// Memory on a GPU, as the program that owns it exported it. A holder of a handle can read and
/// write the whole allocation.
#[derive(Debug)]
pub enum GpuMemory {
    /// A descriptor of CUDA's virtual memory management
    /// (`CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`). The memory outlives its exporter until the
    /// region is detached. For a stand-in: a sealed memfd.
    Descriptor {
        /// As exported.
        fd: OwnedFd,
        /// Exact size of the allocation.
        bytes: u64,
    },
    /// A legacy handle (`cudaIpcGetMemHandle`), as it names the allocations of PyTorch's default
    /// allocator. The program must keep the memory until the region is detached: CUDA does not.
    Legacy {
        /// The handle.
        handle: [u8; LEGACY_HANDLE_BYTES],
        /// First byte of the memory within the allocation that the handle names.
        offset: u64,
        /// Bytes from there on.
        bytes: u64,
    },
}

impl GpuMemory {
    /// Bytes that fragments may lie in.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Descriptor { bytes, .. } | Self::Legacy { bytes, .. } => *bytes,
        }
    }

    fn described(&self) -> kvrail_protocol::GpuMemory {
        match *self {
            Self::Descriptor { bytes, .. } => kvrail_protocol::GpuMemory::Descriptor { bytes },
            Self::Legacy { handle, offset, bytes } => {
                let handle = LegacyHandle(handle);
                kvrail_protocol::GpuMemory::Legacy { handle, offset, bytes }
            }
        }
    }
}

/// A paged KV cache on one GPU, built step by step and given to [`crate::Client::attach_gpu`].
///
/// A block is all its fragments, one after the other in the order they were added: one for each
/// layer's K and V, one for a layer of an MLA model, one for a state. Groups of a hybrid model with
/// block tables of their own are caches of their own, over the same memory if they share it.
#[derive(Debug)]
#[must_use]
pub struct GpuCache {
    gpu: String,
    blocks: u32,
    memories: Vec<GpuMemory>,
    fragments: Vec<Fragment>,
}

impl GpuCache {
    /// A cache of this number of blocks on the GPU with this UUID, as `nvidia-smi -L` prints it.
    pub fn new(gpu: impl Into<String>, blocks: u32) -> Self {
        Self { gpu: gpu.into(), blocks, memories: Vec::new(), fragments: Vec::new() }
    }

    /// Memory that is no paged cache: one block, all of it. Its size must be a multiple of 512.
    pub fn contiguous(gpu: impl Into<String>, memory: GpuMemory) -> Self {
        let bytes = memory.bytes();
        let whole = Fragment { memory: 0, base: 0, stride: bytes, bytes };
        Self::new(gpu, 1).memory(memory).fragment(whole)
    }

    /// Adds a memory; fragments name it by its place, counted from 0.
    pub fn memory(mut self, memory: GpuMemory) -> Self {
        self.memories.push(memory);
        self
    }

    /// Adds a fragment of every block.
    pub fn fragment(mut self, fragment: Fragment) -> Self {
        self.fragments.push(fragment);
        self
    }

    /// The message to the sidecar, unless the sidecar would refuse it.
    fn check(&self) -> Result<(Layout, GpuRegionInfo), LayoutError> {
        let sizes: Vec<u64> = self.memories.iter().map(GpuMemory::bytes).collect();
        let layout = Layout::new(self.fragments.clone(), self.blocks, &sizes)?;
        let fragments = self.fragments.iter().map(|fragment| GpuFragment {
            memory: fragment.memory,
            base: fragment.base,
            stride: fragment.stride,
            bytes: fragment.bytes,
        });
        let info = GpuRegionInfo {
            gpu: self.gpu.clone(),
            blocks: self.blocks,
            memories: self.memories.iter().map(GpuMemory::described).collect(),
            fragments: fragments.collect(),
        };
        if info.fds() > GPU_FDS_MAX {
            let (most, found) = (GPU_FDS_MAX as u64, info.fds() as u64);
            let what = "memories that are descriptors";
            return Err(LayoutError::Count { what, least: 0, most, found });
        }
        Ok((layout, info))
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let descriptors = self.memories.iter().filter_map(|memory| match memory {
            GpuMemory::Descriptor { fd, .. } => Some(fd.as_fd()),
            GpuMemory::Legacy { .. } => None,
        });
        descriptors.collect()
    }
}

/// A cache that the sidecar moves blocks of. It stays attached until `detach` or until the client
/// is gone; dropping this handle alone does not detach it.
#[derive(Debug)]
pub struct GpuRegion {
    session: Arc<Session>,
    region: RegionId,
    gpu: String,
    layout: Layout,
    routes: Vec<GpuRoute>,
}

/// Has the sidecar use GPU memory of this program.
pub(crate) fn attach(session: &Arc<Session>, cache: GpuCache) -> Result<GpuRegion, ClientError> {
    let (layout, info) = cache.check()?;
    if !session.gpus().iter().any(|gpu| gpu.uuid == cache.gpu) {
        let known = session.gpus().iter().map(|gpu| gpu.uuid.clone()).collect();
        return Err(ClientError::NoGpu { wanted: cache.gpu, known });
    }
    let what = "attaching GPU memory";
    let packet =
        session.control().call(what, ControlRequest::AttachGpu(info), &cache.descriptors())?;
    let (answer, []) = packet.exactly()?;
    match answer {
        ControlReply::GpuRegion { region, blocks, block_bytes, routes }
            if blocks == layout.blocks() && block_bytes == layout.block_bytes() =>
        {
            let (session, region, gpu) = (Arc::clone(session), RegionId(region), cache.gpu);
            Ok(GpuRegion { session, region, gpu, layout, routes })
        }
        other => Err(ClientError::protocol(format!("answer to GPU memory: {other:?}"))),
    }
}

impl GpuRegion {
    /// A whole block.
    ///
    /// # Errors
    /// `SubmitErrorKind::NoBlock`.
    #[inline]
    pub fn block(&self, block: u32) -> Result<GpuRange, SubmitErrorKind> {
        self.range(block, 0, self.layout.block_bytes())
    }

    /// `bytes` bytes of a block, from number `start` on.
    ///
    /// # Errors
    /// `SubmitErrorKind::NoBlock`, `SubmitErrorKind::OutsideBlock`.
    #[inline]
    pub fn range(&self, block: u32, start: u64, bytes: u64) -> Result<GpuRange, SubmitErrorKind> {
        let (blocks, whole) = (self.layout.blocks(), self.layout.block_bytes());
        if block >= blocks {
            return Err(SubmitErrorKind::NoBlock { block, blocks });
        }
        if start.checked_add(bytes).is_none_or(|end| end > whole) {
            return Err(SubmitErrorKind::OutsideBlock { start, bytes, block_bytes: whole });
        }
        Ok(GpuRange { client: self.session.tag(), region: self.region, block, start, bytes })
    }

    /// Blocks of the cache.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.layout.blocks()
    }

    /// Bytes of one block, all its fragments together.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.layout.block_bytes()
    }

    /// UUID of its GPU.
    #[must_use]
    pub fn gpu(&self) -> &str {
        &self.gpu
    }

    /// How bytes get between the volume and the GPU, and why so.
    #[must_use]
    pub fn route(&self, volume: &Volume) -> Option<&GpuRoute> {
        self.routes.iter().find(|route| route.volume == volume.id().0)
    }

    /// Its number on the wire.
    #[must_use]
    pub fn region(&self) -> RegionId {
        self.region
    }

    /// Takes the region away from the sidecar. Blocks until neither the sidecar nor any hardware
    /// can touch the memory any more; requests in flight are finished first. Requests that name it
    /// end INVALID from now on.
    ///
    /// # Errors
    /// `SidecarGone` when the sidecar ends before it answers; its process must be gone before the
    /// memory is used for anything else. `Denied` when it was detached before.
    pub fn detach(&self) -> Result<(), ClientError> {
        self.session.detach("detaching GPU memory", self.region)
    }
}

/// Bytes of one block of a region: what a request moves. A name only; the memory is the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuRange {
    pub(crate) client: ClientTag,
    pub(crate) region: RegionId,
    pub(crate) block: u32,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}
