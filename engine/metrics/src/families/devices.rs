//! The devices.

use kvrail_counters::DeviceCounters;
use kvrail_protocol::{DeviceReport, DeviceState, HistogramReport, IoLatencyReport, StatusReport};

use super::counters::families;
use crate::exposition::{Family, FamilyKind, Samples, Unit};

pub(super) const FAMILIES: [Family; 9] = [
    Family {
        name: "kvrail_device_info",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &[
            "device",
            "index",
            "poller",
            "kind",
            "mode",
            "io",
            "volume",
            "path",
            "kernel_name",
            "serial",
            "model",
            "address",
        ],
        help: "Always 1; its labels are the device's mode and its current drive.",
        samples: |report, to| {
            for device in &report.devices {
                let (index, poller) = (device.index.to_string(), device.poller.to_string());
                let label = report.device_label(device.index);
                let drive = device.drive.clone().unwrap_or_default();
                to.add(
                    &[
                        &label,
                        &index,
                        &poller,
                        &device.kind,
                        &device.mode,
                        &device.io,
                        &device.volume,
                        &device.name,
                        &drive.kernel_name,
                        &drive.serial,
                        &drive.model,
                        &drive.address,
                    ],
                    1,
                );
            }
        },
    },
    Family {
        name: "kvrail_device_up",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["device"],
        help: "0 while the device is gone, and of a member that was missing at the start; none of \
               a retired member.",
        samples: |report, to| {
            for device in report.devices.iter().filter(|device| !device.retired) {
                let up = u64::from(device.state == DeviceState::Serving);
                to.add(&[&report.device_label(device.index)], up);
            }
            report.missing_members().for_each(|(_, member)| to.add(&[member], 0));
        },
    },
    Family {
        name: "kvrail_device_capacity_bytes",
        kind: FamilyKind::Gauge,
        unit: Unit::Bytes,
        labels: &["device"],
        help: "Its size.",
        samples: |report, to| each(report, to, |device| device.capacity_bytes),
    },
    Family {
        name: "kvrail_device_queue_depth",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["device"],
        help: "Operations it takes at once.",
        samples: |report, to| each(report, to, |device| device.depth.into()),
    },
    Family {
        name: "kvrail_device_operations",
        kind: FamilyKind::Counter,
        unit: Unit::None,
        labels: &["device", "operation"],
        help: "Operations that have ended.",
        samples: |report, to| {
            for device in &report.devices {
                let label = report.device_label(device.index);
                to.add(&[&label, "read"], device.reads.operations);
                to.add(&[&label, "write"], device.writes.operations);
                to.add(&[&label, "other"], device.others);
            }
        },
    },
    Family {
        name: "kvrail_device_transferred_bytes",
        kind: FamilyKind::Counter,
        unit: Unit::Bytes,
        labels: &["device", "operation"],
        help: "Bytes read and written.",
        samples: |report, to| {
            for device in &report.devices {
                let label = report.device_label(device.index);
                to.add(&[&label, "read"], device.reads.bytes);
                to.add(&[&label, "write"], device.writes.bytes);
            }
        },
    },
    Family {
        name: "kvrail_device_oldest_request_age_seconds",
        kind: FamilyKind::Gauge,
        unit: Unit::Seconds,
        labels: &["device"],
        help: "Age of the oldest request in flight; 0 where there is none.",
        samples: |report, to| {
            for device in &report.devices {
                let label = report.device_label(device.index);
                to.add(&[&label], device.oldest_ms as f64 / 1000.0);
            }
        },
    },
    Family {
        name: "kvrail_device_latency_seconds",
        kind: FamilyKind::Histogram,
        unit: Unit::Seconds,
        labels: &["device", "operation", "class"],
        help: "From the moment the device is given an operation to its end.",
        samples: |report, to| histograms(report, to, |device| &device.device),
    },
    Family {
        name: "kvrail_device_queue_latency_seconds",
        kind: FamilyKind::Histogram,
        unit: Unit::Seconds,
        labels: &["device", "operation", "class"],
        help: "From the moment a request is accepted to when its device is given it.",
        samples: |report, to| histograms(report, to, |device| &device.queue),
    },
];

/// Counters of a device.
pub(super) fn counted() -> impl Iterator<Item = Family> {
    let labels: &[_] = &["device"];
    families(DeviceCounters::TABLE, [labels, labels], |report, to| {
        for device in &report.devices {
            to.add_counted(&[&report.device_label(device.index)], device.counters.each());
        }
    })
}

fn each(report: &StatusReport, to: &mut Samples<'_>, value: fn(&DeviceReport) -> u64) {
    for device in &report.devices {
        to.add(&[&report.device_label(device.index)], value(device));
    }
}

fn histograms(
    report: &StatusReport,
    to: &mut Samples<'_>,
    which: fn(&IoLatencyReport) -> &HistogramReport,
) {
    for device in &report.devices {
        let label = report.device_label(device.index);
        for latency in &device.latencies {
            to.add_histogram(&[&label, &latency.operation, &latency.class], which(latency));
        }
    }
}
