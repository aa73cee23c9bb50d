//! The machine as one value.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::available_bytes;
use super::blockdev::{self, Near};
use super::cgroup::{self, CpuQuota};
use super::cpulist::CpuList;
use super::files::{Root, TopologyError};
use super::pages::{self, HugePages};

/// CPUs, nodes and pages, as they were when it was read.
#[derive(Clone, Debug)]
pub struct Topology {
    root: Root,
    online: CpuList,
    isolated: CpuList,
    allowed: CpuList,
    quota: Option<CpuQuota>,
    /// Hardware threads of the same core, for every online CPU.
    siblings: BTreeMap<u32, CpuList>,
    nodes: BTreeMap<u32, CpuList>,
    hugepages: Vec<HugePages>,
    memory_available_bytes: u64,
}

impl Topology {
    /// Reads this machine.
    ///
    /// # Errors
    /// `TopologyError` names the file that is missing or not understood.
    pub fn host() -> Result<Self, TopologyError> {
        Self::read(Path::new("/"))
    }

    /// Reads the machine that the files below `root` describe (`root/proc`, `root/sys`).
    ///
    /// # Errors
    /// `TopologyError` names the file that is missing or not understood.
    pub fn read(root: &Path) -> Result<Self, TopologyError> {
        let root = Root::new(root);
        let path = "sys/devices/system/cpu/online";
        let online: CpuList = root.must(path)?.parse().map_err(|why| root.malformed(path, why))?;
        let isolated: CpuList = root.value("sys/devices/system/cpu/isolated")?.unwrap_or_default();
        let limits = cgroup::limits(&root)?;
        let granted = limits.cpus.map_or_else(|| online.clone(), |cpus| cpus.and(&online));
        let allowed = allowed(&granted, &isolated, &affinity(&root)?);
        Ok(Self {
            siblings: siblings(&root, &online)?,
            nodes: nodes(&root, &online)?,
            hugepages: pages::hugepages(&root)?,
            memory_available_bytes: available_bytes(&root)?,
            quota: limits.quota,
            root,
            online,
            isolated,
            allowed,
        })
    }

    /// CPUs that run.
    #[must_use]
    pub fn online(&self) -> &CpuList {
        &self.online
    }

    /// CPUs kept free of the scheduler's balancing (`isolcpus=`): the best ones for pollers.
    #[must_use]
    pub fn isolated(&self) -> &CpuList {
        &self.isolated
    }

    /// CPUs this process may pin threads to: online, granted by its cpuset, and within the affinity
    /// mask it was started with. A mask that lacks only the isolated CPUs was not narrowed; those
    /// are allowed then.
    #[must_use]
    pub fn allowed(&self) -> &CpuList {
        &self.allowed
    }

    /// CPU time granted by the control groups; none is unlimited.
    #[must_use]
    pub fn quota(&self) -> Option<CpuQuota> {
        self.quota
    }

    /// Threads that can spin at the same time: allowed logical CPUs, fewer where the CPU quota
    /// grants less, at least 1.
    #[must_use]
    pub fn usable_cores(&self) -> usize {
        let granted = self.quota.map_or(u64::MAX, CpuQuota::whole_cpus);
        self.allowed.len().min(usize::try_from(granted).unwrap_or(usize::MAX)).max(1)
    }

    /// Hardware threads of the same core as `cpu`, itself included.
    #[must_use]
    pub fn siblings(&self, cpu: u32) -> CpuList {
        self.siblings.get(&cpu).cloned().unwrap_or_else(|| CpuList::from_iter([cpu]))
    }

    /// The NUMA node of a CPU; none when it is offline or the kernel has no nodes.
    #[must_use]
    pub fn node_of_cpu(&self, cpu: u32) -> Option<u32> {
        self.nodes.iter().find(|(_, cpus)| cpus.contains(cpu)).map(|(node, _)| *node)
    }

