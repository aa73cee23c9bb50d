//! GPU memory: which GPUs are served, and regions of the program's memory on them.
#![expect(unsafe_code, reason = "exports functions that take pointers")]
#![expect(clippy::missing_safety_doc, reason = "the header says it once for all")]
// UNSAFETY: pointers are followed by `boundary` and `sized` only, on the header's terms.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use kvrail_client::{FRAGMENTS_MAX, Fragment, GpuCache, MEMORIES_MAX};

use crate::boundary::{call, duplicate, letters, text};
use crate::client::{Client, Memory, session};
use crate::code::{Failure, KVRAIL_E_NO_GPU};
use crate::sized::{Array, SizedStruct, read, write};

/// Bytes of a GPU's UUID as text, with the zero at its end.
pub const KVRAIL_UUID_BYTES: usize = 48;
/// Bytes of a PCIe address as text, with the zero at its end.
pub const KVRAIL_PCI_BYTES: usize = 32;
/// Bytes of a GPU's name with the zero at its end; a longer one is cut.
pub const KVRAIL_GPU_NAME_BYTES: usize = 96;
/// Bytes of a legacy handle, as of a cudaIpcMemHandle_t.
pub const KVRAIL_HANDLE_BYTES: usize = 64;

/// A descriptor of CUDA's virtual memory management, exported with
/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; for a stand-in a sealed memfd.
pub const KVRAIL_GPU_DESCRIPTOR: u32 = 0;
/// A handle of cudaIpcGetMemHandle. The memory must live until the region is detached.
pub const KVRAIL_GPU_LEGACY: u32 = 1;

/// A GPU that the sidecar serves.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GpuInfo {
    /// sizeof this structure.
    pub size: u32,
    /// Its number in the sidecar, which may be another one in this process.
    pub index: u32,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// The same everywhere, as nvidia-smi -L prints it.
    pub uuid: [c_char; KVRAIL_UUID_BYTES],
    /// Its PCIe address.
    pub pci_address: [c_char; KVRAIL_PCI_BYTES],
    /// Its name.
    pub name: [c_char; KVRAIL_GPU_NAME_BYTES],
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for GpuInfo {
    const NAME: &'static str = "kvrail_gpu_info";
    const LEAST: usize = 8;
}

/// Memory of this program on a GPU, as it exported it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GpuMemory {
    /// sizeof this structure.
    pub size: u32,
    /// KVRAIL_GPU_DESCRIPTOR or KVRAIL_GPU_LEGACY.
    pub kind: u32,
    /// The descriptor, which stays the caller's; 0 for a legacy handle.
    pub fd: c_int,
    /// Must be 0.
    pub reserved: u32,
    /// First byte of the memory in the allocation of a legacy handle; 0 for a descriptor.
    pub offset: u64,
    /// Bytes from there on; for a descriptor the exact size of the allocation.
    pub bytes: u64,
    /// The legacy handle.
    pub handle: [u8; KVRAIL_HANDLE_BYTES],
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for GpuMemory {
    const NAME: &'static str = "kvrail_gpu_memory";
    const LEAST: usize = 32;
}

/// One fragment of every block, such as K or V of one layer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GpuFragment {
    /// sizeof this structure.
    pub size: u32,
    /// Place of its memory in the region's memories.
    pub memory: u32,
    /// First byte of block 0's in that memory, a multiple of 16.
    pub base: u64,
    /// Bytes from one block's to the next block's, a multiple of 16.
    pub stride: u64,
    /// Its bytes, at least 512 and a multiple of 16.
    pub bytes: u64,
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for GpuFragment {
    const NAME: &'static str = "kvrail_gpu_fragment";
    const LEAST: usize = 32;
}

/// A paged KV cache on one GPU. A block is all its fragments, one after the other in this order;
/// together they must be a multiple of 512 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GpuRegionOptions {
    /// sizeof this structure.
    pub size: u32,
    /// Blocks of the cache.
    pub blocks: u32,
    /// UUID of the GPU as text.
    pub gpu: *const c_char,
    /// The memories of the fragments.
    pub memories: *const GpuMemory,
    /// At most 256.
    pub memory_count: usize,
    /// The fragments of every block.
    pub fragments: *const GpuFragment,
    /// At most 1024.
    pub fragment_count: usize,
}

// SAFETY: integers and pointers without padding, the size first; zeroes are a value of it.
unsafe impl SizedStruct for GpuRegionOptions {
    const NAME: &'static str = "kvrail_gpu_region_options";
    const LEAST: usize = 48;
}

/// A region.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GpuRegionInfo {
    /// sizeof this structure.
    pub size: u32,
    /// Its number, for requests; never 0.
    pub region: u32,
    /// Bytes of one block.
    pub block_bytes: u64,
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for GpuRegionInfo {
    const NAME: &'static str = "kvrail_gpu_region_info";
    const LEAST: usize = 16;
}

