//! Block devices and locks, from sysfs and procfs.
//!
//! The two roots are injected, so that md arrays and device-mapper stacks can be tested on a
//! machine that has none. Files that are missing or odd mean "nothing known", never an error: the
//! exclusive open decides, this only finds words for it.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use kvrail_memory::{Mount, state_of, unescape};

use crate::holder::Holder;
use crate::identity::{FileIdentity, identity_of};
use crate::stack::{self, Loop};
use crate::sysfs::{Sysfs, entries, parse_device, text};

/// sysfs and procfs.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    sys: Sysfs,
    proc: PathBuf,
}

/// A block device or partition with its kernel name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedDevice {
    pub(crate) name: String,
    pub(crate) device: u64,
}

impl Default for Kernel {
    fn default() -> Self {
        Self { sys: Sysfs::at("/sys".into()), proc: "/proc".into() }
    }
}

impl Kernel {
    #[cfg(test)]
    pub(crate) fn fake(sys: PathBuf, proc: PathBuf) -> Self {
        Self { sys: Sysfs::at(sys), proc }
    }

    /// The holders. The more informative ones come first; processes only where there is no other
    /// holder, because every mount helper and udev worker shows up there for a moment.
    pub(crate) fn holders(&self, identity: FileIdentity) -> Vec<Holder> {
        let mut found = self.swaps(identity);
        match identity {
            FileIdentity::Block { device } => {
                for part in self.with_partitions(device) {
                    found.extend(self.mounts(&part));
                    found.extend(self.stacked(&part));
                }
                if found.is_empty() {
                    found = self.openers(device);
                }
                if found.is_empty() {
                    let beneath = stack::beneath(&self.sys, device);
                    found = beneath.iter().flat_map(|file| self.locked_beneath(file)).collect();
                }
            }
            FileIdentity::File { device, inode } => {
                found.extend(self.loops_of(identity));
                found.extend(self.lockers(device, inode));
            }
        }
        found
    }

    /// Whether all visible holders are ended processes, reaped or not. True without a visible
    /// holder: an ended process may have become invisible.
    pub(crate) fn have_ended(&self, holders: &[Holder]) -> bool {
        let ended = |holder: &Holder| match holder {
            Holder::Process { pid, .. } => self.has_ended(*pid),
            _ => false,
        };
        holders.iter().all(ended)
    }

    /// Whether all are loop devices that go when they are closed.
    pub(crate) fn are_leaving(&self, holders: &[Holder]) -> bool {
        let leaving = |holder: &Holder| match holder {
            Holder::Loop { device } | Holder::Twin { device, .. } => {
                // One that is gone has no attribute any more.
                self.sys.attribute(device, "loop/autoclear").is_none_or(|flag| flag == "1")
            }
            _ => false,
        };
        holders.iter().all(leaving)
    }

    /// A zombie has let go of everything.
    fn has_ended(&self, pid: u32) -> bool {
        let Some(stat) = text(&self.proc.join(pid.to_string()).join("stat")) else { return true };
        matches!(state_of(&stat), Some('Z' | 'X' | 'x'))
    }

    /// Uses of a file that no lock shows: swap, and loop devices made of it.
    pub(crate) fn silent_holders(&self, identity: FileIdentity) -> Vec<Holder> {
        let mut found = self.swaps(identity);
        found.extend(self.loops_of(identity));
        found
    }

    /// The loop devices that a device rests on.
    pub(crate) fn beneath(&self, device: u64) -> Vec<Loop> {
        stack::beneath(&self.sys, device)
    }

    /// Where the kernel describes a block device, if that cannot be seen from here: then nothing is
    /// known of what it rests on.
    pub(crate) fn unseen(&self, device: u64) -> Option<String> {
        let directory = self.sys.directory(device);
        (!directory.exists()).then(|| directory.display().to_string())
    }

    /// The loop devices that show some of the same bytes as this one.
    pub(crate) fn twins(&self, it: &Loop) -> Vec<Loop> {
        let mut all = stack::loops(&self.sys);
        all.retain(|other| other.name != it.name && other.overlaps(it));
        all
    }

    /// The partitions of a whole disk.
    pub(crate) fn partitions(&self, device: u64) -> Vec<NamedDevice> {
        let directory = self.sys.directory(device);
        let mut found: Vec<NamedDevice> = entries(&directory)
            .into_iter()
            .filter(|name| directory.join(name).join("partition").exists())
            .filter_map(|name| {
                let device = parse_device(&text(&directory.join(&name).join("dev"))?)?;
                Some(NamedDevice { name, device })
            })
            .collect();
        found.sort_by_key(|part| part.device);
        found
    }

