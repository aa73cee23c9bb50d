//! In which process an object was made: a fork may not use it.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

use crate::errors::raised::ForkedError;

/// Forks that lie behind this process. `os.register_at_fork` counts them in the child, where only
/// one thread is alive: nothing has to be ordered.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Counts a fork. The package has it called in every child.
#[pyfunction]
#[pyo3(name = "_forked")]
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed); // see `FORKS`
}

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForkGeneration(u32);

impl ForkGeneration {
    /// This one.
    pub(crate) fn now() -> Self {
        Self(FORKS.load(Ordering::Relaxed)) // see `FORKS`
    }

    /// Whether this is still that process.
    pub(crate) fn check(self) -> PyResult<()> {
        if self == Self::now() {
            return Ok(());
        }
        Err(ForkedError::new_err("this object was made before a fork(); attach in the child"))
    }
}
