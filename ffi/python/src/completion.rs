//! How a request ended, as Python sees it.

use kvrail_client::{Completed, Status};
use pyo3::prelude::*;

use crate::errors::from_status;

/// The end of a request, or a notice that it is late.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Completion {
    done: Completed,
}

impl From<Completed> for Completion {
    fn from(mut done: Completed) -> Self {
        // The name of a range, which ends here; the bytes are Python's.
        done.lease = None;
        Self { done }
    }
}

impl Completion {
    /// The status of a request that did not end well.
    pub(crate) fn failure(&self) -> Option<Status> {
        Some(self.done.status).filter(|status| *status != Status::Ok)
    }
}

#[pymethods]
impl Completion {
    #[getter]
    fn ticket(&self) -> u64 {
        self.done.ticket.0
    }

    #[getter]
    fn tag(&self) -> u64 {
        self.done.tag
    }

    #[getter]
    fn status(&self) -> &'static str {
        self.done.status.name()
    }

    #[getter]
    fn ok(&self) -> bool {
        self.done.status == Status::Ok
    }

    #[getter]
    fn is_notice(&self) -> bool {
        self.done.is_notice()
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.done.bytes
    }

    #[getter]
    fn checksum(&self) -> u64 {
        self.done.checksum
    }

    #[getter]
    fn device_ns(&self) -> u32 {
        self.done.device_ns
    }

    #[getter]
    fn queue_ns(&self) -> u32 {
        self.done.queue_ns
    }

    /// Raises the exception of the status' family, unless all went well.
    fn check(&self) -> PyResult<()> {
        if self.ok() || self.is_notice() {
            return Ok(());
        }
        let status = self.done.status;
        let text = format!("request {}: {status}: {}", self.done.ticket.0, status.meaning());
        Err(from_status(status, text, vec![(0, status.name())]))
    }

    fn __repr__(&self) -> String {
        let Completed { ticket, status, bytes, .. } = &self.done;
        format!("<kvrail.Completion of {}: {status}, {bytes} bytes>", ticket.0)
    }
}
