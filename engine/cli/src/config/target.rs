//! `[target]`: what this host exports, and how that is kept up. The objects themselves are words of
//! the target room.

use std::path::PathBuf;

use kvrail_target::{Host, Port, Subsystem, TargetSpec};
use kvrail_units::Period;
use serde::{Deserialize, Serialize};

/// The NVMe over Fabrics target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TargetConfig {
    pub configfs: PathBuf,
    pub state_dir: PathBuf,
    pub on_shutdown: OnShutdown,
    pub reconcile_interval: Period,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host: Vec<Host>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subsystem: Vec<Subsystem>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub port: Vec<Port>,
}

/// The target's state after `kvrail serve` stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnShutdown {
    /// Leaves it: the kernel serves on.
    #[default]
    Keep,
    /// Takes it down.
    Teardown,
}

impl Default for TargetConfig {
    fn default() -> Self {
        Self {
            configfs: "/sys/kernel/config/nvmet".into(),
            state_dir: "/var/lib/kvrail/target".into(),
            on_shutdown: OnShutdown::Keep,
            reconcile_interval: Period::from_s(5),
            host: Vec::new(),
            subsystem: Vec::new(),
            port: Vec::new(),
        }
    }
}

impl TargetConfig {
    /// The exported device.
    pub fn wish(&self) -> TargetSpec {
        let (host, subsystem) = (self.host.clone(), self.subsystem.clone());
        TargetSpec { host, subsystem, port: self.port.clone() }
    }
}
