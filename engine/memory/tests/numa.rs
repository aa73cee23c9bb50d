//! Placing regions on NUMA nodes: really, where the machine has several; the refusals anywhere.
#![cfg(not(miri))] // system calls

use std::fs;
use std::path::Path;

use kvrail_memory::{MemoryError, NumaPlacement, PageSize, Region, Topology, place};

/// Pages of a mapping by node, as `/proc/self/numa_maps` counts them.
fn pages_on(region: &Region, node: u32) -> usize {
    let maps = fs::read_to_string("/proc/self/numa_maps").unwrap();
    let first = format!("{:x} ", region.address());
    let line = maps.lines().find(|line| line.trim_start_matches('0').starts_with(&first));
    let fields = line.expect("the mapping is listed").split(' ');
    let count = fields.filter_map(|field| field.strip_prefix(&format!("N{node}="))).next();
    count.map_or(0, |count| count.parse().unwrap())
}

#[test]
fn a_region_moves_to_each_node_with_all_its_pages() {
    let topology = Topology::host().unwrap();
    let nodes: Vec<u32> = topology.nodes().keys().copied().collect();
    if nodes.len() < 2 {
        println!("skipped: this machine has {} NUMA node(s)", nodes.len());
        return;
    }
    let region = Region::create("placed", 64 * 4096, PageSize::Base).unwrap();
    for node in nodes.iter().chain(&nodes) {
        match place(&region, *node, &topology) {
            Ok(placement) => {
                assert_eq!(placement, NumaPlacement::OnNode(*node));
                assert_eq!(pages_on(&region, *node), 64);
            }
            // A node outside of the cpuset's mems, or without memory: printed, not hidden.
            Err(why) => println!("node {node}: {why}"),
        }
    }
}

#[test]
fn one_node_is_no_choice() {
    let topology = machine(&["node0"]);
    let region = Region::create("placed", 4096, PageSize::Base).unwrap();
    assert_eq!(place(&region, 0, &topology), Ok(NumaPlacement::OneNode));
    assert_eq!(place(&region, 7, &topology), Ok(NumaPlacement::OneNode));
}

#[test]
fn nodes_that_are_not_there_are_refused() {
    let region = Region::create("placed", 4096, PageSize::Base).unwrap();
    let refused = place(&region, 7, &machine(&["node0", "node1"])).unwrap_err();
    assert_eq!(refused, MemoryError::NoNode { node: 7, nodes: "0, 1".into() });
    // The made-up machine has a node that this kernel has not: its refusal comes through.
    let refused = place(&region, 1000, &machine(&["node0", "node1000"])).unwrap_err();
    assert!(matches!(refused, MemoryError::Place { node: 1000, .. }), "{refused}");
}

fn machine(nodes: &[&str]) -> Topology {
    let root = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        fs::write(path, text).unwrap();
    };
    put("sys/devices/system/cpu/online", "0-3\n");
    put("proc/self/status", "Cpus_allowed_list:\t0-3\n");
    put("proc/meminfo", "MemAvailable: 1 kB\n");
    for node in nodes {
        put(&format!("sys/devices/system/node/{node}/cpulist"), "\n");
    }
    Topology::read(root.path()).unwrap()
}
