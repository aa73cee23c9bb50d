//! The Python object behind a volume: `volume` has its methods.

use std::sync::Arc;

use kvrail_client::GpuRoute;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::{RangeWork, RequestBatch};
use crate::completion::Completion;
use crate::session::Session;

/// A volume of the sidecar.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) session: Arc<Session>,
    pub(crate) volume: kvrail_client::Volume,
}

impl Volume {
    pub(crate) fn new(session: &Arc<Session>, volume: kvrail_client::Volume) -> Self {
        Self { session: Arc::clone(session), volume }
    }

    /// How its bytes get to the region.
    pub(crate) fn route<'a>(&self, region: &'a kvrail_client::GpuRegion) -> Option<&'a GpuRoute> {
        region.route(&self.volume)
    }

    pub(crate) fn run(
        &self,
        py: Python<'_>,
        work: RangeWork,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Vec<Completion>> {
        RequestBatch::new(&self.volume, work, options)?.run(py, &self.session)
    }

    pub(crate) fn run_one(
        &self,
        py: Python<'_>,
        work: RangeWork,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Completion> {
        self.run(py, work, options).map(|mut ends| ends.swap_remove(0))
    }
}
