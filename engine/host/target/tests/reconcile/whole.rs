//! Apply, look, undo.

use kvrail_target::{Desired, FileStore, RecordStore, Snapshot, Target};

use crate::fake::{FakeTree, Flavor, MemoryStore};
use crate::world::{
    CHANGED, KEY, ORDINARY, access_of, apply, assert_never_wider, desired, open, wish,
};

const FLAVORS: [Flavor; 3] = [Flavor::Stable, Flavor::Recent, Flavor::Vendor];

/// A foreign target in the same tree.
pub(crate) fn strangers(tree: &FakeTree) {
    use kvrail_target::Tree;
    let mut tree = tree.clone();
    let subsystem = "subsystems/nqn.2020-01.org.other:s";
    for path in ["hosts/nqn.2020-01.org.other:h", subsystem, "ports/9"] {
        tree.make_dir(path).unwrap();
    }
    tree.make_dir(&format!("{subsystem}/namespaces/1")).unwrap();
    tree.write(&format!("{subsystem}/namespaces/1/device_path"), "/dev/nvme0n2").unwrap();
    tree.write(&format!("{subsystem}/namespaces/1/enable"), "1").unwrap();
    let host = "hosts/nqn.2020-01.org.other:h";
    let link = format!("{subsystem}/allowed_hosts/nqn.2020-01.org.other:h");
    tree.link(&link, host).unwrap();
    for (name, value) in
        [("addr_trtype", "tcp"), ("addr_traddr", "192.0.2.1"), ("addr_trsvcid", "99")]
    {
        tree.write(&format!("ports/9/{name}"), value).unwrap();
    }
    tree.link("ports/9/subsystems/nqn.2020-01.org.other:s", subsystem).unwrap();
    tree.state().history.clear();
}

/// `config/examples` as this host and the vendor's can have them.
#[test]
fn the_examples_are_made_and_undone() {
    for (text, flavor) in [
        (include_str!("../../../../../config/examples/target.toml"), Flavor::Recent),
        (include_str!("../../../../../config/examples/target-offload.toml"), Flavor::Vendor),
    ] {
        let (tree, store) = (FakeTree::new(flavor), MemoryStore::default());
        let before = tree.text();
        let steps = apply(&tree, &store, &desired(&text.replace("[[target.", "[["), flavor));
        assert!(steps.last().is_some_and(|step| step.path().starts_with("ports/")), "{steps:?}");
        open(&tree, &store).undo().unwrap();
        assert_eq!(tree.text(), before);
    }
}

#[test]
fn what_is_applied_is_there_and_undo_leaves_no_trace() {
    for flavor in FLAVORS {
        let (tree, store) = (FakeTree::new(flavor), MemoryStore::default());
        strangers(&tree);
        let before = tree.text();
        let plan = desired(ORDINARY, flavor);
        let steps = apply(&tree, &store, &plan);
        assert!(steps.len() > 50, "{steps:?}");
        let text = tree.text();
        let is = |path: &str, value: &str| assert_eq!(text[path], value, "{path}");
        let kv0 = "subsystems/nqn.2026-01.org.example:kv0";
        is("hosts/nqn.2026-01.org.example:a/dhchap_key", &format!("file {KEY}"));
        is("hosts/nqn.2026-01.org.example:a/dhchap_hash", "file hmac(sha512)");
        is(&format!("{kv0}/attr_allow_any_host"), "file 0");
        is(&format!("{kv0}/attr_model"), "file kv");
        is(&format!("{kv0}/namespaces/1/device_path"), "file /dev/nvme0n1");
        is(&format!("{kv0}/namespaces/1/enable"), "file 1");
        is(&format!("{kv0}/namespaces/1/ana_grpid"), "file 2");
        is("ports/1/ana_groups/1/ana_state", "file non-optimized");
        is("ports/1/ana_groups/2/ana_state", "file optimized");
        is("ports/1/param_inline_data_size", "file 4096");
        is("ports/2/addr_trsvcid", "file 4421");
        is("ports/2/subsystems/nqn.2026-01.org.example:kv0", &format!("link to {kv0}"));
        let access: Vec<_> = tree.access().into_iter().collect();
        let has = |host: &str, device: &str| {
            access.contains(&(format!("hosts/nqn.2026-01.org.example:{host}"), device.into()))
        };
        assert!(has("a", "/dev/nvme0n1") && has("b", "/dev/nvme2n1"));
        assert!(!has("a", "/dev/nvme2n1"), "kv1 is for b alone");
        assert!(apply(&tree, &store, &plan).is_empty(), "a second apply has nothing to do");
        open(&tree, &store).undo().unwrap();
        assert_eq!(tree.text(), before);
    }
}

