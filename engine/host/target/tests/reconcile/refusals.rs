//! Wishes and hosts that must be refused: each with key, value, rule and remedy, and nothing done.

mod wishes;

use kvrail_target::{ErrorClass, Facts, TargetError, Unusable, check, plan};

use self::wishes::{Edit, LONG, TEXTS, WISHES};
use crate::fake::{FakeTree, Flavor, MemoryStore};
use crate::world::{KEY, facts, open, wish};

/// A good wish; the cases spoil it.
const GOOD: &str = r#"
[[host]]
nqn = "nqn.2026-01.org.example:a"
dhchap_key_file = "/keys/a"
[[subsystem]]
nqn = "nqn.2026-01.org.example:kv0"
hosts = ["nqn.2026-01.org.example:a"]
offload = "preferred"
serial = "S1"
qid_max = 8
cntlid_min = 1
cntlid_max = 100
[[subsystem.namespace]]
nsid = 1
device = "pci:0000:01:00.0/1"
ana_group = 1
[[subsystem]]
nqn = "nqn.2026-01.org.example:kv1"
hosts = ["nqn.2026-01.org.example:b"]
[[subsystem.namespace]]
nsid = 1
device = "serial:B/1"
[[port]]
id = 1
transport = "rdma"
address = "192.0.2.1"
service = 4420
subsystems = ["nqn.2026-01.org.example:kv0"]
[[port]]
id = 2
transport = "tcp"
address = "192.0.2.2"
subsystems = ["nqn.2026-01.org.example:kv1"]
ana = [{ group = 1, state = "optimized" }]
"#;

type Spoil = fn(&mut Facts, &mut FakeTree);

