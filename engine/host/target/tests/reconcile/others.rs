//! Others change the tree at any moment: what is theirs stays as it is, what is ours is repaired or
//! given up whole.

use kvrail_target::{Desired, Tree};

use crate::fake::{Blow, FakeTree, Flavor, Fuse, Meddle, MemoryStore};
use crate::whole::strangers;
use crate::world::{End, ORDINARY, apply, desired, open, run};

const KV0: &str = "subsystems/nqn.2026-01.org.example:kv0";

/// A foreign change of our objects.
type Meddling = (&'static str, Meddle);

const MEDDLING: [Meddling; 8] = [
    ("disables a namespace", |tree| {
        let _ = tree.write(&format!("{KV0}/namespaces/1/enable"), "0");
    }),
    ("closes a port", |tree| {
        let _ = tree.unlink("ports/1/subsystems/nqn.2026-01.org.example:kv0");
    }),
    ("removes a namespace", |tree| {
        let _ = tree.write(&format!("{KV0}/namespaces/2/enable"), "0");
        let _ = tree.remove_dir(&format!("{KV0}/namespaces/2"));
    }),
    ("moves a device", |tree| {
        let path = format!("{KV0}/namespaces/1");
        let _ = tree.write(&format!("{path}/enable"), "0");
        let _ = tree.write(&format!("{path}/device_path"), "/dev/nvme0n2");
        let _ = tree.write(&format!("{path}/enable"), "1");
    }),
    ("changes an ANA state", |tree| {
        let _ = tree.write("ports/1/ana_groups/2/ana_state", "inaccessible");
    }),
    ("takes a host off", |tree| {
        let _ = tree.unlink(&format!("{KV0}/allowed_hosts/nqn.2026-01.org.example:a"));
    }),
    ("admits any host", |tree| {
        for host in ["a", "b"] {
            let _ = tree.unlink(&format!("{KV0}/allowed_hosts/nqn.2026-01.org.example:{host}"));
        }
        let _ = tree.write(&format!("{KV0}/attr_allow_any_host"), "1");
    }),
    ("changes a key", |tree| {
        let _ = tree.write("hosts/nqn.2026-01.org.example:a/dhchap_key", "DHHC-1:00:other:");
    }),
];

#[test]
fn what_others_did_to_ours_is_repaired() {
    let flavor = Flavor::Recent;
    let plan = desired(ORDINARY, flavor);
    for (what, meddle) in MEDDLING {
        let (mut tree, store) = (FakeTree::new(flavor), MemoryStore::default());
        strangers(&tree);
        let nothing = tree.text();
        apply(&tree, &store, &plan);
        let everything = tree.text();
        meddle(&mut tree);
        assert_ne!(tree.text(), everything, "{what}: it did nothing");
        assert!(!apply(&tree, &store, &plan).is_empty(), "{what}: not seen");
        assert_eq!(tree.text(), everything, "{what}");
        meddle(&mut tree);
        open(&tree, &store).undo().unwrap();
        assert_eq!(tree.text(), nothing, "{what}: undo");
    }
}

/// Between two steps of apply, at every place of the way.
#[test]
fn what_others_do_meanwhile_never_leaves_a_half() {
    let flavor = Flavor::Stable;
    let plan = desired(ORDINARY, flavor);
    for (what, meddle) in MEDDLING {
        for call in (0..140).step_by(3) {
            let (mut tree, store) = (FakeTree::new(flavor), MemoryStore::default());
            let nothing = tree.text();
            let fuse = Fuse::at(call, Blow::StopAfter);
            let _ = run(&tree, &store, &fuse, |target| target.apply(&plan));
            meddle(&mut tree);
            let again = run(&tree, &store, &Fuse::default(), |target| target.apply(&plan));
            assert!(matches!(again, End::Done), "{what} at {call}");
            open(&tree, &store).undo().unwrap();
            assert_eq!(tree.text(), nothing, "{what} at {call}");
        }
    }
}

/// The same while the program goes on: it ends with everything, or with nothing and the reason.
#[test]
fn what_others_do_in_between_is_noticed() {
    let flavor = Flavor::Stable;
    let plan = desired(ORDINARY, flavor);
    let (mut whole, mut refused) = (0, 0);
    for (what, meddle) in MEDDLING {
        for call in 0..140 {
            let (tree, store) = (FakeTree::new(flavor), MemoryStore::default());
            let nothing = tree.text();
            let fuse = Fuse::meddling(call, meddle);
            match run(&tree, &store, &fuse, |target| target.apply(&plan)) {
                End::Done => whole += 1,
                End::Refused(error) => {
                    refused += 1;
                    assert!(!error.remedy().is_empty(), "{what} at {call}: {error}");
                    assert_eq!(tree.text(), nothing, "{what} at {call}: {error}");
                }
                End::Stopped => panic!("{what} at {call} ended the program"),
            }
            apply(&tree, &store, &plan);
            open(&tree, &store).undo().unwrap();
            assert_eq!(tree.text(), nothing, "{what} at {call}");
        }
    }
    assert!(whole > 100 && refused > 100, "{whole} went through, {refused} were refused");
}

/// Another program takes a name in the moment before us: its object stays, and all of ours go.
#[test]
fn a_name_taken_in_between_is_left_to_who_has_it() {
    let flavor = Flavor::Stable;
    let plan = desired(ORDINARY, flavor);
    let take: Meddle = |tree| {
        let _ = tree.make_dir("ports/2");
    };
    let mut refusals = 0;
    for call in 0..140 {
        let (mut tree, store) = (FakeTree::new(flavor), MemoryStore::default());
        let nothing = tree.text();
        let end = run(&tree, &store, &Fuse::meddling(call, take), |target| target.apply(&plan));
        if let End::Refused(error) = end {
            refusals += 1;
            assert!(error.to_string().contains("another program made it"), "{error}");
            assert!(tree.access().is_empty());
            tree.remove_dir("ports/2").unwrap();
            assert_eq!(tree.text(), nothing, "at {call}");
        }
    }
    assert!(refusals > 20, "{refusals}");
}

/// Another program replaces our subsystem by its own of the same name: the new one is foreign.
#[test]
fn a_name_that_changed_hands_is_not_ours_any_more() {
    let flavor = Flavor::Stable;
    let (mut tree, store) = (FakeTree::new(flavor), MemoryStore::default());
    let plan = desired(ORDINARY, flavor);
    apply(&tree, &store, &plan);
    open(&tree, &store).undo().unwrap();
    // The record of a program that was stopped before it could write down that it had removed all.
    let stale = MemoryStore::default();
    apply(&tree, &stale, &plan);
    let kept = stale.clone();
    let fuse = Fuse::at(1, Blow::StopAfter);
    assert!(matches!(run(&tree, &kept, &fuse, |target| target.undo()), End::Stopped));
    for port in [1, 2, 3] {
        for name in ["kv0", "kv1"] {
            let _ = tree.unlink(&format!("ports/{port}/subsystems/nqn.2026-01.org.example:{name}"));
        }
    }
    for namespace in [1, 2] {
        tree.write(&format!("{KV0}/namespaces/{namespace}/enable"), "0").unwrap();
        tree.remove_dir(&format!("{KV0}/namespaces/{namespace}")).unwrap();
    }
    for host in ["a", "b"] {
        tree.unlink(&format!("{KV0}/allowed_hosts/nqn.2026-01.org.example:{host}")).unwrap();
    }
    tree.remove_dir(KV0).unwrap();
    tree.make_dir(KV0).unwrap();
    tree.write(&format!("{KV0}/attr_model"), "his").unwrap();
    let refused = open(&tree, &kept).apply(&plan).unwrap_err().to_string();
    assert!(refused.contains(KV0) && refused.contains("kvrail did not make it"), "{refused}");
    open(&tree, &kept).undo().unwrap();
    let text = tree.text();
    assert_eq!(text[&format!("{KV0}/attr_model")], "file his");
    assert!(!text.keys().any(|path| path.starts_with("ports/1")));
}

/// Foreign objects are linked to ours: nothing of ours can be removed, so nothing is.
#[test]
fn what_others_hung_on_ours_is_named_before_anything_is_done() {
    let flavor = Flavor::Stable;
    let plan = desired(ORDINARY, flavor);
    let hung: [Meddling; 3] = [
        ("ports/1/subsystems/nqn.2020-01.org.other:s", |tree| {
            let subsystem = "subsystems/nqn.2020-01.org.other:s";
            tree.link("ports/1/subsystems/nqn.2020-01.org.other:s", subsystem).unwrap();
        }),
        ("ports/9/subsystems/nqn.2026-01.org.example:kv0", |tree| {
            tree.link("ports/9/subsystems/nqn.2026-01.org.example:kv0", KV0).unwrap();
        }),
        ("subsystems/nqn.2026-01.org.example:kv0/namespaces/7", |tree| {
            tree.make_dir(&format!("{KV0}/namespaces/7")).unwrap();
        }),
    ];
    for (path, hang) in hung {
        let (mut tree, store) = (FakeTree::new(flavor), MemoryStore::default());
        strangers(&tree);
        apply(&tree, &store, &plan);
        hang(&mut tree);
        let before = tree.text();
        let refused = open(&tree, &store).undo().unwrap_err();
        assert!(refused.to_string().contains(path), "{refused}");
        assert!(refused.remedy().contains(path), "{}", refused.remedy());
        assert_eq!(tree.text(), before);
        assert!(apply(&tree, &store, &plan).is_empty(), "what is ours is as it should be");
        assert!(open(&tree, &store).preview(&Desired::default()).is_err());
    }
}
