//! Benchmark.
pub mod cpu;
pub mod drive;
pub mod pattern;
pub mod plan;
pub mod port;
pub mod raw;
pub mod size;
pub mod stream;
pub mod trace;
pub mod versions;
