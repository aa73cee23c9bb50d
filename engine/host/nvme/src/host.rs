//! The NVMe controllers and namespaces of a host, from sysfs.
//!
//! A namespace with one controller lies in that controller's directory. One that several
//! controllers share has a head (`nvme1n1`, in its subsystem's directory) that is opened, and in
//! each controller's directory a hidden path (`nvme1c2n1`) that is not.

use std::path::PathBuf;

use kvrail_memory::{Root, TopologyError};
use serde::Serialize;

use crate::address::PciAddress;
use crate::selector::Selector;

/// Where the kernel shows controllers, those of fabrics too.
pub(crate) const CONTROLLERS: &str = "sys/class/nvme";

/// Everything NVMe on a host at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct NvmeHost {
    /// By kernel name.
    pub controllers: Vec<Controller>,
    /// By kernel name; heads, not their paths.
    pub namespaces: Vec<Namespace>,
}

/// A controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Controller {
    /// Kernel name today, `nvme0`.
    pub name: String,
    /// `pcie`, `tcp`, `rdma`, `loop`, ...
    pub transport: String,
    /// Where a PCIe one sits.
    pub pci: Option<PciAddress>,
    /// The address as the kernel writes it: of fabrics `traddr=...,trsvcid=...`.
    pub address: String,
    /// Serial number, without the blanks around it.
    pub serial: String,
    /// Model number, likewise.
    pub model: String,
    /// Firmware revision, likewise.
    pub firmware: String,
    /// Name of its subsystem (NQN).
    pub subsystem: String,
    /// `live`, `resetting`, `connecting`, `deleting`, `dead`, ...
    pub state: String,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Namespace {
    /// Kernel name today of its block device, `nvme0n1`.
    pub name: String,
    /// Its number on its controllers.
    pub nsid: u32,
    /// All that identifies it in the world, lower case: the kernel's choice first.
    pub wwids: Vec<String>,
    /// Block device node. None where the kernel makes none: a command set or a format it cannot
    /// drive.
    pub block_node: Option<PathBuf>,
    /// Generic character device node, for passthrough. None where the kernel has none.
    pub char_node: Option<PathBuf>,
    /// The controllers it is reached through, at least one.
    pub controllers: Vec<Controller>,
}

/// One way to a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The controller it leads through.
    pub controller: Controller,
    /// Asymmetric namespace access: `optimized`, `non-optimized`, `inaccessible`, ...; None where
    /// the subsystem has none.
    pub ana_state: Option<String>,
}

impl NvmeHost {
    /// Reads the present namespaces. One that goes away meanwhile is left out.
    ///
    /// # Errors
    /// `TopologyError` names the file that is not understood.
    pub fn read(root: &Root) -> Result<Self, TopologyError> {
        let mut controllers = Vec::new();
        let mut namespaces: Vec<Namespace> = Vec::new();
        for name in root.names(CONTROLLERS) {
            let Some(controller) = controller(root, &name)? else { continue };
            for entry in root.names(format!("{CONTROLLERS}/{name}")) {
                let Some(head) = head_of(&entry) else { continue };
                if let Some(known) = namespaces.iter_mut().find(|known| known.name == head) {
                    known.controllers.push(controller.clone());
                } else if let Some(mut found) = namespace(root, &name, &entry, head)? {
                    found.controllers.push(controller.clone());
                    namespaces.push(found);
                }
            }
            controllers.push(controller);
        }
        controllers.sort_by_key(|controller| numbers(&controller.name));
        namespaces.sort_by_key(|namespace| numbers(&namespace.name));
        Ok(Self { controllers, namespaces })
    }
}

impl Controller {
    /// Its name and its state.
    pub(crate) fn stated(&self) -> String {
        format!("{} is {}", self.name, self.state)
    }
}

impl Namespace {
    /// Everything it can be selected by: where it is, which drive it is on, itself.
    #[must_use]
    pub fn selectors(&self) -> Vec<Selector> {
        let nsid = Some(self.nsid);
        let addresses = self.controllers.iter().filter_map(|controller| controller.pci);
        let mut all: Vec<Selector> =
            addresses.map(|address| Selector::Pci { address, nsid }).collect();
        let serial = self.controllers.first().map(|controller| controller.serial.clone());
        let serial = serial.filter(|serial| !serial.is_empty());
        all.extend(serial.map(|serial| Selector::Serial { serial, nsid }));
        all.extend(self.wwids.iter().cloned().map(Selector::Wwid));
        all
    }

