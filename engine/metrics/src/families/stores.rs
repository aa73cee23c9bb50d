//! The members of stores.

use kvrail_counters::{ServingCounters, StoreCounters};
use kvrail_protocol::{ShardReport, StatusReport};

use super::counters::families;
use crate::exposition::{Family, FamilyKind, Samples, Unit};

/// States of a member; other words are those of one that does not start.
const STATES: [&str; 8] = [
    "starting",
    "warming",
    "serving",
    "refuses writes",
    "does not start",
    "gone",
    "retired",
    MISSING,
];

/// The state of one that was not there when the sidecar started.
const MISSING: &str = "missing";

/// State of a member.
pub(super) const FAMILIES: [Family; 10] = [
    Family {
        name: "kvrail_store_state",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["store", "device", "state"],
        help: "1 for the state that the member is in, 0 for the others.",
        samples: |report, to| {
            for shard in &report.shards {
                let device = report.device_label(shard.device);
                for state in STATES {
                    to.add(&[&shard.store, &device, state], u8::from(shard.state == state));
                }
            }
            for (store, member) in report.missing_members() {
                for state in STATES {
                    to.add(&[store, member, state], u8::from(state == MISSING));
                }
            }
        },
    },
    Family {
        name: "kvrail_store_capacity_bytes",
        kind: FamilyKind::Gauge,
        unit: Unit::Bytes,
        labels: &["store", "device"],
        help: "Bytes that blocks can take.",
        samples: |report, to| each(report, to, |store| store.capacity_bytes),
    },
    Family {
        name: "kvrail_store_bytes",
        kind: FamilyKind::Gauge,
        unit: Unit::Bytes,
        labels: &["store", "device"],
        help: "Bytes of all blocks there are. Fill is this divided by the capacity.",
        samples: |report, to| each(report, to, |store| store.bytes),
    },
    Family {
        name: "kvrail_store_memory_bytes",
        kind: FamilyKind::Gauge,
        unit: Unit::Bytes,
        labels: &["store", "device"],
        help: "Bytes of RAM of its tables and its pool.",
        samples: |report, to| each(report, to, |store| store.memory_bytes),
    },
    Family {
        name: "kvrail_store_blocks",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Blocks there are.",
        samples: |report, to| each(report, to, |store| store.blocks),
    },
    Family {
        name: "kvrail_store_blocks_max",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Blocks the index is made for. The fill of the index is blocks divided by this.",
        samples: |report, to| each(report, to, |store| store.blocks_max),
    },
    Family {
        name: "kvrail_store_holds",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Holds in force.",
        samples: |report, to| each(report, to, |store| store.holds.into()),
    },
    Family {
        name: "kvrail_store_namespaces",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Namespaces that there are.",
        samples: |report, to| each(report, to, |store| store.namespaces),
    },
    Family {
        name: "kvrail_store_namespaces_max",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Namespaces that there may be: a volume's creation sets the number.",
        samples: |report, to| each(report, to, |store| store.namespaces_max),
    },
    Family {
        name: "kvrail_store_oldest_timestamp_seconds",
        kind: FamilyKind::Gauge,
        unit: Unit::Seconds,
        labels: &["store", "device"],
        help: "When the oldest content was written, in seconds since 1970.",
        samples: |report, to| {
            for shard in &report.shards {
                if let Some(oldest) = shard.oldest_unix_s {
                    to.add(&[&shard.store, &report.device_label(shard.device)], oldest);
                }
            }
        },
    },
];

fn each(report: &StatusReport, to: &mut Samples<'_>, value: fn(&ShardReport) -> u64) {
    for shard in &report.shards {
        to.add(&[&shard.store, &report.device_label(shard.device)], value(shard));
    }
}

/// Counters of a member.
pub(super) fn counted() -> impl Iterator<Item = Family> {
    let labels: [&[_]; 2] = [&["store", "device"], &["store", "device", "reason"]];
    let tables = StoreCounters::TABLE.into_iter().chain(ServingCounters::TABLE);
    families(tables, labels, |report, to| {
        for shard in &report.shards {
            let device = report.device_label(shard.device);
            to.add_counted(&[&shard.store, &device], shard.counters.each());
        }
    })
}
