//! Selectors on made-up hosts: each form, names swapped between boots, and every refusal.

use std::path::Path;

use crate::fake::{Fake, Slot};
use kvrail_nvme::{Namespace, NvmeHost, Selector, SelectorError, paths, resolve};

const A: Slot<'_> = Slot { name: "nvme0", pci: "0000:3b:00.0", serial: "S6A" };
const B: Slot<'_> = Slot { name: "nvme1", pci: "0000:5e:00.0", serial: "S6B" };

fn select(fake: &Fake, text: &str) -> Result<Namespace, SelectorError> {
    resolve(&text.parse::<Selector>().unwrap(), &fake.root())
}

fn named(fake: &Fake, text: &str) -> String {
    select(fake, text).unwrap_or_else(|why| panic!("{text}: {why}")).name
}

fn refused(fake: &Fake, text: &str) -> String {
    match select(fake, text) {
        Ok(namespace) => panic!("{text}: {}", namespace.name),
        Err(why) => why.to_string(),
    }
}

/// Two drives; the second one has two namespaces.
fn host(first: Slot<'_>, second: Slot<'_>) -> Fake {
    let fake = Fake::new();
    for slot in [first, second] {
        fake.controller(slot);
        fake.namespace(slot, &format!("{}n1", slot.name), 1, &format!("nvme.{}-1", slot.serial));
    }
    fake.namespace(second, &format!("{}n2", second.name), 2, "uuid.0f-1");
    let node = format!("../../{}n2", second.name);
    fake.link("dev/disk/by-id/nvme-uuid.0f-1", Path::new(&node));
    fake
}

#[test]
fn each_form_finds_its_namespace() {
    let fake = host(A, B);
    for (selector, name) in [
        ("pci:0000:3b:00.0", "nvme0n1"),
        ("pci:3b:00.0/1", "nvme0n1"),
        ("pci:0000:5e:00.0/2", "nvme1n2"),
        ("serial:S6A", "nvme0n1"),
        ("serial:S6B/2", "nvme1n2"),
        ("wwid:uuid.0F-1", "nvme1n2"),
        ("wwid:nvme.s6a-1", "nvme0n1"),
        ("/dev/disk/by-id/nvme-uuid.0f-1", "nvme1n2"),
        ("/dev/nvme1n1", "nvme1n1"),
        ("/dev/ng1n1", "nvme1n1"),
    ] {
        assert_eq!(named(&fake, selector), name, "{selector}");
    }
    let found = select(&fake, "serial:S6B/2").unwrap();
    let root = fake.root();
    assert_eq!((found.nsid, found.controllers.len()), (2, 1));
    assert_eq!(found.block_node, Some(root.path("/dev/nvme1n2")));
    assert_eq!(found.char_node, Some(root.path("/dev/ng1n2")));
    let controller = &found.controllers[0];
    assert_eq!((controller.model.as_str(), controller.firmware.as_str()), ("Example Drive", "1.0"));
    assert_eq!(controller.pci.unwrap().to_string(), "0000:5e:00.0");
}

#[test]
fn names_swapped_between_boots_are_found_again() {
    let swapped = host(Slot { name: "nvme0", ..B }, Slot { name: "nvme1", ..A });
    for (selector, before, after) in [
        ("pci:0000:3b:00.0/1", "nvme0n1", "nvme1n1"),
        ("serial:S6B/1", "nvme1n1", "nvme0n1"),
        ("wwid:nvme.s6a-1", "nvme0n1", "nvme1n1"),
    ] {
        assert_eq!(named(&host(A, B), selector), before);
        assert_eq!(named(&swapped, selector), after);
    }
}

#[test]
fn a_shared_namespace_is_its_head_through_either_controller() {
    let fake = Fake::new();
    let other = Slot { serial: "S6A", ..B };
    for slot in [A, other] {
        fake.controller(slot);
    }
    fake.shared(&[A, other], 0, 1);
    for selector in ["pci:3b:00.0", "pci:5e:00.0", "serial:S6A", "wwid:eui.0025385b71b0a1b2"] {
        assert_eq!(named(&fake, selector), "nvme0n1", "{selector}");
    }
    let found = select(&fake, "serial:S6A").unwrap();
    let through: Vec<&str> =
        found.controllers.iter().map(|controller| controller.name.as_str()).collect();
    assert_eq!(through, ["nvme0", "nvme1"]);
    assert_eq!(found.char_node, Some(fake.root().path("/dev/ng0n1")));
    fake.put("dev/nvme0c1n1", "");
    assert!(refused(&fake, "/dev/nvme0c1n1").contains("name nvme0n1"));
}

