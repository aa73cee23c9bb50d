//! The common identity of two paths to one file.

use std::path::Path;

use rustix::fs::{FileType, stat};

/// A device number, or a file's device and inode: what two paths to one thing share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum FileIdentity {
    Block { device: u64 },
    File { device: u64, inode: u64 },
}

/// The file at a path, symbolic links followed; `None` for anything but files and block devices.
pub(crate) fn identity_of(path: &Path) -> Option<FileIdentity> {
    let stat = stat(path).ok()?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => Some(FileIdentity::Block { device: stat.st_rdev }),
        FileType::RegularFile => {
            Some(FileIdentity::File { device: stat.st_dev, inode: stat.st_ino })
        }
        _ => None,
    }
}
