//! cuFile: the library found at run time, its files, buffers and batches as safe values.
//!
//! Owns every call into libcufile and the layouts those calls take. Independent of requests,
//! layouts of KV caches and pollers. Nothing of NVIDIA's header is in here: names, numbers and
//! layouts were written from the public API reference, and `scripts/dev cufile-layout` compares
//! them with an installed header.
//!
//! Promises: an entry of a batch holds its file and its buffer until the library has reported the
//! entry's end; a batch that may still have entries in flight is leaked, never destroyed.

mod abi;
mod batch;
mod error;
mod library;
mod status;
mod table;

pub use batch::{Entry, Report, TransferBatch};
pub use error::CuFileError;
pub use library::{Buffer, Compat, CuFile, File, Properties, TransferDirection};
pub use status::{BatchStatus, OpStatus};