#[test]
fn several_candidates_are_named() {
    let fake = host(A, Slot { serial: "S6A", ..B });
    let why = refused(&fake, "pci:5e:00.0");
    assert!(why.contains("2 namespaces") && why.contains("add /NSID"), "{why}");
    assert!(why.contains("pci:0000:5e:00.0/1") && why.contains("pci:0000:5e:00.0/2"), "{why}");
    let why = refused(&fake, "serial:S6A/1");
    assert!(why.contains("pci:0000:3b:00.0/1") && why.contains("PCIe address"), "{why}");
    assert!(!why.contains("nvme1n2"), "{why}");
}

#[test]
fn what_is_not_there_is_answered_with_what_is() {
    let fake = host(A, B);
    for selector in ["pci:ff:00.0", "pci:3b:00.0/2", "serial:S6C", "wwid:eui.00"] {
        let why = refused(&fake, selector);
        assert!(why.contains("nvme0n1 (pci:0000:3b:00.0/1 serial:S6A/1 wwid:nvme.s6a-1)"), "{why}");
    }
    assert!(refused(&Fake::new(), "serial:S6A").contains("it has none"));
}

#[test]
fn paths_to_something_else_are_told_apart() {
    let fake = host(A, B);
    fake.partition(A, "nvme0n1", "nvme0n1p1");
    fake.put("dev/sda", "");
    fake.put("data/kv.img", "");
    for (path, words) in [
        ("/dev/nvme0n1p1", "partition of nvme0n1"),
        ("/dev/nvme1", "is a controller, no namespace; name one of nvme1n1"),
        ("/dev/sda", "leads to sda, which is no NVMe device"),
        ("/data/kv.img", "it is no device"),
        ("/dev/nvme7n1", "not found"),
        ("/dev/disk/by-id/nvme-gone", "not found"),
    ] {
        let why = refused(&fake, path);
        assert!(why.starts_with(path) && why.contains(words), "{why}");
    }
}

#[test]
fn a_file_that_the_kernel_never_writes_so_is_named() {
    let fake = host(A, B);
    fake.put("sys/devices/pci0000:00/0000:3b:00.0/nvme/nvme0/nvme0n1/nsid", "one\n");
    assert!(refused(&fake, "serial:S6A").contains("nvme0n1/nsid: `one`"));
}

#[test]
fn a_namespace_without_a_disk_has_no_block_node() {
    let fake = host(A, B);
    fake.put("sys/devices/pci0000:00/0000:3b:00.0/nvme/nvme0/nvme0n1/hidden", "1\n");
    let found = select(&fake, "serial:S6A").unwrap();
    assert!(found.block_node.is_none() && found.char_node.is_some());
}

#[test]
fn names_are_sorted_by_number() {
    let fake = Fake::new();
    for name in ["nvme10", "nvme9"] {
        fake.controller(Slot { name, ..A });
        fake.namespace(Slot { name, ..A }, &format!("{name}n1"), 1, name);
    }
    let host = NvmeHost::read(&fake.root()).unwrap();
    let names: Vec<_> = host.namespaces.iter().map(|namespace| namespace.name.as_str()).collect();
    assert_eq!(names, ["nvme9n1", "nvme10n1"]);
}

/// As the kernel has it: a state stands below the hidden path of its controller.
#[test]
fn the_paths_to_a_device_have_the_states_of_their_controllers() {
    let fake = host(A, B);
    let other = Slot { name: "nvme2", pci: "0000:5f:00.0", serial: "S6A" };
    let third = Slot { name: "nvme3", pci: "0000:60:00.0", serial: "S6A" };
    for slot in [other, third] {
        fake.controller(slot);
    }
    fake.shared(&[other, third], 7, 1);
    let hidden = "sys/devices/pci0000:00/0000:60:00.0/nvme/nvme3";
    fake.put(&format!("{hidden}/nvme7c3n1/ana_state"), "inaccessible\n");
    fake.put(&format!("{hidden}/state"), "connecting\n");
    let found = |node: &str| {
        let named = paths(&fake.root(), node).into_iter().map(|path| {
            let controller = path.controller;
            (controller.name, controller.transport, controller.state, path.ana_state)
        });
        named.collect::<Vec<_>>()
    };
    let path = |name: &str, state: &str, ana: Option<&str>| {
        (name.to_owned(), "pcie".to_owned(), state.to_owned(), ana.map(str::to_owned))
    };
    let both = [path("nvme2", "live", None), path("nvme3", "connecting", Some("inaccessible"))];
    assert_eq!(found("/dev/nvme7n1"), both);
    // Without native multipath the device hangs below its controller.
    assert_eq!(found("/dev/nvme1n2"), [path("nvme1", "live", None)]);
    for none in ["/dev/nvme7n2", "/dev/vda", "nvme7n1", ""] {
        assert_eq!(found(none), [], "{none}");
    }
}
