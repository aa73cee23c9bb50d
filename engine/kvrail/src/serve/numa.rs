//! NUMA nodes of devices, and the resulting place of arenas.

use std::path::PathBuf;

use kvrail_memory::{Near, Topology};
use kvrail_session::NumaPolicy;
use rustix::fs::{Dev, FileType, fstat, major, minor};

use super::volumes::MemberSource;
use kvrail_cli::config::Config;
use kvrail_cli::failure::{Exit, Failure};

/// A file is near the disk it lies on. Of file systems over several disks nothing is known.
pub(super) fn near(member: &MemberSource, topology: &Topology) -> Option<Near> {
    let device = block_device(member)?;
    topology.near_block_device(major(device), minor(device)).ok()
}

/// The disk that a member is or lies on; none of a file system in memory or over several disks.
pub(super) fn disk(member: &MemberSource, topology: &Topology) -> Option<PathBuf> {
    let device = block_device(member)?;
    topology.disk(major(device), minor(device)).ok()
}

fn block_device(member: &MemberSource) -> Option<Dev> {
    let MemberSource::Claimed(member) = member else { return None };
    let stat = fstat(member).ok()?;
    Some(match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => stat.st_rdev,
        _ => stat.st_dev,
    })
}

/// A GPU's node; a stand-in has none, nor has any GPU where the kernel has no nodes. Its interrupts
/// do not place pollers.
pub(super) fn near_gpu(pci_address: &str) -> Near {
    let path = format!("/sys/bus/pci/devices/{pci_address}/numa_node");
    let node = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
    Near { node, ..Near::default() }
}

/// Where arenas lie: on the node that is configured, or near the devices' one.
pub(super) fn policy(
    config: &Config,
    topology: &Topology,
    devices: Option<u32>,
) -> Result<NumaPolicy, Failure> {
    let Some(&wanted) = config.memory.node.fixed() else {
        let several = topology.nodes().len() > 1;
        let near = devices.filter(|_| several);
        return Ok(
            near.map_or(NumaPolicy::Anywhere, |node| NumaPolicy::Near(node, topology.clone()))
        );
    };
    let wanted = u32::from(wanted);
    if topology.nodes().contains_key(&wanted) {
        return Ok(NumaPolicy::On(wanted, topology.clone()));
    }
    let nodes: Vec<_> = topology.nodes().keys().map(u32::to_string).collect();
    let remedy = match nodes.is_empty() {
        true => "this kernel has no NUMA nodes; set memory.node = \"auto\"".to_owned(),
        false => format!("choose one of {}, or set memory.node = \"auto\"", nodes.join(", ")),
    };
    let what = format!("memory.node = {wanted}: there is no such NUMA node");
    Err(Failure::new(Exit::Usage, what).with_remedy(remedy))
}

/// The messages to the operator.
pub(super) fn note(policy: &NumaPolicy) -> Option<String> {
    match policy {
        NumaPolicy::Anywhere => None,
        NumaPolicy::Near(node, _) => {
            Some(format!("arenas lie on NUMA node {node}, as all devices do"))
        }
        NumaPolicy::On(node, _) => Some(format!("arenas lie on NUMA node {node} (memory.node)")),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use kvrail_memory::Topology;
    use kvrail_session::NumaPolicy;

    use super::{note, policy};
    use kvrail_cli::config::Config;

    /// Four CPUs, two on each of these nodes.
    pub(in crate::serve) fn machine(nodes: &[(u32, &str)]) -> Topology {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("sys/devices/system/cpu/online", "0-3\n");
        put("proc/self/status", "Cpus_allowed_list:\t0-3\n");
        put("proc/meminfo", "MemAvailable: 1 kB\n");
        for (node, cpus) in nodes {
            put(&format!("sys/devices/system/node/node{node}/cpulist"), cpus);
        }
        Topology::read(root.path()).unwrap()
    }

    fn config(text: &str) -> Config {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn arenas_follow_the_devices_or_the_configuration() {
        let two = machine(&[(0, "0-1"), (1, "2-3")]);
        let auto = Config::default();
        let near = policy(&auto, &two, Some(1)).unwrap();
        assert!(matches!(near, NumaPolicy::Near(1, _)), "{near:?}");
        assert!(note(&near).unwrap().contains("node 1"));
        assert!(matches!(policy(&auto, &two, None).unwrap(), NumaPolicy::Anywhere));
        let one = machine(&[(0, "0-3")]);
        assert!(matches!(policy(&auto, &one, Some(0)).unwrap(), NumaPolicy::Anywhere));
        let fixed = config("[memory]\nnode = 0");
        assert!(matches!(policy(&fixed, &two, Some(1)).unwrap(), NumaPolicy::On(0, _)));
    }

    #[test]
    fn a_node_that_is_not_there_is_refused() {
        let fixed = config("[memory]\nnode = 7");
        let two = machine(&[(0, "0-1"), (1, "2-3")]);
        let why = policy(&fixed, &two, None).unwrap_err().log_text();
        assert!(why.contains("memory.node = 7") && why.contains("one of 0, 1"), "{why}");
        let why = policy(&fixed, &machine(&[]), None).unwrap_err().log_text();
        assert!(why.contains("has no NUMA nodes"), "{why}");
    }
}
