//! nvmetcli's JSON (`nvmetcli save`, `nvmetcli restore`): written from what is planned or there,
//! read into a wish. Keys never travel in it.

use kvrail_nvme::{Selector, Transport};
use serde_json::{Map, Value, json};

use crate::error::Problem;
use crate::item::{Attribute, Desired, Form, Item, is_secret};
use crate::place::{ObjectKind, is_below};
use crate::snapshot::{Node, Snapshot};
use crate::spec::{Ana, Namespace, Offload, P2pMem, PermittedContent, Port, Subsystem, TargetSpec};

/// The specification read, and the values without a key in kvrail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The wish.
    pub wish: TargetSpec,
    /// Omitted values, with the reason.
    pub notes: Vec<String>,
}

/// A plan as nvmetcli would have saved it.
#[must_use]
pub fn export(desired: &Desired) -> Value {
    let of =
        |place: ObjectKind| desired.items.iter().filter(move |item| item.place() == Some(place));
    let hosts = of(ObjectKind::Host).map(|item| json!({ "nqn": name(item) }));
    let subsystems = of(ObjectKind::Subsystem).map(|item| subsystem(item, desired));
    let ports = of(ObjectKind::Port).map(|item| port(item, desired));
    json!({
        "hosts": hosts.collect::<Vec<_>>(),
        "ports": ports.collect::<Vec<_>>(),
        "subsystems": subsystems.collect::<Vec<_>>(),
    })
}

/// All objects of a tree, kvrail's and foreign ones, as a plan would have them.
#[must_use]
pub fn everything(present: &Snapshot) -> Desired {
    let attributes = |path: &str| {
        let below = present.nodes.iter().filter_map(|(file, node)| {
            let name = file.strip_prefix(path)?.strip_prefix('/')?;
            let own = !name.contains('/') || name == "ana_groups/1/ana_state";
            match node {
                Node::File(Some(text)) if own => Some(Attribute::new(name, text.trim())),
                _ => None,
            }
        });
        below.filter(|attribute| !is_secret(&attribute.name)).collect()
    };
    let items = present.objects().map(|(path, node)| match node {
        Node::Link(target) => Item::link(path.into(), target.clone()),
        _ => Item::dir(path.into(), attributes(path)),
    });
    Desired::new(Vec::new(), items.collect())
}

fn name(item: &Item) -> &str {
    item.path.rsplit('/').next().unwrap_or_default()
}

fn number(item: &Item) -> Value {
    name(item).parse::<u64>().map_or(Value::Null, Value::from)
}

fn attributes(item: &Item) -> &[Attribute] {
    match &item.form {
        Form::Dir(attributes) => attributes,
        Form::Link(_) => &[],
    }
}

/// `attr_serial` and its like as `{"serial": ...}`.
fn group(item: &Item, prefix: &str) -> Map<String, Value> {
    let of_it = |attribute: &Attribute| {
        Some((
            attribute.name.strip_prefix(prefix)?.to_owned(),
            Value::from(attribute.value.clone()),
        ))
    };
    attributes(item).iter().filter_map(of_it).collect()
}

fn below<'a>(
    desired: &'a Desired,
    item: &'a Item,
    place: ObjectKind,
) -> impl Iterator<Item = &'a Item> {
    let within =
        move |other: &&Item| other.place() == Some(place) && is_below(&other.path, &item.path);
    desired.items.iter().filter(within)
}

fn subsystem(item: &Item, desired: &Desired) -> Value {
    let hosts: Vec<&str> = below(desired, item, ObjectKind::AllowedHost).map(name).collect();
    let namespaces: Vec<Value> =
        below(desired, item, ObjectKind::Namespace).map(namespace).collect();
    json!({
        "allowed_hosts": hosts,
        "attr": group(item, "attr_"),
        "namespaces": namespaces,
        "nqn": name(item),
    })
}

fn namespace(item: &Item) -> Value {
    let value = |wanted: &str| {
        let found = attributes(item).iter().find(|attribute| attribute.name == wanted);
        found
            .and_then(|attribute| attribute.value.parse::<u64>().ok())
            .map_or(Value::Null, Value::from)
    };
    json!({
        "ana_grpid": value("ana_grpid"),
        "device": group(item, "device_"),
        "enable": value("enable"),
        "nsid": number(item),
    })
}

