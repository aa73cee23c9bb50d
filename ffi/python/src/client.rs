//! Clients as Python sees them.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use kvrail_client::{AttachOptions, ClientError, Pages};
use pyo3::prelude::*;

use crate::arena::Arena;
use crate::errors::from_client;
use crate::errors::raised::{InternalError, RequestError};
use crate::options::seconds;
use crate::session::Session;
use crate::volume::Volume;
use crate::wait::ask;

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

/// A descriptor of our own for the file that Python has open.
fn duplicate(file: &Bound<'_, PyAny>) -> PyResult<OwnedFd> {
    let number: i32 = match file.extract() {
        Ok(number) => number,
        Err(_) => file.call_method0("fileno")?.extract()?,
    };
    // Through procfs: no trust in the number is needed, and it opens the same memory.
    let path = format!("/proc/self/fd/{number}");
    Ok(std::fs::File::options().read(true).write(true).open(path)?.into())
}

/// An arena that nobody waits for any more.
fn forget(arena: Result<kvrail_client::Arena, ClientError>) {
    if let Ok(arena) = arena {
        // Whatever is wrong, the end of the session takes it away.
        let _gone = arena.detach();
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (socket, *, name=None, timeout=None))]
    fn new(
        py: Python<'_>,
        socket: PathBuf,
        name: Option<String>,
        timeout: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut options = AttachOptions::default();
        options.name = name.unwrap_or(options.name);
        if let Some(timeout) = timeout {
            options.timeout = seconds("timeout", &timeout)?;
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

    #[pyo3(signature = (nbytes, *, pages="auto"))]
    fn create_arena(&self, py: Python<'_>, nbytes: usize, pages: &str) -> PyResult<Arena> {
        let (client, pages) = (self.session.client()?, self::pages(pages)?);
        let arena = ask(py, move || client.create_arena(nbytes, pages), forget)?;
        Ok(Arena::new(&self.session, arena.map_err(from_client)?))
    }

    fn bring_arena(&self, file: &Bound<'_, PyAny>, nbytes: u64) -> PyResult<Arena> {
        let (client, memory) = (self.session.client()?, duplicate(file)?);
        let arena = ask(file.py(), move || client.bring_arena(memory, nbytes), forget)?;
        Ok(Arena::new(&self.session, arena.map_err(from_client)?))
    }

    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let client = self.session.client()?;
        let report = ask(py, move || client.status(), drop)?.map_err(from_client)?;
        let text = serde_json::to_string(&report)
            .map_err(|error| InternalError::new_err(format!("the status: {error}")))?;
        py.import("json")?.call_method1("loads", (text,))
    }

    #[getter]
    fn fenced_bytes(&self) -> PyResult<u64> {
        Ok(self.session.client()?.fenced_bytes())
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
