//! A sidecar's word about the health of its drive, from within its sandbox.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use kvrail_protocol::DriveHealth;
use serde_json::Value;

use crate::bed::Bed;
use crate::machine::{self, name, tool};
use crate::monitor::Monitor;
use crate::rig::{Sidecar, eventually};

const SERIAL: &str = "kvr-main";

/// What it says of its drive, once the drive was asked.
fn health_of(sidecar: &Sidecar) -> DriveHealth {
    let mut health = None;
    eventually("the drive is asked", || {
        let drive = sidecar.status().devices[0].drive.clone();
        health = drive.and_then(|drive| drive.health);
        health.is_some()
    });
    health.expect("just seen")
}

/// The folder of the drive's controller.
fn controller() -> PathBuf {
    let all = fs::read_dir("/sys/class/nvme").expect("a kernel with NVMe");
    let is_it = |folder: &PathBuf| {
        fs::read_to_string(folder.join("serial")).is_ok_and(|serial| serial.trim() == SERIAL)
    };
    all.map(|entry| entry.unwrap().path()).find(is_it).expect("the drive's controller")
}

#[test]
fn a_sidecar_shows_the_log_of_its_drive() {
    if !machine::is_ours() {
        return;
    }
    let bed = Bed::new("interrupt", SERIAL, 1);
    let mut monitor = Monitor::open();
    monitor.warn(SERIAL, 1 << 3);
    let sidecar = bed.serve();
    let health = health_of(&sidecar);
    monitor.warn(SERIAL, 0);
    let text = tool(&format!("nvme smart-log -o json /dev/{}", name(SERIAL, 1)));
    let log: Value = serde_json::from_str(&text).expect("JSON of nvme-cli");
    let of = |key: &str| log[key].as_u64().unwrap_or_else(|| panic!("{key}: {log}"));
    assert_eq!(
        health.celsius.map(i64::from),
        log["temperature"].as_i64().map(|kelvin| kelvin - 273)
    );
    assert_eq!(health.used_percent.map(u64::from), Some(of("percent_used")));
    assert_eq!(health.spare_percent.map(u64::from), Some(of("avail_spare")));
    assert_eq!(health.spare_threshold_percent.map(u64::from), Some(of("spare_thresh")));
    assert_eq!(health.media_errors, Some(of("media_errors")));
    assert!(health.warning_celsius.is_some() && health.unseen.is_none(), "{health:?}");
    assert_eq!(health.warnings, Some(vec!["media read-only".to_owned()]));
    sidecar.stop();
}

#[test]
fn without_the_right_the_kernel_has_the_temperature() {
    if !machine::is_ours() {
        return;
    }
    let bed = Bed::new("interrupt", SERIAL, 1);
    let with_all = bed.place.serve();
    let mut serve = Command::new("setpriv");
    serve.args(["--bounding-set", "-sys_admin"]).arg(with_all.get_program());
    serve.args(with_all.get_args());
    for (key, value) in with_all.get_envs() {
        match value {
            Some(value) => serve.env(key, value),
            None => serve.env_remove(key),
        };
    }
    let sidecar = Sidecar::start_as(&bed.place, serve);
    let health = health_of(&sidecar);
    assert_eq!((health.used_percent, health.spare_percent, health.warnings), (None, None, None));
    let why = health.unseen.expect("the reason");
    assert!(why.contains("CAP_SYS_ADMIN"), "{why}");
    let home = controller();
    let has_sensor = |folder: &PathBuf| folder.join("temp1_input").is_file();
    let folders = fs::read_dir(&home).expect("the drive's controller");
    let sensor = folders.map(|entry| entry.unwrap().path()).find(has_sensor);
    let sensor = sensor.unwrap_or_else(|| panic!("no hwmon in {}", home.display()));
    let thousandths = fs::read_to_string(sensor.join("temp1_input")).expect("a temperature");
    let thousandths: i32 = thousandths.trim().parse().expect("a number");
    assert_eq!(health.celsius, Some(thousandths / 1000));
    sidecar.stop();
}
