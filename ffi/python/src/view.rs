//! Views as Python sees them: blocks in the sidecar's memory, as read-only buffers.
#![expect(unsafe_code, reason = "the buffer protocol passes a pointer")]
// UNSAFETY: the pointer goes to `memory::fill_with`, which documents its use; the bytes stay until
// the last buffer is released.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::raised::ClosedError;
use crate::memory::{Access, fill_with};

/// A block where it lies.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct View(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Kept until it is released and the last buffer of it is.
    view: Option<kvrail_client::View>,
    buffers: usize,
    is_released: bool,
}

impl State {
    fn settle(&mut self) {
        if self.is_released && self.buffers == 0 {
            self.view = None;
        }
    }
}

impl View {
    pub(crate) fn new(view: kvrail_client::View) -> Self {
        Self(Mutex::new(State { view: Some(view), buffers: 0, is_released: false }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // nothing under it panics half-way
    }

    fn bytes(&self) -> PyResult<(NonNull<u8>, usize)> {
        let state = self.state();
        let open = state.view.as_deref().filter(|_| !state.is_released);
        let bytes =
            open.ok_or_else(|| ClosedError::new_err("the view is released; view it anew"))?;
        Ok((NonNull::from_ref(bytes).cast(), bytes.len()))
    }
}

#[pymethods]
impl View {
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.bytes()?.1)
    }

    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        self.__len__()
    }

    #[getter]
    fn released(&self) -> bool {
        self.state().is_released
    }

    fn release(&self) {
        let mut state = self.state();
        state.is_released = true;
        state.settle();
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, _raised: &Bound<'_, PyAny>) {
        self.release();
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = slf.get().bytes()?;
        // SAFETY: the interpreter's view; the object keeps the bytes while there are buffers.
        unsafe { fill_with(view, slf.as_any(), bytes, (Access::Read, flags)) }?;
        slf.get().state().buffers += 1;
        Ok(())
    }

    /// # Safety
    /// Called by the interpreter, once for each buffer.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        let mut state = self.state();
        state.buffers -= 1;
        state.settle();
    }

    fn __repr__(&self) -> String {
        let state = self.state();
        match state.view.as_deref().filter(|_| !state.is_released) {
            Some(bytes) => format!("<kvrail.View of {} bytes>", bytes.len()),
            None => "<kvrail.View, released>".into(),
        }
    }
}
