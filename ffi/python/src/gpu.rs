//! Regions of GPU memory as Python sees them. What tensors are and where they lie is found out in
//! `python/kvrail/gpu.py`; here its description goes to the sidecar.

use std::sync::Arc;

use kvrail_client::{Fragment, GpuCache, GpuMemory};
use pyo3::prelude::*;

use crate::ask::ask;
use crate::attached::AttachedRegion;
use crate::closable::Closable;
use crate::errors::raised::LayoutError;
use crate::errors::{detached, from_client};
use crate::memory::duplicate;
use crate::session::Session;
use crate::volume_object::Volume;

/// A paged KV cache in GPU memory.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct GpuRegion {
    session: Arc<Session>,
    cell: Arc<Closable<AttachedRegion>>,
    /// Of the region; they outlive it.
    region: Arc<kvrail_client::GpuRegion>,
}

/// A `kvrail.gpu.Layout`, as the client library has it.
fn cache(layout: &Bound<'_, PyAny>) -> PyResult<GpuCache> {
    let gpu: String = layout.getattr("gpu")?.extract()?;
    let mut cache = GpuCache::new(gpu, layout.getattr("blocks")?.extract()?);
    for memory in layout.getattr("memories")?.try_iter()? {
        cache = cache.memory(exported(&memory?)?);
    }
    for (index, fragment) in layout.getattr("fragments")?.try_iter()?.enumerate() {
        let (memory, base, stride, bytes) = fragment?.extract::<(u64, u64, u64, u64)>()?;
        let memory = u16::try_from(memory).map_err(|_| {
            LayoutError::new_err(format!("fragment {index}: there is no memory {memory}"))
        })?;
        cache = cache.fragment(Fragment { memory, base, stride, bytes });
    }
    Ok(cache)
}

/// A `kvrail.gpu.Memory`.
fn exported(memory: &Bound<'_, PyAny>) -> PyResult<GpuMemory> {
    let bytes = memory.getattr("nbytes")?.extract()?;
    let file = memory.getattr("file")?;
    if !file.is_none() {
        return Ok(GpuMemory::Descriptor { fd: duplicate(&file)?, bytes });
    }
    let handle: Vec<u8> = memory.getattr("handle")?.extract()?;
    let handle = handle.try_into().map_err(|wrong: Vec<u8>| {
        LayoutError::new_err(format!("a legacy handle has 64 bytes, this one {}", wrong.len()))
    })?;
    Ok(GpuMemory::Legacy { handle, offset: memory.getattr("offset")?.extract()?, bytes })
}

/// Attaches what a `kvrail.gpu.Layout` says.
pub(crate) fn attach(session: &Arc<Session>, layout: &Bound<'_, PyAny>) -> PyResult<GpuRegion> {
    let (client, cache) = (session.client()?, cache(layout)?);
    let keep = layout.getattr("keep")?.unbind();
    let attach = move || client.attach_gpu(cache).map(|region| AttachedRegion::new(region, keep));
    let attached = ask(layout.py(), attach, drop)?.map_err(from_client)?;
    let region = Arc::clone(attached.region());
    Ok(GpuRegion { session: Arc::clone(session), cell: session.add_region(attached), region })
}

impl GpuRegion {
    /// The region, while it is attached, in the process that attached it.
    pub(crate) fn get(&self) -> PyResult<Arc<AttachedRegion>> {
        self.session.birth().check()?;
        self.cell.get()
    }
}

#[pymethods]
impl GpuRegion {
    #[getter]
    fn blocks(&self) -> u32 {
        self.region.blocks()
    }

    #[getter]
    fn block_bytes(&self) -> u64 {
        self.region.block_bytes()
    }

    #[getter]
    fn gpu(&self) -> &str {
        self.region.gpu()
    }

    fn route(&self, volume: &Bound<'_, Volume>) -> Option<(String, String)> {
        let route = volume.get().route(&self.region)?;
        Some((route.mechanism.to_string(), route.reason.clone()))
    }

    #[getter]
    fn closed(&self) -> bool {
        self.cell.is_closed()
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.session.birth().check()?;
        let Some(attached) = self.cell.take() else { return Ok(()) };
        detached(ask(py, move || attached.detach(), drop)?)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { "closed" } else { "attached" };
        let (blocks, bytes) = (self.region.blocks(), self.region.block_bytes());
        format!("<kvrail.GpuRegion of {blocks} blocks of {bytes} bytes, {state}>")
    }
}