    /// The NVMe namespace that the device is a partition of.
    pub(crate) fn namespace_around(&self, device: u64) -> Option<String> {
        let directory = self.sys.directory(device);
        directory.join("partition").exists().then_some(())?;
        let disk = directory.parent()?.file_name()?.to_string_lossy().into_owned();
        disk.starts_with("nvme").then_some(disk)
    }

    /// Whether the kernel refuses writes to the device.
    pub(crate) fn is_read_only(&self, device: u64) -> bool {
        text(&self.sys.directory(device).join("ro")).is_some_and(|text| text == "1")
    }

    /// Metadata bytes beside each block of a disk, as the kernel (6.9 and later) shows them; that
    /// of the whole disk for a partition. 0 where it shows none.
    pub(crate) fn metadata_bytes(&self, device: u64) -> u32 {
        let directory = self.sys.directory(device);
        let of = |path: PathBuf| text(&path)?.parse().ok();
        let own = of(directory.join("metadata_bytes"));
        own.or_else(|| of(directory.join("../metadata_bytes"))).unwrap_or(0)
    }

    /// A number out of the queue directory; that of the whole disk for a partition.
    pub(crate) fn queue_number(&self, device: u64, name: &str) -> Option<u32> {
        let directory = self.sys.directory(device);
        let own = text(&directory.join("queue").join(name));
        let disk = || text(&directory.join("..").join("queue").join(name));
        own.or_else(disk)?.parse().ok()
    }

    /// Every block device with a size, partitions counted in: its node under `/dev`. The single
    /// paths of a multipath namespace are hidden and have none.
    pub(crate) fn block_nodes(&self) -> Vec<PathBuf> {
        let class = self.sys.class();
        let is = |name: &str, file: &str, what: &str| {
            text(&class.join(name).join(file)).is_some_and(|text| text == what)
        };
        let mut names: Vec<String> = entries(&class)
            .into_iter()
            .filter(|name| class.join(name).join("size").exists())
            .filter(|name| !is(name, "size", "0") && !is(name, "hidden", "1"))
            .collect();
        names.sort();
        // sysfs writes `!` where the node's name has a slash (cciss!c0d0).
        names.into_iter().map(|name| Path::new("/dev").join(name.replace('!', "/"))).collect()
    }

    fn with_partitions(&self, device: u64) -> Vec<NamedDevice> {
        let directory = self.sys.directory(device);
        let name = directory.file_name().map(|name| name.to_string_lossy().into_owned());
        let mut all = vec![NamedDevice { name: name.unwrap_or_default(), device }];
        all.extend(self.partitions(device));
        // A partition cannot be had while its disk is held as a whole.
        if directory.join("partition").exists()
            && let Some(disk) = directory.parent()
            && let Some(device) = text(&disk.join("dev")).as_deref().and_then(parse_device)
        {
            let name = disk.file_name().map(|name| name.to_string_lossy().into_owned());
            all.push(NamedDevice { name: name.unwrap_or_default(), device });
        }
        all
    }

    fn mounts(&self, part: &NamedDevice) -> Vec<Holder> {
        let table = text(&self.proc.join("self/mountinfo")).unwrap_or_default();
        let mounts =
            table.lines().filter_map(Mount::parse).filter(|mount| shows(mount, part.device));
        let point = |mount: Mount| mount.point.display().to_string();
        mounts
            .map(|path| Holder::Mount { device: part.name.clone(), mount_point: point(path) })
            .collect()
    }

    fn stacked(&self, part: &NamedDevice) -> Vec<Holder> {
        let holders = self.sys.directory(part.device).join("holders");
        let upper = |name: String| {
            let mapped = text(&self.sys.class().join(&name).join("dm/name"));
            let upper = mapped.map_or(name.clone(), |mapped| format!("{name} ({mapped})"));
            Holder::Stacked { device: part.name.clone(), upper }
        };
        entries(&holders).into_iter().map(upper).collect()
    }

    fn swaps(&self, identity: FileIdentity) -> Vec<Holder> {
        let table = text(&self.proc.join("swaps")).unwrap_or_default();
        let paths = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
        paths
            .map(unescape)
            .filter(|path| match identity_of(Path::new(path)) {
                Some(FileIdentity::Block { device }) => match identity {
                    FileIdentity::Block { device: wanted } => {
                        self.with_partitions(wanted).iter().any(|part| part.device == device)
                    }
                    FileIdentity::File { .. } => false,
                },
                other => other == Some(identity),
            })
            .map(|device| Holder::Swap { device })
            .collect()
    }

    /// By the file itself, not by a name of it: it may have several.
    fn loops_of(&self, file: FileIdentity) -> Vec<Holder> {
        let of_it =
            stack::loops(&self.sys).into_iter().filter(|device| device.identity == Some(file));
        of_it.map(|device| Holder::Loop { device: device.name }).collect()
    }

