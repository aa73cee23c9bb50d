//! Made-up machines in a directory, and this one.
#![cfg(not(miri))] // files

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use kvrail_memory::{CpuList, CpuQuota, HugePages, Near, Topology, TopologyError};
use tempfile::TempDir;

/// A machine below a temporary root; `files` are paths and texts.
fn machine(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let plain = [
        ("sys/devices/system/cpu/online", "0-7\n"),
        ("sys/devices/system/cpu/isolated", "\n"),
        ("proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n"),
        ("proc/meminfo", "MemTotal: 2048 kB\nMemAvailable:    1024 kB\n"),
    ];
    for (path, text) in plain.iter().chain(files) {
        put(root.path(), path, text);
    }
    root
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn read(root: &TempDir) -> Topology {
    Topology::read(root.path()).unwrap()
}

const V2: [(&str, &str); 2] = [
    ("proc/self/cgroup", "0::/pods/kvrail\n"),
    ("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"),
];

#[test]
fn this_machine_can_be_read() {
    let topology = Topology::host().unwrap();
    assert!(!topology.online().is_empty() && !topology.allowed().is_empty());
    assert_eq!(&topology.allowed().and(topology.online()), topology.allowed());
    assert!((1..=topology.online().len()).contains(&topology.usable_cores()));
    assert!(topology.memory_available_bytes() > 0);
    let first = topology.allowed().iter().next().unwrap();
    assert!(topology.siblings(first).contains(first));
    assert_eq!(topology.cpus_by_preference(&Near::default()).len(), topology.allowed().len());
}

#[test]
fn without_control_groups_every_online_cpu_is_usable() {
    let topology = read(&machine(&[]));
    assert_eq!(topology.allowed().to_string(), "0-7");
    assert_eq!((topology.usable_cores(), topology.quota()), (8, None));
    assert_eq!(topology.memory_available_bytes(), 1 << 20);
    assert_eq!(topology.node_of_cpu(0), None);
    assert!(topology.hugepages().is_empty() && topology.nodes().is_empty());
}

#[test]
fn a_version_2_group_grants_cpus_time_and_memory_on_any_level() {
    let root = machine(&V2);
    put(root.path(), "sys/fs/cgroup/pods/kvrail/cpuset.cpus.effective", "2-5,9\n");
    put(root.path(), "sys/fs/cgroup/pods/kvrail/cpu.max", "max 100000\n");
    put(root.path(), "sys/fs/cgroup/pods/cpu.max", "350000 100000\n");
    put(root.path(), "sys/fs/cgroup/pods/memory.max", "100000\n");
    put(root.path(), "sys/fs/cgroup/pods/memory.current", "90000\n");
    put(root.path(), "sys/fs/cgroup/pods/memory.stat", "anon 1\ninactive_file 20000\n");
    let topology = read(&root);
    assert_eq!(topology.allowed().to_string(), "2-5");
    assert_eq!(topology.quota(), Some(CpuQuota { quota_us: 350_000, period_us: 100_000 }));
    assert_eq!(topology.usable_cores(), 3, "half a core cannot spin");
    assert_eq!(topology.memory_available_bytes(), 30_000);
}

#[test]
fn the_tightest_quota_counts_whatever_its_period_and_one_core_is_the_least() {
    let root = machine(&V2);
    put(root.path(), "sys/fs/cgroup/pods/kvrail/cpu.max", "200000 50000\n");
    put(root.path(), "sys/fs/cgroup/pods/cpu.max", "300000 100000\n");
    assert_eq!(read(&root).usable_cores(), 3);
    put(root.path(), "sys/fs/cgroup/pods/kvrail/cpu.max", "20000 50000\n");
    assert_eq!(read(&root).usable_cores(), 1);
}

#[test]
fn version_1_groups_grant_the_same() {
    let root = machine(&[
        ("proc/self/cgroup", "4:memory:/\n3:cpuset:/box\n2:cpu,cpuacct:/docker/box\n0::/\n"),
        (
            "proc/self/mountinfo",
            "1 0 0:1 /docker/box /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
             2 0 0:2 / /cg/cpuset rw shared:1 - cgroup cgroup rw,cpuset\n\
             3 0 0:3 / /cg/memory rw - cgroup cgroup rw,memory\n\
             4 0 0:4 / /cg/unified rw - cgroup2 cgroup2 rw\n",
        ),
        ("cg/cpu/cpu.cfs_quota_us", "250000\n"),
        ("cg/cpu/cpu.cfs_period_us", "100000\n"),
        ("cg/cpuset/box/cpuset.effective_cpus", "0-3\n"),
        ("cg/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("cg/memory/memory.usage_in_bytes", "5\n"),
    ]);
    let topology = read(&root);
    assert_eq!((topology.allowed().to_string().as_str(), topology.usable_cores()), ("0-3", 2));
    assert_eq!(topology.memory_available_bytes(), 1 << 20, "no limit");
    put(root.path(), "cg/cpu/cpu.cfs_quota_us", "-1\n");
    assert_eq!(read(&root).usable_cores(), 4);
}

#[test]
fn isolated_cpus_are_allowed_unless_the_mask_was_narrowed() {
    let root = machine(&[("sys/devices/system/cpu/isolated", "6-7\n")]);
    put(root.path(), "proc/self/status", "Cpus_allowed_list:\t0-5\n");
    let topology = read(&root);
    assert_eq!(topology.allowed().to_string(), "0-7");
    assert_eq!(topology.cpus_by_preference(&Near::default())[..2], [6, 7]);
    put(root.path(), "proc/self/status", "Cpus_allowed_list:\t2-3\n");
    assert_eq!(read(&root).allowed().to_string(), "2-3");
}

#[test]
fn preference_goes_by_node_then_core_then_keeps_cpu_0_for_last() {
    let root = machine(&[
        ("sys/devices/system/node/node0/cpulist", "0-3\n"),
        ("sys/devices/system/node/node1/cpulist", "4-7,11\n"),
        ("sys/devices/system/node/power/x", ""),
    ]);
    for cpu in 0..8 {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        put(root.path(), &path, &format!("{}-{}\n", cpu & !1, cpu | 1));
    }
    let topology = read(&root);
    assert_eq!(topology.siblings(3).to_string(), "2-3");
    assert_eq!((topology.node_of_cpu(3), topology.node_of_cpu(4)), (Some(0), Some(1)));
    assert_eq!(topology.node_of_cpu(11), None, "offline");
    let near = Near { node: Some(1), ..Near::default() };
    assert_eq!(topology.cpus_by_preference(&near), [4, 6, 5, 7, 2, 0, 1, 3]);
    assert_eq!(topology.cpus_by_preference(&Near::default()), [2, 4, 6, 0, 1, 3, 5, 7]);
}

#[test]
fn hugepages_are_listed_by_node_and_size() {
    let dir = "sys/devices/system/node/node1/hugepages/hugepages-2048kB";
    let root = machine(&[
        (&format!("{dir}/nr_hugepages"), "8\n"),
        (&format!("{dir}/free_hugepages"), "5\n"),
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "2\n"),
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "1\n"),
    ]);
    let huge = HugePages { node: 1, page_bytes: 2 << 20, total: 8, free: 5 };
    assert_eq!(read(&root).hugepages(), [huge]);
    fs::remove_dir_all(root.path().join("sys/devices/system/node")).unwrap();
    let gigantic = HugePages { node: 0, page_bytes: 1 << 30, total: 2, free: 1 };
    assert_eq!(read(&root).hugepages(), [gigantic], "a kernel without nodes");
}

