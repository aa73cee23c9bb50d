//! Reads what a plan has to know: drives, addresses, keys, module parameters. Changes nothing.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, TcpListener, UdpSocket};
use std::ops::Range;
use std::path::Path;

use kvrail_memory::Root;
use kvrail_nvme::{
    PciAddress, SERVICE_DEFAULT, Selector, SelectorError, Transport, read_secret, resolve,
};
use kvrail_topology::Map;

use crate::facts::{Device, DhchapKey, Facts, Parameters, Unusable};
use crate::nic::listening;
use crate::spec::{Port, TargetSpec};

/// By selector.
type Devices = BTreeMap<String, Result<Device, Unusable>>;

/// Everything of this host that the specification touches. `open` are our own ports that listen
/// already: they occupy their addresses. Features are left to the probe of the tree.
#[must_use]
pub fn gather(wish: &TargetSpec, root: &Root, open: &[u16]) -> Facts {
    let namespaces = wish.subsystem.iter().flat_map(|subsystem| &subsystem.namespace);
    let devices =
        namespaces.map(|namespace| (namespace.device.to_string(), device(&namespace.device, root)));
    let devices: Devices = devices.collect();
    let files =
        wish.host.iter().flat_map(|host| [&host.dhchap_key_file, &host.dhchap_ctrl_key_file]);
    let keys = files.flatten().map(|file| (file.clone(), key(file)));
    // Thousands of files: read only if a port names a card. An unreadable one shows none.
    let asks = wish.port.iter().any(|port| port.nic.is_some());
    let map = asks.then(|| Map::read(root).ok()).flatten();
    let listening = |port: &Port| {
        let found = listening(port, &drives(port, wish, &devices), map.as_ref());
        let checked = found.and_then(|found| {
            address(port, found.address, root, open.contains(&port.id)).map(|()| found)
        });
        (port.id, checked)
    };
    Facts {
        features: None,
        keys: keys.collect(),
        addresses: wish.port.iter().map(listening).collect(),
        devices,
        parameters: parameters(root),
        memory: memory(root),
    }
}

fn device(selector: &Selector, root: &Root) -> Result<Device, Unusable> {
    let namespace = resolve(selector, root).map_err(|error| unknown(&error))?;
    let what = namespace.described();
    let Some(node) = namespace.block_node else {
        let remedy = "format it with `nvme format` for the NVM command set";
        return Err(Unusable::new(format!("{what} has no block device"), remedy));
    };
    let Some(controller) =
        namespace.controllers.iter().find(|controller| controller.state == "live")
    else {
        let rule = format!("no controller of {what} is live");
        return Err(Unusable::new(rule, "check the drive (`nvme list-subsys`, `dmesg`)"));
    };
    let drive = format!("{} {}", controller.serial, controller.subsystem);
    let pci = controller.pci;
    let memory = pci.map(|pci| root.path(format!("sys/bus/pci/devices/{pci}/p2pmem")));
    let queues = format!("sys/class/nvme/{}/num_p2p_queues", controller.name);
    let identity = format!("{drive} {}", namespace.nsid);
    Ok(Device {
        node,
        identity: namespace.wwids.first().cloned().unwrap_or(identity),
        drive,
        pci,
        p2p_queues: root.value(queues).ok().flatten(),
        has_p2p_memory: memory.is_some_and(|memory| memory.is_dir()),
    })
}

fn unknown(error: &SelectorError) -> Unusable {
    let remedy = match error {
        SelectorError::Ambiguous { remedy, .. } => remedy,
        SelectorError::Unreadable(_) => "run as root; check that /sys is mounted",
        _ => "check that the drive is attached; `kvrail devices` lists what there is",
    };
    Unusable::new(error.to_string(), remedy)
}

fn key(file: &Path) -> Result<DhchapKey, Unusable> {
    let text = read_secret(file);
    DhchapKey::parse(&text.map_err(|error| Unusable::new(error.to_string(), error.remedy(file)))?)
}

