//! State of the sidecar outside the server's thread: the drives of the devices, paths to them, its
//! target, its configuration, its metrics endpoint, lines of the log that were lost. The server's
//! report carries it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvrail_memory::Root;
use kvrail_nvme::{Path, paths};
use kvrail_protocol::{
    ConfigEntry, ConfigReport, DriveHealth, DriveReport, PathReport, StatusReport, TargetReport,
};

use super::log_queue::LostLines;

/// Where they write it down. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct ReportExtras(Arc<Mutex<ExtraFacts>>);

#[derive(Debug, Default)]
struct ExtraFacts {
    /// By the number of the device.
    drives: BTreeMap<u16, DriveReport>,
    paths: Vec<PathReport>,
    target: Option<TargetReport>,
    config: ConfigReport,
    /// The configuration in force.
    entries: Vec<ConfigEntry>,
    /// Where the metrics endpoint listens, or why it does not.
    endpoint: Option<Result<String, String>>,
    /// Members that changed since the start, a sentence each.
    members: Vec<String>,
    /// Members that are not there, of each volume.
    missing: Vec<Vec<String>>,
}

impl ReportExtras {
    /// A panic elsewhere leaves a whole value, so poison means nothing.
    fn lock(&self) -> MutexGuard<'_, ExtraFacts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks through which controllers these block devices are reached; a device that is not NVMe
    /// has none.
    pub(super) fn look_for_paths(&self, devices: &[(u16, String)]) {
        let root = Root::default();
        let mut found = Vec::new();
        for (device, node) in devices {
            found.extend(paths(&root, node).into_iter().map(|path| report(*device, path)));
        }
        self.lock().paths = found;
    }

    /// Which drive a device is now. The health of the same drive stays.
    pub(super) fn set_drive(&self, device: u16, mut drive: DriveReport) {
        let mut known = self.lock();
        let same = known.drives.remove(&device).filter(|was| was.serial == drive.serial);
        drive.health = same.and_then(|was| was.health);
        known.drives.insert(device, drive);
    }

    /// The drives, by the numbers of their devices.
    pub(super) fn drives(&self) -> BTreeMap<u16, DriveReport> {
        self.lock().drives.clone()
    }

    /// The health of a device's drive, if that is still the one that was asked. Where a drive
    /// refuses the log that it gave before, the old log stays with its time: its age shows that.
    /// The temperature is the kernel's then.
    pub(super) fn set_health(&self, device: u16, serial: &str, health: Option<DriveHealth>) {
        let mut known = self.lock();
        let drive = known.drives.get_mut(&device).filter(|drive| drive.serial == serial);
        let Some(drive) = drive else { return };
        let has_log = |health: &DriveHealth| health.used_percent.is_some();
        drive.health = match (drive.health.take(), health) {
            (Some(was), Some(now)) if has_log(&was) && !has_log(&now) => Some(DriveHealth {
                unseen: now.unseen,
                celsius: now.celsius.or(was.celsius),
                warning_celsius: now.warning_celsius.or(was.warning_celsius),
                ..was
            }),
            (_, now) => now,
        };
    }

    /// How the target is; nothing where there is none.
    pub(super) fn set_target(&self, target: Option<TargetReport>) {
        self.lock().target = target;
    }

    /// Members that changed since the start, a sentence each, and those of each volume that are not
    /// there.
    pub(super) fn set_members(&self, members: Vec<String>, missing: Vec<Vec<String>>) {
        let mut known = self.lock();
        (known.members, known.missing) = (members, missing);
    }

    /// The configuration in force, and that on the disk.
    pub(super) fn set_config(&self, config: ConfigReport) {
        self.lock().config = config;
    }

    /// The values in force.
    pub(super) fn set_entries(&self, entries: Vec<ConfigEntry>) {
        self.lock().entries = entries;
    }

    pub(super) fn entries(&self) -> Vec<ConfigEntry> {
        self.lock().entries.clone()
    }

    /// Where the metrics endpoint listens, or why it does not; returns what was known before.
    pub(super) fn set_endpoint(
        &self,
        outcome: Result<String, String>,
    ) -> Option<Result<String, String>> {
        self.lock().endpoint.replace(outcome)
    }

    /// The same; nothing where there is to be no endpoint.
    pub(super) fn endpoint(&self) -> Option<Result<String, String>> {
        self.lock().endpoint.clone()
    }

    /// Adds it to a report.
    pub(super) fn add_to(&self, report: &mut StatusReport, lost: &LostLines) {
        let known = self.lock();
        for device in &mut report.devices {
            device.drive = known.drives.get(&device.index).cloned();
        }
        report.paths.clone_from(&known.paths);
        report.target.clone_from(&known.target);
        report.config.clone_from(&known.config);
        report.notes.extend(known.members.iter().cloned());
        for (volume, missing) in report.volumes.iter_mut().zip(&known.missing) {
            volume.missing.clone_from(missing);
        }
        report.endpoint_problem = known.endpoint.clone().and_then(Result::err);
        report.sidecar.counters.log_lines_lost = Some(lost.count());
    }
}

fn report(device: u16, path: Path) -> PathReport {
    let Path { controller, ana_state } = path;
    PathReport {
        device,
        controller: controller.name,
        transport: controller.transport,
        address: controller.address,
        state: controller.state,
        ana_state,
    }
}

#[cfg(test)]
mod tests {
    use kvrail_protocol::{DriveHealth, DriveReport};

    use super::ReportExtras;

    #[test]
    fn a_log_that_a_drive_refuses_later_stays_with_its_age() {
        let extras = ReportExtras::default();
        extras.set_drive(3, DriveReport { serial: "S".into(), ..DriveReport::default() });
        let known = || extras.drives().remove(&3).and_then(|drive| drive.health);
        let log = |read_unix_s, used_percent| DriveHealth {
            read_unix_s,
            used_percent,
            unseen: used_percent.is_none().then(|| "refused".to_owned()),
            ..DriveHealth::default()
        };
        // Without the right to ask, the time is that of what there is.
        for second in [1, 2] {
            extras.set_health(3, "S", Some(log(second, None)));
            assert_eq!(known(), Some(log(second, None)));
        }
        extras.set_health(3, "S", Some(log(300, Some(7))));
        let hot = Some(81);
        extras.set_health(3, "S", Some(DriveHealth { celsius: hot, ..log(600, None) }));
        let old = DriveHealth { unseen: Some("refused".into()), celsius: hot, ..log(300, Some(7)) };
        assert_eq!(known(), Some(old));
        extras.set_health(3, "other", Some(log(700, Some(1))));
        extras.set_health(3, "S", Some(log(900, Some(8))));
        assert_eq!(known(), Some(log(900, Some(8))));
        extras.set_health(3, "S", None);
        assert_eq!(known(), None);
    }
}
