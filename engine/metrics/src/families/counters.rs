//! Families of the counters that `kvrail_counters` defines.

use kvrail_counters::{Definition, MetricKind};

use crate::exposition::{self, Family, SamplesOf, Unit};

/// A family for each metric of a table; the second labels are those of metrics with reasons.
pub(super) fn families(
    table: impl IntoIterator<Item = Definition>,
    [plain, by_reason]: [&'static [&'static str]; 2],
    samples: SamplesOf,
) -> impl Iterator<Item = Family> {
    table.into_iter().filter_map(move |counter| {
        let (kind, labels) = match counter.kind {
            MetricKind::Counter => (exposition::FamilyKind::Counter, plain),
            MetricKind::Gauge => (exposition::FamilyKind::Gauge, plain),
            MetricKind::Sum => (exposition::FamilyKind::Counter, by_reason),
            MetricKind::Part(_) => return None,
        };
        let unit = Unit::of(counter.metric);
        Some(Family { name: counter.metric, kind, unit, labels, help: counter.help, samples })
    })
}
