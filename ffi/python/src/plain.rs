//! Reports of the sidecar, as dictionaries and lists.

use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::raised::InternalError;

/// As Python's `json` reads it.
pub(crate) fn plain<'py>(
    py: Python<'py>,
    report: &(impl Serialize + ?Sized),
) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(report)
        .map_err(|error| InternalError::new_err(format!("a report of the sidecar: {error}")))?;
    py.import("json")?.call_method1("loads", (text,))
}
