//! What two devices have in common where one mode is the best for both, as the kernel shows it.

use std::fs::{metadata, read_dir, read_link, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::fstat;

use crate::queue::QueueLimits;
use crate::target::{FileKind, Io, Target};
use crate::uring::UringOptions;

/// Where the kernel shows whole disks by name.
const DISKS: &str = "/sys/block";

/// Files of a disk that are the same for drives of one make. The queue's limits are beside them.
const SHOWN: [&str; 5] =
    ["size", "device/vendor", "device/model", "queue/rotational", "queue/scheduler"];

/// Devices are alike where this is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Likeness {
    kind: FileKind,
    io: Io,
    logical_block: u32,
    memory_alignment: u32,
    depth: u32,
    place: Place,
}

/// Where the bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// In files of the file system with this number.
    FileSystem(u64),
    /// On drives of one make.
    Drive(QueueLimits, DriveFacts),
    /// On loop devices over files of the file system with this number.
    Loop(QueueLimits, u64, String),
    /// On this disk. The kernel does not show what is below it, so no other one is like it.
    Disk(QueueLimits),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DriveFacts {
    /// The content of each file that is there.
    shown: [Option<String>; SHOWN.len()],
    /// By what it is reached: the kernel's driver, or the transports of its NVMe controllers.
    ways: Vec<String>,
}

impl Likeness {
    /// Of the device with these options; `None` where it cannot be examined.
    pub(super) fn of(options: &UringOptions) -> Option<Self> {
        let UringOptions { path, fd, direct, tried_block, .. } = options;
        let target = Target::examine_in(path, fd.try_clone().ok()?, *direct, *tried_block).ok()?;
        let place = match target.kind {
            FileKind::File => Place::FileSystem(fstat(&target.fd).ok()?.st_dev),
            FileKind::Block => Place::of(Path::new(DISKS), target.queue?),
        };
        Some(Self {
            kind: target.kind,
            io: target.io,
            logical_block: target.logical_block,
            memory_alignment: target.memory_alignment,
            depth: options.depth,
            place,
        })
    }
}

impl Place {
    /// Of the disk with this queue.
    fn of(disks: &Path, queue: QueueLimits) -> Self {
        let disk = disks.join(&queue.disk);
        // What belongs to a make has no disk's name.
        let any = QueueLimits { disk: String::new(), ..queue.clone() };
        if let Some(file_system) = file_system_of_loop(&disk) {
            let direct = read(&disk, "loop/dio").unwrap_or_default();
            return Self::Loop(any, file_system, direct);
        }
        let ways = ways(&disk.join("device"));
        if ways.is_empty() {
            return Self::Disk(queue);
        }
        Self::Drive(any, DriveFacts { shown: SHOWN.map(|name| read(&disk, name)), ways })
    }
}

/// The file system of a loop device's file.
fn file_system_of_loop(disk: &Path) -> Option<u64> {
    Some(metadata(read(disk, "loop/backing_file")?).ok()?.dev())
}

/// The driver of a disk, or the transports of the NVMe controllers to it. A namespace that may be
/// reached by several paths hangs below its subsystem, where its controllers are too.
fn ways(device: &Path) -> Vec<String> {
    let driver = read_link(device.join("driver")).ok();
    let driver = driver.and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
    if let Some(one) = driver.or_else(|| read(device, "transport")) {
        return vec![one];
    }
    let below = read_dir(device).into_iter().flatten().flatten();
    let mut ways: Vec<_> = below.filter_map(|entry| read(&entry.path(), "transport")).collect();
    ways.sort();
    ways.dedup();
    ways
}

