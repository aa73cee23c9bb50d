//! Arenas as Python sees them: memory that NumPy, PyTorch and requests share.
#![expect(unsafe_code, reason = "the buffer protocol passes a pointer")]
// UNSAFETY: the pointer goes to `memory::fill`, which documents its use.

use std::ffi::c_int;
use std::sync::Arc;

use kvrail_memory::Pinned;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::ask::ask;
use crate::closable::Closable;
use crate::errors::detached;
use crate::memory::{DLPACK_CPU, Dlpack, capsule, fill};
use crate::session::Session;

/// Memory shared with the sidecar.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Arena {
    session: Arc<Session>,
    cell: Arc<Closable<kvrail_client::Arena>>,
    /// Stays mapped while Python has views, also when the arena is closed.
    memory: Arc<dyn Pinned>,
    page_bytes: u64,
    note: Option<String>,
}

impl Arena {
    pub(crate) fn new(session: &Arc<Session>, arena: kvrail_client::Arena) -> Self {
        let cell = session.add_arena(arena);
        let arena = cell.get().expect("just attached");
        Self::of(session, cell, &arena)
    }

    /// Another object of an arena that is attached.
    pub(crate) fn of(
        session: &Arc<Session>,
        cell: Arc<Closable<kvrail_client::Arena>>,
        arena: &kvrail_client::Arena,
    ) -> Self {
        Self {
            memory: Arc::clone(arena.pool().memory()),
            page_bytes: arena.page_bytes(),
            note: arena.note().map(str::to_owned),
            cell,
            session: Arc::clone(session),
        }
    }

    /// The arena, while it is attached, in the process that attached it.
    pub(crate) fn get(&self) -> PyResult<Arc<kvrail_client::Arena>> {
        self.session.birth().check()?;
        self.cell.get()
    }
}

#[pymethods]
impl Arena {
    fn __len__(&self) -> usize {
        self.memory.bytes()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.bytes()
    }

    #[getter]
    fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    #[getter]
    fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.cell.is_closed()
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.session.birth().check()?;
        let Some(arena) = self.cell.take() else { return Ok(()) };
        detached(ask(py, move || arena.detach(), drop)?)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let arena = slf.get();
        arena.cell.get()?;
        // SAFETY: the interpreter's view; the object holds the memory.
        unsafe { fill(view, slf.as_any(), &arena.memory, flags) }
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (DLPACK_CPU, 0)
    }

    /// Keyword arguments are those of the array API: stream, max_version, dl_device, copy.
    #[pyo3(signature = (**options))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.cell.get()?;
        let given = |key: &str| -> PyResult<Option<Bound<'py, PyAny>>> {
            let value = options.map(|options| options.get_item(key)).transpose()?.flatten();
            Ok(value.filter(|value| !value.is_none()))
        };
        if let Some(device) = given("dl_device")?
            && device.extract::<(i32, i32)>()? != self.__dlpack_device__()
        {
            return Err(PyBufferError::new_err("an arena is CPU memory; ask for device (1, 0)"));
        }
        if let Some(copy) = given("copy")?
            && copy.extract()?
        {
            return Err(PyBufferError::new_err("an arena gives no copies; copy the tensor"));
        }
        let layout = match given("max_version")? {
            Some(version) if version.extract::<(u32, u32)>()?.0 >= 1 => Dlpack::Versioned,
            _ => Dlpack::Plain,
        };
        capsule(py, &self.memory, layout)
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { "closed" } else { "attached" };
        format!("<kvrail.Arena of {} bytes, {state}>", self.memory.bytes())
    }
}
