//! cuFile's use of udev's database: it refuses files on a device without an entry (status 5027),
//! and containers usually have no such database.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, fstat, major, minor};

/// Where udev keeps one file for each device.
const DATABASE: &str = "/run/udev/data";

/// The entry that a device or a file's device lacks, if it does.
pub(crate) fn missing_entry(file: impl AsFd) -> Option<PathBuf> {
    let stat = fstat(file).ok()?;
    let block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let device = if block { stat.st_rdev } else { stat.st_dev };
    let entry = Path::new(DATABASE).join(format!("b{}:{}", major(device), minor(device)));
    (!entry.exists()).then_some(entry)
}
