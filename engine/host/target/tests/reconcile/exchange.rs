//! nvmetcli's JSON, there and back.

use kvrail_nvme::Selector;
use kvrail_target::{Snapshot, everything, export, import, plan};
use serde_json::{Value, json};

use crate::fake::{FakeTree, Flavor, MemoryStore};
use crate::world::{CHANGED, KEY, OFFLOADED, ORDINARY, apply, desired, facts};

/// The devices of the made-up host by their nodes.
fn named(path: &str) -> Result<Selector, String> {
    let name = match path {
        "/dev/nvme0n1" => "pci:0000:01:00.0/1",
        "/dev/nvme0n2" => "pci:0000:01:00.0/2",
        "/dev/nvme1n1" => "serial:B/1",
        "/dev/nvme2n1" => "pci:0000:03:00.0",
        _ => return Err("it is no NVMe namespace of this host".into()),
    };
    Ok(name.parse().unwrap())
}

#[test]
fn what_is_exported_is_imported_as_the_same_plan() {
    let keyless = ORDINARY.replace("dhchap_hash = \"hmac(sha512)\"\n", "");
    let start = keyless.find("[[subsystem]]").unwrap();
    for (text, flavor) in [
        (&keyless[start..], Flavor::Stable),
        (CHANGED, Flavor::Recent),
        (OFFLOADED, Flavor::Vendor),
    ] {
        let planned = desired(text, flavor);
        let saved = export(&planned);
        let imported = import(&saved, &named).unwrap();
        assert_eq!(imported.notes, [""; 0]);
        let again = plan(&imported.wish, &facts(&imported.wish, flavor)).unwrap();
        assert_eq!(export(&again.desired), saved);
        let (tree, other) = (FakeTree::new(flavor), FakeTree::new(flavor));
        apply(&tree, &MemoryStore::default(), &planned);
        apply(&other, &MemoryStore::default(), &again.desired);
        assert_eq!(tree.text(), other.text());
    }
}

/// A whole tree, saved in the form of `nvmetcli save`, leads to an equal one.
#[test]
fn a_tree_is_saved_and_made_again() {
    let flavor = Flavor::Stable;
    let tree = FakeTree::new(flavor);
    apply(&tree, &MemoryStore::default(), &desired(CHANGED, flavor));
    let saved = export(&everything(&Snapshot::read(&tree).unwrap()));
    let imported = import(&saved, &named).unwrap();
    let again = plan(&imported.wish, &facts(&imported.wish, flavor)).unwrap();
    let other = FakeTree::new(flavor);
    apply(&other, &MemoryStore::default(), &again.desired);
    assert_eq!(export(&everything(&Snapshot::read(&other).unwrap())), saved);
}

#[test]
fn keys_do_not_travel() {
    let tree = FakeTree::new(Flavor::Stable);
    let planned = desired(ORDINARY, Flavor::Stable);
    apply(&tree, &MemoryStore::default(), &planned);
    let live = export(&everything(&Snapshot::read(&tree).unwrap()));
    for text in [export(&planned).to_string(), live.to_string()] {
        assert!(!text.contains(KEY), "{text}");
    }
}

/// In the form that nvmetcli's own examples have.
fn saved() -> Value {
    json!({
        "hosts": [{ "nqn": "nqn.2026-01.org.example:h" }],
        "ports": [{
            "addr": { "adrfam": "ipv4", "traddr": "192.0.2.2", "treq": "not specified",
                      "trsvcid": "4420", "trtype": "tcp" },
            "ana_groups": [{ "ana": { "state": "optimized" }, "grpid": 1 }],
            "param": { "inline_data_size": "16384", "pi_enable": "0" },
            "portid": 1,
            "referrals": [],
            "subsystems": ["nqn.2026-01.org.example:s"]
        }],
        "subsystems": [{
            "allowed_hosts": ["nqn.2026-01.org.example:h"],
            "attr": { "allow_any_host": "0", "cntlid_max": "65519", "cntlid_min": "1",
                      "model": "Linux", "pi_enable": "0", "serial": "123456789abcdef",
                      "version": "1.3" },
            "namespaces": [{
                "ana_grpid": 1,
                "device": { "nguid": "00000000-0000-0000-0000-000000000000",
                            "path": "/dev/nvme0n1",
                            "uuid": "d592cdf3-5d1c-44e0-8412-3fcf7d99df27" },
                "enable": 1,
                "nsid": 1
            }],
            "nqn": "nqn.2026-01.org.example:s"
        }]
    })
}

#[test]
fn a_saved_file_becomes_a_wish() {
    let imported = import(&saved(), &named).unwrap();
    assert_eq!(imported.notes, [""; 0]);
    let wish = &imported.wish;
    let text = toml::to_string(wish).unwrap();
    for line in [
        "nqn = \"nqn.2026-01.org.example:s\"",
        "serial = \"123456789abcdef\"",
        "device = \"pci:0000:01:00.0/1\"",
        "uuid = \"d592cdf3-5d1c-44e0-8412-3fcf7d99df27\"",
        "inline_data_bytes = 16384",
        "service = 4420",
    ] {
        assert!(text.contains(line), "lacks {line}:\n{text}");
    }
    assert!(!text.contains("cntlid") && !text.contains("model") && !text.contains("nguid"));
    assert_eq!(toml::from_str::<kvrail_target::TargetSpec>(&text).unwrap(), *wish);
    assert!(plan(wish, &facts(wish, Flavor::Stable)).is_ok());
}

#[test]
fn what_cannot_be_taken_over_is_named() {
    let spoilt = |pointer: &str, value: Value| {
        let mut saved = saved();
        *saved.pointer_mut(pointer).unwrap() = value;
        import(&saved, &named)
    };
    let refused = |pointer: &str, value: Value, part: &str| {
        let problems = spoilt(pointer, value).unwrap_err();
        let words: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(words.concat().contains(part), "{words:?}");
    };
    refused("/ports/0/addr/trtype", json!("fc"), "ports.0.addr.trtype = fc");
    refused("/ports/0/addr/traddr", json!("nn-0x1"), "ports.0.addr.traddr = nn-0x1");
    refused("/ports/0/ana_groups/0/ana/state", json!("fine"), "no ANA state");
    let path = "/subsystems/0/namespaces/0/device/path";
    refused(path, json!("/dev/sda"), "subsystems.0.namespaces.0.device.path = /dev/sda");
    refused("/subsystems", json!([]), "no subsystem");
    let noted = |pointer: &str, value: Value, part: &str| {
        let notes = spoilt(pointer, value).unwrap().notes;
        assert!(notes.concat().contains(part), "{notes:?}");
    };
    noted("/ports/0/addr/treq", json!("required"), "ports.0.addr.treq = required");
    noted("/ports/0/param/pi_enable", json!("1"), "ports.0.param.pi_enable = 1");
    noted("/ports/0/referrals", json!([{}]), "ports.0.referrals");
    noted("/subsystems/0/namespaces/0/enable", json!(0), "is disabled");
}
