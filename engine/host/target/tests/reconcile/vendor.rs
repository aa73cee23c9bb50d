//! Target offload on a vendor's tree, and what the upstream kernel's tree makes of the wish.

use kvrail_target::{Facts, Offload, Serving, TargetError, plan};

use crate::fake::{FakeTree, Flavor, MemoryStore};
use crate::world::{OFFLOADED, SECOND_PATH, apply, desired, facts, open, wish};

fn refusal(text: &str, facts: &Facts) -> String {
    let error = TargetError::Refused(plan(&wish(text), facts).unwrap_err());
    assert!(!error.remedy().is_empty());
    error.to_string()
}

#[test]
fn one_drive_is_set_up_in_the_documented_order() {
    let (tree, store) = (FakeTree::new(Flavor::Vendor), MemoryStore::default());
    let before = tree.text();
    let steps = apply(&tree, &store, &desired(OFFLOADED, Flavor::Vendor));
    let words: Vec<String> = steps.iter().map(ToString::to_string).collect();
    let order = [
        "mkdir subsystems/nqn.2026-01.org.example:fast",
        "write subsystems/nqn.2026-01.org.example:fast/attr_allow_any_host = 0",
        "write subsystems/nqn.2026-01.org.example:fast/attr_offload = 1",
        "link subsystems/nqn.2026-01.org.example:fast/allowed_hosts/nqn.2026-01.org.example:a",
        "mkdir subsystems/nqn.2026-01.org.example:fast/namespaces/1",
        "/namespaces/1/device_path = /dev/nvme0n1",
        "/namespaces/1/pci_device_path = 0000:01:00.0",
        "/namespaces/1/enable = 1",
        "mkdir ports/1",
        "ports/1/addr_trtype = rdma",
        "ports/1/param_offload_queues = 1",
        "link ports/1/subsystems/nqn.2026-01.org.example:fast",
    ];
    let mut at = 0;
    for step in order {
        let found = words[at..].iter().position(|word| word.contains(step));
        at += found.unwrap_or_else(|| panic!("{step} is not behind {at} of {words:#?}"));
    }
    assert_eq!(at, words.len() - 1, "the opening is the last");
    assert_eq!(tree.text()["subsystems/nqn.2026-01.org.example:fast/attr_offload"], "file 1");
    open(&tree, &store).undo().unwrap();
    assert_eq!(tree.text(), before);
}

#[test]
fn two_paths_take_two_queues() {
    let both = format!("{OFFLOADED}{SECOND_PATH}");
    let (tree, store) = (FakeTree::new(Flavor::Vendor), MemoryStore::default());
    apply(&tree, &store, &desired(OFFLOADED, Flavor::Vendor));
    let steps = apply(&tree, &store, &desired(&both, Flavor::Vendor));
    assert!(steps.iter().all(|step| step.path().starts_with("ports/2")), "{steps:?}");
    assert_eq!(tree.state().devices["/dev/nvme0n1"], 0);
    let wish = wish(&both);
    let mut one_queue = facts(&wish, Flavor::Vendor);
    one_queue.parameters.p2p_queues = Some(1);
    let words = refusal(&both, &one_queue);
    assert!(words.contains("nvme.num_p2p_queues = 1") && words.contains("2 needed"), "{words}");
    let mut few = facts(&wish, Flavor::Vendor);
    few.devices.values_mut().flatten().for_each(|device| device.p2p_queues = Some(1));
    let words = refusal(&both, &few);
    assert!(words.contains("the drive gives no more"), "{words}");
}

#[test]
fn the_upstream_kernel_serves_what_is_preferred_and_refuses_what_is_required() {
    for flavor in [Flavor::Stable, Flavor::Recent] {
        let wished = wish(OFFLOADED);
        let words = refusal(OFFLOADED, &facts(&wished, flavor));
        assert!(words.contains("no attr_offload"), "{words}");
        assert!(words.contains("target.subsystem.0.offload = \"required\""), "{words}");
        let preferred = wish(&OFFLOADED.replace("required", "preferred"));
        for has_memory in [false, true] {
            let mut facts = facts(&preferred, flavor);
            facts
                .devices
                .values_mut()
                .flatten()
                .for_each(|device| device.has_p2p_memory = has_memory);
            let plan = plan(&preferred, &facts).unwrap();
            let outcome = &plan.outcomes[0];
            assert_eq!(outcome.asked, Offload::Preferred);
            assert!(
                matches!(&outcome.serving, Serving::Kernel { why } if why.contains("attr_offload"))
            );
            let through_peer = has_memory && flavor == Flavor::Recent;
            assert_eq!(outcome.p2p_memory, if through_peer { vec![1] } else { vec![] });
            let (tree, store) = (FakeTree::new(flavor), MemoryStore::default());
            apply(&tree, &store, &plan.desired);
            let text = tree.text();
            let path = "subsystems/nqn.2026-01.org.example:fast/namespaces/1/p2pmem";
            assert_eq!(text.get(path).is_some_and(|text| text == "file 1"), through_peer);
        }
    }
}