fn port(item: &Item, desired: &Desired) -> Value {
    let mut address = group(item, "addr_");
    for (name, value) in
        [("adrfam", ""), ("traddr", ""), ("treq", "not specified"), ("trsvcid", "")]
    {
        address.entry(name).or_insert(value.into());
    }
    let state = |item: &Item, name: &str| {
        attributes(item)
            .iter()
            .find(|attribute| attribute.name == name)
            .map(|attribute| attribute.value.clone())
    };
    let ana = |group: Value, state: Option<String>| {
        let state = state.unwrap_or_else(|| "optimized".into());
        json!({ "ana": { "state": state }, "grpid": group })
    };
    let mut groups = vec![ana(json!(1), state(item, "ana_groups/1/ana_state"))];
    groups.extend(
        below(desired, item, ObjectKind::AnaGroup)
            .map(|group| ana(number(group), state(group, "ana_state"))),
    );
    let subsystems: Vec<&str> = below(desired, item, ObjectKind::Opening).map(name).collect();
    json!({
        "addr": address,
        "ana_groups": groups,
        "param": group(item, "param_"),
        "portid": number(item),
        "referrals": [],
        "subsystems": subsystems,
    })
}

/// Reads a saved configuration. `named` returns the permanent name of a device of this host.
///
/// # Errors
/// A problem for each value that cannot be taken over.
pub fn import(
    saved: &Value,
    named: &dyn Fn(&str) -> Result<Selector, String>,
) -> Result<Imported, Vec<Problem>> {
    let mut reader = NvmetcliReader { named, notes: Vec::new(), problems: Vec::new() };
    let mut wish = TargetSpec::default();
    for (index, entry) in list(saved, "subsystems").iter().enumerate() {
        wish.subsystem.push(reader.subsystem(&format!("subsystems.{index}"), entry));
    }
    for (index, entry) in list(saved, "ports").iter().enumerate() {
        wish.port.extend(reader.port(&format!("ports.{index}"), entry));
    }
    // A vendor's kernel shows the queues of every port.
    let offloads = |name: &String| {
        wish.subsystem
            .iter()
            .any(|subsystem| subsystem.nqn == *name && subsystem.offload != Offload::Off)
    };
    for port in wish.port.iter_mut().filter(|port| !port.subsystems.iter().any(offloads)) {
        port.offload_queues = None;
    }
    if list(saved, "subsystems").is_empty() {
        reader.bad("subsystems", "none", "there is no subsystem in it");
    }
    if reader.problems.is_empty() {
        Ok(Imported { wish, notes: reader.notes })
    } else {
        Err(reader.problems)
    }
}

