//! Rules that need no host: names, numbers, duplicates, contradictions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use kvrail_nvme::{DISCOVERY_NQN, Nqn, SERVICE_DEFAULT, Selector, Transport};

use crate::error::Problem;
use crate::spec::{Host, Namespace, Nic, Offload, Port, Subsystem, TargetSpec};

/// Namespaces the kernel's target reports to a host at most (NVMET_MAX_NAMESPACES).
const NSID_MAX: u32 = 1024;
/// ANA groups of the kernel's target (NVMET_MAX_ANAGRPS).
const ANA_GROUP_MAX: u16 = 128;
/// Queues of a controller (NVMET_NR_QUEUES).
const QID_MAX: u16 = 128;
/// The highest controller id that is no reserved one (NVME_CNTLID_MAX is 0xffef).
const CNTLID_MAX: u16 = 65519;
/// Bytes inside of a command at most: four pages (NVMET_RDMA_MAX_INLINE_DATA_SIZE).
const INLINE_MAX: u32 = 16384;
/// Entries of a queue (NVMET_MIN_QUEUE_SIZE, NVMET_MAX_QUEUE_SIZE).
const QUEUE_SIZE: RangeInclusive<u32> = 16..=1024;

/// Everything wrong with a wish, in the order of its text.
#[must_use]
pub fn check(wish: &TargetSpec) -> Vec<Problem> {
    let mut found = SpecProblems { problems: Vec::new() };
    found.hosts(&wish.host);
    found.subsystems(wish);
    found.ports(wish);
    found.problems
}

struct SpecProblems {
    problems: Vec<Problem>,
}

impl SpecProblems {
    fn add(&mut self, key: &str, value: impl Display, rule: impl Into<String>, remedy: &str) {
        self.problems.push(Problem::usage(format!("target.{key}"), value, rule, remedy));
    }

    fn range<T: PartialOrd + Display>(
        &mut self,
        key: &str,
        value: Option<T>,
        range: &RangeInclusive<T>,
    ) {
        if let Some(value) = value.filter(|value| !range.contains(value)) {
            let rule = format!("it must be {} to {}", range.start(), range.end());
            self.add(key, value, rule, "set it within its range");
        }
    }

    fn nqn(&mut self, key: &str, nqn: &str) {
        let rule = match nqn.parse::<Nqn>() {
            Ok(nqn) if nqn.as_str() == DISCOVERY_NQN => {
                "is the name of the discovery service".into()
            }
            Ok(_) => return,
            Err(bad) => bad.rule,
        };
        let remedy = "write a name such as \"nqn.2026-01.org.example:kv0\"; a host's own name \
                      stands in its /etc/nvme/hostnqn";
        self.add(key, quoted(nqn), rule, remedy);
    }

