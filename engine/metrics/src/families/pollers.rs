//! The pollers.

use kvrail_counters::PollerCounters;
use kvrail_protocol::{PollerReport, StatusReport};

use super::counters::families;
use crate::exposition::{Family, FamilyKind, Samples, Unit, seconds};

/// How a poller is.
pub(super) const FAMILIES: [Family; 3] = [
    Family {
        name: "kvrail_poller_heartbeat_age_seconds",
        kind: FamilyKind::Gauge,
        unit: Unit::Seconds,
        labels: &["poller"],
        help: "Time since its last tick; grows while it sleeps, up to pollers.heartbeat.",
        samples: |report, to| each(report, to, |poller| seconds(poller.heartbeat_age_ns)),
    },
    Family {
        name: "kvrail_poller_stalled",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["poller"],
        help: "1 while it does not turn, because a device keeps it in the kernel.",
        samples: |report, to| {
            each(report, to, |poller| u8::from(poller.stalled.is_some()).to_string())
        },
    },
    Family {
        name: "kvrail_poller_lanes",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["poller"],
        help: "Lanes it serves.",
        samples: |report, to| each(report, to, |poller| poller.lanes.to_string()),
    },
];

/// Counters of a poller.
pub(super) fn counted() -> impl Iterator<Item = Family> {
    let labels: &[_] = &["poller"];
    families(PollerCounters::TABLE, [labels, labels], |report, to| {
        for poller in &report.pollers {
            to.add_counted(&[&poller.index.to_string()], poller.counters.each());
        }
    })
}

fn each(report: &StatusReport, to: &mut Samples<'_>, value: fn(&PollerReport) -> String) {
    for poller in &report.pollers {
        to.add(&[&poller.index.to_string()], value(poller));
    }
}
