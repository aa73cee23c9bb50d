//! How much a process insists on its sandbox.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whether there is a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxMode {
    /// All restrictions that the kernel supports.
    #[default]
    On,
    /// All of it, or no start.
    Strict,
    /// None.
    Off,
}

impl fmt::Display for SandboxMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Strict => "strict",
            Self::Off => "off",
        })
    }
}
