//! The pools of stores.

use kvrail_counters::PoolCounters;
use kvrail_protocol::{PoolReport, StatusReport};

use super::counters::families;
use crate::exposition::{Family, FamilyKind, Samples, Unit};

const LABELS: &[&str] = &["store", "device", "pool"];

/// State of a pool.
pub(super) const FAMILIES: [Family; 5] = [
    Family {
        name: "kvrail_store_pool_minimum_bytes",
        kind: FamilyKind::Gauge,
        unit: Unit::Bytes,
        labels: LABELS,
        help: "Bytes that are kept for the pool.",
        samples: |report, to| each(report, to, |pool| pool.minimum_bytes),
    },
    Family {
        name: "kvrail_store_pool_maximum_bytes",
        kind: FamilyKind::Gauge,
        unit: Unit::Bytes,
        labels: LABELS,
        help: "Bytes that the pool has at most.",
        samples: |report, to| each(report, to, |pool| pool.maximum_bytes),
    },
    Family {
        name: "kvrail_store_pool_segment_bytes",
        kind: FamilyKind::Gauge,
        unit: Unit::Bytes,
        labels: LABELS,
        help: "Bytes of the pool's segments, with what is ready for the next blocks.",
        samples: |report, to| each(report, to, |pool| pool.segment_bytes),
    },
    Family {
        name: "kvrail_store_pool_blocks",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: LABELS,
        help: "Blocks in the pool.",
        samples: |report, to| each(report, to, |pool| pool.blocks),
    },
    Family {
        name: "kvrail_store_pool_memory_hits",
        kind: FamilyKind::Counter,
        unit: Unit::None,
        labels: &["store", "pool"],
        help: "Gets of the pool's blocks that memory tiers served, as clients counted them.",
        samples: |report, to| {
            for it in report.memory_hits.iter().flatten() {
                to.add(&[&it.store, &it.pool], it.hits);
            }
        },
    },
];

fn each(report: &StatusReport, to: &mut Samples<'_>, value: fn(&PoolReport) -> u64) {
    for shard in &report.shards {
        let device = report.device_label(shard.device);
        for pool in &shard.pools {
            to.add(&[&shard.store, &device, &pool.name], value(pool));
        }
    }
}

/// Counters of a pool.
pub(super) fn counted() -> impl Iterator<Item = Family> {
    families(PoolCounters::TABLE, [LABELS, LABELS], |report, to| {
        for shard in &report.shards {
            let device = report.device_label(shard.device);
            for pool in &shard.pools {
                to.add_counted(&[&shard.store, &device, &pool.name], pool.counters.each());
            }
        }
    })
}
