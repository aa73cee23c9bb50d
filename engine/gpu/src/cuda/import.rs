//! Opening a client's memory: VMM descriptors and legacy handles.
#![expect(unsafe_code, reason = "maps another process's GPU memory")]
// UNSAFETY: what is mapped or opened here is unmapped or closed in the drop of the value returned;
// pointers passed live on this stack during the call.

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;
use kvrail_layout::FragmentRow;
use zerocopy::IntoBytes;

use super::context::{PrimaryContext, check};
use crate::error::{CudaError, GpuError};
use crate::handle::GpuHandle;

/// Lazily shared peers may be opened (`CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`).
const LAZY_PEER: u32 = 1;

/// Descriptors of POSIX files.
const POSIX_FD: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// A range of GPU addresses that is open in this process.
#[derive(Debug)]
pub(super) struct OpenedMemory {
    context: Arc<PrimaryContext>,
    kind: MappingKind,
    /// First byte of the memory that was handed over.
    pub(super) address: u64,
    pub(super) bytes: u64,
}

#[derive(Debug)]
enum MappingKind {
    Mapped { base: u64, bytes: usize },
    Ipc { base: u64 },
    Allocated { base: u64 },
}

impl OpenedMemory {
    /// Opens a handle; `index` is its place for error texts.
    pub(super) fn import(
        context: &Arc<PrimaryContext>,
        handle: GpuHandle,
        index: usize,
    ) -> Result<Self, GpuError> {
        context.enter()?;
        match handle {
            GpuHandle::Vmm { fd, bytes } => Self::vmm(context, &fd, bytes, index),
            GpuHandle::LegacyIpc { handle, offset, bytes } => {
                Self::legacy(context, handle, (offset, bytes), index)
            }
        }
    }

    fn vmm(
        context: &Arc<PrimaryContext>,
        fd: &OwnedFd,
        bytes: u64,
        index: usize,
    ) -> Result<Self, GpuError> {
        let mut handle = 0;
        // The driver takes descriptor 0 for a null pointer; a duplicate is 3 or more.
        let fd = fd.try_clone().map_err(|error| GpuError::Handle {
            index,
            reason: format!("its descriptor cannot be duplicated ({error}); raise RLIMIT_NOFILE"),
        })?;
        let number = ptr::without_provenance_mut::<c_void>(fd.as_raw_fd().unsigned_abs() as usize);
        // SAFETY: the driver takes the descriptor's number in place of a pointer and duplicates it.
        let got = unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, number, POSIX_FD) };
        let refused = |why: CudaError| GpuError::Handle {
            index,
            reason: format!("not a shareable CUDA descriptor of this machine ({why})"),
        };
        check("cuMemImportFromShareableHandle", got).map_err(refused)?;
        let opened = on_this_gpu(context, handle).and_then(|()| map(context, handle, bytes, index));
        // SAFETY: the mapping, if there is one, holds the memory; the handle is not used again.
        let _released = unsafe { sys::cuMemRelease(handle) };
        opened
    }

    fn legacy(
        context: &Arc<PrimaryContext>,
        handle: [u8; 64],
        (offset, bytes): (u64, u64),
        index: usize,
    ) -> Result<Self, GpuError> {
        let raw = sys::CUipcMemHandle { reserved: handle.map(u8::cast_signed) };
        let mut base = 0;
        // SAFETY: the number lives on this stack; the handle is a plain value.
        let got = unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut base, raw, LAZY_PEER) };
        let refused = |why: CudaError| GpuError::Handle {
            index,
            reason: format!(
                "not a CUDA IPC handle of another live process on this GPU ({why}); both \
                 processes need the same GPU and IPC namespace"
            ),
        };
        check("cuIpcOpenMemHandle", got).map_err(refused)?;
        let opened = Self {
            context: Arc::clone(context),
            kind: MappingKind::Ipc { base },
            address: base.wrapping_add(offset),
            bytes,
        };
        let (mut start, mut whole) = (0, 0);
        // SAFETY: both numbers live on this stack; the base was opened just now.
        let got = unsafe { sys::cuMemGetAddressRange_v2(&raw mut start, &raw mut whole, base) };
        check("cuMemGetAddressRange", got)?;
        let end = offset.checked_add(bytes);
        if bytes == 0 || end.is_none_or(|end| end > whole as u64) {
            let reason =
                format!("{bytes} bytes at offset {offset} leave the allocation of {whole} bytes");
            return Err(GpuError::Handle { index, reason });
        }
        Ok(opened)
    }

    /// Memory of this process, for tables and for tests.
    pub(super) fn allocate(context: &Arc<PrimaryContext>, bytes: u64) -> Result<Self, CudaError> {
        context.enter()?;
        let (mut base, size) = (0, usize::try_from(bytes).expect("64-bit machine"));
        // SAFETY: the number lives on this stack; freed in drop.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&raw mut base, size) })?;
        let context = Arc::clone(context);
        Ok(Self { context, kind: MappingKind::Allocated { base }, address: base, bytes })
    }

    /// The rows of a layout, copied to the GPU.
    pub(super) fn table(
        context: &Arc<PrimaryContext>,
        rows: &[FragmentRow],
    ) -> Result<Self, CudaError> {
        let bytes = rows.as_bytes();
        let table = Self::allocate(context, bytes.len() as u64)?;
        // SAFETY: as many bytes as were allocated, read before the call returns.
        let got =
            unsafe { sys::cuMemcpyHtoD_v2(table.address, bytes.as_ptr().cast(), bytes.len()) };
        check("cuMemcpyHtoD", got)?;
        Ok(table)
    }
}

