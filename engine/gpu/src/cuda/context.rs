//! The driver and one GPU's primary context.
#![expect(unsafe_code, reason = "calls the CUDA driver")]
// UNSAFETY: pointers passed live on this stack during the call; the context is retained once and
// released in drop, when nothing made in it is left.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;

use crate::contract::GpuIdentity;
use crate::error::{CudaError, GpuError};
use crate::handle::GpuUuid;

/// Every function of the driver that is called anywhere in this room.
const SYMBOLS: [&str; 43] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetPCIBusId",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuGetErrorName",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuLaunchKernel",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpy2DAsync_v2",
    "cuStreamWriteValue32_v2",
    "cuMemGetAddressRange_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemHostGetDevicePointer_v2",
    "cuPointerGetAttribute",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuIpcCloseMemHandle",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
];

/// And those with long names.
const SYMBOLS_SHARED: [&str; 4] = [
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemGetAllocationGranularity",
    "cuMemGetAllocationPropertiesFromHandle",
];

/// Turns the driver's status into a result.
pub(super) fn check(call: &'static str, status: sys::CUresult) -> Result<(), CudaError> {
    if status == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text: *const c_char = ptr::null();
    // SAFETY: the driver writes a pointer to a text of its own that is never freed, or null.
    let named = unsafe { sys::cuGetErrorName(status, &raw mut text) };
    let name = if named == sys::CUresult::CUDA_SUCCESS && !text.is_null() {
        // SAFETY: a text of the driver, terminated, valid for the life of the process.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    } else {
        "unknown".to_owned()
    };
    Err(CudaError { call, code: status as u32, name })
}

/// Loads the driver, once; later calls only look again.
fn load() -> Result<(), GpuError> {
    // SAFETY: the initialisers of NVIDIA's library run here; they set up its own state only.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuError::NoDriver);
    }
    // SAFETY: just seen to be there; it stays loaded for the life of the process.
    let library = unsafe { sys::culib() };
    for symbol in SYMBOLS.into_iter().chain(SYMBOLS_SHARED) {
        // SAFETY: the pointer is not called here, only its presence is looked at.
        let found = unsafe { library.get::<*const ()>(symbol.as_bytes()) };
        found.map_err(|_| GpuError::OldDriver { symbol })?;
    }
    // SAFETY: takes no pointers.
    check("cuInit", unsafe { sys::cuInit(0) })?;
    Ok(())
}

/// Whether the driver, loaded before, has a function that older ones lack.
pub(super) fn has(symbol: &str) -> bool {
    // SAFETY: a context is open, so the library is loaded, and stays so.
    let library = unsafe { sys::culib() };
    // SAFETY: the pointer is not called here, only its presence is looked at.
    unsafe { library.get::<*const ()>(symbol.as_bytes()) }.is_ok()
}

/// Version of CUDA that the driver speaks, 1000 * major + 10 * minor.
///
/// # Errors
/// As `devices`.
pub fn driver_version() -> Result<u32, GpuError> {
    load()?;
    let mut version: c_int = 0;
    // SAFETY: the number lives on this stack.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
    Ok(version.unsigned_abs())
}

/// The GPUs of this machine, in the driver's order.
///
/// # Errors
/// `GpuError::NoDriver` and the like, which name the missing part.
pub fn devices() -> Result<Vec<GpuIdentity>, GpuError> {
    load()?;
    let mut count = 0;
    // SAFETY: the number lives on this stack.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    (0..count).map(identify).collect()
}

fn identify(index: c_int) -> Result<GpuIdentity, GpuError> {
    let mut device = 0;
    // SAFETY: the number lives on this stack.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&raw mut device, index) })?;
    let mut name: [c_char; 128] = [0; 128];
    // SAFETY: the driver writes at most the length given, terminated.
    let named = unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), 127, device) };
    check("cuDeviceGetName", named)?;
    let mut bus: [c_char; 32] = [0; 32];
    // SAFETY: as for the name.
    let placed = unsafe { sys::cuDeviceGetPCIBusId(bus.as_mut_ptr(), 31, device) };
    check("cuDeviceGetPCIBusId", placed)?;
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: the structure lives on this stack.
    check("cuDeviceGetUuid_v2", unsafe { sys::cuDeviceGetUuid_v2(&raw mut uuid, device) })?;
    let mut bytes = 0;
    // SAFETY: the number lives on this stack.
    check("cuDeviceTotalMem_v2", unsafe { sys::cuDeviceTotalMem_v2(&raw mut bytes, device) })?;
    Ok(GpuIdentity {
        index: index.unsigned_abs(),
        uuid: GpuUuid(uuid.bytes.map(i8::cast_unsigned)),
        name: text(&name),
        pci_address: text(&bus).to_lowercase(),
        memory_bytes: bytes as u64,
    })
}

fn text(letters: &[c_char]) -> String {
    let bytes =
        letters.iter().take_while(|letter| **letter != 0).map(|letter| letter.cast_unsigned());
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

/// A retained primary context.
#[derive(Debug)]
pub(super) struct PrimaryContext {
    pub(super) device: sys::CUdevice,
    raw: sys::CUcontext,
    pub(super) identity: GpuIdentity,
}

// SAFETY: a context may be made current on any thread; the pointer is a name for the driver.
unsafe impl Send for PrimaryContext {}
// SAFETY: as for Send; the driver locks for itself.
unsafe impl Sync for PrimaryContext {}

impl PrimaryContext {
    /// Opens the GPU with this index: retains its primary context and makes it current here.
    pub(super) fn open(index: u32) -> Result<Arc<Self>, GpuError> {
        let present = devices()?;
        let missing = || GpuError::NoSuchGpu {
            wanted: index.to_string(),
            present: match present.len() {
                0 => "none".to_owned(),
                count => format!("{count}, numbered from 0"),
            },
        };
        let identity = present.get(index as usize).cloned().ok_or_else(missing)?;
        let device = c_int::try_from(index).expect("one of those just listed");
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer lives on this stack; released in drop.
        let retained = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut raw, device) };
        check("cuDevicePrimaryCtxRetain", retained)?;
        let context = Arc::new(Self { device, raw, identity });
        context.enter()?;
        Ok(context)
    }

    /// Makes this context the current one of the calling thread.
    pub(super) fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained while `self` lives.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.raw) })
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // SAFETY: retained in `open`, once; whatever was made in it holds an `Arc` of it.
        let _released = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}
