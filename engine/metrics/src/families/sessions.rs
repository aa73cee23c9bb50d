//! The sessions. A session's number is used once within one run.

use kvrail_counters::SessionCounters;
use kvrail_protocol::{SessionReport, StatusReport};

use super::counters::families;
use crate::exposition::{Family, FamilyKind, Samples, Unit};

pub(super) const FAMILIES: [Family; 5] = [
    Family {
        name: "kvrail_client_latency_seconds",
        kind: FamilyKind::Histogram,
        unit: Unit::Seconds,
        labels: &["operation", "size"],
        help: "From a program's call to its answer, as clients count it: gets and puts that ended \
               OK, by the size of the block, and lookups.",
        samples: |report, to| {
            for call in &report.calls {
                to.add_histogram(&[&call.operation, &call.size], &call.latency);
            }
        },
    },
    Family {
        name: "kvrail_session_info",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["session", "name", "library", "pid", "uid", "pod", "state"],
        help: "Always 1; its labels are the session's client and state, attached or reclaiming.",
        samples: |report, to| {
            for session in &report.sessions {
                let (id, pid, uid) =
                    (session.id.to_string(), session.pid.to_string(), session.uid.to_string());
                // The rest of a state is words for people.
                let state = session.state.split(':').next().unwrap_or_default();
                let pod = session.pod.as_deref().unwrap_or_default();
                to.add(&[&id, &session.name, &session.library, &pid, &uid, pod, state], 1);
            }
        },
    },
    Family {
        name: "kvrail_session_arena_bytes",
        kind: FamilyKind::Gauge,
        unit: Unit::Bytes,
        labels: &["session"],
        help: "Bytes of its arenas.",
        samples: |report, to| each(report, to, |session| session.arena_bytes),
    },
    Family {
        name: "kvrail_session_gpu_bytes",
        kind: FamilyKind::Gauge,
        unit: Unit::Bytes,
        labels: &["session"],
        help: "Bytes of its regions of GPU memory.",
        samples: |report, to| each(report, to, |session| session.gpu_bytes),
    },
    Family {
        name: "kvrail_session_queues",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["session"],
        help: "Its queues.",
        samples: |report, to| each(report, to, |session| session.queues.into()),
    },
];

/// Counters of a session.
pub(super) fn counted() -> impl Iterator<Item = Family> {
    let labels: &[_] = &["session"];
    families(SessionCounters::TABLE, [labels, labels], |report, to| {
        for session in &report.sessions {
            to.add_counted(&[&session.id.to_string()], session.counters.each());
        }
    })
}

fn each(report: &StatusReport, to: &mut Samples<'_>, value: fn(&SessionReport) -> u64) {
    for session in &report.sessions {
        to.add(&[&session.id.to_string()], value(session));
    }
}