#[test]
fn one_wish_becomes_another_without_a_moment_of_more() {
    let flavor = Flavor::Recent;
    let (old, new) = (desired(ORDINARY, flavor), desired(CHANGED, flavor));
    for (from, to) in [(&old, &new), (&new, &old)] {
        let (tree, store) = (FakeTree::new(flavor), MemoryStore::default());
        strangers(&tree);
        let foreign = tree.access();
        apply(&tree, &store, from);
        let before = tree.access();
        apply(&tree, &store, to);
        let whole = FakeTree::new(flavor);
        strangers(&whole);
        apply(&whole, &MemoryStore::default(), to);
        assert_eq!(tree.text(), whole.text(), "as if it had been made at once");
        assert_never_wider(&tree, &[&foreign, &before, &access_of(to, flavor)], "change");
    }
}

#[test]
fn what_differs_a_little_changes_a_little() {
    let flavor = Flavor::Stable;
    let (tree, store) = (FakeTree::new(flavor), MemoryStore::default());
    apply(&tree, &store, &desired(ORDINARY, flavor));
    let change = |from: &str, to: &str| {
        assert!(ORDINARY.contains(from), "{from}");
        let steps = apply(&tree, &store, &desired(&ORDINARY.replacen(from, to, 1), flavor));
        apply(&tree, &store, &desired(ORDINARY, flavor));
        steps.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let states = change("state = \"non-optimized\" }, {", "state = \"inaccessible\" }, {");
    assert_eq!(states, ["write ports/1/ana_groups/1/ana_state = inaccessible"]);
    let group = change("ana_group = 2", "ana_group = 1");
    assert_eq!(group.len(), 1, "{group:?}");
    // A new host interrupts no other; a removed one loses its connections with its place.
    let kv1 = "hosts = [\"nqn.2026-01.org.example:b\"]";
    let both = "hosts = [\"nqn.2026-01.org.example:b\", \"nqn.2026-01.org.example:a\"]";
    let comes = change(kv1, both);
    assert_eq!(comes.len(), 1, "{comes:?}");
    let leaves = change(
        "hosts = [\"nqn.2026-01.org.example:a\", \"nqn.2026-01.org.example:b\"]",
        "hosts = [\"nqn.2026-01.org.example:b\"]",
    );
    let opening = leaves.iter().position(|step| step.starts_with("unlink ports/1/")).unwrap();
    let leaving = leaves.iter().position(|step| step.contains("allowed_hosts")).unwrap();
    assert!(opening < leaving, "{leaves:?}");
    assert!(leaves.last().unwrap().starts_with("link ports/"), "{leaves:?}");
}

#[test]
fn objects_of_another_boot_are_not_ours() {
    let flavor = Flavor::Stable;
    let (tree, store) = (FakeTree::new(flavor), MemoryStore::default());
    let plan = desired(ORDINARY, flavor);
    apply(&tree, &store, &plan);
    // The same names, made by another program after a boot.
    let mut later = Target::open(tree.clone(), store.clone(), "another boot").unwrap();
    let before = tree.text();
    assert!(later.undo().unwrap().is_empty());
    assert!(later.apply(&plan).unwrap_err().to_string().contains("kvrail did not make it"));
    assert_eq!(tree.text(), before);
}

#[test]
fn keys_are_written_and_never_shown() {
    let flavor = Flavor::Stable;
    let (tree, store) = (FakeTree::new(flavor), MemoryStore::default());
    let plan = desired(ORDINARY, flavor);
    let steps = apply(&tree, &store, &plan);
    let shown = format!("{plan:?} {steps:?} {}", serde_json::to_string(&steps).unwrap());
    let record = format!("{:?}", store.load().unwrap());
    assert!(!shown.contains(KEY) && !record.contains(KEY), "{shown}");
    assert!(shown.contains("(a key)"));
}

#[test]
fn a_record_in_a_file_is_locked_and_outlives_its_program() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("target");
    let flavor = Flavor::Stable;
    let tree = FakeTree::new(flavor);
    let before = tree.text();
    {
        let store = FileStore::open(&place).unwrap();
        let mut target = Target::open(tree.clone(), store, "boot").unwrap();
        target.apply(&desired(ORDINARY, flavor)).unwrap();
        let refused = FileStore::open(&place).unwrap_err();
        assert!(refused.to_string().contains("another kvrail"), "{refused}");
        assert!(!refused.remedy().is_empty());
    }
    let seen = Target::open(tree.clone(), FileStore::look(&place), "boot").unwrap();
    assert!(seen.owned().contains(&"ports/1"));
    let everything = tree.text();
    let mut unlocked = seen;
    assert!(unlocked.undo().unwrap_err().to_string().contains("to look at only"));
    assert_eq!(tree.text(), everything, "no step without the lock");
    let store = FileStore::open(&place).unwrap();
    Target::open(tree.clone(), store, "boot").unwrap().undo().unwrap();
    assert_eq!(tree.text(), before);
    std::fs::write(place.join("record.json"), "{\"version\":").unwrap();
    let bad = Target::open(tree, FileStore::look(&place), "boot").unwrap_err();
    assert!(bad.to_string().contains("record.json"), "{bad}");
}

