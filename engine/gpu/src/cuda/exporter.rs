//! GPU memory of this process, to be exported: what a client has. Tests and benchmarks use it.
#![expect(unsafe_code, reason = "allocates and exports GPU memory")]
// UNSAFETY: the memory is owned by the value and freed in its drop; copies are bounded by it.

use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;

use super::context::{PrimaryContext, check};
use super::import::{OpenedMemory, map};
use crate::contract::OwnMemory;
use crate::error::GpuError;
use crate::handle::GpuHandle;

/// How memory is to be exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportMethod {
    /// As a descriptor of virtual memory management.
    Vmm,
    /// As a legacy handle, at an offset inside of the allocation, as PyTorch has it.
    Legacy,
}

/// Bytes before the memory in a legacy allocation: tensors lie somewhere inside of theirs.
const LEGACY_OFFSET: u64 = 1 << 20;

/// Own memory.
#[derive(Debug)]
pub(super) struct Exported {
    context: Arc<PrimaryContext>,
    opened: OpenedMemory,
    kind: ExportKind,
    bytes: u64,
}

#[derive(Debug)]
enum ExportKind {
    Vmm { handle: u64 },
    Legacy,
}

impl Exported {
    pub(super) fn new(
        context: &Arc<PrimaryContext>,
        bytes: u64,
        export: ExportMethod,
    ) -> Result<Self, GpuError> {
        context.enter()?;
        let shared = Arc::clone(context);
        if export == ExportMethod::Legacy {
            let mut opened = OpenedMemory::allocate(context, bytes + LEGACY_OFFSET)?;
            opened.address += LEGACY_OFFSET;
            return Ok(Self { context: shared, opened, kind: ExportKind::Legacy, bytes });
        }
        let properties = sys::CUmemAllocationProp {
            type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes:
                sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            location: sys::CUmemLocation {
                type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: context.device,
            },
            win32HandleMetaData: ptr::null_mut(),
            allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: 0,
                usage: 0,
                reserved: [0; 4],
            },
        };
        let mut granularity = 0;
        // SAFETY: number and properties live on this stack.
        let got = unsafe {
            sys::cuMemGetAllocationGranularity(
                &raw mut granularity,
                &raw const properties,
                sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            )
        };
        check("cuMemGetAllocationGranularity", got)?;
        let whole = bytes.next_multiple_of(granularity as u64);
        let size = usize::try_from(whole).expect("64-bit machine");
        let mut handle = 0;
        // SAFETY: number and properties live on this stack; released in drop.
        let got = unsafe { sys::cuMemCreate(&raw mut handle, size, &raw const properties, 0) };
        check("cuMemCreate", got)?;
        match map(context, handle, whole, 0) {
            Ok(opened) => {
                Ok(Self { context: shared, opened, kind: ExportKind::Vmm { handle }, bytes: whole })
            }
            Err(error) => {
                // SAFETY: created above, not mapped.
                let _released = unsafe { sys::cuMemRelease(handle) };
                Err(error)
            }
        }
    }

    /// The address of a range.
    fn range(&self, offset: u64, bytes: usize) -> u64 {
        let end = offset.checked_add(bytes as u64);
        assert!(end.is_some_and(|end| end <= self.bytes), "{bytes} bytes at {offset}");
        self.opened.address + offset
    }
}

impl OwnMemory for Exported {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn export(&self) -> Result<GpuHandle, GpuError> {
        self.context.enter()?;
        match self.kind {
            ExportKind::Vmm { handle } => {
                let mut fd = -1;
                let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
                // SAFETY: the driver writes a descriptor's number into `fd`, on this stack.
                let got = unsafe {
                    sys::cuMemExportToShareableHandle((&raw mut fd).cast(), handle, kind, 0)
                };
                check("cuMemExportToShareableHandle", got)?;
                // SAFETY: a fresh descriptor without another owner.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                Ok(GpuHandle::Vmm { fd, bytes: self.bytes })
            }
            ExportKind::Legacy => {
                let mut raw = sys::CUipcMemHandle { reserved: [0; 64] };
                // SAFETY: the structure lives on this stack; the address is of this allocation.
                let got = unsafe { sys::cuIpcGetMemHandle(&raw mut raw, self.opened.address) };
                check("cuIpcGetMemHandle", got)?;
                let handle = raw.reserved.map(i8::cast_unsigned);
                Ok(GpuHandle::LegacyIpc { handle, offset: LEGACY_OFFSET, bytes: self.bytes })
            }
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.context.enter()?;
        let to = self.range(offset, bytes.len());
        // SAFETY: the range lies within the memory, checked above; read before the call returns.
        let got = unsafe { sys::cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len()) };
        check("cuMemcpyHtoD", got)?;
        // That call returns when the driver has its copy of the bytes: another process would still
        // find the old ones.
        // SAFETY: the default stream of the current context.
        Ok(check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(ptr::null_mut()) })?)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.context.enter()?;
        let from = self.range(offset, bytes.len());
        // SAFETY: as for writing; written before the call returns.
        let got = unsafe { sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), from, bytes.len()) };
        Ok(check("cuMemcpyDtoH", got)?)
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        if let ExportKind::Vmm { handle } = self.kind {
            // SAFETY: created in `new`, once; mappings, here and elsewhere, hold the memory.
            let _released = unsafe { sys::cuMemRelease(handle) };
        }
    }
}