/// Before any object shows the kernel's attributes, a plan reports them as unknown.
#[test]
fn what_is_not_known_is_said() {
    let wished = wish(OFFLOADED);
    let mut unseen = facts(&wished, Flavor::Vendor);
    unseen.features = None;
    assert_eq!(plan(&wished, &unseen).unwrap().outcomes[0].serving, Serving::Unknown);
    let ready = plan(&wished, &facts(&wished, Flavor::Vendor)).unwrap();
    assert_eq!(ready.outcomes[0].serving, Serving::Offloaded);
}

type Spoil = fn(&mut Facts);

/// A violated rule, and the words of its refusal.
const RULES: [(&str, Spoil, &[&str]); 9] = [
    (
        "no parameter",
        |facts| facts.parameters.p2p_queues = None,
        &["num_p2p_queues = none", "vendor"],
    ),
    (
        "no queue",
        |facts| facts.parameters.p2p_queues = Some(0),
        &["num_p2p_queues = 0", "1 needed"],
    ),
    (
        "no queue left",
        |facts| facts.devices.values_mut().flatten().for_each(|device| device.p2p_queues = Some(0)),
        &["/dev/nvme0n1/num_p2p_queues = 0"],
    ),
    (
        "a fabrics drive",
        |facts| facts.devices.values_mut().flatten().for_each(|device| device.pci = None),
        &["not on this host's PCIe"],
    ),
    (
        "no size",
        |facts| facts.parameters.staging_start = Some(0xf_0000_0000),
        &["nvmet_rdma.offload_mem_size = 0"],
    ),
    ("no buffers", |facts| staging(facts, 2048, 0), &["nvmet_rdma.offload_buffer_size = 0 KiB"]),
    ("odd buffers", |facts| staging(facts, 1, 768), &["offload_buffer_size = 768 KiB", "multiple"]),
    (
        "used memory",
        |facts| {
            staging(facts, 2048, 512);
            facts.memory = vec![0x1000..0x9_f000, 0xe_0000_0000..0xf_0000_1000];
        },
        &["offload_mem_start = 0xf00000000", "does not use", "0xe00000000"],
    ),
    (
        "the kernel lacks it",
        |facts| facts.features.as_mut().unwrap().subsystem.clear(),
        &["no attr_offload"],
    ),
];

#[test]
fn every_rule_of_offload_has_its_sentence() {
    for (what, spoil, parts) in RULES {
        let wished = wish(OFFLOADED);
        let mut spoilt = facts(&wished, Flavor::Vendor);
        spoil(&mut spoilt);
        let words = refusal(OFFLOADED, &spoilt);
        for part in parts {
            assert!(words.contains(part), "{what} lacks {part:?}: {words}");
        }
        // Preferred: the kernel serves it, and the outcome has the sentence.
        if what != "the kernel lacks it" {
            let preferred = wish(
                &OFFLOADED.replace("required", "preferred").replace("offload_queues = 1\n", ""),
            );
            let plan = plan(&preferred, &spoilt).unwrap();
            assert!(matches!(plan.outcomes[0].serving, Serving::Kernel { .. }), "{what}");
        }
    }
    let wished = wish(OFFLOADED);
    let mut good = facts(&wished, Flavor::Vendor);
    staging(&mut good, 2048, 512);
    good.memory = vec![0x1000..0x9_f000, 0x10_0000..0xf_0000_0000];
    let notes = plan(&wished, &good).unwrap().notes.concat();
    assert!(notes.contains("2 queue(s) of each drive"), "{notes}");
    assert!(notes.contains("2048 MiB at 0xf00000000, in buffers of 512 KiB"), "{notes}");
    let plain = plan(&wished, &facts(&wished, Flavor::Vendor)).unwrap().notes.concat();
    assert!(plain.contains("offload_mem_start of nvmet_rdma would set some aside"), "{plain}");
}

fn staging(facts: &mut Facts, mib: u64, buffer_kib: u64) {
    facts.parameters.staging_start = Some(0xf_0000_0000);
    facts.parameters.staging_mib = Some(mib);
    facts.parameters.staging_buffer_kib = Some(buffer_kib);
}

/// The kernel's word is final: a second subsystem at an offloaded port.
#[test]
fn the_tree_itself_keeps_one_link() {
    use kvrail_target::Tree;
    let (mut tree, store) = (FakeTree::new(Flavor::Vendor), MemoryStore::default());
    apply(&tree, &store, &desired(OFFLOADED, Flavor::Vendor));
    tree.make_dir("subsystems/nqn.2020-01.org.other:s").unwrap();
    let link = "ports/1/subsystems/nqn.2020-01.org.other:s";
    let error = tree.link(link, "subsystems/nqn.2020-01.org.other:s").unwrap_err();
    assert_eq!(error, rustix::io::Errno::BUSY);
}
