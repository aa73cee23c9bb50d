//! Wear, spare and temperature of the drives: a thread asks them every few minutes. While a drive
//! hangs, this thread waits for it, and nothing else in the process.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvrail_memory::Root;
use kvrail_nvme::{Drive, Sensor, describe, sensor};
use kvrail_protocol::DriveHealth;

use super::report_extras::ReportExtras;
use crate::members::namespace_of;
use kvrail_cli::failure::{Failure, no_thread};

/// From one look at the drives to the next.
const INTERVAL: Duration = Duration::from_secs(300);

/// The thread; when this is dropped, it ends after the drive that it is asking.
#[derive(Debug)]
pub(super) struct HealthWatch {
    _stop: Sender<()>,
}

impl HealthWatch {
    /// Begins to ask the drives that the report has.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(extras: ReportExtras) -> Result<Self, Failure> {
        let (stop, stopped) = channel();
        let ask = move || {
            loop {
                for (device, drive) in extras.drives() {
                    let node = Path::new("/dev").join(drive.kernel_name);
                    let health = health((&node, &drive.serial), &Root::default());
                    extras.set_health(device, &drive.serial, health);
                }
                if stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        };
        // Not joined: the sidecar drains and gives up its claims although a drive hangs. The kernel
        // keeps the process until that drive answers or is reset.
        let thread = std::thread::Builder::new().name("health".into()).spawn(ask);
        thread.map_err(|error| no_thread("the health", &error))?;
        Ok(Self { _stop: stop })
    }
}

/// How the drive of a block device is now; none for what is no NVMe drive, and where another drive
/// has its node by now.
fn health((node, serial): (&Path, &str), root: &Root) -> Option<DriveHealth> {
    let namespace = namespace_of(node, root)?;
    if namespace.controllers.iter().all(|controller| controller.serial != serial) {
        return None;
    }
    let drive = describe(namespace, root);
    // The kernel has read what the drive itself was asked for.
    let by_kernel = if drive.health.is_none() { sensor(root, &drive.namespace) } else { None };
    Some(shown(&drive, by_kernel))
}

fn shown(drive: &Drive, by_kernel: Option<Sensor>) -> DriveHealth {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let unseen = drive.unseen.iter().find(|unseen| unseen.what.ends_with("health"));
    let own = drive.health.as_ref();
    let limit = drive.controller.as_ref().and_then(|facts| facts.warning_celsius);
    DriveHealth {
        read_unix_s: now,
        celsius: own.map(|log| log.celsius).or(by_kernel.map(|sensor| sensor.celsius)),
        warning_celsius: limit.or(by_kernel.and_then(|sensor| sensor.warning_celsius)),
        used_percent: own.map(|log| log.used_percent),
        spare_percent: own.map(|log| log.spare_percent),
        spare_threshold_percent: own.map(|log| log.spare_threshold_percent),
        media_errors: own.map(|log| u64::try_from(log.media_errors).unwrap_or(u64::MAX)),
        warnings: own.map(|log| log.warnings.iter().map(|&words| words.to_owned()).collect()),
        unseen: unseen.map(|unseen| unseen.why.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use kvrail_memory::Root;
    use kvrail_nvme::{SmartLog, describe};

    use super::{health, shown};
    use crate::members::namespace_of;

    /// A host with one drive, which is asked in vain: its node is a file.
    fn host(sensors: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let class = folder.path().join("sys/class");
        let drive = class.join("nvme/nvme0");
        let put = |path: &Path, text: &str| {
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, format!("{text}\n")).expect("written");
        };
        for (file, text) in [("serial", "S1"), ("state", "live"), ("transport", "pcie")] {
            put(&drive.join(file), text);
        }
        put(&drive.join("nvme0n1/nsid"), "1");
        put(&drive.join("nvme0n1/wwid"), "eui.1");
        put(&drive.join("nvme0n1/hidden"), "0");
        sensors.iter().for_each(|(file, text)| put(&drive.join(file), text));
        fs::create_dir_all(class.join("block")).expect("made");
        symlink(drive.join("nvme0n1"), class.join("block/nvme0n1")).expect("linked");
        ["nvme0", "nvme0n1"].iter().for_each(|node| put(&folder.path().join("dev").join(node), ""));
        folder
    }

    /// What is not known is not 0: it is missing, and the reason is there.
    #[test]
    fn without_rights_there_is_the_temperature_and_the_reason() {
        let sensors = [("hwmon3/temp1_input", "41850"), ("hwmon3/temp1_max", "84850")];
        let folder = host(&sensors);
        let root = Root::new(folder.path());
        let node = Path::new("/dev/nvme0n1");
        let health_of = |root: &Root| health((node, "S1"), root).expect("a drive");
        let known = health_of(&root);
        assert_eq!((known.celsius, known.warning_celsius), (Some(41), Some(84)));
        assert_eq!((known.used_percent, known.spare_percent, &known.warnings), (None, None, &None));
        assert!(known.unseen.as_ref().is_some_and(|why| why.contains("no NVMe controller")));
        let text = serde_json::to_string(&known).expect("JSON");
        assert!(!text.contains("used_percent") && !text.contains("media_errors"), "{text}");
        // A kernel without hwmon, and a drive that is not there.
        let folder = host(&[]);
        let root = Root::new(folder.path());
        assert_eq!((health_of(&root).celsius, health_of(&root).warning_celsius), (None, None));
        assert_eq!(health((Path::new("/dev/sda"), "S1"), &root), None);
        // Another drive in its place.
        assert_eq!(health((node, "S2"), &root), None);
    }

    #[test]
    fn what_the_drive_answers_is_shown() {
        let folder = host(&[]);
        let root = Root::new(folder.path());
        let namespace = namespace_of(Path::new("/dev/nvme0n1"), &root).expect("a namespace");
        let mut drive = describe(namespace, &root);
        drive.unseen.clear();
        drive.health = Some(SmartLog {
            warnings: vec!["media read-only"],
            celsius: 50,
            spare_percent: 4,
            spare_threshold_percent: 10,
            used_percent: 97,
            read_bytes: 0,
            written_bytes: 0,
            power_cycles: 0,
            power_on_hours: 0,
            unsafe_shutdowns: 0,
            media_errors: u128::MAX,
        });
        let known = shown(&drive, None);
        assert_eq!((known.celsius, known.used_percent), (Some(50), Some(97)));
        assert_eq!((known.spare_percent, known.spare_threshold_percent), (Some(4), Some(10)));
        assert_eq!((known.media_errors, known.unseen), (Some(u64::MAX), None));
        assert_eq!(known.warnings, Some(vec!["media read-only".to_owned()]));
    }
}
