//! Where a device sits: its way down from the host bridge, its NUMA node, its socket.

use std::collections::BTreeMap;
use std::path::Path;

use kvrail_memory::{Root, Topology};
use kvrail_nvme::PciAddress;
use serde::Serialize;

use crate::link::LinkSpeed;

/// Where one PCI function sits.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PciPlace {
    /// Its own address; none for what is not on PCIe.
    pub pci: Option<PciAddress>,
    /// Kernel names from the host bridge (`pci0000:00`) over every bridge down to itself.
    pub route: Vec<String>,
    /// The NUMA node, where the kernel reports it or there is only one.
    pub node: Option<u32>,
    /// The socket of that node.
    pub socket: Option<u32>,
    /// Its link.
    pub link: Option<LinkSpeed>,
}

/// Facts of the machine that places need.
pub(crate) struct MachineFacts<'a> {
    pub(crate) root: &'a Root,
    /// Sockets of nodes.
    pub(crate) sockets: BTreeMap<u32, u32>,
}

impl<'a> MachineFacts<'a> {
    pub(crate) fn new(root: &'a Root, topology: &Topology) -> Self {
        let socket_of = |cpu: u32| {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
            // -1 where the firmware has none.
            root.value::<i64>(path).ok().flatten().and_then(|id| u32::try_from(id).ok())
        };
        let nodes = topology.nodes().iter();
        let known = nodes.filter_map(|(node, cpus)| Some((*node, socket_of(cpus.iter().next()?)?)));
        Self { root, sockets: known.collect() }
    }

    /// The place of a device by any path that leads to it; not on PCIe where no PCI function is
    /// on the way.
    pub(crate) fn place(&self, path: &str) -> PciPlace {
        let Ok(real) = std::fs::canonicalize(self.root.path(path)) else {
            return PciPlace::default();
        };
        let devices = std::fs::canonicalize(self.root.path("sys/devices")).unwrap_or_default();
        let Ok(below) = real.strip_prefix(&devices) else { return PciPlace::default() };
        let names: Vec<String> =
            below.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        let last = names.iter().rposition(|name| name.parse::<PciAddress>().is_ok());
        let Some(last) = last else { return PciPlace::default() };
        let route = names[..=last].to_vec();
        let node = self.node(&devices, &route);
        let function = format!("sys/devices/{}", route.join("/"));
        PciPlace {
            pci: route[last].parse().ok(),
            socket: node.and_then(|node| self.sockets.get(&node).copied()),
            node,
            link: LinkSpeed::read(self.root, &function),
            route,
        }
    }

    /// The node of the function or of the nearest bridge above it that has one.
    fn node(&self, devices: &Path, route: &[String]) -> Option<u32> {
        let said = (1..=route.len()).rev().find_map(|length| {
            let path = devices.join(route[..length].join("/")).join("numa_node");
            let text = std::fs::read_to_string(path).ok()?;
            u32::try_from(text.trim().parse::<i64>().ok()?).ok()
        });
        let only = || self.sockets.keys().next().copied().filter(|_| self.sockets.len() == 1);
        said.or_else(only)
    }
}