    /// The NUMA nodes and the online CPUs of each; a node may have memory and no CPUs.
    #[must_use]
    pub fn nodes(&self) -> &BTreeMap<u32, CpuList> {
        &self.nodes
    }

    /// The neighbourhood of the block device with this number, read now: devices come and go, and
    /// interrupts are moved.
    ///
    /// # Errors
    /// `TopologyError` when there is no such block device.
    pub fn near_block_device(&self, major: u32, minor: u32) -> Result<Near, TopologyError> {
        blockdev::near(&self.root, major, minor)
    }

    /// The disk that block device `major:minor` is, or is a partition of, by its path in sysfs: two
    /// devices with the same path share what the disk can do.
    ///
    /// # Errors
    /// [`TopologyError::Unreadable`] if the kernel lists no such device.
    pub fn disk(&self, major: u32, minor: u32) -> Result<PathBuf, TopologyError> {
        blockdev::disk(&self.root, major, minor)
    }

    /// Hugepages of every size on every node, sorted by both.
    #[must_use]
    pub fn hugepages(&self) -> &[HugePages] {
        &self.hugepages
    }

    /// Bytes of ordinary memory available: the host's `MemAvailable`, less where the control
    /// group grants less.
    #[must_use]
    pub fn memory_available_bytes(&self) -> u64 {
        self.memory_available_bytes
    }

    /// Allowed CPUs, the best ones for a device's poller first: isolated before others, those of
    /// its node before others, those that take its interrupts, which then need not wake another
    /// CPU, a core's first hardware thread before its siblings, and CPU 0, which serves most
    /// interrupts, after its equals.
    #[must_use]
    pub fn cpus_by_preference(&self, near: &Near) -> Vec<u32> {
        let mut cpus: Vec<u32> = self.allowed.iter().collect();
        cpus.sort_by_key(|&cpu| {
            let shared = !self.isolated.contains(cpu);
            let far = near.node.is_some() && self.node_of_cpu(cpu) != near.node;
            let woken = !near.interrupts.contains(cpu);
            let place =
                self.siblings(cpu).and(&self.allowed).iter().position(|sibling| sibling == cpu);
            (shared, far, woken, place, cpu == 0, cpu)
        });
        cpus
    }
}

/// See [`Topology::allowed`].
fn allowed(granted: &CpuList, isolated: &CpuList, mask: &CpuList) -> CpuList {
    let narrowed = !granted.without(isolated).without(mask).is_empty();
    if narrowed { granted.and(mask) } else { granted.clone() }
}

/// The affinity mask of the main thread, which never pins itself: a poller's own mask would show
/// one CPU. The same bits as `sched_getaffinity`.
fn affinity(root: &Root) -> Result<CpuList, TopologyError> {
    let path = "proc/self/status";
    let text = root.must(path)?;
    let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let list = list.ok_or_else(|| root.malformed(path, "no line `Cpus_allowed_list:`".into()))?;
    list.parse().map_err(|why| root.malformed(path, why))
}

fn siblings(root: &Root, online: &CpuList) -> Result<BTreeMap<u32, CpuList>, TopologyError> {
    let mut siblings = BTreeMap::new();
    for cpu in online.iter() {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        if let Some(list) = root.value::<CpuList>(path)? {
            siblings.insert(cpu, list);
        }
    }
    Ok(siblings)
}

fn nodes(root: &Root, online: &CpuList) -> Result<BTreeMap<u32, CpuList>, TopologyError> {
    let mut nodes = BTreeMap::new();
    for name in root.names("sys/devices/system/node") {
        let Some(node) = name.strip_prefix("node").and_then(|digits| digits.parse().ok()) else {
            continue;
        };
        let path = format!("sys/devices/system/node/{name}/cpulist");
        let cpus = root.value::<CpuList>(path)?.unwrap_or_default();
        nodes.insert(node, cpus.and(online));
    }
    Ok(nodes)
}
