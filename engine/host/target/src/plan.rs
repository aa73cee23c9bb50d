//! From a wish and this host to the objects of the tree. Pure: nothing is read or changed here.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use kvrail_nvme::{SERVICE_DEFAULT, Transport};
use uuid::Uuid;

use crate::check::check;
use crate::diff::OFFLOAD;
use crate::error::Problem;
use crate::facts::{Device, Facts, Features, Unusable};
use crate::item::{Attribute, Desired, Item};
use crate::offload::{Outcome, Serving, decide, parameters};
use crate::snapshot::NVMET;
use crate::spec::{
    Host, Namespace, Offload, P2pMem, PermittedContent, Port, Subsystem, TargetSpec,
};

/// The desired tree, and its meaning.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The objects.
    pub desired: Desired,
    /// The server of each subsystem.
    pub outcomes: Vec<Outcome>,
    /// Remarks for the operator.
    pub notes: Vec<String>,
    /// The exports.
    pub exports: Vec<Export>,
}

/// A device and the namespace it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The key that names it.
    pub key: String,
    /// Its node today.
    pub node: PathBuf,
    /// The namespace's path in the tree.
    pub path: String,
    /// The permitted content.
    pub content: PermittedContent,
}

/// Plans.
///
/// # Errors
/// Everything that is wrong with the wish, or with this host for it.
pub fn plan(wish: &TargetSpec, facts: &Facts) -> Result<Plan, Vec<Problem>> {
    let wrong = check(wish);
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let mut planner = Planner {
        wish,
        facts,
        items: Vec::new(),
        problems: Vec::new(),
        places: Vec::new(),
        plan: Plan::default(),
    };
    planner.hosts();
    for index in 0..wish.subsystem.len() {
        planner.subsystem(index);
    }
    for index in 0..wish.port.len() {
        planner.port(index);
    }
    if !planner.problems.is_empty() {
        return Err(planner.problems);
    }
    if wish.subsystem.iter().any(|subsystem| subsystem.offload != Offload::Off) {
        planner.plan.notes.extend(parameters(facts));
    }
    let transports: BTreeSet<Transport> = wish.port.iter().map(|port| port.transport).collect();
    let modules = transports.into_iter().map(Transport::target_module);
    let modules = (!wish.is_empty()).then_some(NVMET).into_iter().chain(modules).collect();
    let desired = Desired::new(modules, planner.items);
    Ok(Plan { desired, ..planner.plan })
}

struct Planner<'a> {
    wish: &'a TargetSpec,
    facts: &'a Facts,
    items: Vec<Item>,
    problems: Vec<Problem>,
    /// Where the ports before this one listen.
    places: Vec<(Transport, Option<IpAddr>, u16)>,
    plan: Plan,
}

/// A directory being put together; attributes that the kernel lacks are refused with their key.
struct Directory<'a> {
    known: Option<&'a BTreeSet<String>>,
    attributes: Vec<Attribute>,
}

impl Directory<'_> {
    fn put(&mut self, name: &str, value: impl ToString) {
        self.attributes.push(Attribute::new(name, value));
    }

    fn has(&self, name: &str) -> bool {
        self.known.is_none_or(|known| known.contains(name))
    }
}

impl<'a> Planner<'a> {
    fn directory(&self, of: impl Fn(&'a Features) -> &'a BTreeSet<String>) -> Directory<'a> {
        let known = self.facts.features.as_ref().map(of);
        Directory { known, attributes: Vec::new() }
    }

    /// An attribute that only some kernels have.
    fn optional<T: ToString>(
        &mut self,
        directory: &mut Directory<'_>,
        key: String,
        name: &str,
        value: Option<T>,
    ) {
        let Some(value) = value else { return };
        if directory.has(name) {
            directory.put(name, value);
        } else {
            let rule = format!("this kernel's target has no attribute {name}");
            let remedy = "leave the key away, or use a kernel that has it";
            self.problems.push(Problem::refused(key, value.to_string(), rule, remedy));
        }
    }

    fn unusable(&mut self, key: String, value: impl ToString, why: &Unusable) {
        let value = value.to_string();
        self.problems.push(Problem::refused(key, value, why.rule.clone(), why.remedy.clone()));
    }

    /// All hosts that some subsystem lets in, those with keys first.
    fn hosts(&mut self) {
        let listed: BTreeSet<&str> = self
            .wish
            .subsystem
            .iter()
            .flat_map(|subsystem| &subsystem.hosts)
            .map(|host| &**host)
            .collect();
        let proven = |nqn: &str| self.wish.host.iter().position(|host| host.nqn == nqn);
        let mut claimed = Vec::new();
        for nqn in listed {
            match proven(nqn) {
                Some(index) => self.host(index),
                None => {
                    claimed.push(nqn);
                    self.items.push(Item::dir(format!("hosts/{nqn}"), Vec::new()));
                }
            }
        }
        if !claimed.is_empty() {
            let names = claimed.join(", ");
            self.plan.notes.push(format!(
                "hosts without a key are admitted by their name alone, which any host can claim: \
                 {names}"
            ));
        }
        if self.wish.subsystem.iter().any(|subsystem| subsystem.allow_any_host) {
            self.plan.notes.push("allow_any_host admits any host that reaches a port".into());
        }
    }

