//! Wishes, a made-up host for them, and the program that makes them so.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kvrail_target::{
    Desired, Device, DhchapKey, Facts, Features, Step, Target, TargetError, TargetSpec, Unusable,
    plan,
};

use crate::fake::{Access, FakeTree, Flavor, Fuse, MemoryStore};

/// Two subsystems, three ports, ANA groups, keys: an ordinary target.
pub(crate) const ORDINARY: &str = r#"
[[host]]
nqn = "nqn.2026-01.org.example:a"
dhchap_key_file = "/keys/a"
dhchap_hash = "hmac(sha512)"
[[subsystem]]
nqn = "nqn.2026-01.org.example:kv0"
hosts = ["nqn.2026-01.org.example:a", "nqn.2026-01.org.example:b"]
model = "kv"
[[subsystem.namespace]]
nsid = 1
device = "pci:0000:01:00.0/1"
ana_group = 2
[[subsystem.namespace]]
nsid = 2
device = "serial:B/1"
[[subsystem]]
nqn = "nqn.2026-01.org.example:kv1"
hosts = ["nqn.2026-01.org.example:b"]
[[subsystem.namespace]]
nsid = 1
device = "pci:0000:03:00.0"
[[port]]
id = 1
transport = "rdma"
address = "192.0.2.1"
inline_data_bytes = 4096
subsystems = ["nqn.2026-01.org.example:kv0", "nqn.2026-01.org.example:kv1"]
ana = [{ group = 1, state = "non-optimized" }, { group = 2, state = "optimized" }]
[[port]]
id = 2
transport = "tcp"
address = "192.0.2.2"
service = 4421
subsystems = ["nqn.2026-01.org.example:kv0"]
ana = [{ group = 2, state = "non-optimized" }]
[[port]]
id = 3
transport = "loop"
subsystems = ["nqn.2026-01.org.example:kv1"]
"#;

/// Changes of `ORDINARY`: a host leaves, a device moves from one subsystem to the other, a port has
/// another address, an ANA state changes, a subsystem goes and another comes.
pub(crate) const CHANGED: &str = r#"
[[subsystem]]
nqn = "nqn.2026-01.org.example:kv0"
hosts = ["nqn.2026-01.org.example:b", "nqn.2026-01.org.example:c"]
[[subsystem.namespace]]
nsid = 1
device = "pci:0000:03:00.0"
ana_group = 2
[[subsystem]]
nqn = "nqn.2026-01.org.example:kv2"
hosts = ["nqn.2026-01.org.example:a"]
[[subsystem.namespace]]
nsid = 1
device = "serial:B/1"
[[port]]
id = 1
transport = "rdma"
address = "192.0.2.2"
subsystems = ["nqn.2026-01.org.example:kv0", "nqn.2026-01.org.example:kv2"]
ana = [{ group = 2, state = "optimized" }]
[[port]]
id = 3
transport = "loop"
subsystems = ["nqn.2026-01.org.example:kv2"]
"#;

/// One offloaded drive.
pub(crate) const OFFLOADED: &str = r#"
[[subsystem]]
nqn = "nqn.2026-01.org.example:fast"
hosts = ["nqn.2026-01.org.example:a"]
offload = "required"
[[subsystem.namespace]]
nsid = 1
device = "pci:0000:01:00.0/1"
[[port]]
id = 1
transport = "rdma"
address = "192.0.2.1"
subsystems = ["nqn.2026-01.org.example:fast"]
offload_queues = 1
"#;

/// The second path of `OFFLOADED`.
pub(crate) const SECOND_PATH: &str = r#"
[[port]]
id = 2
transport = "rdma"
address = "192.0.2.2"
subsystems = ["nqn.2026-01.org.example:fast"]
"#;

pub(crate) const KEY: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

