//! Volumes on block devices: loop devices where the machine gives them (root, losetup).

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use common::{Loop, MIB, assert_says, directory, make, new_volume, refusal, run};
use kvrail_volume::{
    Claim, Content, DirectIo, ErrorClass, Fill, MemberKind, NewVolume, Overwrite, Volume,
    VolumeError, block_devices, inspect, open, wipe,
};

const DEVICE_BYTES: u64 = 16 * MIB;

fn on(device: &Loop) -> NewVolume {
    let members = [device.node.clone()];
    NewVolume { capacity_bytes: None, direct: DirectIo::Required, ..new_volume(&members) }
}

fn reopen(device: &Loop) -> Result<Volume, VolumeError> {
    open(std::slice::from_ref(&device.node), None, DirectIo::Required)
}

#[test]
fn a_device_gets_its_label_only_and_opens_again() {
    let directory = directory();
    let Some(device) = Loop::new(directory.path(), "disk", DEVICE_BYTES, &[]) else { return };
    // Data behind the label is not touched, even where it may be overwritten.
    let file = fs::OpenOptions::new().read(true).write(true).open(&device.file).unwrap();
    drop(device);
    file.write_all_at(b"keep", 5 * MIB).unwrap();
    let Some(device) = Loop::over(directory.path().join("disk"), &[]) else { return };
    assert_says(&refusal(make(&on(&device))), &["unknown data", "5242880", "--force"]);
    let made = make(&NewVolume { overwrite: Overwrite::Foreign, ..on(&device) }).unwrap();
    assert_eq!(made.members[0].claim.kind(), MemberKind::Block);
    assert_eq!(made.geometry.capacity(), DEVICE_BYTES - MIB);
    drop(made);
    let opened = reopen(&device).unwrap();
    assert!(opened.geometry.memory_alignment >= opened.geometry.logical_block);
    drop(opened);
    let mut kept = [0; 4];
    file.read_exact_at(&mut kept, 5 * MIB).unwrap();
    assert_eq!(&kept, b"keep");
    wipe(&"kv0".parse().unwrap(), std::slice::from_ref(&device.node)).unwrap();
    assert_eq!(inspect(&device.node).unwrap().content, Content::Blank);
}

#[test]
fn a_device_is_written_from_end_to_end_when_told() {
    let directory = directory();
    let Some(device) = Loop::new(directory.path(), "disk", DEVICE_BYTES, &[]) else { return };
    let made = make(&NewVolume { fill: Fill::Everything, ..on(&device) }).unwrap();
    drop(made);
    let data = fs::read(&device.file).unwrap();
    assert!(data.chunks(512).skip(2048).all(|block| block.iter().any(|&byte| byte != 0)));
    reopen(&device).unwrap();
}

#[test]
fn the_second_claim_of_a_device_is_refused_and_names_the_process() {
    let directory = directory();
    let Some(device) = Loop::new(directory.path(), "disk", DEVICE_BYTES, &[]) else { return };
    let held = make(&on(&device)).unwrap();
    let error = reopen(&device).unwrap_err();
    assert_eq!(error.reason.class(), ErrorClass::Refused);
    assert_says(&error.to_string(), &["in use", &format!("process {}", std::process::id())]);
    drop(held);
    reopen(&device).unwrap();
}

#[test]
fn a_mounted_device_is_refused_and_the_mount_point_named() {
    let directory = directory();
    let Some(device) = Loop::new(directory.path(), "disk", DEVICE_BYTES, &[]) else { return };
    let node = device.node.to_str().unwrap();
    if run("mkfs.ext4", &["-q", node]).is_none() {
        return;
    }
    let unmounted = refusal(make(&on(&device)));
    assert_says(&unmounted, &["holds an ext2/3/4 file system", "--force"]);
    let point = directory.path().join("mount point");
    fs::create_dir(&point).unwrap();
    if run("mount", &[node, point.to_str().unwrap()]).is_none() {
        return;
    }
    let words = refusal(make(&NewVolume { overwrite: Overwrite::Foreign, ..on(&device) }));
    let seen = inspect(&device.node);
    run("umount", &[point.to_str().unwrap()]).unwrap();
    assert_says(&words, &["is mounted at", "mount point", "umount"]);
    assert_eq!(seen.unwrap().holders.len(), 1);
    // Not mounted any more, and with the order to overwrite: now it may.
    make(&NewVolume { overwrite: Overwrite::Foreign, ..on(&device) }).unwrap();
}

#[test]
fn swap_is_refused() {
    let directory = directory();
    let Some(device) = Loop::new(directory.path(), "disk", DEVICE_BYTES, &[]) else { return };
    let node = device.node.to_str().unwrap();
    if run("mkswap", &[node]).is_none() {
        return;
    }
    assert_says(&refusal(make(&on(&device))), &["swap space"]);
    if run("swapon", &[node]).is_none() {
        return;
    }
    let words = refusal(Claim::open(&device.node, DirectIo::Required));
    run("swapoff", &[node]).unwrap();
    assert_says(&words, &["is swap space", "swapoff"]);
}

