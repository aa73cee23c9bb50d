//! Whether a sidecar is well, and whether it can take clients; and why not, in words.

use kvrail_protocol::{Severity, StatusReport};

/// Faults of the process: none while every poller turns. A fault that a restart would not mend,
/// such as a drive that is gone, is not here.
pub(crate) fn health(report: &StatusReport) -> Vec<&str> {
    words(report, Severity::Unhealthy)
}

/// Why a restart would help: nothing while a poller turns. A hung drive keeps its own poller in the
/// kernel; a restart would not mend that drive, and would stop the others.
pub(crate) fn liveness(report: &StatusReport) -> Vec<&str> {
    let turns = report.pollers.iter().any(|poller| poller.stalled.is_none());
    if turns { Vec::new() } else { health(report) }
}

/// Why clients should go elsewhere; nothing while they are served. A store of several members
/// serves as long as one of them does.
pub(crate) fn readiness(report: &StatusReport) -> Vec<&str> {
    words(report, Severity::Unready)
}

fn words(report: &StatusReport, severity: Severity) -> Vec<&str> {
    let own = report.troubles.iter().filter(|trouble| trouble.severity == severity);
    own.map(|trouble| trouble.words.as_str()).collect()
}
