//! Plain copies between staging memory and GPU memory by the copy engines: what the kernels are
//! compared with. Benchmarks only.
#![expect(unsafe_code, reason = "copies by address")]
// UNSAFETY: both sides are held by the copier or borrowed until `wait` has seen the end.

use std::sync::Arc;

use cudarc::driver::sys;

use super::context::{PrimaryContext, check};
use super::launch::Stream;
use super::mapped::Mapped;
use crate::contract::Way;
use crate::error::GpuError;
use crate::region::GpuRegion;
use crate::staging::Staging;

/// Copies on a stream of its own.
#[derive(Debug)]
pub struct Copier {
    stream: Stream,
    mapped: Mapped,
    context: Arc<PrimaryContext>,
}

impl Copier {
    pub(super) fn new(
        context: &Arc<PrimaryContext>,
        pool: &Arc<Staging>,
    ) -> Result<Self, GpuError> {
        let region: Arc<kvrail_memory::Region> = Arc::clone(pool.region());
        let mapped = Mapped::new(context, region)?;
        Ok(Self { stream: Stream::new(context)?, mapped, context: Arc::clone(context) })
    }

    /// Makes the GPU usable on this thread.
    ///
    /// # Errors
    /// The driver's.
    pub fn begin(&self) -> Result<(), GpuError> {
        Ok(self.context.enter()?)
    }

    /// Starts one copy for each fragment of a range, and returns.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the block does not hold the range, or the staging memory not its bytes.
    pub fn start(
        &self,
        way: Way,
        region: &GpuRegion,
        (block, start, length): (u32, u64, u32),
        staged: usize,
    ) -> Result<(), GpuError> {
        let room = self.mapped.bytes().saturating_sub(staged);
        assert!(length as usize <= room, "{length} bytes at {staged}");
        for run in region.layout().runs(block, start, length) {
            let paged = region.memories()[usize::from(run.memory)].address + run.offset;
            let bytes = usize::try_from(run.bytes).expect("at most the range");
            let host = self.mapped.at(staged + usize::try_from(run.at).expect("in the range"));
            let (call, got) = match way {
                // SAFETY: both ranges are inside of memory that is held here or by the caller's
                // region until `wait`; checked above and by the layout.
                Way::Scatter => ("cuMemcpyHtoDAsync", unsafe {
                    sys::cuMemcpyHtoDAsync_v2(paged, host, bytes, self.stream.raw())
                }),
                // SAFETY: as for the other way.
                Way::Gather => ("cuMemcpyDtoHAsync", unsafe {
                    sys::cuMemcpyDtoHAsync_v2(host, paged, bytes, self.stream.raw())
                }),
            };
            check(call, got)?;
        }
        Ok(())
    }

    /// Waits until everything started has ended.
    ///
    /// # Errors
    /// The first error of a copy.
    pub fn wait(&self) -> Result<(), GpuError> {
        Ok(self.stream.drain()?)
    }
}
