//! `kvrail bench`: kvrail against a bare io_uring loop, fio and the ceilings of two cores, in one
//! interleaved run on the same storage, with every block verified.
//!
//! Owns plans, patterns, drivers, statistics and reports. Starts no sidecar and parses no command
//! line of its own: a [`Harness`] makes the ground, [`BenchOptions`] is flattened into the CLI.
//! Never writes outside of the volume that the harness gives it.
//!
//! One way through: `options` -> `plan` -> `arms` on the harness's ground -> `drive` (the same
//! drivers for every arm, over `port`) -> `statistics` -> `report`.

pub mod arms;
mod command;
pub mod cpu;
pub mod drive;
pub mod environment;
mod error;
pub mod fio;
mod gpu;
mod harness;
pub mod lanes;
mod options;
mod output;
pub mod pattern;
pub mod plan;
pub mod port;
pub mod raw;
pub mod report;
mod run;
pub mod sidecar;
pub mod size;
pub mod statistics;
pub mod stream;
pub mod trace;
pub mod versions;

pub use command::command;
pub use error::BenchError;
pub use gpu::{GpuFound, GpuRatio, GpuReport, GpuRun};
pub use harness::{FileHarness, Ground, Harness, NullLane, STRIPE_BYTES, Sidecar};
pub use options::{ArmName, BenchOptions, Workload};
pub use output::{Format, Verdict};
pub use run::{Results, run};
