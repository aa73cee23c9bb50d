//! Which member of which volume each device is, as the configuration names it. The server knows
//! devices by their paths of today.

use kvrail_protocol::StatusReport;

use super::plan::{Plan, PlannedDevice};
use super::volumes::Served;

/// The members as reports have them.
#[derive(Debug)]
pub(super) struct Membership {
    /// Volume and member of each device.
    devices: Vec<(String, String)>,
}

impl Membership {
    /// Also logs the missing members.
    pub(super) fn of(plan: &Plan, served: &[Served]) -> Self {
        for volume in served {
            for member in &volume.missing {
                tracing::warn!(
                    volume = volume.name,
                    member,
                    "a member is not there: the others serve without it, and it will be empty when \
                     it is back"
                );
            }
        }
        let device = |device: &PlannedDevice| {
            let volume = &served[device.volume];
            (volume.name.clone(), volume.named[device.member].clone())
        };
        Self { devices: plan.devices.iter().map(device).collect() }
    }

    /// Adds it to a report.
    pub(super) fn add_to(&self, report: &mut StatusReport) {
        for device in &mut report.devices {
            if let Some((volume, member)) = self.devices.get(usize::from(device.index)) {
                device.volume.clone_from(volume);
                device.member.clone_from(member);
            }
        }
    }
}
