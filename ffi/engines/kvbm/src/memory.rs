//! Memory of KVBM's layouts: drives reach it where it is a shared file, else blocks are copied.
#![expect(unsafe_code, reason = "KVBM's layouts name their memory by address")]
// UNSAFETY: addresses are of a layout whose buffers the caller keeps alive, and for arenas `Known`.
// KVBM gives a block to one transfer at a time, so no other code touches its bytes until that ends.

use std::any::Any;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaContext, sys};
use dynamo_memory::nixl::{MemType, NixlCompatible, NixlDescriptor};
use dynamo_memory::{Buffer, MemoryDescriptor, StorageError, StorageKind};
use kvbm_engine::BlockId;
use kvbm_physical::layout::PhysicalLayout;
use kvrail_client::{Arena, Client, ClientError, Lease, Pages};
use kvrail_memory::Region;

use crate::lock::lock;

/// Bytes of the arena that blocks are copied through, unless a block is longer.
const BOUNCE_BYTES: usize = 16 << 20;

/// Host memory for KVBM's layouts that drives reach: blocks in it are not copied.
#[derive(Debug)]
pub struct HostMemory {
    region: Region,
    /// The CUDA context that it is page-locked in.
    context: Option<Arc<CudaContext>>,
}

impl HostMemory {
    /// Takes this number of bytes, zeroed, in huge pages if there are enough. KVBM moves no block
    /// between this and a GPU.
    ///
    /// # Errors
    /// The host lacks the memory.
    pub fn new(bytes: usize) -> Result<Self, StorageError> {
        let region = Region::create_best("kvbm", bytes)
            .map_err(|error| StorageError::AllocationFailed(error.to_string()))?;
        Ok(Self { region: region.0, context: None })
    }

    /// As `new`, page-locked for GPUs.
    ///
    /// # Errors
    /// As `new`, or there is no such GPU, or it takes no more memory.
    pub fn pinned(bytes: usize, gpu: usize) -> Result<Self, StorageError> {
        // SAFETY: loads a library.
        if !unsafe { sys::is_culib_present() } {
            return Err(StorageError::Unsupported("NVIDIA's driver is not installed".into()));
        }
        let (mut memory, context) = (Self::new(bytes)?, CudaContext::new(gpu)?);
        context.bind_to_thread()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: the region's own bytes, which it keeps until `drop` has taken this back.
        unsafe { sys::cuMemHostRegister_v2(memory.start(), memory.size(), flags) }.result()?;
        memory.context = Some(context);
        Ok(memory)
    }

    fn start(&self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.region.address())
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let Some(context) = &self.context else { return };
        let bound = context.bind_to_thread();
        // SAFETY: registered in `pinned`, once.
        let taken = bound.and_then(|()| unsafe { sys::cuMemHostUnregister(self.start()) }.result());
        if let Err(error) = taken {
            tracing::warn!(%error, "host memory stays registered with CUDA");
        }
    }
}

impl MemoryDescriptor for HostMemory {
    fn addr(&self) -> usize {
        self.region.address()
    }

    fn size(&self) -> usize {
        self.region.bytes()
    }

    fn storage_kind(&self) -> StorageKind {
        if self.context.is_some() { StorageKind::Pinned } else { StorageKind::System }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn nixl_descriptor(&self) -> Option<NixlDescriptor> {
        None
    }
}

impl NixlCompatible for HostMemory {
    fn nixl_params(&self) -> (*const u8, usize, MemType, u64) {
        (self.start().cast_const().cast(), self.size(), MemType::Dram, 0)
    }
}

/// Where the bytes of a block are.
#[derive(Debug)]
pub(crate) struct Block {
    /// Address and length of each piece, in the order of the layout.
    pieces: Vec<(usize, usize)>,
    /// The memory that the first one lies in.
    memory: Buffer,
}

impl Block {
    /// None where the layout has no such block, or it is not in host memory.
    pub(crate) fn of(layout: &PhysicalLayout, id: BlockId) -> Option<Self> {
        let layout = layout.layout();
        let mut pieces: Vec<(usize, usize)> = Vec::new();
        for layer in 0..layout.num_layers() {
            for outer in 0..layout.outer_dim() {
                let region = layout.memory_region(id, layer, outer).ok()?;
                match pieces.last_mut().filter(|piece| piece.0 + piece.1 == region.addr()) {
                    Some(last) => last.1 += region.size(),
                    None => pieces.push((region.addr(), region.size())),
                }
            }
        }
        let first = pieces.first()?.0;
        let holds = |it: &&Buffer| (it.addr()..it.addr() + it.size()).contains(&first);
        let memory = layout.memory_regions().iter().find(holds)?.clone();
        let host = matches!(memory.storage_kind(), StorageKind::System | StorageKind::Pinned);
        host.then_some(Self { pieces, memory })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|(_, bytes)| *bytes as u64).sum()
    }
}

