//! A port's address, found from the network card: the one that is named, or the one with the
//! shortest way to the drives that the port exports. Only looks at the map of the machine.

use std::net::IpAddr;

use kvrail_nvme::PciAddress;
use kvrail_topology::{Detail, Device, DeviceKind, Map, PathKind};

use crate::facts::{Listening, Unusable};
use crate::spec::{Nic, Port};

/// The remedy where no card serves.
const REMEDY: &str = "`kvrail topology` shows the cards with their links and addresses; or write \
                      the address itself";

/// Where a port listens whose drives sit at `drives`. The way to a card's drives is noted.
pub(crate) fn listening(
    port: &Port,
    drives: &[PciAddress],
    map: Option<&Map>,
) -> Result<Listening, Unusable> {
    let cards: Vec<&Device> = map.map(|map| map.of(DeviceKind::Nic).collect()).unwrap_or_default();
    let Some(nic) = &port.nic else {
        return Ok(Listening { address: port.address, note: None });
    };
    let (card, address) = match nic {
        Nic::Named(name) => named(name, &cards)?,
        Nic::Nearest => nearest(&cards, drives, map)?,
    };
    let note = Some(words(port, card, way(card, drives, map)));
    Ok(Listening { address: Some(address), note })
}

fn named<'a>(name: &str, cards: &[&'a Device]) -> Result<(&'a Device, IpAddr), Unusable> {
    let is_it = |card: &&&Device| {
        card.name == name
            || ports(card).any(|port| port.interfaces.iter().any(|interface| interface == name))
    };
    let card = cards.iter().find(is_it).ok_or_else(|| {
        let rule = format!("no RDMA card of this host has this name ({})", listed(cards));
        Unusable::new(rule, REMEDY)
    })?;
    Ok((card, address(card)?))
}

fn nearest<'a>(
    cards: &[&'a Device],
    drives: &[PciAddress],
    map: Option<&Map>,
) -> Result<(&'a Device, IpAddr), Unusable> {
    let usable = cards.iter().filter_map(|card| Some((*card, address(card).ok()?)));
    usable.min_by_key(|(card, _)| way(card, drives, map)).ok_or_else(|| {
        let rule = format!("no RDMA card of this host can be used ({})", listed(cards));
        Unusable::new(rule, REMEDY)
    })
}

/// The longest way from a card to any of the drives.
fn way(card: &Device, drives: &[PciAddress], map: Option<&Map>) -> PathKind {
    let all = map.into_iter().flat_map(|map| map.of(DeviceKind::Drive));
    let ours = all.filter(|drive| drive.place.pci.is_some_and(|pci| drives.contains(&pci)));
    let ways = ours.map(|drive| PathKind::between(&card.place, &drive.place));
    ways.max().unwrap_or(PathKind::Unknown)
}

/// The address that hosts reach a card by: the only IPv4 one, else the only one.
fn address(card: &Device) -> Result<IpAddr, Unusable> {
    let active = ports(card).filter(|port| port.is_active());
    let all: Vec<IpAddr> = active.flat_map(|port| port.addresses.iter().copied()).collect();
    let four: Vec<IpAddr> = all.iter().copied().filter(IpAddr::is_ipv4).collect();
    match (&four[..], &all[..]) {
        ([only], _) | (_, [only]) => Ok(*only),
        (_, []) => {
            let rule = format!("{} has no address at a port that is up", card.name);
            Err(Unusable::new(rule, REMEDY))
        }
        (_, several) => {
            let several: Vec<String> = several.iter().map(ToString::to_string).collect();
            let rule = format!("{} has several addresses: {}", card.name, several.join(", "));
            Err(Unusable::new(rule, "write the one that hosts are to use as address"))
        }
    }
}

fn ports(card: &Device) -> impl Iterator<Item = &kvrail_topology::RdmaPort> {
    let ports = match &card.detail {
        Detail::Nic { ports, .. } => &ports[..],
        _ => &[],
    };
    ports.iter()
}

fn listed(cards: &[&Device]) -> String {
    let all: Vec<&str> = cards.iter().map(|card| &*card.name).collect();
    if all.is_empty() { "there is none".into() } else { all.join(", ") }
}

fn words(port: &Port, card: &Device, way: PathKind) -> String {
    let cost = match way {
        _ if way.is_peer() => "",
        PathKind::Sockets => "; bytes cross both CPUs, at a part of the speed",
        PathKind::Unknown => "",
        _ => "; bytes cross the CPU, and peer-to-peer DMA may be slow or refused",
    };
    format!("port {} is at {}: to its drives {}{cost}", port.id, card.name, way.words())
}
