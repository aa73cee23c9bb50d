//! What the sidecar tells, as dictionaries and lists.

use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::raised::InternalError;

/// As Python's `json` reads it.
pub(crate) fn plain<'py>(
    py: Python<'py>,
    told: &(impl Serialize + ?Sized),
) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(told)
        .map_err(|error| InternalError::new_err(format!("what the sidecar told: {error}")))?;
    py.import("json")?.call_method1("loads", (text,))
}