#[test]
fn a_block_device_has_the_node_and_the_interrupts_of_what_it_hangs_on() {
    let root = machine(&[
        ("sys/devices/pci0/0000:01/numa_node", "1\n"),
        ("sys/devices/pci0/0000:01/msi_irqs/9", "msix\n"),
        ("sys/devices/pci0/0000:01/msi_irqs/10", "msix\n"),
        ("sys/devices/pci0/0000:01/msi_irqs/11", "msix\n"),
        ("proc/irq/9/effective_affinity_list", "0\n"), // the admin queue's
        ("proc/irq/10/effective_affinity_list", "5\n"),
        ("proc/irq/11/effective_affinity_list", "3\n"),
        ("sys/devices/pci0/0000:01/nvme/nvme0/numa_node", "-1\n"),
        ("sys/devices/pci0/0000:01/nvme/nvme0/nvme0n1/p1/partition", "1\n"),
        ("sys/devices/virtual/block/loop0/size", "0\n"),
        ("sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme1n1/size", "0\n"),
    ]);
    let sys = root.path().join("sys");
    fs::create_dir_all(sys.join("dev/block")).unwrap();
    let link = |name: &str, target: &str| {
        symlink(sys.join("devices").join(target), sys.join("dev/block").join(name)).unwrap();
    };
    link("259:0", "pci0/0000:01/nvme/nvme0/nvme0n1");
    link("259:1", "pci0/0000:01/nvme/nvme0/nvme0n1/p1");
    link("259:2", "virtual/nvme-subsystem/nvme-subsys0/nvme1n1");
    link("7:0", "virtual/block/loop0");
    let subsystem = sys.join("devices/virtual/nvme-subsystem/nvme-subsys0");
    symlink("..", subsystem.join("nvme1n1/device")).unwrap();
    let controller = sys.join("devices/pci0/0000:01/nvme/nvme0");
    symlink(controller, subsystem.join("nvme0")).unwrap();
    let topology = read(&root);
    for (minor, what) in [(0, "disk"), (1, "partition"), (2, "multipath disk")] {
        let near = Near { node: Some(1), interrupts: CpuList::from_iter([3, 5]) };
        assert_eq!(topology.near_block_device(259, minor), Ok(near), "{what}");
    }
    assert_eq!(topology.near_block_device(7, 0), Ok(Near::default()), "virtual");
    assert_eq!(topology.disk(259, 1), topology.disk(259, 0), "a partition is of its disk");
    assert_ne!(topology.disk(259, 2), topology.disk(259, 0));
    assert!(topology.disk(259, 9).is_err());
    let missing = topology.near_block_device(259, 9).unwrap_err();
    assert!(missing.to_string().contains("259:9"), "{missing}");
}

