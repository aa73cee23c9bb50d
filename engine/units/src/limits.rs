//! Limits that several crates share and none of them owns.

/// Bytes of metadata of a block at most: the side area of a request and the tables of a store have
/// room for this many.
pub const METADATA_BYTES_MAX: usize = 1024;
