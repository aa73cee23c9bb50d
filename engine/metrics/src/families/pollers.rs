//! The pollers.

use kvrail_protocol::{PollerReport, StatusReport};

use crate::exposition::{Family, Kind, Samples, Unit, seconds};

pub(super) const FAMILIES: [Family; 8] = [
    Family {
        name: "kvrail_poller_heartbeat_age_seconds",
        kind: Kind::Gauge,
        unit: Unit::Seconds,
        labels: &["poller"],
        help: "Time since its last tick; grows while it sleeps, up to pollers.heartbeat.",
        samples: |report, to| each(report, to, |it| seconds(it.heartbeat_age_ns)),
    },
    Family {
        name: "kvrail_poller_stalled",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["poller"],
        help: "1 while it does not turn, because a device keeps it in the kernel.",
        samples: |report, to| each(report, to, |it| u8::from(it.stalled.is_some()).to_string()),
    },
    Family {
        name: "kvrail_poller_ticks",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["poller"],
        help: "Turns.",
        samples: |report, to| each(report, to, |it| it.ticks.to_string()),
    },
    Family {
        name: "kvrail_poller_busy_ticks",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["poller"],
        help: "Turns that found work.",
        samples: |report, to| each(report, to, |it| it.busy_ticks.to_string()),
    },
    Family {
        name: "kvrail_poller_sleeps",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["poller"],
        help: "Times it went to sleep.",
        samples: |report, to| each(report, to, |it| it.sleeps.to_string()),
    },
    Family {
        name: "kvrail_poller_bells",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["poller"],
        help: "Bells rung for sleeping clients.",
        samples: |report, to| each(report, to, |it| it.bells.to_string()),
    },
    Family {
        name: "kvrail_poller_allocations",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["poller"],
        help: "Heap calls on its thread after start: there should be none.",
        samples: |report, to| each(report, to, |it| it.allocations.to_string()),
    },
    Family {
        name: "kvrail_poller_lanes",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["poller"],
        help: "Lanes it serves.",
        samples: |report, to| each(report, to, |it| it.lanes.to_string()),
    },
];

fn each(report: &StatusReport, to: &mut Samples<'_>, value: fn(&PollerReport) -> String) {
    for poller in &report.pollers {
        to.add(&[&poller.index.to_string()], value(poller));
    }
}
