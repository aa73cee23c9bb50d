//! `kvrail bench --gpu N`: blocks between a file and GPU memory, by every way there is.
//!
//! Arms of the one runner: kvrail staged, by its own choice and direct, plain cuFile, a pool of
//! threads with pinned buffers, host memory as the ceiling, all on the same file; and the copies
//! alone, without a device. What moves between file and GPU is verified by reading back. Owns the
//! cases and arms; the pollers it measures are the sidecar's own.

mod aims;
mod arms;
mod cache;
mod case;
mod copies;
mod cufile;
mod host_pool;
mod kvrail;
mod meter;
mod pollers;
mod suite;
mod volume;

pub(crate) use suite::run;
