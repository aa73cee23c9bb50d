//! The C ABI: what `include/kvrail.h` promises.
//!
//! Owns the border to C: sized structures, codes, error texts, and the handles behind opaque
//! pointers. All work is done by `kvrail_client`. Panics stop here; null pointers and ranges are
//! checked here. A client's arenas and GPU regions are named by number, so a stale one is an error
//! and no crash; a request names either, and for a GPU region a block of it.

pub mod arena;
pub mod block;
pub mod boundary;
pub mod client;
pub mod code;
pub mod explain;
mod fork;
pub mod gpu;
#[cfg(test)]
mod header;
pub mod key;
pub mod listing;
pub mod lookup;
pub mod namespace;
pub mod note;
pub mod presence;
pub mod queue;
pub mod request;
mod sized;
pub mod store;
pub mod version;
pub mod view;
pub mod volume;