/// Good wishes, bad hosts.
const HOSTS: &[(&str, Spoil, &[&str])] = &[
    (
        "the device is gone",
        |facts, _| device_is(facts, "no NVMe namespace of this host is that"),
        &["target.subsystem.0.namespace.0.device = pci:0000:01:00.0/1", "no NVMe namespace"],
    ),
    (
        "two names, one device",
        |facts, _| {
            let same = facts.devices["pci:0000:01:00.0/1"].clone();
            facts.devices.insert("serial:B/1".into(), same);
        },
        &["target.subsystem.1.namespace.0.device", "exports it already, under another name"],
    ),
    (
        "a key that cannot be read",
        |facts, _| key_is(facts, "it cannot be read (No such file or directory)"),
        &["target.host.0.dhchap_key_file = /keys/a", "cannot be read"],
    ),
    (
        "a kernel without keys",
        |facts, _| {
            facts.features.as_mut().unwrap().host.clear();
        },
        &["target.host.0.dhchap_key_file", "no attribute dhchap_key", "CONFIG_NVME_TARGET_AUTH"],
    ),
    (
        "a kernel without qid_max",
        |facts, _| {
            facts.features.as_mut().unwrap().subsystem.remove("attr_qid_max");
        },
        &["target.subsystem.0.qid_max = 8", "no attribute attr_qid_max"],
    ),
    (
        "an address without an owner",
        |facts, _| address_is(facts, "no network interface of this host has it"),
        &["target.port.0.address = 192.0.2.1", "no network interface"],
    ),
    (
        "an address of no RDMA device",
        |facts, _| address_is(facts, "no RDMA device of this host has it (mlx5_0)"),
        &["target.port.0.address = 192.0.2.1", "no RDMA device"],
    ),
    (
        "an address in use, seen before",
        |facts, _| address_is(facts, "something else listens at its service 4420"),
        &["something else listens"],
    ),
    (
        "an address in use, seen when opening",
        |_, tree| {
            tree.state().listening.insert("tcp 192.0.2.2 4420".into());
        },
        &["link ports/2/subsystems", "something else listens", "ss -ltnp", "rolled back"],
    ),
    (
        "an address that went",
        |_, tree| {
            tree.state().addresses.remove("192.0.2.2");
        },
        &["not on this host", "rolled back"],
    ),
    (
        "an address that left its RDMA device",
        |_, tree| {
            tree.state().addresses.remove("rdma 192.0.2.1");
        },
        &["no RDMA device has the port's address", "rdma link"],
    ),
    (
        "a device that went meanwhile",
        |_, tree| {
            tree.state().devices.remove("/dev/nvme1n1");
        },
        &["kv1/namespaces/1/enable", "the device behind the namespace is gone", "rolled back"],
    ),
    (
        "a transport's module is missing",
        |_, tree| {
            tree.state().modules.remove("nvmet_rdma");
            tree.state().loadable.remove("nvmet_rdma");
        },
        &["modprobe nvmet_rdma", "cannot be loaded", "CONFIG_NVME_TARGET_RDMA"],
    ),
    (
        "configfs is not mounted",
        |_, tree| tree.state().is_mounted = false,
        &["the nvmet tree", "configfs is not mounted", "mount -t configfs none"],
    ),
    (
        "not root",
        |_, tree| tree.state().is_root = false,
        &["mkdir hosts/", "does not let this user do it", "run as root", "as it was"],
    ),
    (
        "nvmet is missing",
        |_, tree| {
            tree.state().modules.remove("nvmet");
            tree.state().loadable.remove("nvmet");
        },
        &[
            "the nvmet tree",
            "configfs is not mounted, or the module nvmet is not loaded",
            "mount -t",
        ],
    ),
    (
        "the subsystem's name is taken",
        |_, tree| make(tree, "subsystems/nqn.2026-01.org.example:kv0"),
        &["subsystems/nqn.2026-01.org.example:kv0 = present", "kvrail did not make it"],
    ),
    (
        "the port's number is taken",
        |_, tree| make(tree, "ports/2"),
        &["ports/2 = present", "kvrail did not make it"],
    ),
    (
        "the host's name is taken",
        |_, tree| make(tree, "hosts/nqn.2026-01.org.example:b"),
        &["hosts/nqn.2026-01.org.example:b = present"],
    ),
    (
        "the address is another target's",
        |_, tree| {
            make(tree, "ports/7");
            let values =
                [("addr_trtype", "tcp"), ("addr_traddr", "192.0.2.2"), ("addr_trsvcid", "4420")];
            set(tree, "ports/7", &values);
        },
        &["ports/2 = 192.0.2.2 4420", "ports/7, which kvrail did not make, listens there"],
    ),
    (
        "the device is another target's",
        |_, tree| {
            make(tree, "subsystems/nqn.2020-01.org.other:s");
            make(tree, "subsystems/nqn.2020-01.org.other:s/namespaces/1");
            let path = "subsystems/nqn.2020-01.org.other:s/namespaces/1";
            set(tree, path, &[("device_path", "/dev/nvme1n1")]);
        },
        &["kv1/namespaces/1 = /dev/nvme1n1", "which kvrail did not make, exports it"],
    ),
];

fn device_is(facts: &mut Facts, rule: &str) {
    let bad = Unusable { rule: rule.into(), remedy: "attach it".into() };
    facts.devices.insert("pci:0000:01:00.0/1".into(), Err(bad));
}

fn key_is(facts: &mut Facts, rule: &str) {
    let bad = Unusable { rule: rule.into(), remedy: "make it readable".into() };
    facts.keys.insert("/keys/a".into(), Err(bad));
}

fn address_is(facts: &mut Facts, rule: &str) {
    let bad = Unusable { rule: rule.into(), remedy: "see `ip address`".into() };
    facts.addresses.insert(1, Err(bad));
}

fn make(tree: &mut FakeTree, path: &str) {
    kvrail_target::Tree::make_dir(tree, path).unwrap();
}

fn set(tree: &mut FakeTree, path: &str, values: &[(&str, &str)]) {
    for (name, value) in values {
        kvrail_target::Tree::write(tree, &format!("{path}/{name}"), value).unwrap();
    }
}

