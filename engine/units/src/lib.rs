//! Sizes and lengths of time as people write and read them: `256KiB`, `20us`.
//!
//! One grammar for configuration, command line and traces: a whole number and a unit. The crate
//! that reads a quantity owns the limit of that quantity. `limits` has those of several crates.
#![forbid(unsafe_code)]

mod limits;
mod period;
mod quantity;
mod size;
mod text;

pub use limits::METADATA_BYTES_MAX;
pub use period::Period;
pub use size::Size;
pub use text::deserialize;