/// Where the drives sit that a port exports.
fn drives(port: &Port, wish: &TargetSpec, devices: &Devices) -> Vec<PciAddress> {
    let offered =
        wish.subsystem.iter().filter(|subsystem| port.subsystems.contains(&subsystem.nqn));
    let named = offered.flat_map(|subsystem| &subsystem.namespace);
    let found =
        named.filter_map(|namespace| devices.get(&namespace.device.to_string())?.as_ref().ok());
    found.filter_map(|device| device.pci).collect()
}

fn address(
    port: &Port,
    address: Option<IpAddr>,
    root: &Root,
    is_open: bool,
) -> Result<(), Unusable> {
    let Some(address) = address else { return Ok(()) };
    let service = port.service.unwrap_or(SERVICE_DEFAULT);
    if let Err(error) = UdpSocket::bind((address, 0)) {
        let rule = match error.kind() {
            ErrorKind::AddrNotAvailable => "no network interface of this host has it".into(),
            _ => format!("it cannot be used here ({error})"),
        };
        return Err(Unusable::new(rule, "see `ip address`; set the interface up first"));
    }
    match port.transport {
        Transport::Rdma => on_rdma(address, root),
        Transport::Tcp if !is_open => match TcpListener::bind((address, service)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let rule = format!("something else listens at its service {service}");
                let remedy = "choose another service, or stop it (`ss -ltnp` shows it)";
                Err(Unusable::new(rule, remedy))
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// RoCE devices list their addresses; an InfiniBand one is reached through any of its interfaces,
/// which the kernel finds when the port opens.
fn on_rdma(address: IpAddr, root: &Root) -> Result<(), Unusable> {
    let wanted = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let class = "sys/class/infiniband";
    let devices = root.names(class);
    for device in &devices {
        for port in root.names(format!("{class}/{device}/ports")) {
            let at = format!("{class}/{device}/ports/{port}");
            let layer = root.text(format!("{at}/link_layer")).ok().flatten();
            if layer.is_some_and(|layer| layer.trim() == "InfiniBand") {
                return Ok(());
            }
            let gids = root.names(format!("{at}/gids")).into_iter();
            let mut gids =
                gids.filter_map(|gid| root.value::<Ipv6Addr>(format!("{at}/gids/{gid}")).ok()?);
            if gids.any(|gid| gid == wanted) {
                return Ok(());
            }
        }
    }
    let has = if devices.is_empty() { "there is none".into() } else { devices.join(", ") };
    let rule = format!("no RDMA device of this host has it ({has})");
    Err(Unusable::new(rule, "see `rdma link`; choose an address of a card that does RDMA"))
}

fn parameters(root: &Root) -> Parameters {
    let number = |path: &str| {
        let text = root.text(format!("sys/module/{path}")).ok()??;
        let text = text.trim();
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    };
    let queues = number("nvme/parameters/num_p2p_queues");
    Parameters {
        p2p_queues: queues.map(|queues| u32::try_from(queues).unwrap_or(u32::MAX)),
        staging_start: number("nvmet_rdma/parameters/offload_mem_start"),
        staging_mib: number("nvmet_rdma/parameters/offload_mem_size"),
        staging_buffer_kib: number("nvmet_rdma/parameters/offload_buffer_size"),
    }
}

/// `00100000-7ffdbfff : System RAM`, the ends included. Zeros without root.
fn memory(root: &Root) -> Vec<Range<u64>> {
    let text = root.text("proc/iomem").ok().flatten().unwrap_or_default();
    let range = |line: &str| {
        let (range, _) = line.split_once(" : ").filter(|(_, name)| *name == "System RAM")?;
        let (first, last) = range.trim().split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (first, last): (u64, u64) = (hex(first)?, hex(last)?);
        (last > 0).then(|| first..last.saturating_add(1))
    };
    text.lines().filter_map(range).collect()
}