fn read(folder: &Path, name: &str) -> Option<String> {
    Some(read_to_string(folder.join(name)).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::{Place, ways};
    use crate::queue::QueueLimits;

    /// A folder of disks, in the place of sysfs.
    struct Disks(TempDir);

    impl Disks {
        fn new() -> Self {
            Self(TempDir::new().unwrap())
        }

        /// A disk with these files.
        fn add(&self, disk: &str, files: &[(&str, &str)]) {
            let folder = self.0.path().join(disk);
            create_dir_all(folder.join("queue")).unwrap();
            for (name, content) in files {
                let path = folder.join(name);
                create_dir_all(path.parent().unwrap()).unwrap();
                write(path, format!("{content}\n")).unwrap();
            }
        }

        fn driver(&self, disk: &str, driver: &str) {
            let device = self.0.path().join(disk).join("device");
            create_dir_all(&device).unwrap();
            symlink(format!("../../../../bus/a/drivers/{driver}"), device.join("driver")).unwrap();
        }

        fn place(&self, disk: &str) -> Place {
            let queue = QueueLimits::read(&self.0.path().join(disk)).unwrap();
            Place::of(self.0.path(), queue)
        }

        fn are_alike(&self, one: &str, other: &str) -> bool {
            self.place(one) == self.place(other)
        }
    }

    const DRIVE: [(&str, &str); 4] = [
        ("size", "15002931888"),
        ("device/model", "FAST 7.68TB"),
        ("device/transport", "pcie"),
        ("queue/io_poll", "1"),
    ];

    #[test]
    fn drives_of_one_make_are_alike_until_the_kernel_shows_a_difference() {
        let disks = Disks::new();
        disks.add("nvme0n1", &DRIVE);
        disks.add("nvme1n1", &DRIVE);
        assert!(disks.are_alike("nvme0n1", "nvme1n1"));
        for (at, file, other) in [
            (2, "size", "7501476528"),
            (3, "device/model", "FAST 7.68TB v2"),
            (4, "device/transport", "tcp"),
            (5, "queue/io_poll", "0"),
            (6, "queue/scheduler", "none [mq-deadline]"),
            (7, "queue/max_sectors_kb", "128"),
        ] {
            let disk = format!("nvme{at}n1");
            disks.add(&disk, &DRIVE);
            assert!(disks.are_alike("nvme0n1", &disk), "{file}");
            disks.add(&disk, &[(file, other)]);
            assert!(!disks.are_alike("nvme0n1", &disk), "{file}");
        }
        // A part of one, which takes no commands passed through.
        create_dir_all(disks.0.path().join("nvme0n1/nvme0n1p1")).unwrap();
        let part = QueueLimits::read(&disks.0.path().join("nvme0n1/nvme0n1p1")).unwrap();
        let part = Place::of(disks.0.path(), part);
        assert!(matches!(part, Place::Drive(..)) && part != disks.place("nvme0n1"));
    }

    #[test]
    fn the_way_to_a_drive_is_its_driver_or_the_transports_of_its_controllers() {
        let disks = Disks::new();
        disks.add("vda", &[("size", "8")]);
        disks.add("sda", &[("size", "8")]);
        disks.driver("vda", "virtio_blk");
        disks.driver("sda", "sd");
        assert!(!disks.are_alike("vda", "sda"));
        for (head, transports) in [("nvme0n1", ["pcie", "pcie"]), ("nvme1n1", ["tcp", "rdma"])] {
            let [first, second] = transports;
            disks.add(
                head,
                &[
                    ("size", "8"),
                    ("device/model", "FAST"),
                    ("device/subsysnqn", "nqn"),
                    ("device/nvme0/transport", first),
                    ("device/nvme1/transport", second),
                ],
            );
        }
        let of = |head: &str| ways(&disks.0.path().join(head).join("device"));
        assert_eq!(of("nvme0n1"), ["pcie"]);
        assert_eq!(of("nvme1n1"), ["rdma", "tcp"]);
        assert!(!disks.are_alike("nvme0n1", "nvme1n1"));
    }

    #[test]
    fn loop_devices_are_alike_over_one_file_system() {
        let (disks, files) = (Disks::new(), TempDir::new().unwrap());
        let [first, second] = ["a", "b"].map(|name| files.path().join(name).display().to_string());
        write(&first, "").unwrap();
        write(&second, "").unwrap();
        disks.add("loop0", &[("loop/backing_file", &first), ("loop/dio", "0")]);
        disks.add("loop1", &[("loop/backing_file", &second), ("loop/dio", "0")]);
        disks.add("loop2", &[("loop/backing_file", &second), ("loop/dio", "1")]);
        disks.add("loop3", &[("loop/backing_file", "/proc/version"), ("loop/dio", "0")]);
        assert!(disks.are_alike("loop0", "loop1"));
        assert!(!disks.are_alike("loop0", "loop2"), "past the page cache");
        assert!(!disks.are_alike("loop0", "loop3"), "another file system");
    }

    #[test]
    fn a_disk_over_unknown_ones_is_like_itself_alone() {
        let disks = Disks::new();
        disks.add("dm-0", &[("size", "8")]);
        disks.add("dm-1", &[("size", "8")]);
        disks.add("loop0", &[("loop/backing_file", "/a/file (deleted)")]);
        disks.add("loop1", &[("loop/backing_file", "/a/file (deleted)")]);
        assert!(disks.are_alike("dm-0", "dm-0") && !disks.are_alike("dm-0", "dm-1"));
        assert!(!disks.are_alike("loop0", "loop1"));
    }
}
