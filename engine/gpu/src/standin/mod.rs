//! The stand-in: a GPU that is host memory, for machines without one, and for faults that a real
//! GPU does not produce on demand. Its handles work between processes like CUDA's: a VMM handle is
//! a sealed memfd, a legacy handle names a descriptor of its living exporter.

mod batch;
mod gpu;
mod memory;
mod mover;
mod plan;

pub use gpu::EmulatedGpu;
pub use plan::{GpuControl, GpuFault};
