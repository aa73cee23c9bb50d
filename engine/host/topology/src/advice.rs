//! Warnings: traffic that would leave the switch, and links that run below what they could.

use crate::device::{Device, DeviceKind};
use crate::map::Map;
use crate::path::PathKind;

/// Pairs between which blocks travel, with what a long way costs.
const TRAFFIC: [(DeviceKind, DeviceKind); 3] = [
    (DeviceKind::Drive, DeviceKind::Nic),
    (DeviceKind::Drive, DeviceKind::Gpu),
    (DeviceKind::Gpu, DeviceKind::Nic),
];

impl Map {
    /// One sentence for each device whose nearest partner is not behind the same switch, and for
    /// each link that runs below what the device could do.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let far = TRAFFIC
            .iter()
            .flat_map(|(from, to)| self.of(*from).filter_map(|device| self.far(device, *to)));
        far.chain(self.devices.iter().filter_map(slow)).collect()
    }

    /// The device of a kind with the shortest way; the first of equals. Devices that are not on
    /// PCIe (software RDMA on a virtual interface) are nobody's neighbours.
    #[must_use]
    pub fn nearest(&self, device: &Device, kind: DeviceKind) -> Option<(&Device, PathKind)> {
        let placed = self.of(kind).filter(|other| !other.place.route.is_empty());
        let ways = placed.map(|other| (other, self.path(device, other)));
        ways.min_by_key(|(_, path)| *path)
    }

    fn far(&self, device: &Device, kind: DeviceKind) -> Option<String> {
        let (nearest, path) = self.nearest(device, kind)?;
        if path.is_peer() {
            return None;
        }
        let cost = match path {
            PathKind::Sockets => "bytes cross both CPUs, at a part of the speed",
            PathKind::Unknown => "it may be slow, and peer-to-peer DMA is refused",
            _ => "bytes cross the CPU, and peer-to-peer DMA may be slow or refused",
        };
        Some(format!(
            "{} {} to {kind} {} (the nearest): {}; {cost}; move one of them behind the other's \
             switch",
            device.kind,
            device.name,
            nearest.name,
            path.words(),
        ))
    }
}

fn slow(device: &Device) -> Option<String> {
    let link = device.place.link?;
    let below = link.is_narrow() || (link.is_slow() && device.kind != DeviceKind::Gpu);
    (below && device.kind != DeviceKind::RemoteDrive).then(|| {
        format!(
            "{} {}: its link runs at {link}; reseat it, or take a slot with more lanes",
            device.kind, device.name
        )
    })
}
