//! The machine as one value.

use std::net::IpAddr;

use kvrail_memory::{Root, Topology, TopologyError};
use kvrail_nvme::{Controller, NvmeHost};
use serde::Serialize;

use crate::device::{Detail, Device, DeviceKind};
use crate::gpu::gpus;
use crate::nic::nics;
use crate::place::{MachineFacts, PciPlace};

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    /// Its number.
    pub node: u32,
    /// The socket that it is in.
    pub socket: Option<u32>,
    /// Its CPUs, as the kernel writes lists.
    pub cpus: String,
}

/// Nodes and devices, as they were when it was read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Map {
    /// Every node, by number.
    pub nodes: Vec<NumaNode>,
    /// Drives, remote drives, NICs and GPUs, in this order.
    pub devices: Vec<Device>,
}

impl Map {
    /// Reads the machine below a root.
    ///
    /// # Errors
    /// `TopologyError` names the file that is missing or not understood.
    pub fn read(root: &Root) -> Result<Self, TopologyError> {
        let topology = Topology::read(&root.path("/"))?;
        let ground = MachineFacts::new(root, &topology);
        let nodes = topology.nodes().iter().map(|(node, cpus)| NumaNode {
            node: *node,
            socket: ground.sockets.get(node).copied(),
            cpus: cpus.to_string(),
        });
        let nics = nics(&ground);
        let mut devices = drives(&ground, &nics)?;
        devices.extend(nics);
        devices.extend(gpus(&ground));
        devices.sort_by_key(|device| device.kind);
        Ok(Self { nodes: nodes.collect(), devices })
    }

    /// Devices of one kind.
    pub fn of(&self, kind: DeviceKind) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(move |device| device.kind == kind)
    }
}

fn drives(ground: &MachineFacts<'_>, nics: &[Device]) -> Result<Vec<Device>, TopologyError> {
    let host = NvmeHost::read(ground.root)?;
    let namespaces = |controller: &Controller| {
        let through = host.namespaces.iter().filter(|namespace| {
            namespace.controllers.iter().any(|other| other.name == controller.name)
        });
        through.map(|namespace| namespace.name.clone()).collect()
    };
    let device = |controller: &Controller| {
        let remote = controller.transport != "pcie";
        let via = if remote { nic_to(controller, nics) } else { None };
        let place = match (remote, via) {
            (true, Some(nic)) => nic.place.clone(),
            (true, None) => PciPlace::default(),
            (false, _) => ground.place(&format!("sys/class/nvme/{}", controller.name)),
        };
        Device {
            name: controller.name.clone(),
            kind: if remote { DeviceKind::RemoteDrive } else { DeviceKind::Drive },
            model: controller.model.clone(),
            place,
            detail: Detail::Drive {
                serial: controller.serial.clone(),
                firmware: controller.firmware.clone(),
                transport: controller.transport.clone(),
                address: controller.address.clone(),
                namespaces: namespaces(controller),
                via: via.map(|nic| nic.name.clone()),
            },
        }
    };
    Ok(host.controllers.iter().map(device).collect())
}

/// The NIC whose address is the source of a connection, where the kernel reports it.
fn nic_to<'a>(controller: &Controller, nics: &'a [Device]) -> Option<&'a Device> {
    let mut pairs = controller.address.split(',').filter_map(|pair| pair.split_once('='));
    let from = pairs.find(|(key, _)| ["host_traddr", "src_addr"].contains(key))?.1;
    let from: IpAddr = from.parse().ok()?;
    nics.iter().find(|nic| match &nic.detail {
        Detail::Nic { ports, .. } => ports.iter().any(|port| port.addresses.contains(&from)),
        _ => false,
    })
}
