//! The process, its door and its memory.

use kvrail_counters::SidecarCounters;

use super::counters::families;
use crate::exposition::{Family, FamilyKind, Unit};
use crate::health::{health, readiness};

pub(super) const FAMILIES: [Family; 12] = [
    Family {
        name: "kvrail_build_info",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["version"],
        help: "Always 1; its label is the release.",
        samples: |report, to| to.add(&[&report.sidecar.version], 1),
    },
    Family {
        name: "kvrail_start_time_seconds",
        kind: FamilyKind::Gauge,
        unit: Unit::Seconds,
        labels: &[],
        help: "When it began to serve, in seconds since 1970.",
        samples: |report, to| to.add(&[], report.sidecar.started_unix_s),
    },
    Family {
        name: "kvrail_uptime_seconds",
        kind: FamilyKind::Gauge,
        unit: Unit::Seconds,
        labels: &[],
        help: "How long it has served, by the monotonic clock.",
        samples: |report, to| to.add(&[], report.sidecar.uptime_ms as f64 / 1000.0),
    },
    Family {
        name: "kvrail_healthy",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &[],
        help: "1 while every poller turns, as /healthz.",
        samples: |report, to| to.add(&[], u8::from(health(report).is_empty())),
    },
    Family {
        name: "kvrail_ready",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &[],
        help: "1 while clients are served, as /readyz.",
        samples: |report, to| to.add(&[], u8::from(readiness(report).is_empty())),
    },
    Family {
        name: "kvrail_sessions_max",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &[],
        help: "Sessions with arenas or queues that there may be.",
        samples: |report, to| to.add(&[], report.sidecar.sessions_max),
    },
    Family {
        name: "kvrail_arenas",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &[],
        help: "Arenas of all sessions.",
        samples: |report, to| to.add(&[], report.regions.arenas),
    },
    Family {
        name: "kvrail_arena_bytes",
        kind: FamilyKind::Gauge,
        unit: Unit::Bytes,
        labels: &[],
        help: "Bytes of all arenas. They are pinned memory.",
        samples: |report, to| to.add(&[], report.regions.bytes),
    },
    Family {
        name: "kvrail_arena_limit_bytes",
        kind: FamilyKind::Gauge,
        unit: Unit::Bytes,
        labels: &[],
        help: "Bytes that all arenas together may have.",
        samples: |report, to| to.add(&[], report.regions.limit_bytes),
    },
    Family {
        name: "kvrail_arenas_quarantined",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &[],
        help: "Arenas of ended sessions that hardware may still touch.",
        samples: |report, to| to.add(&[], report.regions.quarantined),
    },
    Family {
        name: "kvrail_arena_quarantined_bytes",
        kind: FamilyKind::Gauge,
        unit: Unit::Bytes,
        labels: &[],
        help: "Bytes of them.",
        samples: |report, to| to.add(&[], report.regions.quarantined_bytes),
    },
    Family {
        name: "kvrail_arena_quarantined_age_seconds",
        kind: FamilyKind::Gauge,
        unit: Unit::Seconds,
        labels: &[],
        help: "How long the oldest of them waits.",
        samples: |report, to| to.add(&[], report.regions.quarantined_oldest_s),
    },
];

/// Counters of the sidecar.
pub(super) fn counted() -> impl Iterator<Item = Family> {
    families(SidecarCounters::TABLE, [&[], &[]], |report, to| {
        to.add_counted(&[], report.sidecar.counters.each());
    })
}
