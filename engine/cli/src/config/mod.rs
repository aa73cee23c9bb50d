//! Configuration: TOML straight into typed values, layered `default < file < fragments <
//! environment < --set`, checked as a whole, every value traceable to where it came from.
//!
//! Independent of devices and clients. Facts of this host (does the path exist, is the CPU there)
//! are checked where they are used.

mod auto;
mod check;
mod enums;
mod error;
mod flatten;
mod fragments;
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

pub use auto::Auto;
pub use check::{SOCKET_PATH_BYTES_MAX, TIER_BYTES_MIN};
pub use enums::{LogFormat, NullContent, Unsealed};
pub use error::ConfigError;
pub use gpu::GpuName;
pub use layers::Layers;
pub use load::{Loaded, load};
pub use model::{Config, DeviceConfig, MemoryTierConfig, VolumeConfig};
pub use pool::PoolConfig;
pub use provenance::Origin;
pub use target::{OnShutdown, TargetConfig};
pub use write_budget::WriteBudget;

/// Every key with its explanation, as shipped.
pub const DEFAULT_FILE: &str = include_str!("../../../../config/default.toml");
