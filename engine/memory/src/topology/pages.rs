//! Memory of the host: hugepages by size and node, and what is available.

use super::cgroup;
use super::files::{Root, TopologyError};

/// Hugepages of one size on one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePages {
    /// The NUMA node; 0 on a machine without nodes.
    pub node: u32,
    /// Size of one page in bytes.
    pub page_bytes: u64,
    /// Pages reserved in all.
    pub total: u64,
    /// Free pages.
    pub free: u64,
}

/// Every size on every node.
pub(crate) fn hugepages(root: &Root) -> Result<Vec<HugePages>, TopologyError> {
    let mut all = Vec::new();
    for name in root.names("sys/devices/system/node") {
        let Some(node) = name.strip_prefix("node").and_then(|digits| digits.parse().ok()) else {
            continue;
        };
        let pools = format!("sys/devices/system/node/{name}/hugepages");
        all.extend(pools_of(root, &pools, node)?);
    }
    if all.is_empty() {
        all = pools_of(root, "sys/kernel/mm/hugepages", 0)?;
    }
    all.sort_by_key(|pages| (pages.node, pages.page_bytes));
    Ok(all)
}

fn pools_of(root: &Root, dir: &str, node: u32) -> Result<Vec<HugePages>, TopologyError> {
    let mut pools = Vec::new();
    for name in root.names(dir) {
        let size = name.strip_prefix("hugepages-").and_then(|rest| rest.strip_suffix("kB"));
        let Some(kib) = size.and_then(|digits| digits.parse::<u64>().ok()) else { continue };
        let total = root.value(format!("{dir}/{name}/nr_hugepages"))?.unwrap_or(0);
        let free = root.value(format!("{dir}/{name}/free_hugepages"))?.unwrap_or(0);
        pools.push(HugePages { node, page_bytes: kib << 10, total, free });
    }
    Ok(pools)
}

/// Bytes of ordinary pages this process can still take: `MemAvailable` of the host, less where a
/// control group grants less.
pub(crate) fn available_bytes(root: &Root) -> Result<u64, TopologyError> {
    let host = host_available_bytes(root)?;
    Ok(cgroup::memory_bytes(root)?.map_or(host, |granted| granted.min(host)))
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn host_available_bytes(root: &Root) -> Result<u64, TopologyError> {
    let path = "proc/meminfo";
    let text = root.must(path)?;
    let kib = text.lines().find_map(|line| {
        let rest = line.strip_prefix("MemAvailable:")?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    kib.map(|kib| kib << 10)
        .ok_or_else(|| root.malformed(path, "no line `MemAvailable: N kB`".into()))
}
