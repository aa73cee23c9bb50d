//! Configuration: TOML straight into typed values, layered `default < file < environment < --set`,
//! checked as a whole, every value traceable to where it came from.
//!
//! Knows no device and no client; what only this host can tell (does the path exist, is the CPU
//! there) is checked by who uses it.

mod auto;
mod check;
mod enums;
mod error;
mod flatten;
mod gpu;
mod layers;
mod load;
mod model;
mod pool;
mod provenance;
mod reload;
mod resolve_paths;
mod target;
mod tenant;
mod write_budget;

#[cfg(test)]
mod tests;

pub(crate) use auto::Auto;
pub(crate) use check::SOCKET_PATH_BYTES_MAX;
pub(crate) use enums::{LogFormat, NullContent, Unsealed};
pub(crate) use error::ConfigError;
pub(crate) use gpu::GpuName;
pub(crate) use layers::Layers;
pub(crate) use load::{Loaded, load};
pub(crate) use model::{Config, Device, Volume};
pub(crate) use pool::Pool;
pub(crate) use provenance::Origin;
pub(crate) use target::{OnShutdown, Target};
pub(crate) use write_budget::WriteBudget;

/// Every key with its explanation, as shipped.
pub(crate) const DEFAULT_FILE: &str = include_str!("../../../../config/default.toml");