#[test]
fn the_same_wish_gives_the_same_identities() {
    let plans = [0, 1].map(|_| desired(ORDINARY, Flavor::Stable));
    assert_eq!(plans[0], plans[1]);
    let text = format!("{:?}", plans[0]);
    assert!(text.contains("attr_serial=") && text.contains("device_uuid="));
}

#[test]
fn nothing_wished_is_nothing_done() {
    assert!(wish("").is_empty());
    let (tree, store) = (FakeTree::new(Flavor::Stable), MemoryStore::default());
    assert!(apply(&tree, &store, &Desired::default()).is_empty());
    assert_eq!(Snapshot::read(&tree).unwrap(), Snapshot::read(&tree).unwrap());
}

/// In a folder that others may write to, a link could lie where the next record is written.
#[test]
fn a_record_is_not_written_through_a_link() {
    let directory = tempfile::tempdir().unwrap();
    let (place, other) = (directory.path().join("target"), directory.path().join("other"));
    std::fs::create_dir(&place).unwrap();
    std::fs::write(&other, "precious").unwrap();
    std::os::unix::fs::symlink(&other, place.join("record.next")).unwrap();
    let tree = FakeTree::new(Flavor::Stable);
    let mut target = Target::open(tree.clone(), FileStore::open(&place).unwrap(), "b").unwrap();
    target.apply(&desired(ORDINARY, Flavor::Stable)).unwrap();
    assert_eq!(std::fs::read(&other).unwrap(), b"precious");
    assert!(!place.join("record.json").is_symlink());
    drop(target);
    std::fs::remove_file(place.join("lock")).unwrap();
    std::os::unix::fs::symlink(&other, place.join("lock")).unwrap();
    let refused = FileStore::open(&place).unwrap_err();
    assert!(refused.to_string().contains("lock"), "{refused}");
}
