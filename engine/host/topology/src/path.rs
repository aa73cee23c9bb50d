//! The path between two devices.

use serde::Serialize;

use crate::place::PciPlace;

/// The parts of the machine between two devices, from the shortest path to the longest. The letters
/// are those of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathKind {
    /// Nothing: two functions of one device, or one device itself (X).
    Same,
    /// One PCIe switch (PIX).
    Switch,
    /// Several PCIe switches, never the host bridge (PXB).
    Switches,
    /// The root complex: another root port of the same host bridge (PHB).
    Root,
    /// Two host bridges of one NUMA node (NODE).
    Bridges,
    /// Two NUMA nodes of one socket (NODE).
    Nodes,
    /// The link between sockets (SYS).
    Sockets,
    /// The kernel does not report the place of one of them.
    Unknown,
}

/// Every kind in order.
pub const PATH_KINDS: [PathKind; 8] = [
    PathKind::Same,
    PathKind::Switch,
    PathKind::Switches,
    PathKind::Root,
    PathKind::Bridges,
    PathKind::Nodes,
    PathKind::Sockets,
    PathKind::Unknown,
];

impl PathKind {
    /// One short word, for tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Switch => "switch",
            Self::Switches => "switches",
            Self::Root => "root",
            Self::Bridges => "bridges",
            Self::Nodes => "nodes",
            Self::Sockets => "sockets",
            Self::Unknown => "unknown",
        }
    }

    /// Its meaning, for legends and warnings.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Same => "one device",
            Self::Switch => "through one PCIe switch",
            Self::Switches => "through several PCIe switches",
            Self::Root => "through the root complex",
            Self::Bridges => "through two host bridges of one NUMA node",
            Self::Nodes => "across NUMA nodes of one socket",
            Self::Sockets => "across sockets",
            Self::Unknown => "unknown: the kernel does not report the place of one of them",
        }
    }

    /// Whether data goes from device to device without the CPU's fabric: the path for peer-to-peer
    /// DMA and target offload.
    #[must_use]
    pub fn is_peer(self) -> bool {
        self <= Self::Switches
    }

    /// The path between two places.
    #[must_use]
    pub fn between(a: &PciPlace, b: &PciPlace) -> Self {
        if a.route.is_empty() || b.route.is_empty() {
            return Self::Unknown;
        }
        let device = |place: &PciPlace| {
            let name = place.route.join("/");
            name.rsplit_once('.').map(|(device, _)| device.to_owned())
        };
        if device(a) == device(b) {
            return Self::Same;
        }
        let shared = a.route.iter().zip(&b.route).take_while(|(a, b)| a == b).count();
        // Below the meeting point: the port of the switch and the device itself.
        let deepest = a.route.len().max(b.route.len()) - shared;
        match (shared, a.node, b.node) {
            (2.., _, _) if deepest <= 2 => Self::Switch,
            (2.., _, _) => Self::Switches,
            (1, _, _) => Self::Root,
            (_, Some(one), Some(other)) if one == other => Self::Bridges,
            (_, Some(_), Some(_)) => match (a.socket, b.socket) {
                (Some(one), Some(other)) if one == other => Self::Nodes,
                (Some(_), Some(_)) => Self::Sockets,
                _ => Self::Unknown,
            },
            _ => Self::Unknown,
        }
    }
}
