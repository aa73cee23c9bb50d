//! The configuration of a running sidecar, and the one that its next start would read.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The configuration in force, and the one in the file by now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigReport {
    /// The file; nothing where there is none.
    pub file: Option<String>,
    /// Hash of the values in force: the same wherever the same values are.
    pub running: String,
    /// When they came into force, in seconds since 1970.
    pub since_unix_s: u64,
    /// Hash of the values that the next start would read; nothing where it would be refused.
    pub on_disk: Option<String>,
    /// Why the next start would be refused.
    pub refused: Option<String>,
    /// Why the last reload was refused.
    pub reload_refused: Option<String>,
    /// Keys that a reload would take over.
    pub reload_pending: Vec<String>,
    /// Keys that only a restart takes over.
    pub restart_pending: Vec<String>,
}

impl ConfigReport {
    /// Changes that wait for a reload or for a restart, a line each.
    #[must_use]
    pub fn pending(&self) -> Vec<String> {
        let waits = |what: &str, keys: &[String]| {
            (!keys.is_empty()).then(|| format!("{what} pending for {}", keys.join(", ")))
        };
        let lines =
            [waits("reload", &self.reload_pending), waits("restart", &self.restart_pending)];
        lines.into_iter().flatten().collect()
    }
}

/// A key of the configuration in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigEntry {
    /// Its path, as `limits.sessions`.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// Where the value came from, as `kvrail config show --origin --format json` shows it.
    pub origin: Value,
}

/// Changes by a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Keys that are in force from now on.
    pub now: Vec<String>,
    /// Keys that differ and need a restart.
    pub restart: Vec<String>,
}