/// A list of the caller's, if it is not longer than it may be.
///
/// # Safety
/// As for `Array::new`.
unsafe fn list<T: SizedStruct>(
    first: *const T,
    count: usize,
    most: usize,
) -> Result<Array<T>, Failure> {
    if count > most {
        return Err(Failure::argument(format!("{count} of {}, at most {most} may be", T::NAME)));
    }
    // SAFETY: the caller's promise; the array is only read.
    unsafe { Array::new(first.cast_mut(), count) }
}

/// A memory in the client library's form.
fn exported(it: &GpuMemory) -> Result<kvrail_client::GpuMemory, Failure> {
    let GpuMemory { kind, fd, reserved, offset, bytes, handle, .. } = *it;
    let stray = match kind {
        KVRAIL_GPU_DESCRIPTOR => offset != 0 || handle != [0; KVRAIL_HANDLE_BYTES],
        KVRAIL_GPU_LEGACY => fd != 0,
        other => {
            let text = format!("kvrail_gpu_memory.kind is {other}; use KVRAIL_GPU_DESCRIPTOR, ...");
            return Err(Failure::argument(text));
        }
    };
    if stray || reserved != 0 {
        let text = "a member of kvrail_gpu_memory that its kind does not use must be 0";
        return Err(Failure::argument(text));
    }
    if kind == KVRAIL_GPU_LEGACY {
        return Ok(kvrail_client::GpuMemory::Legacy { handle, offset, bytes });
    }
    Ok(kvrail_client::GpuMemory::Descriptor { fd: duplicate(fd)?, bytes })
}

/// # Safety
/// The structure meets the header's terms.
unsafe fn cache(options: &GpuRegionOptions) -> Result<GpuCache, Failure> {
    // SAFETY: the caller's text.
    let gpu = unsafe { text(options.gpu, "kvrail_gpu_region_options.gpu") }?;
    // SAFETY: the caller's array.
    let memories = unsafe { list(options.memories, options.memory_count, MEMORIES_MAX) }?;
    // SAFETY: the caller's array.
    let fragments = unsafe { list(options.fragments, options.fragment_count, FRAGMENTS_MAX) }?;
    let mut cache = GpuCache::new(gpu, options.blocks);
    for at in 0..memories.count() {
        cache = cache.memory(exported(&memories.get(at)?)?);
    }
    for at in 0..fragments.count() {
        let GpuFragment { memory, base, stride, bytes, .. } = fragments.get(at)?;
        // A place that is none stays none.
        let memory = u16::try_from(memory).unwrap_or(u16::MAX);
        cache = cache.fragment(Fragment { memory, base, stride, bytes });
    }
    Ok(cache)
}

/// The GPU of this place in the sidecar's list; places count from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_gpu_at(
    client: *const Client,
    place: u32,
    info: *mut GpuInfo,
) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let gpus = unsafe { session(client) }?.client.gpus();
        let gpu = gpus.get(place as usize).ok_or_else(|| {
            let text = format!("GPU {place} does not exist; the sidecar serves {}", gpus.len());
            Failure::new(KVRAIL_E_NO_GPU, text)
        })?;
        let value = GpuInfo {
            size: 0,
            index: gpu.index,
            memory_bytes: gpu.memory_bytes,
            uuid: letters(&gpu.uuid),
            pci_address: letters(&gpu.pci_address),
            name: letters(&gpu.name),
        };
        // SAFETY: the caller's structure.
        unsafe { write(info, &value) }
    })
}

/// Makes the sidecar use memory of this program on a GPU. Descriptors may be closed afterwards;
/// memory behind legacy handles must live until the region is detached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_gpu_region_attach(
    client: *const Client,
    options: *const GpuRegionOptions,
    info: *mut GpuRegionInfo,
) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let session = unsafe { session(client) }?;
        // SAFETY: the caller's structure.
        let options = unsafe { read(options) }?;
        // SAFETY: as above.
        let region = session.client.attach_gpu(unsafe { cache(&options) }?)?;
        // As for arenas: 0 stands for no memory in requests.
        let number = region.region().0.wrapping_add(1);
        let value = GpuRegionInfo { size: 0, region: number, block_bytes: region.block_bytes() };
        // SAFETY: the caller's structure.
        let written = unsafe { write(info, &value) };
        match written {
            Ok(()) => session.add(number, Memory::Gpu(Arc::new(region))),
            // Its number is unknown, so it could never be detached.
            Err(_) => region.detach()?,
        }
        written
    })
}

/// Takes a region away from the sidecar. Blocks until nothing can touch the memory any more;
/// requests in flight are finished first. KVRAIL_E_GONE: the sidecar went away first, and its
/// process must be gone before the memory is used for anything else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_gpu_region_detach(client: *const Client, region: u32) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let session = unsafe { session(client) }?;
        Ok(session.remove(region, Memory::gpu)?.detach()?)
    })
}
