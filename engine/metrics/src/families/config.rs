//! The configuration in force, and the one that the next start would read.

use crate::exposition::{Family, FamilyKind, Unit};

pub(super) const FAMILIES: [Family; 6] = [
    Family {
        name: "kvrail_config_info",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["path", "running", "on_disk"],
        help: "Always 1; labels: the file, and hashes of its values in force and on disk \
               (empty: the next start would refuse them).",
        samples: |report, to| {
            let config = &report.config;
            let [file, on_disk] =
                [&config.file, &config.on_disk].map(|text| text.as_deref().unwrap_or_default());
            to.add(&[file, &config.running, on_disk], 1);
        },
    },
    Family {
        name: "kvrail_config_last_reload_successful",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &[],
        help: "0 after a reload that was refused: the configuration in force stayed.",
        samples: |report, to| to.add(&[], u8::from(report.config.reload_refused.is_none())),
    },
    Family {
        name: "kvrail_config_on_disk_valid",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &[],
        help: "0 while the next start would refuse the configuration on the disk.",
        samples: |report, to| to.add(&[], u8::from(report.config.refused.is_none())),
    },
    Family {
        name: "kvrail_config_reload_pending",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &[],
        help: "1 while the file has other values, which a reload would take over.",
        samples: |report, to| to.add(&[], u8::from(!report.config.reload_pending.is_empty())),
    },
    Family {
        name: "kvrail_config_restart_pending",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &[],
        help: "1 while the file has other values, which only a restart takes over.",
        samples: |report, to| to.add(&[], u8::from(!report.config.restart_pending.is_empty())),
    },
    Family {
        name: "kvrail_config_in_force_since_seconds",
        kind: FamilyKind::Gauge,
        unit: Unit::Seconds,
        labels: &[],
        help: "When the values in force came into force, in seconds since 1970.",
        samples: |report, to| to.add(&[], report.config.since_unix_s),
    },
];
