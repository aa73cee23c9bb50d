//! `kvrail bench --gpu N`: blocks between a file and GPU memory, by every way there is.
//!
//! One run, interleaved: kvrail staged, kvrail direct, plain cuFile, a pool of threads with pinned
//! buffers, and host memory as the ceiling, on the same file. Every read is verified by reading
//! GPU memory back. Owns the cases and arms; the pollers it measures are the sidecar's own.

mod case;
mod command;
mod cufile;
mod ground;
mod host_pool;
mod kvrail;
mod pollers;
mod report;

pub(crate) use command::run;
pub use report::{GpuReport, GpuRow};
