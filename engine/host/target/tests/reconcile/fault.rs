//! Every call fails once, with several errors: the tree is unchanged, and the error has the remedy.

use kvrail_target::{Aftermath, Desired, ErrorClass, TargetError};
use rustix::io::Errno;

use crate::fake::{Blow, FakeTree, Flavor, Fuse, MemoryStore};
use crate::whole::strangers;
use crate::world::{CHANGED, End, ORDINARY, apply, desired, open, run};

const ERRNOS: [Errno; 7] = [
    Errno::IO,
    Errno::NOMEM,
    Errno::BUSY,
    Errno::ACCESS,
    Errno::NOENT,
    Errno::INVAL,
    Errno::ADDRINUSE,
];

fn sweep(from: Option<&Desired>, to: &Desired) -> usize {
    let flavor = Flavor::Recent;
    let mut points = 0;
    for call in 0.. {
        for errno in ERRNOS {
            let (tree, store) = (FakeTree::new(flavor), MemoryStore::default());
            strangers(&tree);
            if let Some(from) = from {
                apply(&tree, &store, from);
            }
            let before = tree.text();
            let fuse = Fuse::at(call, Blow::Fail(errno));
            match run(&tree, &store, &fuse, |target| target.apply(to)) {
                End::Done => return points,
                End::Stopped => panic!("{errno} at {call} ended the program"),
                End::Refused(error) => {
                    points += 1;
                    check(&error, call);
                }
            }
            let saved = call + 1 >= fuse.calls();
            assert!(tree.text() == before || saved, "{errno} at {call}");
            // A step that could not be recorded at the very end is found at the next start.
            apply(&tree, &store, from.unwrap_or(&Desired::default()));
            assert_eq!(tree.text(), before, "{errno} at {call}");
        }
    }
    unreachable!("the loop ends with the program")
}

fn check(error: &TargetError, call: usize) {
    assert_eq!(error.class(), ErrorClass::Failed, "{error}");
    assert!(!error.remedy().is_empty(), "{error}");
    match error {
        TargetError::Step { aftermath, cause, .. } => {
            assert_eq!(*aftermath, Aftermath::RolledBack, "at {call}: {error}");
            assert!(!cause.is_empty());
        }
        TargetError::Record { .. } => assert!(error.to_string().contains("record.json")),
        other => panic!("at {call}: {other}"),
    }
}

#[test]
fn a_failure_at_any_call_of_apply_leaves_nothing() {
    let points = sweep(None, &desired(ORDINARY, Flavor::Recent));
    assert!(points >= 700, "{points}");
}

#[test]
fn a_failure_at_any_call_of_a_change_leaves_what_was() {
    let (from, to) = (desired(ORDINARY, Flavor::Recent), desired(CHANGED, Flavor::Recent));
    let points = sweep(Some(&from), &to);
    assert!(points >= 700, "{points}");
}

#[test]
fn a_failure_at_any_call_of_undo_leaves_what_was() {
    let points = sweep(Some(&desired(ORDINARY, Flavor::Recent)), &Desired::default());
    assert!(points >= 300, "{points}");
}

/// The same refusal every time: the way back fails too, and the error states it.
#[test]
fn a_way_back_that_is_closed_is_told() {
    let flavor = Flavor::Stable;
    let (tree, store) = (FakeTree::new(flavor), MemoryStore::default());
    let before = tree.text();
    tree.state().listening.insert("rdma 192.0.2.1 4420".into());
    let error = open(&tree, &store).apply(&desired(ORDINARY, flavor)).unwrap_err();
    assert!(error.to_string().contains("something else listens"), "{error}");
    assert!(error.to_string().contains("rolled back"), "{error}");
    assert_eq!(tree.text(), before);
}
