//! Clients as Python sees them.

use std::os::fd::{IntoRawFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;

use kvrail_client::{AttachOptions, ClientError, Pages};
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::arena::Arena;
use crate::ask::ask;
use crate::errors::from_client;
use crate::errors::raised::{LayoutError, RequestError};
use crate::gpu::{GpuRegion, attach};
use crate::memory::{address_of, duplicate};
use crate::options::seconds;
use crate::plain::plain;
use crate::session::Session;
use crate::store::Store;
use crate::volume_object::Volume;

/// A session with a sidecar.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Client {
    session: Arc<Session>,
}

fn pages(name: &str) -> PyResult<Pages> {
    match name {
        "auto" => Ok(Pages::Auto),
        "base" => Ok(Pages::Base),
        "2MiB" => Ok(Pages::Huge2MiB),
        "1GiB" => Ok(Pages::Huge1GiB),
        _ => Err(RequestError::new_err(format!(
            "pages is {name:?}; it must be \"auto\", \"base\", \"2MiB\" or \"1GiB\""
        ))),
    }
}

/// Drops an arena whose caller has gone.
fn forget(arena: Result<kvrail_client::Arena, ClientError>) {
    if let Ok(arena) = arena {
        // Whatever is wrong, the end of the session takes it away.
        let _gone = arena.detach();
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (socket, *, name=None, timeout=None, wait=None))]
    fn new(
        py: Python<'_>,
        socket: PathBuf,
        name: Option<String>,
        timeout: Option<Bound<'_, PyAny>>,
        wait: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut options = AttachOptions::default();
        options.name = name.unwrap_or(options.name);
        if let Some(timeout) = timeout {
            options.timeout = seconds("timeout", &timeout)?;
        }
        if let Some(wait) = wait {
            options.wait = seconds("wait", &wait)?;
        }
        let attach = move || kvrail_client::Client::attach_with(&socket, &options);
        let session = Session::new(ask(py, attach, drop)?.map_err(from_client)?);
        Ok(Self { session: Arc::new(session) })
    }

    #[getter]
    fn epoch(&self) -> PyResult<u64> {
        Ok(self.session.client()?.epoch().0)
    }

    #[getter]
    fn session(&self) -> PyResult<u64> {
        Ok(self.session.client()?.session().0)
    }

    #[getter]
    fn sidecar(&self) -> PyResult<String> {
        Ok(self.session.client()?.sidecar().to_owned())
    }

    #[getter]
    fn volumes(&self) -> PyResult<Vec<Volume>> {
        let client = self.session.client()?;
        let volume = |volume: &kvrail_client::Volume| Volume::new(&self.session, volume.clone());
        Ok(client.volumes().iter().map(volume).collect())
    }

    fn volume(&self, name: &str) -> PyResult<Volume> {
        let volume = self.session.client()?.volume(name).map_err(from_client)?;
        Ok(Volume::new(&self.session, volume))
    }

    fn region_of(&self, of: &Bound<'_, PyAny>) -> PyResult<Option<(Arena, usize)>> {
        self.session.client()?;
        let address = match of.is_instance_of::<PyInt>() {
            true => of.extract()?,
            false => address_of(of)?,
        };
        let arenas = self.session.cells().into_iter().filter_map(|cell| {
            let arena = cell.get().ok()?;
            let position = arena.position_of(address)?;
            Some((Arena::of(&self.session, cell, &arena), position))
        });
        Ok(arenas.last())
    }

    fn store(&self, name: &str) -> PyResult<Store> {
        let store = self.session.client()?.store(name).map_err(from_client)?;
        Ok(Store::new(&self.session, store))
    }

    #[getter]
    fn copied_bytes(&self) -> u64 {
        self.session.copied_bytes()
    }

    #[getter]
    fn dropped_hints(&self) -> u64 {
        // A closed or forked one has none to count.
        self.session.client().map_or(0, |client| client.dropped_hints())
    }

    #[pyo3(signature = (nbytes, *, pages="auto"))]
    fn create_arena(&self, py: Python<'_>, nbytes: usize, pages: &str) -> PyResult<Arena> {
        let (client, pages) = (self.session.client()?, self::pages(pages)?);
        let arena = ask(py, move || client.create_arena(nbytes, pages), forget)?;
        Ok(Arena::new(&self.session, arena.map_err(from_client)?))
    }

    fn import_arena(&self, file: &Bound<'_, PyAny>, nbytes: u64) -> PyResult<Arena> {
        let (client, memory) = (self.session.client()?, duplicate(file)?);
        let arena = ask(file.py(), move || client.import_arena(memory, nbytes), forget)?;
        Ok(Arena::new(&self.session, arena.map_err(from_client)?))
    }

    #[getter]
    fn gpus<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        plain(py, self.session.client()?.gpus())
    }

    #[pyo3(signature = (tensors=None, *, layout=None, block_dim=0))]
    fn gpu_region(
        &self,
        py: Python<'_>,
        tensors: Option<Bound<'_, PyAny>>,
        layout: Option<Bound<'_, PyAny>>,
        block_dim: isize,
    ) -> PyResult<GpuRegion> {
        self.session.client()?;
        let layout = match (tensors, layout) {
            (Some(tensors), None) => {
                py.import("kvrail.gpu")?.call_method1("paged", (tensors, block_dim))?
            }
            (None, Some(layout)) => layout,
            _ => {
                let text = "pass either tensors or a kvrail.gpu.Layout";
                return Err(LayoutError::new_err(text));
            }
        };
        attach(&self.session, &layout)
    }

    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let client = self.session.client()?;
        plain(py, &ask(py, move || client.status(), drop)?.map_err(from_client)?)
    }

    /// A descriptor of the caller's.
    fn _watch_transfers(&self, py: Python<'_>) -> PyResult<Option<RawFd>> {
        let client = self.session.client()?;
        let pipe = ask(py, move || client.watch_transfers(), drop)?.map_err(from_client)?;
        Ok(pipe.map(IntoRawFd::into_raw_fd))
    }

    #[getter]
    fn quarantined_bytes(&self) -> PyResult<u64> {
        Ok(self.session.client()?.quarantined_bytes())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.session.is_closed()
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.session.birth().check()?;
        let session = Arc::clone(&self.session);
        ask(py, move || session.close(), drop)
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
        format!("<kvrail.Client, {state}>")
    }
}