    /// The holders of the file behind a loop device: an unknown one, where none can be seen.
    pub(crate) fn lockers_beneath(&self, it: &Loop) -> Vec<Holder> {
        let found = self.locked_beneath(it);
        if !found.is_empty() {
            return found;
        }
        let file = it.file.display().to_string();
        vec![Holder::Beneath { file, pid: None, command: String::new() }]
    }

    fn locked_beneath(&self, it: &Loop) -> Vec<Holder> {
        let Some(FileIdentity::File { device, inode }) = it.identity else { return Vec::new() };
        let file = it.file.display().to_string();
        let beneath = |holder| match holder {
            Holder::Process { pid, command } => {
                Holder::Beneath { file: file.clone(), pid: Some(pid), command }
            }
            other => other,
        };
        self.lockers(device, inode).into_iter().map(beneath).collect()
    }

    /// Holders of a lock on the file, from `/proc/locks`:
    /// `1: FLOCK  ADVISORY  WRITE 1234 fe:00:131 0 EOF`.
    fn lockers(&self, device: u64, inode: u64) -> Vec<Holder> {
        let table = text(&self.proc.join("locks")).unwrap_or_default();
        let wanted = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
        let anywhere = format!(":{inode}");
        let owners = |matches: &dyn Fn(&str) -> bool| -> Vec<u32> {
            let mut pids: Vec<u32> = table
                .lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>())
                .filter(|words| words.len() == 8 && matches(words[5]))
                .filter_map(|words| words[4].parse().ok())
                .filter(|&pid| pid != 0)
                .collect();
            pids.sort_unstable();
            pids.dedup();
            pids
        };
        let mut pids = owners(&|id| id == wanted);
        if pids.is_empty() {
            // btrfs and overlay number their files on another device than they lock them on.
            pids = owners(&|id| id.ends_with(&anywhere));
        }
        pids.into_iter().map(|pid| self.process(pid)).collect()
    }

    /// Processes with the device open, as far as we may look.
    fn openers(&self, device: u64) -> Vec<Holder> {
        let pids = entries(&self.proc).into_iter().filter_map(|name| name.parse::<u32>().ok());
        let mut found: Vec<u32> = pids.filter(|&pid| self.has_open(pid, device)).collect();
        found.sort_unstable();
        found.into_iter().map(|pid| self.process(pid)).collect()
    }

    fn has_open(&self, pid: u32, device: u64) -> bool {
        let directory = self.proc.join(pid.to_string()).join("fd");
        entries(&directory).into_iter().any(|fd| {
            let link = directory.join(fd);
            // The target's name is looked at first: a stat on a dead network mount would hang.
            fs::read_link(&link).is_ok_and(|target| target.starts_with("/dev"))
                && identity_of(&link) == Some(FileIdentity::Block { device })
        })
    }

    fn process(&self, pid: u32) -> Holder {
        let command = text(&self.proc.join(pid.to_string()).join("comm"));
        Holder::Process { pid, command: command.unwrap_or_else(|| "unknown".into()) }
    }
}

