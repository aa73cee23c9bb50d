//! Every family of metrics, in the order in which they are exposed.

mod config;
mod counters;
mod devices;
mod drives;
mod gpus;
mod paths;
mod pollers;
mod pools;
mod sessions;
mod sidecar;
mod stores;
mod troubles;
mod volumes;

use std::sync::LazyLock;

use kvrail_protocol::StatusReport;

use crate::exposition::{Dialect, Family};

/// All families, by what they are about.
pub(crate) static ALL: LazyLock<Vec<Family>> = LazyLock::new(|| {
    let mut all = Vec::new();
    all.extend(sidecar::FAMILIES);
    all.extend(sidecar::counted());
    all.extend(troubles::FAMILIES);
    all.extend(config::FAMILIES);
    all.extend(pollers::counted());
    all.extend(pollers::FAMILIES);
    all.extend(devices::FAMILIES);
    all.extend(devices::counted());
    all.extend(drives::FAMILIES);
    all.extend(paths::FAMILIES);
    all.extend(volumes::FAMILIES);
    all.extend(stores::FAMILIES);
    all.extend(stores::counted());
    all.extend(pools::FAMILIES);
    all.extend(pools::counted());
    all.extend(gpus::FAMILIES);
    all.extend(gpus::counted());
    all.extend(sessions::FAMILIES);
    all.extend(sessions::counted());
    all
});

/// A report as Prometheus reads it.
#[must_use]
pub fn expose(report: &StatusReport, dialect: Dialect) -> String {
    let mut text = String::new();
    for family in &*ALL {
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
