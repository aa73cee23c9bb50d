//! The volumes.

use kvrail_protocol::{DeviceReport, DeviceState, StatusReport, VolumeReport};

use crate::exposition::{Family, FamilyKind, Unit};

pub(super) const FAMILIES: [Family; 2] = [
    Family {
        name: "kvrail_volume_members",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["volume"],
        help: "Members that are there now.",
        samples: |report, to| {
            for volume in &report.volumes {
                to.add(&[&volume.name], volume.members.len().saturating_sub(gone(report, volume)));
            }
        },
    },
    Family {
        name: "kvrail_volume_members_wanted",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["volume"],
        help: "Members that the volume has, with those that are missing.",
        samples: |report, to| {
            for volume in &report.volumes {
                let retired = own(report, volume).filter(|device| device.retired).count();
                let all = volume.members.len() + volume.missing.len();
                to.add(&[&volume.name], all.saturating_sub(retired));
            }
        },
    },
];

fn gone(report: &StatusReport, volume: &VolumeReport) -> usize {
    own(report, volume).filter(|device| device.state == DeviceState::Gone).count()
}

/// The devices of a volume's members.
fn own<'a>(
    report: &'a StatusReport,
    volume: &'a VolumeReport,
) -> impl Iterator<Item = &'a DeviceReport> {
    report.devices.iter().filter(|device| device.volume == volume.name)
}
