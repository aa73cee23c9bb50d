//! The layers of block devices: loop devices of files, and everything that is stacked on them.
//!
//! sysfs needs no right to open any of them. A backing file that was removed, or that lies in a
//! mount namespace which cannot be seen from here, has no identity.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;

use crate::identity::{FileIdentity, identity_of};
use crate::sysfs::{Sysfs, entries};

/// A loop device and the piece of a file that it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loop {
    /// Kernel name, e.g. `loop0`.
    pub(crate) name: String,
    /// Where its file is.
    pub(crate) file: PathBuf,
    /// Which file that is, where it can be found.
    pub(crate) identity: Option<FileIdentity>,
    /// Bytes of the file.
    range: Range<u64>,
}

impl Loop {
    /// Whether both show one byte of one file.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.identity.is_some()
            && self.identity == other.identity
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

/// All loop devices that have a file.
pub(crate) fn loops(sys: &Sysfs) -> Vec<Loop> {
    entries(&sys.class()).iter().filter_map(|name| loop_of(sys, name)).collect()
}

fn loop_of(sys: &Sysfs, name: &str) -> Option<Loop> {
    let attribute = |of: &str| sys.attribute(name, &format!("loop/{of}"));
    let file = PathBuf::from(attribute("backing_file")?);
    let identity = identity_of(&file);
    let number = |of: &str| attribute(of)?.parse::<u64>().ok();
    let start = number("offset").unwrap_or(0);
    let length = number("sizelimit").filter(|&limit| limit != 0).unwrap_or(u64::MAX);
    Some(Loop { name: name.to_owned(), file, identity, range: start..start.saturating_add(length) })
}

/// The loop devices that a device rests on: itself, the disk of a partition, what RAID arrays and
/// device mapper are made of, and what the file systems lie on that hold their files.
pub(crate) fn beneath(sys: &Sysfs, device: u64) -> Vec<Loop> {
    let mut seen = BTreeSet::new();
    let mut open: Vec<String> = sys.disk_name(device).into_iter().collect();
    let mut found = Vec::new();
    while let Some(name) = open.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        open.extend(sys.parts_of(&name));
        if let Some(it) = loop_of(sys, &name) {
            if let Some(FileIdentity::File { device, .. }) = it.identity {
                open.extend(sys.disk_name(device));
            }
            found.push(it);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use rustix::fs::makedev;

    use super::{beneath, loops};
    use crate::sysfs::Sysfs;

    /// Files `a` and `b`; loop0 of a with a partition, which is in dm-0, which is in md0; loop1 of
    /// the first 4 KiB of a, loop2 of what follows them, loop3 of b, loop4 of a file that is gone.
    fn machine(root: &Path) -> Sysfs {
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let link = |from: &str, to: &str| {
            let from = root.join(from);
            fs::create_dir_all(from.parent().unwrap()).unwrap();
            symlink(root.join(to), from).unwrap();
        };
        let named = |number: &str, path: &str| {
            put(&format!("{path}/dev"), &format!("{number}\n"));
            link(&format!("dev/block/{number}"), path);
            link(&format!("class/block/{}", path.rsplit('/').next().unwrap()), path);
        };
        fs::write(root.join("a"), "").unwrap();
        fs::hard_link(root.join("a"), root.join("other name of a")).unwrap();
        fs::write(root.join("b "), "").unwrap();
        let backed = [("a", 0, 0), ("other name of a", 0, 4096), ("a", 4096, 0), ("b ", 0, 0)];
        for (number, (file, offset, limit)) in backed.iter().chain([&("gone", 0, 0)]).enumerate() {
            let path = format!("devices/loop{number}");
            named(&format!("7:{number}"), &path);
            put(&format!("{path}/loop/backing_file"), &format!("{}\n", root.join(file).display()));
            put(&format!("{path}/loop/offset"), &format!("{offset}\n"));
            put(&format!("{path}/loop/sizelimit"), &format!("{limit}\n"));
        }
        named("259:1", "devices/loop0/loop0p1");
        put("devices/loop0/loop0p1/partition", "1\n");
        named("254:0", "devices/dm-0");
        link("devices/dm-0/slaves/loop0p1", "devices/loop0/loop0p1");
        named("9:0", "devices/md0");
        link("devices/md0/slaves/dm-0", "devices/dm-0");
        link("devices/md0/slaves/loop3", "devices/loop3");
        Sysfs::at(root.to_owned())
    }

    #[test]
    fn stacks_are_followed_down_to_files() {
        let root = tempfile::tempdir().unwrap();
        let sys = machine(root.path());
        let names = |device| -> Vec<String> {
            let mut names: Vec<_> =
                beneath(&sys, device).into_iter().map(|device| device.name).collect();
            names.sort();
            names
        };
        assert_eq!(names(makedev(7, 0)), ["loop0"]);
        assert_eq!(names(makedev(259, 1)), ["loop0"]);
        assert_eq!(names(makedev(254, 0)), ["loop0"]);
        assert_eq!(names(makedev(9, 0)), ["loop0", "loop3"]);
        assert_eq!(beneath(&sys, makedev(9, 0))[0].file, root.path().join("b "));
        assert_eq!(names(makedev(7, 4)), ["loop4"]);
        assert!(names(makedev(8, 0)).is_empty());
    }

    #[test]
    fn loop_devices_of_the_same_bytes_are_known_by_the_file() {
        let root = tempfile::tempdir().unwrap();
        let all = loops(&machine(root.path()));
        let known: Vec<bool> = all.iter().map(|file| file.identity.is_some()).collect();
        assert_eq!(known, [true, true, true, true, false]);
        let overlap = |one: usize, other: usize| all[one].overlaps(&all[other]);
        assert!(overlap(0, 1) && overlap(1, 0) && overlap(0, 2));
        assert!(!overlap(1, 2), "next to each other");
        assert!(!overlap(0, 3), "another file");
        assert!(!overlap(4, 4), "nothing is known");
    }
}