    fn host(&mut self, index: usize) {
        let wish = self.wish;
        let Host { nqn, dhchap_key_file, dhchap_ctrl_key_file, dhchap_hash, dhchap_dhgroup } =
            &wish.host[index];
        let key = |field: &str| format!("target.host.{index}.{field}");
        let mut directory = self.directory(|features| &features.host);
        // How the proof is made comes before what it is made with.
        let word = |value: Option<serde_json::Value>| {
            value.and_then(|value| value.as_str().map(str::to_owned))
        };
        let hash = word(dhchap_hash.map(|hash| serde_json::json!(hash)));
        let group = word(dhchap_dhgroup.map(|group| serde_json::json!(group)));
        self.optional(&mut directory, key("dhchap_hash"), "dhchap_hash", hash);
        self.optional(&mut directory, key("dhchap_dhgroup"), "dhchap_dhgroup", group);
        let files = [
            ("dhchap_ctrl_key_file", "dhchap_ctrl_key", dhchap_ctrl_key_file),
            ("dhchap_key_file", "dhchap_key", dhchap_key_file),
        ];
        for (field, name, file) in files {
            let Some(file) = file else { continue };
            match self.facts.keys.get(file) {
                Some(Ok(_)) if !directory.has(name) => {
                    let remedy = "use a kernel with CONFIG_NVME_TARGET_AUTH, or remove the key";
                    let rule = format!("this kernel's target has no attribute {name}");
                    self.unusable(key(field), file.display(), &Unusable::new(rule, remedy));
                }
                Some(Ok(secret)) => directory.put(name, &secret.0),
                Some(Err(why)) => self.unusable(key(field), file.display(), why),
                None => {}
            }
        }
        self.items.push(Item::dir(format!("hosts/{nqn}"), directory.attributes));
    }

    fn subsystem(&mut self, index: usize) {
        let subsystem = &self.wish.subsystem[index];
        let path = format!("subsystems/{}", subsystem.nqn);
        let key = |field: &str| format!("target.subsystem.{index}.{field}");
        let serving = decide(self.wish, index, self.facts).unwrap_or_else(|problems| {
            self.problems.extend(problems);
            Serving::Unknown
        });
        let mut directory = self.directory(|features| &features.subsystem);
        directory.put("attr_allow_any_host", u8::from(subsystem.allow_any_host));
        if serving == Serving::Offloaded {
            directory.put(OFFLOAD, 1);
        }
        directory.put("attr_serial", subsystem.serial.clone().unwrap_or_else(|| serial(subsystem)));
        let mut optional = |field: &str, name: &str, value: Option<String>| {
            self.optional(&mut directory, key(field), name, value);
        };
        optional("model", "attr_model", subsystem.model.clone());
        optional("qid_max", "attr_qid_max", text(subsystem.qid_max));
        optional("cntlid_min", "attr_cntlid_min", text(subsystem.cntlid_min));
        optional("cntlid_max", "attr_cntlid_max", text(subsystem.cntlid_max));
        self.items.push(Item::dir(path.clone(), directory.attributes));
        for host in &subsystem.hosts {
            let link = format!("{path}/allowed_hosts/{host}");
            self.items.push(Item::link(link, format!("hosts/{host}")));
        }
        let mut p2p_memory = Vec::new();
        for place in 0..subsystem.namespace.len() {
            if self.namespace(index, place, &serving) {
                p2p_memory.push(subsystem.namespace[place].nsid);
            }
        }
        let (subsystem, asked) = (subsystem.nqn.clone(), subsystem.offload);
        self.plan.outcomes.push(Outcome { subsystem, asked, serving, p2p_memory });
    }