#[test]
fn what_is_near_several_devices_is_their_node_and_anyones_interrupts() {
    let near = |node, cpus: &str| Near { node, interrupts: cpus.parse().unwrap() };
    let (one, other) = (near(Some(1), "3"), near(Some(1), "5"));
    assert_eq!(Near::all([&one, &other].into_iter()), near(Some(1), "3,5"));
    for mixed in [[Some(0), Some(1)], [Some(1), None], [None, Some(1)]] {
        let mixed = mixed.map(|node| near(node, ""));
        assert_eq!(Near::all(mixed.iter()), Near::default());
    }
    assert_eq!(Near::all([].into_iter()), Near::default());
}

#[test]
fn files_missing_or_malformed_are_named() {
    let root = machine(&[]);
    for (path, text, what) in [
        ("sys/devices/system/cpu/online", "all\n", "`all`"),
        ("sys/devices/system/cpu/isolated", "5-1\n", "runs backwards"),
        ("proc/meminfo", "MemTotal: 1 kB\n", "MemAvailable"),
        ("proc/self/status", "Name: x\n", "Cpus_allowed_list"),
    ] {
        let good = fs::read_to_string(root.path().join(path)).unwrap();
        put(root.path(), path, text);
        let why = Topology::read(root.path()).unwrap_err();
        assert!(matches!(why, TopologyError::Malformed { .. }), "{why}");
        let shown = why.to_string();
        assert!(shown.contains(path) && shown.contains(what), "{shown}");
        put(root.path(), path, &good);
    }
    fs::remove_file(root.path().join("proc/meminfo")).unwrap();
    let why = Topology::read(root.path()).unwrap_err().to_string();
    assert!(why.contains("proc/meminfo") && why.contains("mount procfs"), "{why}");
}
