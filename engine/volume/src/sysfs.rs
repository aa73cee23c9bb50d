//! Block devices in sysfs: names, attributes, and what is part of what.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{major, makedev, minor};

/// sysfs, wherever it is mounted.
#[derive(Clone, Debug)]
pub(crate) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    pub(crate) fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// Where all block devices and partitions are listed by kernel name.
    pub(crate) fn class(&self) -> PathBuf {
        self.root.join("class/block")
    }

    /// A device's own directory.
    pub(crate) fn directory(&self, device: u64) -> PathBuf {
        let link = self.root.join(format!("dev/block/{}:{}", major(device), minor(device)));
        fs::canonicalize(&link).unwrap_or(link)
    }

    /// An attribute of a block device; only the end of its line is taken off, because it may be a
    /// path.
    pub(crate) fn attribute(&self, name: &str, attribute: &str) -> Option<String> {
        let text = fs::read_to_string(self.class().join(name).join(attribute)).ok()?;
        Some(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    }

    /// The kernel name of a device, or of the disk that a partition lies on.
    pub(crate) fn disk_name(&self, device: u64) -> Option<String> {
        let directory = self.directory(device);
        let is_part = directory.join("partition").exists();
        let disk = if is_part { directory.parent()? } else { &directory };
        disk.exists().then_some(())?;
        Some(disk.file_name()?.to_string_lossy().into_owned())
    }

    /// Kernel names of the disks that a stacked device is made of.
    pub(crate) fn parts_of(&self, name: &str) -> Vec<String> {
        let number = |part: &String| parse_device(&self.attribute(part, "dev")?);
        let parts = entries(&self.class().join(name).join("slaves"));
        parts.iter().filter_map(|part| self.disk_name(number(part)?)).collect()
    }
}

/// `259:0`.
pub(crate) fn parse_device(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// A file's text without what ends its lines.
pub(crate) fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

/// Names in a directory, sorted; none where there is no such directory.
pub(crate) fn entries(directory: &Path) -> Vec<String> {
    let Ok(listing) = fs::read_dir(directory) else { return Vec::new() };
    let names = listing.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
