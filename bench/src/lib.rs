//! `kvrail bench`: kvrail's volumes and its store against a bare io_uring loop, fio and the
//! ceilings of two cores, in one interleaved run on the same storage, with every block verified.
//!
//! Owns plans, patterns, drivers, statistics and reports. Starts no sidecar and parses no command
//! line of its own: a [`Harness`] makes the ground, [`BenchOptions`] is flattened into the CLI.
//! Never writes outside of the volume that the harness gives it.
//!
//! One way through: `options` -> `plan` -> `runner`, which runs every arm of a suite in turns ->
//! `statistics` -> `report`. Suites: `run` (`arms` on the harness's ground, driven by `drive` over
//! `port`; `blocks` are what the store holds for them) and `gpu`. Beside them `serving` plays the
//! requests of an engine.

pub mod arms;
mod blocks;
mod command;
pub mod cpu;
pub mod drive;
pub mod environment;
mod error;
mod files;
pub mod fio;
mod gpu;
mod harness;
pub mod lanes;
pub mod memory;
mod options;
pub mod pattern;
pub mod plan;
pub mod port;
mod progress;
pub mod raw;
pub mod report;
mod run;
mod runner;
mod serving;
pub mod show;
pub mod sidecar;
pub mod statistics;
pub mod stream;
pub mod versions;

pub use command::{OutputFormat, RunVerdict, command};
pub use error::BenchError;
pub use harness::{FileHarness, Ground, Harness, NullLane, STRIPE_BYTES, Sidecar};
pub use options::{ArmName, BenchOptions, Progress};
pub use report::LEGEND;
pub use run::run;
pub use runner::{BenchmarkResults, Outcome};
