//! NVMe over Fabrics in one machine, over software RDMA, TCP and loop: a target that
//! `kvrail target` makes, and two clients, `kvrail host` and nvme-cli.

pub(crate) mod bytes;
mod connect;
mod network;
pub(crate) mod nvme_cli;
mod paths;
mod refusals;
pub(crate) mod target;

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::rig::{kvrail, run};

/// What a connection could leave behind. A host that has no name yet gets one, and keeps it in
/// `/etc/nvme`: that is no trace.
fn traces() -> BTreeSet<String> {
    let homes = ["/sys/class/nvme", "/sys/class/nvme-subsystem", "/sys/class/block", "/dev"];
    let entries = homes.iter().filter_map(|home| fs::read_dir(home).ok()).flatten();
    entries.map(|entry| entry.expect("it can be listed").path().display().to_string()).collect()
}

/// Runs `kvrail host` with these words, split at blanks, and expects success; its JSON.
fn host(words: &str) -> Value {
    let outcome =
        run(kvrail().arg("host").args(words.split_whitespace()).args(["--format", "json"]));
    outcome.expect(0, &[]);
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

/// The connection of a subsystem as `kvrail host list` shows it.
fn listed(nqn: &str) -> Option<Value> {
    let all = host("list");
    all.as_array().expect("a list").iter().find(|it| it["nqn"] == nqn).cloned()
}
