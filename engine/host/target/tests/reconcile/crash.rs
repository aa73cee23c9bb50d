//! The program stops at every single call, in the tree and in its record. After the next start
//! there is everything or nothing, whichever was requested, and never a moment of more.

use kvrail_target::Desired;

use crate::fake::{Blow, FakeTree, Flavor, Fuse, MemoryStore};
use crate::whole::strangers;
use crate::world::{
    CHANGED, End, OFFLOADED, ORDINARY, SECOND_PATH, access_of, apply, assert_never_wider, desired,
    open, run,
};

const STOPS: [Blow; 2] = [Blow::StopBefore, Blow::StopAfter];

struct Case<'a> {
    flavor: Flavor,
    from: Option<&'a Desired>,
    to: &'a Desired,
}

impl Case<'_> {
    fn ready(&self) -> (FakeTree, MemoryStore) {
        let (tree, store) = (FakeTree::new(self.flavor), MemoryStore::default());
        strangers(&tree);
        if let Some(from) = self.from {
            apply(&tree, &store, from);
        }
        (tree, store)
    }

    fn allowed(&self, tree: &FakeTree) {
        let foreign = FakeTree::new(self.flavor);
        strangers(&foreign);
        let from = self.from.map(|from| access_of(from, self.flavor)).unwrap_or_default();
        let to = access_of(self.to, self.flavor);
        assert_never_wider(tree, &[&foreign.access(), &from, &to], "stopped");
    }

    /// Stops at every call on the way; returns how many there are.
    fn sweep(&self) -> usize {
        let (whole, store) = self.ready();
        apply(&whole, &store, self.to);
        let everything = whole.text();
        let nothing = {
            let tree = FakeTree::new(self.flavor);
            strangers(&tree);
            tree.text()
        };
        for call in 0.. {
            for blow in STOPS {
                for forward in [true, false] {
                    let (tree, store) = self.ready();
                    let fuse = Fuse::at(call, blow);
                    let end = run(&tree, &store, &fuse, |target| target.apply(self.to));
                    if matches!(end, End::Done) {
                        assert!(!fuse.is_blown());
                        return call;
                    }
                    assert!(matches!(end, End::Stopped), "{blow:?} at {call}");
                    if forward {
                        apply(&tree, &store, self.to);
                        assert_eq!(tree.text(), everything, "{blow:?} at {call}");
                    } else {
                        open(&tree, &store).undo().unwrap();
                        assert_eq!(tree.text(), nothing, "{blow:?} at {call}");
                    }
                    self.allowed(&tree);
                }
            }
        }
        unreachable!("the loop ends with the program")
    }
}

#[test]
fn a_stop_at_any_call_of_apply_leaves_all_or_nothing() {
    let to = desired(ORDINARY, Flavor::Recent);
    let calls = Case { flavor: Flavor::Recent, from: None, to: &to }.sweep();
    assert!(calls >= 100, "{calls} calls");
}

#[test]
fn a_stop_at_any_call_of_undo_leaves_all_or_nothing() {
    let from = desired(ORDINARY, Flavor::Stable);
    let to = Desired::default();
    let calls = Case { flavor: Flavor::Stable, from: Some(&from), to: &to }.sweep();
    assert!(calls >= 40, "{calls} calls");
}

#[test]
fn a_stop_at_any_call_of_a_change_leaves_all_or_nothing() {
    let from = desired(ORDINARY, Flavor::Recent);
    let to = desired(CHANGED, Flavor::Recent);
    let calls = Case { flavor: Flavor::Recent, from: Some(&from), to: &to }.sweep();
    assert!(calls >= 100, "{calls} calls");
}

#[test]
fn a_stop_at_any_call_with_offload_leaves_all_or_nothing() {
    let one = desired(OFFLOADED, Flavor::Vendor);
    let two = desired(&format!("{OFFLOADED}{SECOND_PATH}"), Flavor::Vendor);
    Case { flavor: Flavor::Vendor, from: None, to: &two }.sweep();
    Case { flavor: Flavor::Vendor, from: Some(&one), to: &two }.sweep();
    Case { flavor: Flavor::Vendor, from: Some(&two), to: &one }.sweep();
}

/// A stop on the way that a stop made necessary.
#[test]
fn stops_may_follow_each_other() {
    let flavor = Flavor::Stable;
    let to = desired(ORDINARY, flavor);
    let mut stops = 0;
    for first in (0..120).step_by(7) {
        for second in (0..120).step_by(11) {
            let (tree, store) = (FakeTree::new(flavor), MemoryStore::default());
            let nothing = tree.text();
            for (call, forward) in [(first, true), (second, false)] {
                let fuse = Fuse::at(call, Blow::StopAfter);
                let end = run(&tree, &store, &fuse, |target| {
                    if forward { target.apply(&to) } else { target.undo() }
                });
                stops += usize::from(matches!(end, End::Stopped));
            }
            open(&tree, &store).undo().unwrap();
            assert_eq!(tree.text(), nothing, "{first} then {second}");
        }
    }
    assert!(stops > 100, "{stops}");
}

/// The objects made to see what the kernel has do not stay either.
#[test]
fn a_stop_at_any_call_of_the_probe_leaves_nothing() {
    let flavor = Flavor::Vendor;
    for call in 0.. {
        for blow in STOPS {
            let (tree, store) = (FakeTree::new(flavor), MemoryStore::default());
            let nothing = tree.text();
            let fuse = Fuse::at(call, blow);
            let probe = |target: &mut kvrail_target::Target<_, _>| {
                target.probe().map(|features| {
                    assert!(features.subsystem.contains("attr_offload"));
                    Vec::new()
                })
            };
            let end = run(&tree, &store, &fuse, probe);
            if matches!(end, End::Done) {
                assert_eq!(tree.text(), nothing);
                assert!(call > 15, "{call}");
                return;
            }
            assert!(tree.access().is_empty());
            open(&tree, &store).undo().unwrap();
            assert_eq!(tree.text(), nothing, "{blow:?} at {call}");
        }
    }
}
