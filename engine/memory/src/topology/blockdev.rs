//! The neighbourhood of a block device: its NUMA node, and the CPUs that take its interrupts.

use std::fs;
use std::path::{Path, PathBuf};

use super::cpulist::CpuList;
use super::files::{Root, TopologyError};

/// The neighbourhood of a device. Nothing is known of virtual ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Near {
    /// Its NUMA node, where the kernel reports one.
    pub node: Option<u32>,
    /// The CPUs that its queues' interrupts arrive at. Many disks of virtual machines have one
    /// queue, NVMe drives have one for each CPU if they can.
    pub interrupts: CpuList,
}

impl Near {
    /// The neighbourhood of all of these: the node they have in common, and any one's interrupts.
    pub fn all<'a>(mut devices: impl Iterator<Item = &'a Self>) -> Self {
        let Some(first) = devices.next() else { return Self::default() };
        devices.fold(first.clone(), |all, device| Self {
            node: all.node.filter(|_| all.node == device.node),
            interrupts: all.interrupts.or(&device.interrupts),
        })
    }
}

/// The place of block device `major:minor` among the kernel's devices.
fn place(root: &Root, major: u32, minor: u32) -> Result<PathBuf, TopologyError> {
    let path = root.path(format!("sys/dev/block/{major}:{minor}"));
    fs::canonicalize(&path)
        .map_err(|why| TopologyError::Unreadable { path, reason: why.to_string() })
}

/// The disk that block device `major:minor` is, or is a partition of.
pub(super) fn disk(root: &Root, major: u32, minor: u32) -> Result<PathBuf, TopologyError> {
    let mut place = place(root, major, minor)?;
    if place.join("partition").exists() {
        place.pop();
    }
    Ok(place)
}

/// The neighbourhood of block device `major:minor`.
pub(super) fn near(root: &Root, major: u32, minor: u32) -> Result<Near, TopologyError> {
    let device = place(root, major, minor)?;
    // The disk, or the partition and then its disk, hang below their PCI device. A multipath NVMe
    // disk is virtual; its `device` is the subsystem, which links to its controllers.
    let mut places = vec![device.clone()];
    let parent = [device.join("device"), device.join("../device")];
    if let Some(parent) = parent.iter().find_map(|path| fs::canonicalize(path).ok()) {
        places.push(parent.clone());
        places.extend(controllers(&parent));
    }
    let mut near = Near::default();
    for place in places {
        if near.node.is_none() {
            near.node = nearest_node(root, &place)?;
        }
        if near.interrupts.is_empty() {
            near.interrupts = interrupts(root, &place)?;
        }
    }
    Ok(near)
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

/// The device and what it hangs on, the closest first.
fn upwards<'a>(root: &Root, device: &'a Path) -> impl Iterator<Item = &'a Path> {
    let devices = fs::canonicalize(root.path("sys/devices")).unwrap_or_default();
    device.ancestors().take_while(move |place| place.starts_with(&devices))
}

/// The closest `numa_node`; the kernel writes -1 for unknown.
fn nearest_node(root: &Root, device: &Path) -> Result<Option<u32>, TopologyError> {
    for place in upwards(root, device) {
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

/// The CPUs that the closest interrupts arrive at. The first of several is not a queue's: virtio
/// announces changes of configuration with it, NVMe serves its admin queue.
fn interrupts(root: &Root, device: &Path) -> Result<CpuList, TopologyError> {
    let numbers = upwards(root, device).find_map(|place| {
        let entries = fs::read_dir(place.join("msi_irqs")).ok()?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        Some(names.filter_map(|name| name.parse::<u32>().ok()).collect::<Vec<_>>())
    });
    let mut numbers = numbers.unwrap_or_default();
    numbers.sort_unstable();
    let queues = &numbers[usize::from(numbers.len() > 1)..];
    queues.iter().try_fold(CpuList::default(), |cpus, number| {
        let path = format!("proc/irq/{number}/effective_affinity_list");
        Ok(cpus.or(&root.value(path)?.unwrap_or_default()))
    })
}
