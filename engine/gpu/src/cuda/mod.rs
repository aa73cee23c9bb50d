//! CUDA: the driver found at run time, one context for each GPU, memory, copies and kernels.
//!
//! Calls go through cudarc's driver layer as it is generated (`driver::sys`): its safe layer has
//! no shareable memory, no host registration, and events of its own on every copy. Every symbol
//! used is looked up before the first call, because that layer panics on a missing one.

mod batches;
mod contention;
mod context;
mod copier;
mod direct;
mod dma_copies;
mod exporter;
mod gpu;
mod import;
mod launch;
mod mapped;
mod memcpy_2d;
mod mover;

pub use context::{devices, driver_version};
pub use copier::Copier;
pub use exporter::ExportMethod;
pub use gpu::Cuda;
pub use mover::Copies;