    /// Its name and everything it can be selected by, for a person to choose from.
    #[must_use]
    pub fn described(&self) -> String {
        let all: Vec<String> = self.selectors().iter().map(ToString::to_string).collect();
        format!("{} ({})", self.name, all.join(" "))
    }
}

/// The ways to the namespace of a block device, `/dev/nvme1n1`: one through each controller, none
/// to a device that is not NVMe. A controller that goes away or cannot be read is left out.
#[must_use]
pub fn paths(root: &Root, node: &str) -> Vec<Path> {
    let mut found = Vec::new();
    for name in root.names(CONTROLLERS) {
        let entries = root.names(format!("{CONTROLLERS}/{name}"));
        let leads = |entry: &&String| {
            head_of(entry).is_some_and(|head| node.strip_prefix("/dev/") == Some(head.as_str()))
        };
        let Some(entry) = entries.iter().find(leads) else { continue };
        let Ok(Some(controller)) = controller(root, &name) else { continue };
        let state = root.text(format!("{CONTROLLERS}/{name}/{entry}/ana_state")).ok().flatten();
        let ana_state = state.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        found.push(Path { controller, ana_state });
    }
    found
}

/// None where it has just gone.
fn controller(root: &Root, name: &str) -> Result<Option<Controller>, TopologyError> {
    let word = |file: &str| {
        let text = root.text(format!("{CONTROLLERS}/{name}/{file}"))?;
        Ok(text.map(|text| text.trim().to_owned()))
    };
    let Some(serial) = word("serial")? else { return Ok(None) };
    let [transport, address, model, firmware, subsystem, state] =
        ["transport", "address", "model", "firmware_rev", "subsysnqn", "state"].map(word);
    let address = address?.unwrap_or_default();
    Ok(Some(Controller {
        name: name.to_owned(),
        transport: transport?.unwrap_or_default(),
        pci: address.parse().ok(),
        address,
        serial,
        model: model?.unwrap_or_default(),
        firmware: firmware?.unwrap_or_default(),
        subsystem: subsystem?.unwrap_or_default(),
        state: state?.unwrap_or_default(),
    }))
}

/// The namespace of `entry` in a controller's directory, controllers not yet filled in.
fn namespace(
    root: &Root,
    controller: &str,
    entry: &str,
    head: String,
) -> Result<Option<Namespace>, TopologyError> {
    let file = |name: &str| format!("{CONTROLLERS}/{controller}/{entry}/{name}");
    let Some(nsid) = root.value(file("nsid"))? else { return Ok(None) };
    let mut wwids: Vec<String> = Vec::new();
    for (name, prefix) in [("wwid", ""), ("uuid", "uuid."), ("nguid", "eui."), ("eui", "eui.")] {
        let Some(text) = root.text(file(name))? else { continue };
        // The kernel groups the digits: blanks in an eui, dashes in an nguid.
        let digits: Vec<&str> = match name {
            "eui" | "nguid" => text.split([' ', '-']).map(str::trim).collect(),
            _ => vec![text.trim()],
        };
        let wwid = format!("{prefix}{}", digits.concat()).to_ascii_lowercase();
        if !wwids.contains(&wwid) {
            wwids.push(wwid);
        }
    }
    let generic = head.replacen("nvme", "ng", 1);
    let hidden = root.value::<u8>(format!("sys/class/block/{head}/hidden"))?;
    let block_node = (hidden == Some(0)).then(|| root.path(format!("dev/{head}")));
    let char_node = root.path(format!("sys/class/nvme-generic/{generic}"));
    let char_node = char_node.exists().then(|| root.path(format!("dev/{generic}")));
    Ok(Some(Namespace { name: head, nsid, wwids, block_node, char_node, controllers: Vec::new() }))
}

/// The namespace that an entry of a controller's directory is (`nvme0n1`) or leads to
/// (`nvme0c1n1`); None for anything else.
#[must_use]
pub(crate) fn head_of(entry: &str) -> Option<String> {
    let rest = entry.strip_prefix("nvme")?;
    let (instance, namespace) = rest.split_once('n')?;
    let (subsystem, controller) = match instance.split_once('c') {
        Some((subsystem, controller)) => (subsystem, Some(controller)),
        None => (instance, None),
    };
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let whole = number(subsystem) && number(namespace) && controller.is_none_or(number);
    whole.then(|| format!("nvme{subsystem}n{namespace}"))
}

/// Sorts `nvme10` behind `nvme9`.
fn numbers(name: &str) -> Vec<u64> {
    let words = name.split(|letter: char| !letter.is_ascii_digit());
    words.filter_map(|word| word.parse().ok()).collect()
}
