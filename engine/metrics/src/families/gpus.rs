//! The GPUs.

use kvrail_counters::GpuCounters;
use kvrail_protocol::{GpuReport, GpuState, StatusReport};

use super::counters::families;
use crate::exposition::{Family, FamilyKind, Samples, Unit};

pub(super) const FAMILIES: [Family; 7] = [
    Family {
        name: "kvrail_gpu_info",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["gpu", "uuid", "name", "mechanism"],
        help: "Always 1; its labels are the GPU and its setting in the configuration.",
        samples: |report, to| {
            for gpu in &report.gpus {
                let index = gpu.gpu.index.to_string();
                to.add(&[&index, &gpu.gpu.uuid, &gpu.gpu.name, &gpu.configured], 1);
            }
        },
    },
    Family {
        name: "kvrail_gpu_up",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["gpu"],
        help: "0 once the GPU has failed: its requests end with GPU_ERROR.",
        samples: |report, to| each(report, to, |gpu| u64::from(gpu.state == GpuState::Serving)),
    },
    Family {
        name: "kvrail_gpu_regions",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["gpu"],
        help: "Regions of its memory that clients have attached.",
        samples: |report, to| each(report, to, |gpu| gpu.regions.into()),
    },
    Family {
        name: "kvrail_gpu_region_bytes",
        kind: FamilyKind::Gauge,
        unit: Unit::Bytes,
        labels: &["gpu"],
        help: "Bytes of them.",
        samples: |report, to| each(report, to, |gpu| gpu.region_bytes),
    },
    Family {
        name: "kvrail_gpu_staging_slots",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["gpu"],
        help: "Slots of its staging pool.",
        samples: |report, to| each(report, to, |gpu| gpu.staging.slots.into()),
    },
    Family {
        name: "kvrail_gpu_staging_slots_taken",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["gpu"],
        help: "Slots that are taken now.",
        samples: |report, to| each(report, to, |gpu| gpu.staging.taken.into()),
    },
    Family {
        name: "kvrail_gpu_staging_slot_bytes",
        kind: FamilyKind::Gauge,
        unit: Unit::Bytes,
        labels: &["gpu"],
        help: "Bytes of a slot.",
        samples: |report, to| each(report, to, |gpu| gpu.staging.slot_bytes.into()),
    },
];

/// Counters of a GPU.
pub(super) fn counted() -> impl Iterator<Item = Family> {
    let labels: &[_] = &["gpu"];
    families(GpuCounters::TABLE, [labels, labels], |report, to| {
        for gpu in &report.gpus {
            to.add_counted(&[&gpu.gpu.index.to_string()], gpu.counters.each());
        }
    })
}

fn each(report: &StatusReport, to: &mut Samples<'_>, value: fn(&GpuReport) -> u64) {
    for gpu in &report.gpus {
        to.add(&[&gpu.gpu.index.to_string()], value(gpu));
    }
}
