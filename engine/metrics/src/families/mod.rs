//! Every family of metrics, in the order in which they are exposed.

mod config;
mod devices;
mod gpus;
mod paths;
mod pollers;
mod pools;
mod sessions;
mod sidecar;
mod stores;
mod troubles;
mod volumes;

use kvrail_protocol::StatusReport;

pub use stores::COUNTERS as STORE_COUNTERS;

use crate::exposition::{Dialect, Family};

/// All families, by what they are about.
pub(crate) const ALL: [&[Family]; 11] = [
    &sidecar::FAMILIES,
    &troubles::FAMILIES,
    &config::FAMILIES,
    &pollers::FAMILIES,
    &devices::FAMILIES,
    &paths::FAMILIES,
    &volumes::FAMILIES,
    &stores::FAMILIES,
    &pools::FAMILIES,
    &gpus::FAMILIES,
    &sessions::FAMILIES,
];

/// A report as Prometheus reads it.
#[must_use]
pub fn expose(report: &StatusReport, dialect: Dialect) -> String {
    let mut text = String::new();
    for family in ALL.iter().copied().flatten() {
        family.write(report, dialect, &mut text);
    }
    if dialect == Dialect::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use kvrail_protocol::StatusReport;

    /// A sidecar that has nothing.
    pub(crate) fn nothing() -> StatusReport {
        let report = serde_json::json!({
            "sidecar": {
                "pid": 1, "epoch": 1, "version": "0", "uptime_s": 0, "socket": "/s",
                "state": "serving", "refused": 0,
            },
            "pollers": [], "devices": [], "volumes": [], "shards": [], "sessions": [],
            "regions": {
                "arenas": 0, "bytes": 0, "quarantined": 0, "quarantined_bytes": 0,
                "quarantined_oldest_s": 0, "limit_bytes": 1,
            },
            "notes": [],
        });
        serde_json::from_value(report).expect("a report")
    }
}
