//! GPU memory that is attached: the session detaches it when the program does not.

use std::mem::ManuallyDrop;
use std::sync::{Arc, OnceLock};
use std::thread;

use kvrail_client::{ClientError, GpuRange};
use pyo3::prelude::*;

use crate::errors::from_reason;

/// An attached region and the Python objects whose memory it is. However it ends, they are let go
/// only when the sidecar has let go.
#[derive(Debug)]
pub(crate) struct AttachedRegion {
    region: Arc<kvrail_client::GpuRegion>,
    keep: Option<Py<PyAny>>,
    detached: OnceLock<()>,
}

impl AttachedRegion {
    pub(crate) fn new(region: kvrail_client::GpuRegion, keep: Py<PyAny>) -> Self {
        Self { region: Arc::new(region), keep: Some(keep), detached: OnceLock::new() }
    }

    pub(crate) fn region(&self) -> &Arc<kvrail_client::GpuRegion> {
        &self.region
    }

    /// Waits until the sidecar has let go.
    pub(crate) fn detach(&self) -> Result<(), ClientError> {
        let outcome = self.region.detach();
        let _known = self.detached.set(());
        outcome
    }

    /// The range of a block, for a request.
    pub(crate) fn range(&self, block: u64, start: u64, length: u64) -> PyResult<GpuRange> {
        // No cache has a block of the highest number.
        let block = u32::try_from(block).unwrap_or(u32::MAX);
        self.region.range(block, start, length).map_err(from_reason)
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        self.region.block_bytes()
    }
}

impl Drop for AttachedRegion {
    fn drop(&mut self) {
        if self.detached.get().is_some() {
            return;
        }
        // Nobody waits for this: Python has dropped the region without closing it. Without a
        // thread the objects stay for ever, which is better than to give their memory away.
        let (region, keep) = (Arc::clone(&self.region), ManuallyDrop::new(self.keep.take()));
        let work = move || {
            let _gone = region.detach();
            // Not when the interpreter ends: then they stay.
            let _freed = Python::try_attach(|_| drop(ManuallyDrop::into_inner(keep)));
        };
        let _started = thread::Builder::new().name("kvrail-detach".into()).spawn(work);
    }
}
