//! The pools of stores.

use kvrail_protocol::{PoolReport, StatusReport};

use crate::exposition::{Family, Kind, Samples, Unit};

const LABELS: &[&str] = &["store", "device", "pool"];

pub(super) const FAMILIES: [Family; 12] = [
    Family {
        name: "kvrail_store_pool_minimum_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: LABELS,
        help: "Bytes that are kept for the pool.",
        samples: |report, to| each(report, to, |it| it.minimum_bytes),
    },
    Family {
        name: "kvrail_store_pool_maximum_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: LABELS,
        help: "Bytes that the pool has at most.",
        samples: |report, to| each(report, to, |it| it.maximum_bytes),
    },
    Family {
        name: "kvrail_store_pool_segment_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: LABELS,
        help: "Bytes of the pool's segments, with what is ready for the next blocks.",
        samples: |report, to| each(report, to, |it| it.segment_bytes),
    },
    Family {
        name: "kvrail_store_pool_blocks",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: LABELS,
        help: "Blocks in the pool.",
        samples: |report, to| each(report, to, |it| it.blocks),
    },
    Family {
        name: "kvrail_store_pool_puts",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: LABELS,
        help: "Blocks put into the pool.",
        samples: |report, to| each(report, to, |it| counted(it, "puts")),
    },
    Family {
        name: "kvrail_store_pool_put_bytes",
        kind: Kind::Counter,
        unit: Unit::Bytes,
        labels: LABELS,
        help: "Bytes of them.",
        samples: |report, to| each(report, to, |it| counted(it, "put_bytes")),
    },
    Family {
        name: "kvrail_store_pool_declines",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: LABELS,
        help: "Puts into the pool that were declined.",
        samples: |report, to| each(report, to, |it| counted(it, "declined")),
    },
    Family {
        name: "kvrail_store_pool_evictions",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: LABELS,
        help: "Blocks of the pool evicted.",
        samples: |report, to| each(report, to, |it| counted(it, "evicted")),
    },
    Family {
        name: "kvrail_store_pool_moves",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: LABELS,
        help: "Blocks of the pool moved out of segments that were reclaimed.",
        samples: |report, to| each(report, to, |it| counted(it, "moved")),
    },
    Family {
        name: "kvrail_store_pool_segments_reclaimed",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: LABELS,
        help: "Segments of the pool reclaimed.",
        samples: |report, to| each(report, to, |it| counted(it, "reclaimed")),
    },
    Family {
        name: "kvrail_store_pool_segments_given",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: LABELS,
        help: "Those of them that went to another pool.",
        samples: |report, to| each(report, to, |it| counted(it, "given")),
    },
    Family {
        name: "kvrail_store_pool_write_tokens_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: LABELS,
        help: "Bytes that may be written into the pool at once, of the write budget.",
        samples: |report, to| each(report, to, |it| counted(it, "write_tokens")),
    },
];

fn each(report: &StatusReport, to: &mut Samples<'_>, value: fn(&PoolReport) -> u64) {
    for it in &report.shards {
        let device = report.device_label(it.device);
        for pool in &it.pools {
            to.add(&[&it.store, &device, &pool.name], value(pool));
        }
    }
}

fn counted(pool: &PoolReport, counter: &str) -> u64 {
    pool.counters.get(counter).copied().unwrap_or(0)
}
