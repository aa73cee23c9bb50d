//! The map as a tree: sockets, nodes, host bridges, switches, devices.

use serde::Serialize;

use crate::device::{Detail, Device, DeviceKind};
use crate::map::Map;

/// One line of the tree and what hangs below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Branch {
    /// Its name.
    pub label: String,
    /// The kind of device; none for what only holds devices.
    pub kind: Option<DeviceKind>,
    /// Kernel name of the bridge that it stands for.
    #[serde(skip)]
    hop: String,
    /// The branches below.
    pub children: Vec<Branch>,
}

impl Branch {
    fn new(label: String, hop: &str) -> Self {
        Self { label, kind: None, hop: hop.to_owned(), children: Vec::new() }
    }

    fn leaf(device: &Device) -> Self {
        let label = format!("{} {}: {}", device.kind, device.name, device.line());
        Self { kind: Some(device.kind), ..Self::new(label, "") }
    }

    /// The child that stands for a bridge, made where there is none.
    fn below(&mut self, hop: &str, label: impl FnOnce() -> String) -> &mut Self {
        let at = self.children.iter().position(|child| child.hop == hop).unwrap_or_else(|| {
            self.children.push(Self::new(label(), hop));
            self.children.len() - 1
        });
        &mut self.children[at]
    }

    /// Drops bridges with one child: only those where ways part are informative.
    fn prune(self) -> Self {
        let children: Vec<Self> = self.children.into_iter().map(Self::prune).collect();
        let bridge = self.label.starts_with("switch ");
        match <[Self; 1]>::try_from(children) {
            Ok([only]) if bridge => only,
            Ok([only]) => Self { children: vec![only], ..self },
            Err(children) => Self { children, ..self },
        }
    }
}

/// The tree of a map.
#[must_use]
pub fn tree(map: &Map) -> Branch {
    let mut machine = Branch::new("machine".into(), "");
    for node in &map.nodes {
        let home = holder(&mut machine, node.socket, Some(node.node));
        home.label = format!("node {}: CPUs {}", node.node, node.cpus);
    }
    for device in &map.devices {
        let leaf = Branch::leaf(device);
        let place = &device.place;
        let Some((last, bridges)) = place.route.split_last() else {
            let label = || "not on PCIe, or not known where".into();
            machine.below("nowhere", label).children.push(leaf);
            continue;
        };
        let mut at = holder(&mut machine, place.socket, place.node);
        for (index, hop) in bridges.iter().enumerate() {
            let label = if index == 0 { "host bridge" } else { "switch" };
            at = at.below(hop, || format!("{label} {hop}"));
        }
        match &device.detail {
            // A remote drive has the place of its NIC.
            Detail::Drive { via: Some(nic), .. } => {
                at.below(last, || format!("remote, through {nic}")).children.push(leaf);
            }
            _ => at.children.push(leaf),
        }
    }
    machine.prune()
}

fn holder(machine: &mut Branch, socket: Option<u32>, node: Option<u32>) -> &mut Branch {
    let socket_name = socket.map_or("socket unknown".into(), |socket| format!("socket {socket}"));
    let node_name = node.map_or("node unknown".into(), |node| format!("node {node}"));
    machine.below(&socket_name, || socket_name.clone()).below(&node_name, || node_name.clone())
}

/// The tree as text, one line each.
#[must_use]
pub fn text(branch: &Branch) -> String {
    let mut lines = vec![branch.label.clone()];
    draw(branch, "", &mut lines);
    lines.join("\n")
}

fn draw(branch: &Branch, indent: &str, lines: &mut Vec<String>) {
    for (index, child) in branch.children.iter().enumerate() {
        let last = index + 1 == branch.children.len();
        let (mark, bar) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        lines.push(format!("{indent}{mark}{}", child.label));
        draw(child, &format!("{indent}{bar}"), lines);
    }
}