    fn unique<'a>(&mut self, key: &str, field: &str, all: impl Iterator<Item = &'a str>) {
        let mut seen = BTreeMap::new();
        for (index, name) in all.enumerate() {
            if let Some(earlier) = seen.insert(name, index) {
                let rule = format!("target.{key}.{earlier} has this name too");
                let key = format!("{key}.{index}{field}");
                self.add(&key, quoted(name), rule, "name each one once");
            }
        }
    }

    fn hosts(&mut self, hosts: &[Host]) {
        self.unique("host", ".nqn", hosts.iter().map(|host| &*host.nqn));
        for (index, host) in hosts.iter().enumerate() {
            let key = |field: &str| format!("host.{index}.{field}");
            self.nqn(&key("nqn"), &host.nqn);
            let files = [
                ("dhchap_key_file", &host.dhchap_key_file),
                ("dhchap_ctrl_key_file", &host.dhchap_ctrl_key_file),
            ];
            for (field, file) in files {
                if let Some(file) = file.as_ref().filter(|file| !file.is_absolute()) {
                    let remedy = "write an absolute path; the sidecar runs in another directory";
                    self.add(&key(field), file.display(), "it must be an absolute path", remedy);
                }
            }
            if host.dhchap_key_file.is_none() {
                let rule = "a key file is missing: without dhchap_key_file the host proves nothing";
                let remedy = "add dhchap_key_file (`nvme gen-dhchap-key` makes a key), or remove \
                              the [[target.host]]";
                self.add(&key("dhchap_key_file"), "none", rule, remedy);
            }
        }
    }

    fn subsystems(&mut self, wish: &TargetSpec) {
        self.unique("subsystem", ".nqn", wish.subsystem.iter().map(|subsystem| &*subsystem.nqn));
        let mut devices = BTreeMap::new();
        for (index, subsystem) in wish.subsystem.iter().enumerate() {
            let at = format!("subsystem.{index}");
            self.nqn(&format!("{at}.nqn"), &subsystem.nqn);
            self.access(&at, subsystem);
            self.identity(&at, subsystem);
            self.namespaces(&at, subsystem, &mut devices);
            if !wish.port.iter().any(|port| port.subsystems.contains(&subsystem.nqn)) {
                let remedy = "name it in the subsystems of a [[target.port]], or remove it";
                self.add(&format!("{at}.nqn"), quoted(&subsystem.nqn), "no port offers it", remedy);
            }
        }
    }

    fn access(&mut self, at: &str, subsystem: &Subsystem) {
        let key = format!("{at}.hosts");
        for (index, host) in subsystem.hosts.iter().enumerate() {
            self.nqn(&format!("{key}.{index}"), host);
        }
        self.unique(&key, "", subsystem.hosts.iter().map(|host| &**host));
        match (subsystem.allow_any_host, subsystem.hosts.is_empty()) {
            (false, true) => {
                let rule =
                    "no host could connect: the host list is empty and allow_any_host is off";
                let remedy = "list the hosts' names (each host's /etc/nvme/hostnqn)";
                self.add(&key, "[]", rule, remedy);
            }
            (true, false) => {
                let rule = "allow_any_host excludes a host list, the kernel takes only one of them";
                let remedy = "remove allow_any_host, or the hosts";
                self.add(&format!("{at}.allow_any_host"), "true", rule, remedy);
            }
            _ => {}
        }
    }

    fn identity(&mut self, at: &str, subsystem: &Subsystem) {
        let texts = [("serial", &subsystem.serial, 20), ("model", &subsystem.model, 40)];
        for (field, text, most) in texts {
            let printable = |text: &&String| text.bytes().all(|b| (b' '..=b'~').contains(&b));
            let good = |text: &&String| {
                (1..=most).contains(&text.len()) && printable(text) && text.trim() == text.as_str()
            };
            if let Some(text) = text.as_ref().filter(|text| !good(text)) {
                let rule = format!(
                    "it must be 1 to {most} printable ASCII characters, no blanks at its ends"
                );
                let remedy = "shorten it, or leave it away";
                self.add(&format!("{at}.{field}"), quoted(text), rule, remedy);
            }
        }
        self.range(&format!("{at}.qid_max"), subsystem.qid_max, &(1..=QID_MAX));
        self.range(&format!("{at}.cntlid_min"), subsystem.cntlid_min, &(1..=CNTLID_MAX));
        self.range(&format!("{at}.cntlid_max"), subsystem.cntlid_max, &(1..=CNTLID_MAX));
        let low = subsystem.cntlid_min.unwrap_or(1);
        if low > subsystem.cntlid_max.unwrap_or(CNTLID_MAX) {
            let rule = "it must not be above cntlid_max";
            self.add(&format!("{at}.cntlid_min"), low, rule, "exchange the two");
        }
    }

    fn namespaces(
        &mut self,
        at: &str,
        subsystem: &Subsystem,
        devices: &mut BTreeMap<String, String>,
    ) {
        let key = format!("{at}.namespace");
        let count = subsystem.namespace.len();
        if count == 0 {
            let remedy = "add a [[target.subsystem.namespace]] with nsid and device";
            self.add(&key, "[]", "a subsystem needs a namespace", remedy);
        }
        if count > 1 && subsystem.offload != Offload::Off {
            let rule = format!("an offloaded subsystem has one namespace, it has {count}");
            let remedy = "give each namespace a subsystem and a port of its own";
            self.add(&key, format!("[{count}]"), rule, remedy);
        }
        for (index, namespace) in subsystem.namespace.iter().enumerate() {
            let at = format!("{key}.{index}");
            self.namespace(&at, namespace);
            let same = |other: &Namespace| other.nsid == namespace.nsid;
            if subsystem.namespace[..index].iter().any(same) {
                let rule = "another namespace of the subsystem has this number";
                self.add(&format!("{at}.nsid"), namespace.nsid, rule, "number each one apart");
            }
            let key = format!("{at}.device");
            let device = namespace.device.to_string();
            if is_kernel_name(&namespace.device) {
                let rule = "kernel names change from boot to boot, and this is one";
                let remedy = "write pci:, serial: or wwid: (`kvrail devices` lists them)";
                self.add(&key, quoted(&device), rule, remedy);
            }
            if let Some(other) = devices.insert(device.clone(), at) {
                let rule = format!("target.{other} exports this device already");
                self.add(&key, quoted(&device), rule, "export each device once");
            }
        }
    }

    fn namespace(&mut self, at: &str, namespace: &Namespace) {
        self.range(&format!("{at}.nsid"), Some(namespace.nsid), &(1..=NSID_MAX));
        self.range(&format!("{at}.ana_group"), Some(namespace.ana_group), &(1..=ANA_GROUP_MAX));
        for (field, id) in [("uuid", namespace.uuid), ("nguid", namespace.nguid)] {
            if id.is_some_and(|id| id.is_nil()) {
                let remedy = "leave it away, or write one that `uuidgen` makes";
                self.add(&format!("{at}.{field}"), "0", "all zero means none to hosts", remedy);
            }
        }
    }

    fn ports(&mut self, wish: &TargetSpec) {
        for (index, port) in wish.port.iter().enumerate() {
            let at = format!("port.{index}");
            self.range(&format!("{at}.id"), Some(port.id), &(1..=u16::MAX));
            let earlier = &wish.port[..index];
            if earlier.iter().any(|other| other.id == port.id) {
                let rule = "another port has this number";
                self.add(&format!("{at}.id"), port.id, rule, "number each port apart");
            }
            self.address(&at, port);
            if earlier.iter().any(|other| place(other) == place(port)) {
                let words = format!("{} {}", port.transport.name(), shown(port));
                let rule = "another port listens there already";
                let remedy = "name all subsystems of one address in one port";
                self.add(&format!("{at}.address"), words, rule, remedy);
            }
            self.offered(&at, port, wish);
            self.reachable(&at, port, wish);
            self.limits(&at, port);
        }
    }

    fn address(&mut self, at: &str, port: &Port) {
        let key = format!("{at}.address");
        let remedy = "write an address of this host's network card (`ip address`), or nic = \
                      \"nearest\" instead";
        if port.transport == Transport::Loop {
            let words = |value: &dyn Display| value.to_string();
            let said = [
                ("address", port.address.as_ref().map(|address| words(address))),
                ("nic", port.nic.as_ref().map(|nic| words(nic))),
                ("service", port.service.as_ref().map(|service| words(service))),
            ];
            for (field, value) in said {
                let Some(value) = value else { continue };
                let rule = format!("the loop transport has no {field}");
                self.add(&format!("{at}.{field}"), value, rule, "remove it");
            }
            return;
        }
        if let (Some(_), Some(nic)) = (port.address, &port.nic) {
            let rule = "the card's address is taken, and another is written";
            self.add(&format!("{at}.nic"), nic, rule, "write either nic or address");
        }
        match (port.transport, port.address) {
            (_, None) if port.nic.is_some() => {}
            (transport, None) => {
                let rule = format!("transport {:?} needs one", transport.name());
                self.add(&key, "none", rule, remedy);
            }
            (_, Some(address)) => {
                if let Some(rule) = unfit(address) {
                    self.add(&key, address, rule, remedy);
                }
            }
        }
        self.range(&format!("{at}.service"), port.service, &(1..=u16::MAX));
    }

    fn offered(&mut self, at: &str, port: &Port, wish: &TargetSpec) {
        let key = format!("{at}.subsystems");
        if port.subsystems.is_empty() {
            let remedy = "name subsystems, or remove the port";
            self.add(&key, "[]", "a port without subsystems is never opened", remedy);
        }
        self.unique(&key, "", port.subsystems.iter().map(|name| &**name));
        for (index, name) in port.subsystems.iter().enumerate() {
            let Some(subsystem) = wish.subsystem.iter().find(|subsystem| subsystem.nqn == *name)
            else {
                let rule = "no [[target.subsystem]] has this name";
                let key = format!("{key}.{index}");
                self.add(&key, quoted(name), rule, "check the name, or add the subsystem");
                continue;
            };
            if subsystem.offload == Offload::Off {
                continue;
            }
            if port.subsystems.len() > 1 {
                let rule = "an offloaded port has one subsystem";
                let remedy = "give the offloaded subsystem a port of its own";
                self.add(&key, format!("[{}]", port.subsystems.len()), rule, remedy);
            }
            if port.transport != Transport::Rdma {
                let rule = format!("{name} is offloaded, and only RDMA cards offload");
                let remedy = "set transport = \"rdma\", or offload = \"off\" for the subsystem";
                self.add(&format!("{at}.transport"), port.transport.name(), rule, remedy);
            }
        }
        let offloads = |subsystem: &Subsystem| {
            subsystem.offload != Offload::Off && port.subsystems.contains(&subsystem.nqn)
        };
        if let Some(queues) = port.offload_queues
            && !wish.subsystem.iter().any(offloads)
        {
            let rule = "no subsystem of the port is offloaded";
            let remedy = "remove it, or set offload for the subsystem";
            self.add(&format!("{at}.offload_queues"), queues, rule, remedy);
        }
        self.range(&format!("{at}.offload_queues"), port.offload_queues, &(1..=1024));
    }

    /// A group without a state is inaccessible through a port, all but the first.
    fn reachable(&mut self, at: &str, port: &Port, wish: &TargetSpec) {
        let offered =
            wish.subsystem.iter().filter(|subsystem| port.subsystems.contains(&subsystem.nqn));
        let groups: BTreeSet<u16> = offered
            .flat_map(|subsystem| &subsystem.namespace)
            .map(|namespace| namespace.ana_group)
            .collect();
        let said = |group: &u16| *group == 1 || port.ana.iter().any(|ana| ana.group == *group);
        for group in groups.iter().filter(|group| !said(group)) {
            let rule = format!(
                "a namespace it offers is in ANA group {group}, which has no state here: it could \
                 not be reached"
            );
            let remedy = "add the group with its state to the port's ana";
            self.add(&format!("{at}.ana"), format!("[{}]", port.ana.len()), rule, remedy);
        }
    }

    fn limits(&mut self, at: &str, port: &Port) {
        let inline = format!("{at}.inline_data_bytes");
        self.range(&inline, port.inline_data_bytes, &(0..=INLINE_MAX));
        if port.transport == Transport::Loop
            && let Some(bytes) = port.inline_data_bytes
        {
            self.add(&inline, bytes, "the loop transport carries no data inline", "remove it");
        }
        self.range(&format!("{at}.queue_size_max"), port.queue_size_max, &QUEUE_SIZE);
        for (index, ana) in port.ana.iter().enumerate() {
            let key = format!("{at}.ana.{index}.group");
            self.range(&key, Some(ana.group), &(1..=ANA_GROUP_MAX));
            if port.ana[..index].iter().any(|other| other.group == ana.group) {
                self.add(&key, ana.group, "the group is listed twice", "give one state to each");
            }
        }
    }
}

/// A path is stable only where udev makes one for what the drive is or where it sits.
fn is_kernel_name(device: &Selector) -> bool {
    device.path().is_some_and(|path| !path.starts_with("/dev/disk"))
}

/// Where a port listens, as it is written.
fn place(port: &Port) -> (Transport, Option<IpAddr>, Option<&Nic>, u16) {
    (port.transport, port.address, port.nic.as_ref(), port.service.unwrap_or(SERVICE_DEFAULT))
}

fn shown(port: &Port) -> String {
    let service = port.service.unwrap_or(SERVICE_DEFAULT);
    let nic = || port.nic.as_ref().map(|nic| format!("{nic} {service}"));
    let address = port.address.map(|address| format!("{address} {service}"));
    address.or_else(nic).unwrap_or_else(|| "on this host".into())
}

/// Why nothing can listen at an address that is given to hosts.
fn unfit(address: IpAddr) -> Option<&'static str> {
    let link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    if address.is_unspecified() {
        Some("it stands for all networks of this host; hosts need one address")
    } else if address.is_multicast() {
        Some("it is a multicast address")
    } else if link_local {
        Some("a link-local address means nothing to other hosts")
    } else {
        None
    }
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}