/// Whether the device is mounted there, by its number or (btrfs has anonymous ones) by the source.
fn shows(mount: &Mount, device: u64) -> bool {
    let source = Path::new(&mount.source);
    parse_device(&mount.device) == Some(device)
        || (source.starts_with("/dev")
            && identity_of(source) == Some(FileIdentity::Block { device }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use rustix::fs::makedev;

    use super::{FileIdentity, Kernel, NamedDevice};
    use crate::holder::Holder;

    /// A disk 259:0 `nvme0n1` with partitions 1 and 2; partition 2 is in `dm-0` (vg-lv) and `md0`.
    fn machine() -> (tempfile::TempDir, Kernel) {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let link = |from: &str, to: &str| {
            let from = root.path().join(from);
            fs::create_dir_all(from.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(root.path().join(to), from).unwrap();
        };
        let disk = "sys/devices/nvme0n1";
        put(&format!("{disk}/dev"), "259:0\n");
        put(&format!("{disk}/ro"), "1\n");
        put(&format!("{disk}/size"), "100\n");
        put(&format!("{disk}/queue/logical_block_size"), "4096\n");
        put(&format!("{disk}/metadata_bytes"), "8\n");
        for (part, number) in [("nvme0n1p1", 1), ("nvme0n1p2", 2)] {
            put(&format!("{disk}/{part}/partition"), &format!("{number}\n"));
            put(&format!("{disk}/{part}/dev"), &format!("259:{number}\n"));
            put(&format!("{disk}/{part}/size"), "0\n");
            link(&format!("sys/dev/block/259:{number}"), &format!("{disk}/{part}"));
            link(&format!("sys/class/block/{part}"), &format!("{disk}/{part}"));
        }
        put("sys/class/block/nvme0c1n1/size", "100\n");
        put("sys/class/block/nvme0c1n1/hidden", "1\n");
        link("sys/dev/block/259:0", disk);
        link("sys/class/block/nvme0n1", disk);
        put(&format!("{disk}/nvme0n1p2/holders/dm-0"), "");
        put(&format!("{disk}/nvme0n1p2/holders/md0"), "");
        put("sys/class/block/dm-0/dm/name", "vg-lv\n");
        put("proc/swaps", "Filename Type Size Used Priority\n");
        put(
            "proc/self/mountinfo",
            "22 1 259:1 / /mnt/with\\040blank rw shared:1 - ext4 /dev/nvme0n1p1 rw\n\
             23 1 0:40 / /other rw - tmpfs tmpfs rw\nnonsense\n",
        );
        let kernel = Kernel::fake(root.path().join("sys"), root.path().join("proc"));
        (root, kernel)
    }

    #[test]
    fn processes_that_are_gone_or_zombies_have_ended() {
        let root = tempfile::tempdir().unwrap();
        let kernel = Kernel::fake(root.path().join("sys"), root.path().to_owned());
        for (pid, stat) in [(7, "7 (a) S 1"), (8, "8 (k) Z) Z 1"), (9, "9 (Z ) Z) R 1")] {
            fs::create_dir(root.path().join(pid.to_string())).unwrap();
            fs::write(root.path().join(format!("{pid}/stat")), stat).unwrap();
        }
        let process = |pid| Holder::Process { pid, command: "kvrail".into() };
        assert!(kernel.have_ended(&[]) && kernel.have_ended(&[process(6), process(8)]));
        assert!(!kernel.have_ended(&[process(8), process(7)]));
        assert!(!kernel.have_ended(&[process(9)]));
        assert!(!kernel.have_ended(&[Holder::Loop { device: "loop0".into() }]));
    }

    #[test]
    fn names_mounts_and_stacks_of_partitions() {
        let (_root, kernel) = machine();
        let disk = FileIdentity::Block { device: makedev(259, 0) };
        let found = kernel.holders(disk);
        let said: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "nvme0n1p1 is mounted at /mnt/with blank",
                "nvme0n1p2 is part of dm-0 (vg-lv)",
                "nvme0n1p2 is part of md0",
            ]
        );
        let remedies: Vec<String> = found.iter().map(Holder::remedy).collect();
        assert!(remedies[1].contains("vgchange") && remedies[2].contains("mdadm --stop"));
    }

    #[test]
    fn reads_what_a_disk_is() {
        let (_root, kernel) = machine();
        let disk = makedev(259, 0);
        let parts = [("nvme0n1p1", 1), ("nvme0n1p2", 2)]
            .map(|(name, number)| NamedDevice { name: name.into(), device: makedev(259, number) });
        assert_eq!(kernel.partitions(disk), parts);
        assert!(kernel.is_read_only(disk));
        assert!(!kernel.is_read_only(makedev(259, 1)));
        assert_eq!(kernel.queue_number(disk, "logical_block_size"), Some(4096));
        assert_eq!(kernel.queue_number(makedev(259, 1), "logical_block_size"), Some(4096));
        assert_eq!([kernel.metadata_bytes(disk), kernel.metadata_bytes(makedev(259, 1))], [8; 2]);
        assert_eq!(kernel.metadata_bytes(makedev(1, 1)), 0);
        assert_eq!(kernel.namespace_around(disk), None);
        assert_eq!(kernel.namespace_around(makedev(259, 1)), Some("nvme0n1".into()));
        // Without a size there is nothing behind the node.
        assert_eq!(kernel.block_nodes(), [Path::new("/dev/nvme0n1")]);
    }

    #[test]
    fn finds_the_process_behind_a_lock() {
        let (root, kernel) = machine();
        let proc = root.path().join("proc");
        fs::write(
            proc.join("locks"),
            "1: FLOCK  ADVISORY  WRITE 77 fe:00:131 0 EOF\n\
             1: -> FLOCK  ADVISORY  WRITE 78 fe:00:131 0 EOF\n\
             2: POSIX  ADVISORY  WRITE 79 fe:00:132 0 EOF\n",
        )
        .unwrap();
        fs::create_dir_all(proc.join("77")).unwrap();
        fs::write(proc.join("77/comm"), "kvrail\n").unwrap();
        let holder = Holder::Process { pid: 77, command: "kvrail".into() };
        for device in [makedev(0xfe, 0), makedev(0, 99)] {
            let file = FileIdentity::File { device, inode: 131 };
            assert_eq!(kernel.holders(file), std::slice::from_ref(&holder));
        }
        let other = FileIdentity::File { device: makedev(0xfe, 0), inode: 31 };
        assert_eq!(kernel.holders(other), []);
    }
}
