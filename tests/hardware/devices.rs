//! `kvrail devices` compared with nvme-cli on the same drives.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::machine::{self, name, tool};
use crate::rig::{Copies, Place, Sidecar, kvrail, open_folder, run};
use kvrail_client::{Pages, Request};

/// A user without rights, `nobody` on every Linux system.
pub(crate) const UNPRIVILEGED: u32 = 65_534;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn shown(selector: &str) -> Value {
    let outcome = run(kvrail().args(["devices", "--format", "json", selector]));
    outcome.expect(0, &[]);
    json(&outcome.stdout)[0].clone()
}

/// Content of one file of sysfs.
fn attribute(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}

#[test]
fn a_drive_is_described_as_nvme_cli_sees_it() {
    if !machine::is_ours() {
        return;
    }
    for (serial, nsid) in [("kvr-main", 1), ("kvr-format", 1), ("kvr-format", 2)] {
        let drive = shown(&format!("serial:{serial}/{nsid}"));
        let node = name(serial, nsid);
        assert_eq!(drive["unseen"], Value::Array(Vec::new()), "{drive}");
        let identify = json(&tool(&format!("nvme id-ctrl -o json /dev/{node}")));
        let facts = &drive["controller"];
        let mdts = identify["mdts"].as_u64().unwrap();
        assert_eq!(facts["transfer_bytes_max"], 4096_u64 << mdts);
        assert_eq!(facts["volatile_write_cache"], identify["vwc"].as_u64().unwrap() & 1 == 1);
        assert_eq!(facts["atomic_blocks"], identify["awun"].as_u64().unwrap() + 1);
        assert_eq!(facts["atomic_blocks_power_fail"], identify["awupf"].as_u64().unwrap() + 1);
        assert_eq!(facts["warning_celsius"], identify["wctemp"].as_i64().unwrap() - 273);
        let controller = &drive["controllers"][0];
        assert_eq!(controller["serial"], serial);
        assert_eq!(identify["mn"].as_str().unwrap().trim(), controller["model"]);
        assert_eq!(identify["fr"].as_str().unwrap().trim(), controller["firmware"]);
        namespace_agrees(&drive, &json(&tool(&format!("nvme id-ns -o json /dev/{node}"))));
        health_agrees(&drive, &json(&tool(&format!("nvme smart-log -o json /dev/{node}"))));
        let queue = format!("/sys/block/{node}/queue");
        let limit = attribute(&format!("{queue}/max_hw_sectors_kb")).parse::<u64>().unwrap();
        assert_eq!(drive["queue"]["request_bytes_max"], limit * 1024);
        assert_eq!(drive["links"][0]["poll_queues"], 2);
    }
}

fn namespace_agrees(drive: &Value, identify: &Value) {
    let facts = &drive["formats"];
    let formats = facts["formats"].as_array().unwrap();
    let listed = identify["lbafs"].as_array().unwrap();
    for format in formats {
        let listed = &listed[usize::try_from(format["index"].as_u64().unwrap()).unwrap()];
        assert_eq!(format["block_bytes"], 1_u64 << listed["ds"].as_u64().unwrap());
        assert_eq!(format["metadata_bytes"], listed["ms"]);
    }
    assert_eq!(formats.len() as u64, identify["nlbaf"].as_u64().unwrap() + 1);
    assert_eq!(facts["format"]["index"], identify["flbas"].as_u64().unwrap() & 0xf);
    let protection = identify["dps"].as_u64().unwrap() & 7;
    assert_eq!(facts["protection"].as_u64().unwrap_or(0), protection);
    let block = facts["format"]["block_bytes"].as_u64().unwrap();
    assert_eq!(drive["size_bytes"], identify["nsze"].as_u64().unwrap() * block);
}

fn health_agrees(drive: &Value, log: &Value) {
    let health = &drive["health"];
    assert_eq!(health["celsius"], log["temperature"].as_i64().unwrap() - 273);
    for (ours, theirs) in [
        ("used_percent", "percent_used"),
        ("spare_percent", "avail_spare"),
        ("spare_threshold_percent", "spare_thresh"),
        ("media_errors", "media_errors"),
        ("unsafe_shutdowns", "unsafe_shutdowns"),
        ("power_cycles", "power_cycles"),
        ("power_on_hours", "power_on_hours"),
    ] {
        assert_eq!(health[ours], log[theirs], "{ours}");
    }
    // nvme-cli ran later: the counters may have grown.
    for (ours, theirs) in
        [("read_bytes", "data_units_read"), ("written_bytes", "data_units_written")]
    {
        let (ours, theirs) = (health[ours].as_u64().unwrap(), log[theirs].as_u64().unwrap());
        assert!(ours.is_multiple_of(512_000) && ours <= theirs * 512_000, "{ours} {theirs}");
    }
}

