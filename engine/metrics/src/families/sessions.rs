//! The sessions. A session's number is used once within one run.

use kvrail_protocol::{SessionReport, StatusReport};

use crate::exposition::{Family, Kind, Samples, Unit};

pub(super) const FAMILIES: [Family; 8] = [
    Family {
        name: "kvrail_session_info",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["session", "name", "library", "pid", "uid", "state"],
        help: "Always 1; its labels are the session's client and state, attached or reclaiming.",
        samples: |report, to| {
            for session in &report.sessions {
                let (id, pid, uid) =
                    (session.id.to_string(), session.pid.to_string(), session.uid.to_string());
                // The rest of a state is words for people.
                let state = session.state.split(':').next().unwrap_or_default();
                to.add(&[&id, &session.name, &session.library, &pid, &uid, state], 1);
            }
        },
    },
    Family {
        name: "kvrail_session_arena_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["session"],
        help: "Bytes of its arenas.",
        samples: |report, to| each(report, to, |session| session.arena_bytes),
    },
    Family {
        name: "kvrail_session_gpu_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["session"],
        help: "Bytes of its regions of GPU memory.",
        samples: |report, to| each(report, to, |session| session.gpu_bytes),
    },
    Family {
        name: "kvrail_session_queues",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["session"],
        help: "Its queues.",
        samples: |report, to| each(report, to, |session| session.queues.into()),
    },
    Family {
        name: "kvrail_session_requests_accepted",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["session"],
        help: "Requests accepted.",
        samples: |report, to| each(report, to, |session| session.accepted),
    },
    Family {
        name: "kvrail_session_requests_completed",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["session"],
        help: "Requests completed.",
        samples: |report, to| each(report, to, |session| session.completed),
    },
    Family {
        name: "kvrail_session_requests_failed",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["session"],
        help: "Requests that failed: misses and declined puts did not.",
        samples: |report, to| each(report, to, |session| session.failed),
    },
    Family {
        name: "kvrail_session_transferred_bytes",
        kind: Kind::Counter,
        unit: Unit::Bytes,
        labels: &["session"],
        help: "Bytes moved.",
        samples: |report, to| each(report, to, |session| session.bytes),
    },
];

fn each(report: &StatusReport, to: &mut Samples<'_>, value: fn(&SessionReport) -> u64) {
    for session in &report.sessions {
        to.add(&[&session.id.to_string()], value(session));
    }
}
