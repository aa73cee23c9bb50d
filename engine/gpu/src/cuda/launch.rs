//! The kernels' parameters and the one call that starts them.
#![expect(unsafe_code, reason = "launches kernels")]
// UNSAFETY: the module stays loaded while a kernel of it is held; parameters are copied by the
// driver during the call; the launching code holds the memory that kernels touch.

use std::ffi::{CStr, CString, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;

use super::context::{PrimaryContext, check};
use crate::contract::{MOVES_MAX, Way};
use crate::error::CudaError;

/// The kernels, made from `kernels/move.cu` by `scripts/dev ptx`.
const PTX: &str = include_str!("../../kernels/move.ptx");

/// Threads of a CTA; `THREADS` of `move.cu`.
const THREADS: u32 = 256;
/// Bytes a CTA moves; `CHUNK` of `move.cu`.
const CHUNK_BYTES: u32 = THREADS * 16 * 4;

/// `Job` of `move.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct DeviceJob {
    pub(super) fragments: u64,
    pub(super) staged: u64,
    pub(super) start: u64,
    pub(super) length: u32,
    pub(super) block: u32,
    pub(super) count: u32,
    pub(super) reserved: u32,
}

/// `Batch` of `move.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Batch {
    pub(super) arrived: u64,
    pub(super) flag: u64,
    pub(super) ticket: u32,
    pub(super) reserved: u32,
    pub(super) jobs: [DeviceJob; MOVES_MAX],
}

const _: () = assert!(size_of::<DeviceJob>() == 40 && size_of::<Batch>() == 2584);
const _: () = assert!(offset_of!(Batch, jobs) == 24 && offset_of!(DeviceJob, length) == 24);

impl Batch {
    /// Nothing to do.
    pub(super) const EMPTY: Self = Self {
        arrived: 0,
        flag: 0,
        ticket: 0,
        reserved: 0,
        jobs: [DeviceJob {
            fragments: 0,
            staged: 0,
            start: 0,
            length: 0,
            block: 0,
            count: 0,
            reserved: 0,
        }; MOVES_MAX],
    };
}

/// The kernels, compiled for this GPU.
#[derive(Debug)]
pub(super) struct Kernels {
    context: Arc<PrimaryContext>,
    module: sys::CUmodule,
    /// For few jobs and for many, by way.
    functions: [[sys::CUfunction; 2]; 2],
}

/// Most jobs of the kernels for few; the 8 of `kvrail_gather_8`.
const FEW: usize = 8;

/// Names of the kernels, by way; for few jobs first.
const NAMES: [[&CStr; 2]; 2] =
    [[c"kvrail_gather_8", c"kvrail_gather_64"], [c"kvrail_scatter_8", c"kvrail_scatter_64"]];

// SAFETY: modules and functions are names for the driver, usable on any thread.
unsafe impl Send for Kernels {}
// SAFETY: as for Send; the driver locks for itself.
unsafe impl Sync for Kernels {}

/// A queue of launches.
#[derive(Debug)]
pub(super) struct Stream {
    context: Arc<PrimaryContext>,
    raw: sys::CUstream,
}

// SAFETY: a stream is a name for the driver, usable on any thread.
unsafe impl Send for Stream {}

impl Kernels {
    /// Has the driver compile the checked-in PTX.
    pub(super) fn load(context: &Arc<PrimaryContext>) -> Result<Self, CudaError> {
        context.enter()?;
        let text = CString::new(PTX).expect("PTX has no zero bytes");
        let mut module = ptr::null_mut();
        // SAFETY: a terminated text that lives during the call; unloaded in drop.
        let got = unsafe { sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()) };
        check("cuModuleLoadData", got)?;
        let functions = [[ptr::null_mut(); 2]; 2];
        let mut kernels = Self { context: Arc::clone(context), module, functions };
        for (functions, names) in kernels.functions.iter_mut().zip(NAMES) {
            for (function, name) in functions.iter_mut().zip(names) {
                let to: *mut sys::CUfunction = function;
                // SAFETY: a terminated name; the function lives as long as the module.
                let got = unsafe { sys::cuModuleGetFunction(to, module, name.as_ptr()) };
                check("cuModuleGetFunction", got)?;
            }
        }
        Ok(kernels)
    }

    /// Starts the first `jobs` jobs of the batch. Returns at once.
    ///
    /// # Safety
    /// Tables, staging memory, flag and counter that the batch names must stay until the flag
    /// shows the ticket or the stream reports an error; jobs must stay inside of them.
    pub(super) unsafe fn launch(
        &self,
        way: Way,
        stream: &Stream,
        batch: &Batch,
        jobs: usize,
    ) -> Result<(), CudaError> {
        let longest = batch.jobs[..jobs].iter().map(|job| job.length).max().unwrap_or(0);
        let rows = u32::try_from(jobs).expect("at most 64");
        let columns = longest.div_ceil(CHUNK_BYTES).max(1);
        let function = self.functions[way as usize][usize::from(jobs > FEW)];
        let mut parameters = [ptr::from_ref(batch).cast_mut().cast::<c_void>()];
        // SAFETY: the caller's promise for what the batch names; the driver copies the batch
        // before the call returns.
        let got = unsafe {
            sys::cuLaunchKernel(
                function,
                columns,
                rows,
                1,
                THREADS,
                1,
                1,
                0,
                stream.raw,
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", got)
    }
}

impl Stream {
    pub(super) fn new(context: &Arc<PrimaryContext>) -> Result<Self, CudaError> {
        context.enter()?;
        let mut raw = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the pointer lives on this stack; destroyed in drop.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut raw, flags) })?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Its context.
    pub(super) fn context(&self) -> &Arc<PrimaryContext> {
        &self.context
    }

    /// The driver's name for it.
    pub(super) fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Waits for everything launched. Not on a poller.
    pub(super) fn drain(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives while `self` does.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Whether anything went wrong with what was launched; never waits.
    pub(super) fn health(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives while `self` does.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(()),
            status => check("cuStreamQuery", status),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _current = self.context.enter();
        // A mover is dropped after the last launch, by the control thread or a leaving poller.
        let _drained = self.drain();
        // SAFETY: made in `new`, once.
        let _destroyed = unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let _current = self.context.enter();
        // SAFETY: loaded in `load`, once; streams, dropped before, have drained.
        let _unloaded = unsafe { sys::cuModuleUnload(self.module) };
    }
}