/// Where the kernel can use the buffer, sysfs shows it; elsewhere it has no user.
#[test]
fn the_memory_buffer_is_shown_where_the_kernel_has_it() {
    if !machine::is_ours() {
        return;
    }
    let controller = format!("/sys/block/{}/device", name("kvr-main", 1));
    let expected = match Path::new(&format!("{controller}/cmb")).exists() {
        true => Value::from(64_u64 << 20),
        false => Value::Null,
    };
    assert_eq!(shown("serial:kvr-main/1")["links"][0]["memory_buffer_bytes"], expected);
    println!("memory buffer: {expected}");
}

#[test]
fn a_user_without_access_to_the_drive_gets_the_missing_right() {
    if !machine::is_ours() {
        return;
    }
    let Some(folder) = open_folder() else { return };
    let program = Copies::in_folder(folder.path()).kvrail;
    let as_unprivileged = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).env_clear().uid(UNPRIVILEGED).gid(UNPRIVILEGED);
        run(&mut command)
    };
    let node = name("kvr-main", 1);
    let controller = tool(&format!("basename $(readlink -f /sys/block/{node}/device)"));
    let controller = format!("/dev/{}", controller.trim());
    let outcome = as_unprivileged(&["devices", "serial:kvr-main/1"]);
    outcome.expect(0, &["identity, formats and health not seen", &controller, "run as root"]);
    for word in ["kvr-main", "QEMU NVMe Ctrl", "volatile", "256.00 MiB"] {
        assert!(outcome.stdout.contains(word), "no {word:?} in {}", outcome.stdout);
    }
    // A user with read access to the node may identify the drive, but not read its health.
    tool(&format!("chmod o+r {controller}"));
    let outcome = as_unprivileged(&["devices", "serial:kvr-main/1"]);
    tool(&format!("chmod o-r {controller}"));
    outcome.expect(0, &["health not seen: the kernel refuses the command", "CAP_SYS_ADMIN"]);
    assert!(!outcome.stderr.contains("identity"), "{}", outcome.stderr);
    let refused = as_unprivileged(&["volume", "create", "kv", "serial:kvr-main/1"]);
    refused.expect(1, &[&node, "Permission denied", "run as a user with read and write"]);
}

#[test]
fn calibration_reads_and_never_writes() {
    if !machine::is_ours() {
        return;
    }
    let node = name("kvr-main", 1);
    // Of the fields of `stat`, the fifth counts writes and the twelfth discards.
    let written = || {
        let stat = attribute(&format!("/sys/block/{node}/stat"));
        let words: Vec<_> = stat.split_whitespace().map(str::to_owned).collect();
        [4, 11].map(|at| words[at].clone())
    };
    let before = written();
    let outcome =
        run(kvrail().args(["devices", "--calibrate", "--format", "json", "serial:kvr-main/1"]));
    outcome.expect(0, &[]);
    let found = &json(&outcome.stdout)[0];
    assert_eq!(written(), before);
    let measured: Vec<_> = found["trials"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|trial| trial["result"] == "measured")
        .collect();
    assert!(measured.iter().any(|trial| trial["mode"] == "iopoll"), "{found}");
    assert!(measured.iter().any(|trial| trial["mode"] == found["chosen"]), "{found}");
    for trial in measured {
        for rate in trial["rates"].as_array().unwrap() {
            assert!(rate["reads_per_second"].as_f64().unwrap() > 0.0, "{trial}");
        }
    }
    println!("{}", found["reason"]);
}

#[test]
fn metadata_is_refused_and_large_blocks_are_kept_to() {
    if !machine::is_ours() {
        return;
    }
    let made = run(kvrail().args(["volume", "create", "kv", "serial:kvr-format/2"]));
    made.expect(3, &["8 bytes of metadata beside each block", "nvme format --lbaf"]);
    let head = tool(&format!("head -c 1M /dev/{} | tr -d '\\0' | wc -c", name("kvr-format", 2)));
    assert_eq!(head.trim(), "0", "something was written");

    let mut place = Place::empty(0);
    place.members = vec!["serial:kvr-format/1".into()];
    place.create(8 << 20, "256KiB").expect(0, &[]);
    let sidecar = Sidecar::start(&place);
    let client = sidecar.attach();
    let volume = client.volume("kv").unwrap();
    assert_eq!(volume.geometry().logical_block, 4096);
    let arena = client.create_arena(1 << 20, Pages::Auto).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    for (offset, bytes) in [(0, 512), (512, 4096)] {
        let lease = arena.lease(bytes).unwrap();
        let refused = queue.submit(Request::read(&volume, offset, lease)).unwrap_err();
        assert!(refused.to_string().contains("logical block, 4096 bytes"), "{refused}");
    }
    drop((queue, arena, client));
    sidecar.stop();
    run(kvrail().args(["volume", "wipe", "kv", "serial:kvr-format/1"])).expect(0, &[]);
}
