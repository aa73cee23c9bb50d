//! Remains behind a first MiB of zeros are not overwritten without an order.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{Loop, MIB, assert_says, directory, make, new_volume, open_any, poke, refusal, run};
use kvrail_volume::{ErrorClass, NewVolume, Overwrite};

const GIB: u64 = 1 << 30;
const KIB: u64 = 1 << 10;

fn sparse(path: &Path, bytes: u64) {
    let _ = fs::remove_file(path);
    fs::File::create(path).unwrap().set_len(bytes).unwrap();
}

#[test]
fn a_file_that_holds_data_anywhere_asks_for_force() {
    let directory = directory();
    let path = directory.path().join("member");
    let cases: [(u64, &[u8]); 4] =
        [(2 * MIB, &[7; 6 << 20]), (MIB, b"x"), (5_000_001, b"x"), (8 * MIB - 1, b"x")];
    for (at, bytes) in cases {
        sparse(&path, 8 * MIB);
        poke(&path, at, bytes);
        let before = fs::read(&path).unwrap();
        let error = make(&new_volume(std::slice::from_ref(&path))).unwrap_err();
        assert_eq!(error.reason.class(), ErrorClass::Refused);
        assert_says(&error.to_string(), &[&format!("at byte {at})"), "--force"]);
        assert!(fs::read(&path).unwrap() == before, "{at}: the file changed");
        let members = [path.clone()];
        make(&NewVolume { overwrite: Overwrite::Foreign, ..new_volume(&members) }).unwrap();
        open_any(&members).unwrap();
    }
}

#[test]
fn a_file_of_zeros_is_empty_however_they_came_there() {
    let directory = directory();
    let path = directory.path().join("member");
    fs::write(&path, vec![0; 8 << 20]).unwrap();
    make(&new_volume(std::slice::from_ref(&path))).unwrap();
    sparse(&path, 8 * MIB);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let none = rustix::fs::FallocateFlags::empty();
    match rustix::fs::fallocate(&file, none, 0, 8 * MIB) {
        Ok(()) => drop(make(&new_volume(&[path])).unwrap()),
        Err(errno) => println!("skipped: preallocated files: {errno}"),
    }
}

/// Where the formats keep copies, on a member of 300 GiB.
#[test]
fn copies_of_what_a_beginning_said_are_known_by_name() {
    let directory = directory();
    let path = directory.path().join("member");
    let bytes = 300 * GIB;
    let marks: [(u64, &[u8], &str); 11] = [
        (8193 * KIB + 0x38, b"\x53\xef", "ext2/3/4"),
        (128 * MIB + 0x38, b"\x53\xef", "ext2/3/4"),
        (3 * 128 * MIB + 0x38, b"\x53\xef", "ext2/3/4"),
        (bytes / 4, b"XFSB", "xfs"),
        (64 * MIB + 0x40, b"_BHRfS_M", "btrfs"),
        (256 * GIB + 0x40, b"_BHRfS_M", "btrfs"),
        (bytes - 384 * KIB, b"\x0c\xb1\xba\x00\0\0\0\0", "ZFS"),
        (bytes - 120 * KIB, b"\0\0\0\0\x00\xba\xb1\x0c", "ZFS"),
        (bytes - 4 * KIB + 60, b"\x83\x74\x02\x6b", "DRBD"),
        (4 * MIB, b"SKUL\xba\xbe", "LUKS2"),
        (bytes - 512 + 3, b"NTFS    ", "NTFS"),
    ];
    for (at, magic, name) in marks {
        sparse(&path, bytes);
        poke(&path, at, magic);
        let words = refusal(make(&new_volume(std::slice::from_ref(&path))));
        assert_says(&words, &[name, &format!("at byte {at})"), "--force"]);
        let mut still = vec![0; magic.len()];
        fs::File::open(&path).unwrap().read_exact_at(&mut still, at).unwrap();
        assert_eq!(still, magic, "{name}");
    }
    // After an overwrite by order, no tool finds its own format again.
    let members = [path.clone()];
    poke(&path, 64 * MIB + 0x40, b"_BHRfS_M");
    make(&NewVolume { overwrite: Overwrite::Foreign, ..new_volume(&members) }).unwrap();
    for at in [64 * MIB + 0x40, bytes - 509] {
        let mut byte = [1];
        fs::File::open(&path).unwrap().read_exact_at(&mut byte, at).unwrap();
        assert_eq!(byte, [0], "{at}");
    }
}

#[test]
fn a_device_that_holds_data_asks_for_force() {
    let directory = directory();
    for at in [MIB, 5 * MIB + 1, 400 * MIB, GIB - 3 * MIB, GIB - 1] {
        let Some(device) = Loop::new(directory.path(), "disk", GIB, &[]) else { return };
        let new =
            NewVolume { capacity_bytes: None, ..new_volume(std::slice::from_ref(&device.node)) };
        let bytes = vec![7; usize::try_from((GIB - at).min(4 << 20)).unwrap()];
        let file = fs::OpenOptions::new().write(true).open(&device.node).unwrap();
        file.write_all_at(&bytes, at).unwrap();
        file.sync_all().unwrap();
        let words = refusal(make(&new));
        assert_says(&words, &["unknown data", "--force"]);
        make(&NewVolume { overwrite: Overwrite::Foreign, ..new }).unwrap();
        drop(device);
        fs::remove_file(directory.path().join("disk")).unwrap();
    }
}

/// The real thing, where this machine has the tools: only what lies in the first MiB is zeroed.
#[test]
fn a_file_system_without_its_beginning_is_known_by_its_copies() {
    let directory = directory();
    let makers: [(&str, &[&str], &str); 3] = [
        ("mkfs.ext4", &["-q", "-F"], "ext2/3/4"),
        ("mkfs.xfs", &["-q", "-f"], "xfs"),
        ("mkfs.btrfs", &["-q", "-f"], "btrfs"),
    ];
    for (maker, options, name) in makers {
        let path = directory.path().join("member");
        sparse(&path, 600 * MIB);
        let mut arguments = options.to_vec();
        arguments.push(path.to_str().unwrap());
        if run(maker, &arguments).is_none() {
            continue;
        }
        poke(&path, 0, &vec![0; 1 << 20]);
        let words = refusal(make(&new_volume(&[path])));
        assert_says(&words, &[name, "superblock", "--force"]);
    }
}