/// Refuses memory of another GPU.
fn on_this_gpu(context: &PrimaryContext, handle: u64) -> Result<(), GpuError> {
    let mut properties = MaybeUninit::<sys::CUmemAllocationProp>::zeroed();
    // SAFETY: the structure lives on this stack; the handle is valid.
    let got =
        unsafe { sys::cuMemGetAllocationPropertiesFromHandle(properties.as_mut_ptr(), handle) };
    check("cuMemGetAllocationPropertiesFromHandle", got)?;
    // Only this field is read: a newer driver may have put values into others that their types
    // here do not know.
    let at = offset_of!(sys::CUmemAllocationProp, location) + offset_of!(sys::CUmemLocation, id);
    let id = properties.as_ptr().wrapping_byte_add(at).cast::<c_int>();
    // SAFETY: a field of the structure, zeroed above and written by the driver; any bits are a
    // number.
    let id = unsafe { id.read() };
    if id == context.device {
        return Ok(());
    }
    Err(GpuError::WrongGpu { named: context.identity.uuid, actual: format!("GPU number {id}") })
}

/// Maps a whole allocation at an address the driver picks.
pub(super) fn map(
    context: &Arc<PrimaryContext>,
    handle: u64,
    bytes: u64,
    index: usize,
) -> Result<OpenedMemory, GpuError> {
    let size = usize::try_from(bytes).expect("64-bit machine");
    let wrong_size = |why: CudaError| GpuError::Handle {
        index,
        reason: format!(
            "{bytes} bytes cannot be mapped ({why}); the size must be that of the allocation, a \
             multiple of its granularity"
        ),
    };
    let mut base = 0;
    // SAFETY: the number lives on this stack; the range is freed below or in drop.
    let got = unsafe { sys::cuMemAddressReserve(&raw mut base, size, 0, 0, 0) };
    check("cuMemAddressReserve", got).map_err(wrong_size)?;
    // SAFETY: the range was reserved just now and nothing is mapped there.
    let got = unsafe { sys::cuMemMap(base, size, 0, handle, 0) };
    if let Err(why) = check("cuMemMap", got) {
        // SAFETY: reserved above, nothing mapped.
        let _freed = unsafe { sys::cuMemAddressFree(base, size) };
        return Err(wrong_size(why));
    }
    let opened = OpenedMemory {
        context: Arc::clone(context),
        kind: MappingKind::Mapped { base, bytes: size },
        address: base,
        bytes,
    };
    let access = sys::CUmemAccessDesc {
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: context.device,
        },
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: mapped above; the description lives on this stack.
    let got = unsafe { sys::cuMemSetAccess(base, size, &raw const access, 1) };
    check("cuMemSetAccess", got)?;
    Ok(opened)
}

impl Drop for OpenedMemory {
    fn drop(&mut self) {
        let _current = self.context.enter();
        match self.kind {
            MappingKind::Mapped { base, bytes } => {
                // SAFETY: mapped by `map`, once; every user of it held this value.
                let _unmapped = unsafe { sys::cuMemUnmap(base, bytes) };
                // SAFETY: reserved by `map`, once, and unmapped now.
                let _freed = unsafe { sys::cuMemAddressFree(base, bytes) };
            }
            MappingKind::Ipc { base } => {
                // SAFETY: opened by `legacy`, once for this value.
                let _closed = unsafe { sys::cuIpcCloseMemHandle(base) };
            }
            MappingKind::Allocated { base } => {
                // SAFETY: allocated by `allocate`, once.
                let _freed = unsafe { sys::cuMemFree_v2(base) };
            }
        }
    }
}
