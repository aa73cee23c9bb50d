//! Sizes and lengths of time as people write and read them: `256KiB`, `20us`.
//!
//! One grammar for configuration, command line and traces: a whole number and a unit. Owns no
//! limits: who reads a quantity knows what it may be.
#![forbid(unsafe_code)]

mod period;
mod quantity;
mod size;
mod text;

pub use period::Period;
pub use size::Size;
pub use text::deserialize;
