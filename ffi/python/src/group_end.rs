//! Ends of groups and lookups as Python sees them.

use pyo3::prelude::*;

use crate::results::{Found, Results};

/// The end of a group or lookup.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct GroupEnd {
    ticket: u32,
    outcome: GroupOutcome,
}

/// What a group or a lookup came to.
#[derive(Debug)]
enum GroupOutcome {
    Results(PyResult<Py<Results>>),
    Found(PyResult<Py<Found>>),
}

impl GroupEnd {
    /// The end of a put, get or drop.
    pub(crate) fn of_group(py: Python<'_>, ticket: u32, results: PyResult<Results>) -> Self {
        Self {
            ticket,
            outcome: GroupOutcome::Results(results.and_then(|results| Py::new(py, results))),
        }
    }

    /// The end of a lookup.
    pub(crate) fn of_lookup(py: Python<'_>, ticket: u32, found: PyResult<Found>) -> Self {
        Self { ticket, outcome: GroupOutcome::Found(found.and_then(|found| Py::new(py, found))) }
    }
}

#[pymethods]
impl GroupEnd {
    #[getter]
    fn ticket(&self) -> u32 {
        self.ticket
    }

    #[getter]
    fn results(&self, py: Python<'_>) -> PyResult<Option<Py<Results>>> {
        match &self.outcome {
            GroupOutcome::Results(Ok(results)) => Ok(Some(results.clone_ref(py))),
            GroupOutcome::Results(Err(error)) => Err(error.clone_ref(py)),
            GroupOutcome::Found(_) => Ok(None),
        }
    }

    #[getter]
    fn found(&self, py: Python<'_>) -> PyResult<Option<Py<Found>>> {
        match &self.outcome {
            GroupOutcome::Results(_) => Ok(None),
            GroupOutcome::Found(Ok(found)) => Ok(Some(found.clone_ref(py))),
            GroupOutcome::Found(Err(error)) => Err(error.clone_ref(py)),
        }
    }

    fn __repr__(&self) -> String {
        let kind = match self.outcome {
            GroupOutcome::Results(_) => "group",
            GroupOutcome::Found(_) => "lookup",
        };
        format!("<kvrail.GroupEnd of {kind} {}>", self.ticket)
    }
}
