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
    /// What is to be dropped now, behind the lock: its session may end with it.
    fn settle(&mut self) -> Option<kvrail_client::View> {
        if self.is_released && self.buffers == 0 { self.view.take() } else { None }
    }

    fn bytes(&self) -> PyResult<(NonNull<u8>, usize)> {
        let open = self.view.as_deref().filter(|_| !self.is_released);
        let bytes =
            open.ok_or_else(|| ClosedError::new_err("the view is released; view it anew"))?;
        Ok((NonNull::from_ref(bytes).cast(), bytes.len()))
    }
}

impl View {
    pub(crate) fn new(view: kvrail_client::View) -> Self {
        Self(Mutex::new(State { view: Some(view), buffers: 0, is_released: false }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // nothing under it panics half-way
    }

    /// A buffer is gone, or was never made.
    fn drop_buffer(&self) {
        let mut state = self.state();
        state.buffers -= 1;
        let released = state.settle();
        drop(state);
        drop(released);
    }
}

#[pymethods]
impl View {
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.state().bytes()?.1)
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
        let released = state.settle();
        drop(state);
        drop(released);
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
        let own = slf.get();
        let mut state = own.state();
        let bytes = state.bytes()?;
        state.buffers += 1;
        drop(state);
        // SAFETY: the interpreter's view; the object keeps the bytes while there are buffers.
        let filled = unsafe { fill_with(view, slf.as_any(), bytes, (Access::Read, flags)) };
        filled.inspect_err(|_| own.drop_buffer())
    }

    /// # Safety
    /// Called by the interpreter, once for each buffer.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.drop_buffer();
    }

    fn __repr__(&self) -> String {
        let state = self.state();
        match state.view.as_deref().filter(|_| !state.is_released) {
            Some(bytes) => format!("<kvrail.View of {} bytes>", bytes.len()),
            None => "<kvrail.View, released>".into(),
        }
    }
}
