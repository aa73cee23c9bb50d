//! The Python package's inner module, `kvrail._kvrail`.
//!
//! Owns the border to Python: argument checks, exceptions, the interpreter lock, signals and
//! forks. All work is done by `kvrail_client`. What Python sees of it is typed and explained in
//! `python/kvrail/_kvrail.pyi`; exceptions are made in `python/kvrail/errors.py`.
//!
//! Whatever waits gives the interpreter lock away, and comes back in slices to look for signals.
//! Objects share a `session::Session`; closing it closes them all. CUDA is spoken in Python alone
//! (`python/kvrail/_cuda.py`): what comes here of GPU memory are handles and numbers.

mod arena;
mod ask;
mod attached;
mod batch;
mod bounce;
mod call_options;
mod client;
mod closable;
mod completion;
mod errors;
mod flight;
mod fork;
mod gpu;
mod group;
mod group_end;
mod group_of;
mod keys;
mod listing;
mod memory;
mod namespace;
mod numbers;
mod options;
mod places;
mod plain;
mod queue;
mod results;
mod rows;
mod run;
mod session;
mod store;
mod view;
mod volume;
mod volume_object;
mod wait;

use pyo3::prelude::*;

/// The compiled half of the package `kvrail`.
#[pymodule]
mod _kvrail {
    #[pymodule_export]
    use crate::arena::Arena;
    #[pymodule_export]
    use crate::client::Client;
    #[pymodule_export]
    use crate::completion::Completion;
    #[pymodule_export]
    use crate::fork::forked;
    #[pymodule_export]
    use crate::gpu::GpuRegion;
    #[pymodule_export]
    use crate::group_end::GroupEnd;
    #[pymodule_export]
    use crate::keys::{Keys, uniform};
    #[pymodule_export]
    use crate::listing::{Block, Events, Gone, Listing};
    #[pymodule_export]
    use crate::namespace::Namespace;
    #[pymodule_export]
    use crate::queue::Queue;
    #[pymodule_export]
    use crate::results::{Found, Probed, Results};
    #[pymodule_export]
    use crate::store::Store;
    #[pymodule_export]
    use crate::view::View;
    #[pymodule_export]
    use crate::volume_object::Volume;

    use pyo3::prelude::*;

    /// Release of the package.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