/// The memory of one session.
#[derive(Debug)]
pub(crate) struct Memory {
    client: Client,
    copied_bytes: Arc<AtomicU64>,
    known: Mutex<Vec<Known>>,
    bounce: Mutex<Option<Arena>>,
}

/// Memory of a layout, kept where it is for as long as drives may reach it, and where in which
/// arena it begins.
#[derive(Debug)]
struct Known {
    memory: Buffer,
    arena: Option<(Arc<Arena>, usize)>,
}

impl Memory {
    pub(crate) fn new(client: &Client, copied_bytes: &Arc<AtomicU64>) -> Self {
        let (client, copied_bytes) = (client.clone(), Arc::clone(copied_bytes));
        Self { client, copied_bytes, known: Mutex::default(), bounce: Mutex::default() }
    }

    /// Memory for a request for this block, and whether it is a copy, with the block's bytes if it
    /// is to be `put`. None while other blocks have the room.
    pub(crate) fn lease(
        &self,
        block: &Block,
        put: bool,
    ) -> Result<Option<(Lease, bool)>, ClientError> {
        if let [(address, bytes)] = block.pieces[..]
            && let Some(lease) = self.straight(block, address, bytes)
        {
            return Ok(Some((lease, false)));
        }
        let bytes = usize::try_from(block.bytes()).unwrap_or(usize::MAX);
        let mut bounce = lock(&self.bounce);
        if bounce.as_ref().is_none_or(|arena| arena.bytes() < bytes) {
            let wanted = bytes.next_power_of_two().max(BOUNCE_BYTES);
            *bounce = Some(self.client.create_arena(wanted, Pages::Auto)?);
        }
        let Some(mut lease) = bounce.as_ref().and_then(|arena| arena.lease(bytes).ok()) else {
            return Ok(None);
        };
        drop(bounce);
        if put {
            let mut rest = &mut lease[..];
            for &(address, bytes) in &block.pieces {
                let (here, others) = rest.split_at_mut(bytes);
                let from = ptr::with_exposed_provenance::<u8>(address);
                // SAFETY: a piece of a layout that is alive, see above; leases are no part of it.
                unsafe { ptr::copy_nonoverlapping(from, here.as_mut_ptr(), bytes) };
                rest = others;
            }
            self.copied_bytes.fetch_add(block.bytes(), Ordering::Relaxed);
        }
        Ok(Some((lease, true)))
    }

    /// Copies the bytes of this block from the arena to their place.
    pub(crate) fn fill(&self, block: &Block, lease: &Lease) {
        let mut rest = &lease[..];
        for &(address, bytes) in &block.pieces {
            let (here, others) = rest.split_at(bytes);
            let into = ptr::with_exposed_provenance_mut::<u8>(address);
            // SAFETY: as in `lease`.
            unsafe { ptr::copy_nonoverlapping(here.as_ptr(), into, bytes) };
            rest = others;
        }
        self.copied_bytes.fetch_add(block.bytes(), Ordering::Relaxed);
    }

    /// The block's own memory, where drives reach it.
    fn straight(&self, block: &Block, address: usize, bytes: usize) -> Option<Lease> {
        let (arena, begin) = self.arena_of(&block.memory)?;
        let offset = address - block.memory.addr();
        let inside = bytes <= block.memory.size() - offset;
        let position = begin + offset;
        if !inside || !position.is_multiple_of(arena.pool().alignment()) {
            return None;
        }
        // SAFETY: only the client library reads the bytes, and only while their request is in
        // flight: until then the transfer owns the block.
        let lease = unsafe { arena.pool().assume(position, bytes) };
        arena.adopt(lease.ok()?).ok()
    }

    /// The arena of a layout's memory, and where in it that begins.
    fn arena_of(&self, memory: &Buffer) -> Option<(Arc<Arena>, usize)> {
        let (first, last) = (memory.addr(), memory.addr() + memory.size() - 1);
        let mut known = lock(&self.known);
        let same = |it: &&Known| (it.memory.addr(), it.memory.size()) == (first, memory.size());
        if let Some(found) = known.iter().find(same) {
            return found.arena.clone();
        }
        let arenas = known.iter().filter_map(|memory| memory.arena.clone());
        let mapped = arenas.filter_map(|(it, _)| it.position_of(first).map(|at| (it, at))).next();
        let brought = mapped.map_or_else(
            || self.client.import_mapping(first).map(|(arena, at)| (Arc::new(arena), at)),
            Ok,
        );
        let arena = brought
            .inspect_err(|why| tracing::warn!(%why, "kvrail copies each block once"))
            .ok()
            .filter(|(arena, at)| arena.position_of(last) == Some(at + memory.size() - 1));
        known.push(Known { memory: memory.clone(), arena: arena.clone() });
        arena
    }
}
