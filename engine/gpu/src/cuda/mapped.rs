//! Host memory that the GPU sees: staging slots and the flags of launches.
#![expect(unsafe_code, reason = "registers host memory with the CUDA driver")]
// UNSAFETY: the mapping holds the memory it registers and takes it back before letting it go.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys;
use kvrail_memory::Pinned;

use super::context::{PrimaryContext, check};
use crate::error::CudaError;

/// `CU_MEMHOSTREGISTER_PORTABLE` and `CU_MEMHOSTREGISTER_DEVICEMAP`.
const PORTABLE_AND_MAPPED: u32 = 0x01 | 0x02;

/// Host memory registered with the GPU.
#[derive(Debug)]
pub(super) struct Mapped {
    context: Arc<PrimaryContext>,
    memory: Arc<dyn Pinned>,
    address: u64,
}

impl Mapped {
    pub(super) fn new(
        context: &Arc<PrimaryContext>,
        memory: Arc<dyn Pinned>,
    ) -> Result<Self, CudaError> {
        context.enter()?;
        let (base, bytes) = (memory.base().as_ptr().cast::<c_void>(), memory.bytes());
        // SAFETY: the memory stays where it is while `memory` lives, which this value holds until
        // it has unregistered it.
        let got = unsafe { sys::cuMemHostRegister_v2(base, bytes, PORTABLE_AND_MAPPED) };
        check("cuMemHostRegister", got)?;
        let mut mapped = Self { context: Arc::clone(context), memory, address: 0 };
        // SAFETY: the number lives in `mapped`; the memory was registered just now.
        let got = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut mapped.address, base, 0) };
        check("cuMemHostGetDevicePointer", got)?;
        Ok(mapped)
    }

    /// The first byte as the GPU addresses it.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of the memory.
    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Where a byte is in this process.
    pub(super) fn at(&self, offset: usize) -> *mut c_void {
        self.memory.base().as_ptr().wrapping_add(offset).cast()
    }

    /// The 32-bit word at this index, which a kernel may store at any time.
    pub(super) fn word(&self, index: usize) -> u32 {
        assert!((index + 1) * size_of::<u32>() <= self.memory.bytes(), "word {index}");
        let word = self.memory.base().cast::<u32>().as_ptr().wrapping_add(index);
        // SAFETY: within the memory, checked above, aligned as the page is; only kernels write it,
        // with a system-scope release store.
        let word = unsafe { AtomicU32::from_ptr(word) };
        // Pairs with `st.release.sys` of the kernel's last CTA.
        word.load(Ordering::Acquire)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let base = self.memory.base().as_ptr().cast::<c_void>();
        let _current = self.context.enter();
        // SAFETY: registered in `new`, once; the mover has waited for its launches.
        let _gone = unsafe { sys::cuMemHostUnregister(base) };
    }
}