#[test]
fn a_partitioned_disk_is_refused_and_its_partitions_named() {
    let directory = directory();
    let Some(device) = Loop::new(directory.path(), "disk", DEVICE_BYTES, &[]) else { return };
    let node = device.node.to_str().unwrap();
    // Added in the kernel, not written to the disk: many kernels have no MBR support.
    if run("addpart", &[node, "1", "2048", "8192"]).is_none() {
        return;
    }
    let parts = inspect(&device.node).unwrap().partitions;
    assert_eq!(parts.len(), 1);
    for overwrite in [Overwrite::Nothing, Overwrite::Foreign] {
        let words = refusal(make(&NewVolume { overwrite, ..on(&device) }));
        assert_says(&words, &["has partitions", &parts[0], "wipefs"]);
    }
    // A partition of what is no NVMe namespace is a member like any other, and holds its disk.
    let part = std::path::Path::new("/dev").join(&parts[0]);
    if !part.exists() {
        println!("skipped: no node for {}", parts[0]);
        return;
    }
    let held = Claim::open(&part, DirectIo::Required).unwrap();
    assert_says(&refusal(Claim::open(&device.node, DirectIo::Required)), &["in use"]);
    assert_eq!(held.bytes(), 8192 * 512);
    drop(held);
    run("delpart", &[node, "1"]).unwrap();
}

#[test]
fn a_partition_table_without_partitions_is_foreign() {
    let directory = directory();
    let Some(device) = Loop::new(directory.path(), "disk", DEVICE_BYTES, &[]) else { return };
    fs::OpenOptions::new()
        .write(true)
        .open(&device.node)
        .unwrap()
        .write_all_at(b"EFI PART", 512)
        .unwrap();
    assert_says(&refusal(make(&on(&device))), &["GPT partition table"]);
}

#[test]
fn a_read_only_device_is_refused() {
    let directory = directory();
    let Some(device) = Loop::new(directory.path(), "disk", DEVICE_BYTES, &["--read-only"]) else {
        return;
    };
    assert_says(&refusal(make(&on(&device))), &["read-only", "blockdev --setrw"]);
}

#[test]
fn a_file_behind_a_loop_device_is_refused() {
    let directory = directory();
    let Some(device) = Loop::new(directory.path(), "disk", DEVICE_BYTES, &[]) else { return };
    let words = refusal(make(&new_volume(std::slice::from_ref(&device.file))));
    assert_says(&words, &["backs /dev/loop", "losetup --detach"]);
}

#[test]
fn a_device_with_larger_blocks_than_the_volume_is_refused() {
    let directory = directory();
    let Some(small) = Loop::new(directory.path(), "disk", DEVICE_BYTES, &[]) else { return };
    let made = make(&on(&small)).unwrap();
    if made.geometry.logical_block != 512 {
        println!("skipped: loop devices have {}-byte blocks here", made.geometry.logical_block);
        return;
    }
    drop(made);
    let file = small.file.clone();
    drop(small);
    let Some(large) = Loop::over(file, &["--sector-size", "4096"]) else { return };
    assert_says(&refusal(reopen(&large)), &["blocks of 4096 bytes", "512-byte"]);
}

/// F34: the kernel assigns new names to devices at each boot; labels find them.
#[test]
fn exchanged_device_names_are_found_by_their_labels() {
    let directory = directory();
    let Some(first) = Loop::new(directory.path(), "first", DEVICE_BYTES, &[]) else { return };
    let Some(second) = Loop::new(directory.path(), "second", DEVICE_BYTES, &[]) else { return };
    let members = vec![first.node.clone(), second.node.clone()];
    let new = NewVolume { members: members.clone(), ..on(&first) };
    let uuids: Vec<_> = make(&new).unwrap().members.iter().map(|member| member.uuid).collect();
    let files = [first.file.clone(), second.file.clone()];
    drop((first, second));
    let [first, second] = files;
    let Some(second) = Loop::over(second, &[]) else { return };
    let Some(first) = Loop::over(first, &[]) else { return };
    let opened = open(&[second.node.clone(), first.node.clone()], None, DirectIo::Required);
    let opened = opened.unwrap();
    let found: Vec<_> = opened.members.iter().map(|member| member.uuid).collect();
    assert_eq!(found, uuids);
    assert_eq!(opened.members[0].path(), first.node);
}

#[test]
fn devices_of_the_host_are_listed() {
    let directory = directory();
    let Some(device) = Loop::new(directory.path(), "disk", DEVICE_BYTES, &[]) else { return };
    assert!(block_devices().contains(&device.node));
}

/// A mistyped device is no new file: that would lie in the memory behind /dev.
#[test]
fn no_file_is_made_among_devices() {
    let path = PathBuf::from("/dev/kvrail-no-such-device");
    let own = |path: &str| fs::metadata(path).unwrap().dev();
    if own("/dev") == own("/") {
        println!("skipped: /dev is no file system of its own here");
        return;
    }
    let error = make(&new_volume(std::slice::from_ref(&path))).unwrap_err();
    assert_eq!(error.reason.class(), ErrorClass::Usage);
    assert_says(&error.to_string(), &["no such device", "lsblk"]);
    assert!(!path.exists());
}
