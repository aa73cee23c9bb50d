//! The drives' own word about themselves.

use kvrail_protocol::{DriveHealth, StatusReport};

use crate::exposition::{Family, FamilyKind, Samples, Unit};

const LABELS: &[&str] = &["device"];

pub(super) const FAMILIES: [Family; 8] = [
    Family {
        name: "kvrail_drive_health_read_timestamp_seconds",
        kind: FamilyKind::Gauge,
        unit: Unit::Seconds,
        labels: LABELS,
        help: "When the drive's health was read last, in seconds since 1970: every five minutes, \
               unless a drive does not answer.",
        samples: |report, to| each(report, to, |health| Some(health.read_unix_s as f64)),
    },
    Family {
        name: "kvrail_drive_temperature_celsius",
        kind: FamilyKind::Gauge,
        unit: Unit::Celsius,
        labels: LABELS,
        help: "Temperature of an NVMe drive, read every five minutes, as the rest of its health.",
        samples: |report, to| each(report, to, |health| health.celsius.map(f64::from)),
    },
    Family {
        name: "kvrail_drive_temperature_limit_celsius",
        kind: FamilyKind::Gauge,
        unit: Unit::Celsius,
        labels: LABELS,
        help: "Temperature from which on the drive warns.",
        samples: |report, to| each(report, to, |health| health.warning_celsius.map(f64::from)),
    },
    Family {
        name: "kvrail_drive_life_used_ratio",
        kind: FamilyKind::Gauge,
        unit: Unit::Ratio,
        labels: LABELS,
        help: "Share of the drive's rated life that is used; may pass 1.",
        samples: |report, to| each(report, to, |health| health.used_percent.map(ratio)),
    },
    Family {
        name: "kvrail_drive_spare_ratio",
        kind: FamilyKind::Gauge,
        unit: Unit::Ratio,
        labels: LABELS,
        help: "Share of the drive's spare blocks that is left.",
        samples: |report, to| each(report, to, |health| health.spare_percent.map(ratio)),
    },
    Family {
        name: "kvrail_drive_spare_threshold_ratio",
        kind: FamilyKind::Gauge,
        unit: Unit::Ratio,
        labels: LABELS,
        help: "Share of spare blocks below which the drive warns.",
        samples: |report, to| each(report, to, |health| health.spare_threshold_percent.map(ratio)),
    },
    Family {
        name: "kvrail_drive_critical_warnings",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: LABELS,
        help: "Critical warnings that the drive has set; kvrail status -v names them.",
        samples: |report, to| {
            each(report, to, |health| health.warnings.as_ref().map(|set| set.len() as f64));
        },
    },
    Family {
        name: "kvrail_drive_media_errors",
        kind: FamilyKind::Counter,
        unit: Unit::None,
        labels: LABELS,
        help: "Times in the drive's life that it found data damaged beyond repair.",
        samples: |report, to| {
            each(report, to, |health| health.media_errors.map(|count| count as f64))
        },
    },
];

fn ratio(percent: u8) -> f64 {
    f64::from(percent) / 100.0
}

/// A sample for each drive with that value.
fn each(report: &StatusReport, to: &mut Samples<'_>, value: fn(&DriveHealth) -> Option<f64>) {
    for device in &report.devices {
        let health = device.drive.as_ref().and_then(|drive| drive.health.as_ref());
        if let Some(value) = health.and_then(value) {
            to.add(&[&report.device_label(device.index)], value);
        }
    }
}
