//! The C ABI: what `include/kvrail.h` promises.
//!
//! Owns the border to C: sized structures, codes, error texts, and the handles behind opaque
//! pointers. All work is done by `kvrail_client`. Panics stop here; null pointers and ranges are
//! checked here. A client's arenas are named by number, so a stale one is an error and no crash.
//! GPU memory will be named by the same numbers: `Request::memory` says which memory, not which
//! kind.

pub mod arena;
pub mod client;
pub mod code;
pub mod edge;
mod fork;
#[cfg(test)]
mod header;
pub mod queue;
pub mod request;
mod sized;
pub mod version;
pub mod volume;