struct NvmetcliReader<'a> {
    named: &'a dyn Fn(&str) -> Result<Selector, String>,
    notes: Vec<String>,
    problems: Vec<Problem>,
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Numbers stand as numbers or as text.
fn text(value: &Value, path: [&str; 2]) -> Option<String> {
    let [group, key] = path;
    let group = if group.is_empty() { Some(value) } else { value.get(group) };
    match group?.get(key)? {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
    .filter(|text| !text.is_empty())
}

fn words(value: &Value, key: &str) -> Vec<String> {
    list(value, key).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The kernel's defaults, which are no part of a specification.
const DEFAULTS: [(&str, &str); 12] = [
    ("cntlid_min", "1"),
    ("cntlid_max", "65519"),
    ("model", "Linux"),
    ("qid_max", "128"),
    ("pi_enable", "0"),
    ("inline_data_size", "-1"),
    ("max_queue_size", "-1"),
    ("mdts", "-1"),
    ("nguid", "00000000-0000-0000-0000-000000000000"),
    ("offload", "0"),
    ("treq", "not specified"),
    ("tsas", "none"),
];

impl NvmetcliReader<'_> {
    fn bad(&mut self, key: &str, value: impl std::fmt::Display, rule: &str) {
        let remedy = "correct the JSON, or write the [target] by hand";
        self.problems.push(Problem::usage(key, value, rule, remedy));
    }

    fn parse<T: std::str::FromStr>(
        &mut self,
        at: &str,
        value: &Value,
        path: [&str; 2],
    ) -> Option<T> {
        let text = text(value, path).filter(|text| !DEFAULTS.contains(&(path[1], text)))?;
        let parsed = text.parse().ok();
        if parsed.is_none() {
            self.bad(&format!("{at}.{}", path.join(".")), text, "it cannot be understood");
        }
        parsed
    }

    /// Reports values of a group that have no key here and are not the kernel's default.
    fn leftover(&mut self, at: &str, value: &Value, group: &str, known: &[&str]) {
        let entries = value.get(group).and_then(Value::as_object).into_iter().flatten();
        for (key, entry) in entries.filter(|(key, _)| !known.contains(&key.as_str())) {
            let text = entry.as_str().map_or_else(|| entry.to_string(), str::to_owned);
            let quiet = text.is_empty() || DEFAULTS.contains(&(key, &*text));
            if !quiet && !["version", "firmware", "ieee_oui"].contains(&key.as_str()) {
                self.notes.push(format!("{at}.{group}.{key} = {text} has no key here: left out"));
            }
        }
    }

    fn subsystem(&mut self, at: &str, entry: &Value) -> Subsystem {
        let known =
            ["allow_any_host", "serial", "model", "qid_max", "cntlid_min", "cntlid_max", "offload"];
        self.leftover(at, entry, "attr", &known);
        let any = text(entry, ["attr", "allow_any_host"]).is_some_and(|text| text == "1");
        let offloaded = text(entry, ["attr", "offload"]).is_some_and(|text| text == "1");
        let mut namespace = Vec::new();
        for (index, saved) in list(entry, "namespaces").iter().enumerate() {
            namespace.extend(self.namespace(&format!("{at}.namespaces.{index}"), saved));
        }
        Subsystem {
            nqn: text(entry, ["", "nqn"]).unwrap_or_default(),
            hosts: words(entry, "allowed_hosts"),
            allow_any_host: any,
            offload: if offloaded { Offload::Required } else { Offload::Off },
            serial: self.parse(at, entry, ["attr", "serial"]),
            model: self.parse(at, entry, ["attr", "model"]),
            qid_max: self.parse(at, entry, ["attr", "qid_max"]),
            cntlid_min: self.parse(at, entry, ["attr", "cntlid_min"]),
            cntlid_max: self.parse(at, entry, ["attr", "cntlid_max"]),
            namespace,
        }
    }

    fn namespace(&mut self, at: &str, entry: &Value) -> Option<Namespace> {
        self.leftover(at, entry, "device", &["path", "uuid", "nguid"]);
        if text(entry, ["", "enable"]).is_some_and(|text| text == "0") {
            self.notes.push(format!("{at} is disabled: left out"));
            return None;
        }
        let path = text(entry, ["device", "path"]).unwrap_or_default();
        let device = match (self.named)(&path) {
            Ok(device) => device,
            Err(why) => {
                self.bad(&format!("{at}.device.path"), path, &why);
                return None;
            }
        };
        Some(Namespace {
            nsid: self.parse(at, entry, ["", "nsid"]).unwrap_or_default(),
            device,
            uuid: self.parse(at, entry, ["device", "uuid"]),
            nguid: self.parse(at, entry, ["device", "nguid"]),
            ana_group: self.parse(at, entry, ["", "ana_grpid"]).unwrap_or(1),
            p2pmem: P2pMem::Off,
            content: PermittedContent::Kvrail,
        })
    }

    fn port(&mut self, at: &str, entry: &Value) -> Option<Port> {
        self.leftover(at, entry, "addr", &["trtype", "adrfam", "traddr", "trsvcid"]);
        let known = ["inline_data_size", "max_queue_size", "offload_queues"];
        self.leftover(at, entry, "param", &known);
        if !list(entry, "referrals").is_empty() {
            self.notes.push(format!("{at}.referrals have no key here: left out"));
        }
        let kind = text(entry, ["addr", "trtype"]).unwrap_or_default();
        let Ok(transport) = serde_json::from_value::<Transport>(json!(kind)) else {
            self.bad(&format!("{at}.addr.trtype"), kind, "it must be rdma, tcp or loop");
            return None;
        };
        let mut ana = Vec::new();
        for group in list(entry, "ana_groups") {
            let id = self.parse(at, group, ["", "grpid"]).unwrap_or_default();
            let state = text(group, ["ana", "state"]).unwrap_or_default();
            match serde_json::from_value(json!(state)) {
                Ok(_) if (id, &*state) == (1, "optimized") => {}
                Ok(state) => ana.push(Ana { group: id, state }),
                Err(_) => self.bad(&format!("{at}.ana_groups"), state, "it is no ANA state"),
            }
        }
        Some(Port {
            id: self.parse(at, entry, ["", "portid"]).unwrap_or_default(),
            transport,
            address: self.parse(at, entry, ["addr", "traddr"]),
            nic: None,
            service: self.parse(at, entry, ["addr", "trsvcid"]),
            subsystems: words(entry, "subsystems"),
            // The kernel writes a 0 of its own where nothing travels inline.
            inline_data_bytes: self
                .parse(at, entry, ["param", "inline_data_size"])
                .filter(|_| transport != Transport::Loop),
            queue_size_max: self.parse(at, entry, ["param", "max_queue_size"]),
            offload_queues: self.parse(at, entry, ["param", "offload_queues"]),
            ana,
        })
    }
}