    /// Returns whether its transfers go through peer-to-peer memory.
    fn namespace(&mut self, index: usize, place: usize, serving: &Serving) -> bool {
        let subsystem = &self.wish.subsystem[index];
        let namespace = &subsystem.namespace[place];
        let key = |field: &str| format!("target.subsystem.{index}.namespace.{place}.{field}");
        let device = match self.facts.devices.get(&namespace.device.to_string()) {
            Some(Ok(device)) => device,
            Some(Err(why)) => {
                self.unusable(key("device"), &namespace.device, why);
                return false;
            }
            None => return false,
        };
        if let Some(other) = self.plan.exports.iter().find(|export| export.node == device.node) {
            let why = format!("{} exports it already, under another name", other.key);
            let why = Unusable::new(why, "export each device once");
            self.unusable(key("device"), &namespace.device, &why);
        }
        let mut directory = self.directory(|features| &features.namespace);
        directory.put("device_path", device.node.display());
        if *serving == Serving::Offloaded
            && let Some(pci) = device.pci.filter(|_| directory.has("pci_device_path"))
        {
            directory.put("pci_device_path", pci);
        }
        directory.put(
            "device_uuid",
            namespace.uuid.unwrap_or_else(|| uuid(subsystem, namespace, device)),
        );
        if let Some(nguid) = namespace.nguid {
            directory.put("device_nguid", nguid);
        }
        directory.put("ana_grpid", namespace.ana_group);
        let falls_back = subsystem.offload == Offload::Preferred
            && matches!(serving, Serving::Kernel { .. })
            && device.has_p2p_memory
            && self.facts.features.is_some()
            && directory.has("p2pmem");
        let through_peer = falls_back || namespace.p2pmem == P2pMem::Auto;
        self.optional(&mut directory, key("p2pmem"), "p2pmem", through_peer.then_some(1));
        directory.put("enable", 1);
        let path = format!("subsystems/{}/namespaces/{}", subsystem.nqn, namespace.nsid);
        let (node, content) = (device.node.clone(), namespace.content);
        self.plan.exports.push(Export { key: key("device"), node, path: path.clone(), content });
        self.items.push(Item::dir(path, directory.attributes));
        through_peer
    }

    fn port(&mut self, index: usize) {
        let port: &Port = &self.wish.port[index];
        let path = format!("ports/{}", port.id);
        let key = |field: &str| format!("target.port.{index}.{field}");
        let address = self.listening(index);
        let mut directory = self.directory(|features| &features.port);
        directory.put("addr_trtype", port.transport.name());
        if let Some(address) = address {
            directory.put("addr_adrfam", if address.is_ipv4() { "ipv4" } else { "ipv6" });
            directory.put("addr_traddr", address);
            directory.put("addr_trsvcid", port.service.unwrap_or(SERVICE_DEFAULT));
        }
        let mut optional = |field: &str, name: &str, value: Option<u32>| {
            self.optional(&mut directory, key(field), name, value);
        };
        optional("inline_data_bytes", "param_inline_data_size", port.inline_data_bytes);
        optional("queue_size_max", "param_max_queue_size", port.queue_size_max);
        let offloaded = self.plan.outcomes.iter().any(|outcome| {
            outcome.serving == Serving::Offloaded && port.subsystems.contains(&outcome.subsystem)
        });
        let queues = port.offload_queues.filter(|_| offloaded);
        self.optional(&mut directory, key("offload_queues"), "param_offload_queues", queues);
        if let Some(first) = port.ana.iter().find(|ana| ana.group == 1) {
            directory.put("ana_groups/1/ana_state", first.state.name());
        }
        self.items.push(Item::dir(path.clone(), directory.attributes));
        for ana in port.ana.iter().filter(|ana| ana.group != 1) {
            let state = Attribute::new("ana_state", ana.state.name());
            self.items.push(Item::dir(format!("{path}/ana_groups/{}", ana.group), vec![state]));
        }
        for name in &port.subsystems {
            let link = format!("{path}/subsystems/{name}");
            self.items.push(Item::link(link, format!("subsystems/{name}")));
        }
    }
}

impl Planner<'_> {
    /// The address of a port: the one that is written, or that of its card.
    fn listening(&mut self, index: usize) -> Option<IpAddr> {
        let port = &self.wish.port[index];
        let (field, written) = match &port.nic {
            Some(nic) => ("nic", nic.to_string()),
            None => ("address", port.address?.to_string()),
        };
        let key = format!("target.port.{index}.{field}");
        let address = match self.facts.addresses.get(&port.id) {
            Some(Ok(listening)) => {
                self.plan.notes.extend(listening.note.clone());
                listening.address
            }
            Some(Err(why)) => {
                self.unusable(key, written, why);
                return None;
            }
            None => port.address,
        };
        let place = (port.transport, address, port.service.unwrap_or(SERVICE_DEFAULT));
        match self.places.iter().position(|other| *other == place) {
            Some(other) if port.nic.is_some() => {
                let other = self.wish.port[other].id;
                let rule = format!("its address is that of port {other}, which listens there");
                let remedy = "give one of them another service, or another card";
                self.unusable(key, written, &Unusable::new(rule, remedy));
            }
            _ => {}
        }
        self.places.push(place);
        address
    }
}

fn text(value: Option<u16>) -> Option<String> {
    value.map(|value| value.to_string())
}

/// The same for the same name, so that hosts find the same drive after a restart. 20 characters,
/// what the kernel takes.
fn serial(subsystem: &Subsystem) -> String {
    let whole = Uuid::new_v5(&Uuid::NAMESPACE_OID, subsystem.nqn.as_bytes()).simple().to_string();
    whole[..20].to_owned()
}

/// Likewise for a namespace: another device behind it is another namespace to hosts.
fn uuid(subsystem: &Subsystem, namespace: &Namespace, device: &Device) -> Uuid {
    let what = format!("{} {} {}", subsystem.nqn, namespace.nsid, device.identity);
    Uuid::new_v5(&Uuid::NAMESPACE_OID, what.as_bytes())
}