fn edited((from, to, _): &Edit) -> String {
    assert!(GOOD.contains(from), "{from:?} is not there to replace");
    GOOD.replacen(from, &to.replace("LONG", LONG), 1)
}

#[track_caller]
fn says(words: &str, parts: &[&str], case: &str) {
    for part in parts {
        assert!(words.contains(part), "{case}\nlacks {part:?}:\n{words}");
    }
}

#[test]
fn the_good_wish_is_good() {
    assert_eq!(LONG.len(), 224);
    let good = wish(GOOD);
    assert_eq!(check(&good), []);
    let plan = plan(&good, &facts(&good, Flavor::Stable)).unwrap();
    let (tree, store) = (FakeTree::new(Flavor::Stable), MemoryStore::default());
    open(&tree, &store).apply(&plan.desired).unwrap();
}

#[test]
fn bad_wishes_are_refused_on_any_host() {
    for case in WISHES {
        let text = edited(case);
        let bad = wish(&text);
        let problems = check(&bad);
        assert!(!problems.is_empty(), "taken: {case:?}");
        for problem in &problems {
            assert_eq!(problem.class, ErrorClass::Usage);
            let all = [&problem.key, &problem.rule, &problem.remedy];
            assert!(all.iter().all(|part| !part.is_empty()), "{problem:?}");
            assert!(problem.key.starts_with("target."), "{problem:?}");
        }
        let error = TargetError::Refused(problems);
        assert_eq!(error.class(), ErrorClass::Usage);
        says(&error.to_string(), case.2, &text);
        assert!(plan(&bad, &Facts::default()).is_err(), "a plan takes what the check refuses");
    }
}

#[test]
fn bad_texts_are_refused_by_the_parser() {
    for case in TEXTS {
        let text = edited(case);
        match toml::from_str::<kvrail_target::TargetSpec>(&text) {
            Ok(_) => panic!("taken: {case:?}"),
            Err(error) => says(&error.to_string(), case.2, &text),
        }
    }
}

#[test]
fn bad_hosts_are_refused_with_nothing_half_done() {
    let good = wish(GOOD);
    for (case, spoil, parts) in HOSTS {
        let (mut tree, store) = (FakeTree::new(Flavor::Stable), MemoryStore::default());
        let mut facts = facts(&good, Flavor::Stable);
        spoil(&mut facts, &mut tree);
        let before = tree.text();
        let planned = plan(&good, &facts).map_err(TargetError::Refused);
        let result = planned.and_then(|plan| open(&tree, &store).apply(&plan.desired));
        let error = result.expect_err(case);
        says(&format!("{error} {}", error.remedy()), parts, case);
        assert!(!error.remedy().is_empty(), "{case}");
        assert_ne!(error.class(), ErrorClass::Usage, "{case}");
        assert_eq!(tree.text(), before, "{case}");
        assert!(tree.access().is_empty(), "{case}");
    }
}

#[test]
fn bad_keys_are_told_from_good_ones() {
    use kvrail_target::DhchapKey;
    assert!(DhchapKey::parse(&format!("{KEY}\n")).is_ok());
    let short = "DHHC-1:00:abc:";
    let spaced = format!("DHHC-1:00:{}:", " ".repeat(50));
    for bad in ["", "secret", "DHHC-1:", short, &KEY[..KEY.len() - 1], &spaced, &format!("{KEY}x")]
    {
        let refused = DhchapKey::parse(bad).unwrap_err();
        assert!(refused.rule.contains("DHHC-1:NN") && refused.remedy.contains("gen-dhchap-key"));
        assert!(bad.len() < 10 || !refused.rule.contains(bad), "a key is shown");
    }
}

#[test]
fn there_are_enough_cases() {
    let cases = WISHES.len() + TEXTS.len() + HOSTS.len();
    assert!(cases >= 100, "{cases}");
}