pub(crate) fn wish(text: &str) -> TargetSpec {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn device(node: &str, serial: &str, pci: &str) -> Device {
    Device {
        node: node.into(),
        identity: format!("uuid.{node}"),
        drive: serial.into(),
        pci: Some(pci.parse().unwrap()),
        p2p_queues: None,
        has_p2p_memory: false,
    }
}

/// The host that `FakeTree` is the tree of.
pub(crate) fn facts(wish: &TargetSpec, flavor: Flavor) -> Facts {
    let a = |nsid: u32| device(&format!("/dev/nvme0n{nsid}"), "A", "0000:01:00.0");
    let devices = [
        ("pci:0000:01:00.0/1", a(1)),
        ("pci:0000:01:00.0/2", a(2)),
        ("serial:A/1", a(1)),
        ("serial:B/1", device("/dev/nvme1n1", "B", "0000:02:00.0")),
        ("pci:0000:03:00.0", device("/dev/nvme2n1", "C", "0000:03:00.0")),
    ];
    let remedy = "check that the drive is attached";
    let gone = || Err(Unusable { rule: "no such namespace".into(), remedy: remedy.into() });
    let mut facts = Facts::default();
    for namespace in wish.subsystem.iter().flat_map(|subsystem| &subsystem.namespace) {
        let name = namespace.device.to_string();
        let found = devices.iter().find(|(known, _)| *known == name);
        let found = found.map_or_else(gone, |(_, device)| Ok(device.clone()));
        facts.devices.insert(name, found);
    }
    for host in &wish.host {
        for file in [&host.dhchap_key_file, &host.dhchap_ctrl_key_file].into_iter().flatten() {
            facts.keys.insert(file.clone(), DhchapKey::parse(KEY));
        }
    }
    if flavor == Flavor::Vendor {
        facts.parameters.p2p_queues = Some(2);
    }
    facts.features = Some(features(flavor));
    facts
}

/// The result of `Target::probe` in a tree of this flavor.
pub(crate) fn features(flavor: Flavor) -> Features {
    let tree = FakeTree::new(flavor);
    open(&tree, &MemoryStore::default()).probe().unwrap()
}

pub(crate) fn open(tree: &FakeTree, store: &MemoryStore) -> Target<FakeTree, MemoryStore> {
    Target::open(tree.clone(), store.clone(), "boot").unwrap()
}

pub(crate) fn desired(text: &str, flavor: Flavor) -> Desired {
    let wish = wish(text);
    let problems = |problems| panic!("{}", TargetError::Refused(problems));
    plan(&wish, &facts(&wish, flavor)).unwrap_or_else(problems).desired
}

pub(crate) fn apply(tree: &FakeTree, store: &MemoryStore, desired: &Desired) -> Vec<Step> {
    open(tree, store).apply(desired).unwrap_or_else(|error| panic!("{error}"))
}

/// How a program ended.
pub(crate) enum End {
    Done,
    Refused(TargetError),
    Stopped,
}

/// Runs a program to its end, or to where the fuse stops it.
pub(crate) fn run(
    tree: &FakeTree,
    store: &MemoryStore,
    fuse: &Fuse,
    program: impl FnOnce(&mut Target<FakeTree, MemoryStore>) -> Result<Vec<Step>, TargetError>,
) -> End {
    let (tree, store) = (tree.with(fuse), store.with(fuse));
    let whole = || program(&mut Target::open(tree, store, "boot").unwrap());
    match catch_unwind(AssertUnwindSafe(whole)) {
        Ok(Ok(_)) => End::Done,
        Ok(Err(error)) => End::Refused(error),
        Err(_) => End::Stopped,
    }
}

/// No host ever reached a device beyond its rights: before, or in the end.
#[track_caller]
pub(crate) fn assert_never_wider(tree: &FakeTree, allowed: &[&Access], what: &str) {
    let mut wider = BTreeSet::new();
    for access in &tree.state().history {
        wider.extend(
            access.iter().filter(|entry| !allowed.iter().any(|set| set.contains(*entry))).cloned(),
        );
    }
    assert!(wider.is_empty(), "{what}: {wider:?}");
}

/// The access that a wish means.
pub(crate) fn access_of(desired: &Desired, flavor: Flavor) -> Access {
    let tree = FakeTree::new(flavor);
    apply(&tree, &MemoryStore::default(), desired);
    tree.access()
}
