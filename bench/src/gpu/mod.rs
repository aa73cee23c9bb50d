//! `kvrail bench --gpu N`: blocks between a file and GPU memory, by every way there is.
//!
//! One run, interleaved: kvrail staged, by its own choice and direct, plain cuFile, a pool of
//! threads with pinned buffers, host memory as the ceiling, all on the same file; and the copies
//! alone, without a device. What moves between file and GPU is verified by reading back. Owns the
//! cases and arms; the pollers it measures are the sidecar's own.

mod aims;
mod arms;
mod case;
mod command;
mod copies;
mod cufile;
mod ground;
mod host_pool;
mod kvrail;
mod meter;
mod pollers;
mod schema;
mod stage;
mod table;

pub(crate) use command::run;
pub use schema::{GpuFound, GpuRatio, GpuReport, GpuRun};
