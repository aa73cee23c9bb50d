//! The NUMA node that a block device hangs on.

use std::fs;
use std::path::{Path, PathBuf};

use super::files::{Root, TopologyError};

/// The node of block device `major:minor`, or none: a virtual device, or a kernel that knows none.
pub(super) fn node(root: &Root, major: u32, minor: u32) -> Result<Option<u32>, TopologyError> {
    let entry = root.path(format!("sys/dev/block/{major}:{minor}"));
    let device = fs::canonicalize(&entry).map_err(|why| TopologyError::Unreadable {
        path: entry.clone(),
        reason: why.to_string(),
    })?;
    // The disk, or the partition and then its disk, hang below their PCI device. A multipath NVMe
    // disk is virtual; its `device` is the subsystem, which links to its controllers.
    let mut places = vec![device.clone()];
    let parent = [device.join("device"), device.join("../device")];
    if let Some(parent) = parent.iter().find_map(|path| fs::canonicalize(path).ok()) {
        places.push(parent.clone());
        places.extend(controllers(&parent));
    }
    for place in places {
        if let Some(node) = nearest(root, &place)? {
            return Ok(Some(node));
        }
    }
    Ok(None)
}

/// Real paths of the NVMe controllers that a subsystem links to, in the order of their names.
fn controllers(subsystem: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(subsystem) else { return Vec::new() };
    let mut links: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("nvme"))
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()))
        .map(|entry| entry.path())
        .collect();
    links.sort_unstable();
    links.iter().filter_map(|link| fs::canonicalize(link).ok()).collect()
}

/// The `numa_node` of the device or the closest one above it; the kernel writes -1 for unknown.
fn nearest(root: &Root, device: &Path) -> Result<Option<u32>, TopologyError> {
    let devices = fs::canonicalize(root.path("sys/devices")).unwrap_or_default();
    for place in device.ancestors().take_while(|place| place.starts_with(&devices)) {
        let path = place.join("numa_node");
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let number: i64 = text.trim().parse().map_err(|_| TopologyError::Malformed {
            path,
            what: format!("`{}` is no node", text.trim()),
        })?;
        if let Ok(node) = u32::try_from(number) {
            return Ok(Some(node));
        }
    }
    Ok(None)
}
