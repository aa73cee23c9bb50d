//! Members on loop devices: the holder of the file behind them holds the member, by whatever name.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{
    Loop, MIB, assert_says, directory, make, new_volume, open_any, refusal, run, two_files,
};
use kvrail_volume::{Claim, DirectIo, ErrorClass, NewVolume, beneath, holders};

const DEVICE_BYTES: u64 = 16 * MIB;

fn claim(path: &Path) -> Result<Claim, kvrail_volume::VolumeError> {
    Claim::open(path, DirectIo::Optional)
}

/// Words of a refusal because of a file that this process has.
fn has(file: &Path) -> String {
    format!("it rests on {}, which process {}", file.display(), std::process::id())
}

#[test]
fn a_loop_device_over_a_served_file_is_refused() {
    let directory = directory();
    let members = two_files(directory.path());
    let held = open_any(&members).unwrap();
    let Some(device) = Loop::over(members[0].clone(), &[]) else { return };
    let error = claim(&device.node).unwrap_err();
    assert_eq!(error.reason.class(), ErrorClass::Refused);
    assert_says(&error.to_string(), &[&has(&members[0]), "stop process"]);
    // An inspection reports the holder as well.
    assert_eq!(holders(&device.node).unwrap().len(), 1);
    // The whole volume by its other names, in one piece or in two.
    let set = [device.node.clone(), members[1].clone()];
    assert_says(&refusal(open_any(&set)), &["it rests on"]);
    drop(held);
    let held = open_any(&set).unwrap();
    assert_says(&refusal(open_any(&members)), &["backs /dev/loop"]);
    drop(held);
    drop(device);
    open_any(&members).unwrap();
}

#[test]
fn a_file_has_one_identity_under_all_its_names() {
    let directory = directory();
    let Some(device) = Loop::new(directory.path(), "disk", DEVICE_BYTES, &[]) else { return };
    let hard = directory.path().join("hard");
    fs::hard_link(&device.file, &hard).unwrap();
    assert_says(&refusal(claim(&hard)), &["backs /dev/loop"]);
    let bound = directory.path().join("bound");
    fs::write(&bound, "").unwrap();
    let words = |path: &Path| path.to_str().unwrap().to_owned();
    if run("mount", &["--bind", &words(&device.file), &words(&bound)]).is_none() {
        return;
    }
    let refused = claim(&bound).map(drop);
    run("umount", &[&words(&bound)]).unwrap();
    assert_says(&refusal(refused), &["backs /dev/loop"]);
}

/// Any process that had the file open may have it still.
#[test]
fn what_cannot_be_looked_at_is_somebodys() {
    let directory = directory();
    let Some(device) = Loop::new(directory.path(), "disk", DEVICE_BYTES, &[]) else { return };
    let held = claim(&device.node).unwrap();
    assert_eq!(beneath(&device.node), std::slice::from_ref(&device.file));
    drop(held);
    fs::remove_file(&device.file).unwrap();
    let words = ["which cannot be looked at from here", "see and read", "disk"];
    assert_says(&refusal(claim(&device.node)), &words);
    fs::write(&device.file, "another one").unwrap();
    assert_says(&refusal(claim(&device.node)), &words);
}

#[test]
fn two_loop_devices_of_the_same_bytes_are_no_two_members() {
    let directory = directory();
    let Some(first) = Loop::new(directory.path(), "disk", DEVICE_BYTES, &[]) else { return };
    let Some(second) = Loop::over(first.file.clone(), &[]) else { return };
    let twin = format!("{} is made of the same bytes of", second.node.display());
    assert_says(&refusal(claim(&first.node)), &[&twin, "losetup --detach"]);
    drop(second);
    // Pieces beside each other are two members.
    drop(first);
    let file = directory.path().join("disk");
    let half = (DEVICE_BYTES / 2).to_string();
    let Some(first) = Loop::over(file.clone(), &["--sizelimit", &half]) else { return };
    let Some(second) = Loop::over(file, &["--offset", &half]) else { return };
    let new = NewVolume {
        capacity_bytes: None,
        ..new_volume(&[first.node.clone(), second.node.clone()])
    };
    make(&new).unwrap();
}

/// A device mapper table, removed when dropped.
struct Mapped(PathBuf);

impl Mapped {
    fn over(device: &Path) -> Option<Self> {
        let name = format!("kvrail-test-{}", std::process::id());
        let table = format!("0 {} linear {} 0", DEVICE_BYTES / 512, device.display());
        run("dmsetup", &["create", &name, "--table", &table])?;
        let node = Path::new("/dev/mapper").join(name);
        if !node.exists() {
            println!("skipped: {} has no node", node.display());
        }
        Some(Self(node)).filter(|mapped| mapped.0.exists())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _gone = Command::new("dmsetup").args(["remove", "--retry"]).arg(&self.0).status();
    }
}

#[test]
fn what_is_stacked_on_a_loop_device_rests_on_its_file() {
    let directory = directory();
    let Some(device) = Loop::new(directory.path(), "disk", DEVICE_BYTES, &[]) else { return };
    let Some(mapped) = Mapped::over(&device.node) else { return };
    let lock = fs::File::open(&device.file).unwrap();
    lock.lock().unwrap();
    assert_says(&refusal(claim(&mapped.0)), &[&has(&device.file)]);
    drop(lock);
    let held = claim(&mapped.0).unwrap();
    fs::File::open(&device.file).unwrap().try_lock().unwrap_err();
    drop(held);
}

/// A file system in a served file is a user's mistake; a member in it would be another one.
#[test]
fn a_file_in_a_file_system_rests_on_what_that_lies_on() {
    let directory = directory();
    let Some(device) = Loop::new(directory.path(), "disk", 4 * DEVICE_BYTES, &[]) else { return };
    let node = device.node.to_str().unwrap();
    let point = directory.path().join("point");
    fs::create_dir(&point).unwrap();
    let mounted = run("mkfs.ext4", &["-q", node])
        .and_then(|_| run("mount", &[node, point.to_str().unwrap()]));
    if mounted.is_none() {
        return;
    }
    let members = [point.join("a"), point.join("b")];
    for path in &members {
        fs::File::create(path).unwrap().set_len(4 * MIB).unwrap();
    }
    let lock = fs::File::open(&device.file).unwrap();
    lock.lock().unwrap();
    let refused = claim(&members[0]).map(drop);
    drop(lock);
    // Both may be had: they share what is below them.
    let both = members.each_ref().map(|path| claim(path).unwrap());
    let taken = fs::File::open(&device.file).unwrap().try_lock().is_err();
    drop(both);
    run("umount", &[point.to_str().unwrap()]).unwrap();
    assert_says(&refusal(refused), &[&has(&device.file)]);
    assert!(taken);
}
