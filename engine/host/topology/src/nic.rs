//! RDMA NICs: ports, links and the IP addresses that their GID tables hold.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use kvrail_memory::Root;

use crate::address::interface_addresses;
use crate::device::{Detail, Device, DeviceKind};
use crate::place::MachineFacts;
use crate::port::RdmaPort;

const NICS: &str = "sys/class/infiniband";

/// Every RDMA NIC.
pub(crate) fn nics(ground: &MachineFacts<'_>) -> Vec<Device> {
    ground.root.names(NICS).into_iter().map(|name| nic(ground, name)).collect()
}

fn nic(ground: &MachineFacts<'_>, name: String) -> Device {
    let root = ground.root;
    let dir = format!("{NICS}/{name}");
    let numbers = root.names(format!("{dir}/ports"));
    let ports = numbers.iter().filter_map(|number| port(root, &dir, number.parse().ok()?));
    // Software devices stand on a network interface.
    let software_on = word(root, &format!("{dir}/parent"));
    let place = match &software_on {
        Some(netdev) => ground.place(&format!("sys/class/net/{netdev}/device")),
        None => ground.place(&dir),
    };
    let board = word(root, &format!("{dir}/board_id"));
    let model = word(root, &format!("{dir}/hca_type")).unwrap_or_default();
    let model = [Some(model), board].into_iter().flatten().collect::<Vec<_>>().join(" ");
    let detail = Detail::Nic {
        firmware: word(root, &format!("{dir}/fw_ver")).unwrap_or_default(),
        ports: ports.collect(),
        software_on,
    };
    Device { name, kind: DeviceKind::Nic, model: model.trim().to_owned(), place, detail }
}

fn port(root: &Root, nic: &str, number: u32) -> Option<RdmaPort> {
    let dir = format!("{nic}/ports/{number}");
    let file = |file: &str| word(root, &format!("{dir}/{file}"));
    let entries = root.names(format!("{dir}/gids"));
    let gids: Vec<(String, Ipv6Addr)> = entries
        .into_iter()
        .filter_map(|index| {
            let gid: Ipv6Addr = file(&format!("gids/{index}"))?.parse().ok()?;
            (!gid.is_unspecified()).then_some((index, gid))
        })
        .collect();
    let named = gids.iter().filter_map(|(index, _)| file(&format!("gid_attrs/ndevs/{index}")));
    let mut interfaces: BTreeSet<String> = named.collect();
    let link_layer = file("link_layer").unwrap_or_default();
    let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
    if link_layer == "InfiniBand" {
        // GIDs are no IP addresses there; those of IP over InfiniBand are.
        interfaces.extend(root.names(format!("{nic}/device/net")));
        addresses.extend(interfaces.iter().flat_map(|name| interface_addresses(root, name)));
    } else {
        addresses.extend(gids.iter().filter_map(|(_, gid)| address(*gid)));
    }
    Some(RdmaPort {
        number,
        // `4: ACTIVE`
        state: file("state")?.split_once(": ").map(|(_, word)| word.to_owned())?,
        link_layer,
        rate: file("rate").unwrap_or_default(),
        interfaces: interfaces.into_iter().collect(),
        addresses: addresses.into_iter().collect(),
        gids: gids.len(),
    })
}

/// The address in a GID of RoCE: IPv4 ones are mapped; link-local ones reach no remote host.
fn address(gid: Ipv6Addr) -> Option<IpAddr> {
    match gid.to_ipv4_mapped() {
        Some(four) => Some(IpAddr::V4(four)),
        None => (!gid.is_unicast_link_local()).then_some(IpAddr::V6(gid)),
    }
}

fn word(root: &Root, path: &str) -> Option<String> {
    // Reading an unused GID's attributes fails with EINVAL.
    let text = root.text(path).ok().flatten()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn gids_of_roce_hold_addresses() {
        for (gid, expected) in [
            ("0000:0000:0000:0000:0000:ffff:c000:0201", Some("192.0.2.1")),
            ("fe80:0000:0000:0000:0a00:27ff:fe00:0001", None),
            ("2001:0db8:0000:0000:0000:0000:0000:0001", Some("2001:db8::1")),
        ] {
            let found = address(gid.parse().unwrap()).map(|address| address.to_string());
            assert_eq!(found.as_deref(), expected, "{gid}");
        }
    }
}
