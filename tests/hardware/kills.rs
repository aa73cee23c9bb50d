//! Killed at every step, on a real kernel: the next start completes or undoes all that it finds,
//! and no unlisted host is ever admitted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use kvrail_client::Client;

use crate::fabrics::nvme_cli::HOST;
use crate::fabrics::target::{Target, Wish, let_in, tree};
use crate::rig::{Place, Sidecar, eventually, kvrail_program, run, without_configuration};

/// The state before and after a step is recorded by renaming a file: each of these moments is one
/// between two steps.
const RENAMES: &str = "rename,renameat,renameat2";

/// `kvrail` that is killed right before its n-th record is in place.
fn killed_at(record: usize, words: &[&str], configuration: &Path) -> Command {
    let inject = format!("inject={RENAMES}:signal=KILL:when={record}");
    let mut command = Command::new("strace");
    command
        .args(["-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", &inject])
        .arg(kvrail_program());
    command.args(words).arg("--config").arg(configuration);
    without_configuration(&mut command);
    command
}

/// One of the four ports, the one over loop: every kind of step.
fn text(target: &Target, more: &str) -> String {
    let whole = target.text(&Wish { more, ..Wish::only(HOST) });
    let port = |id: u32| whole.find(&format!("[[target.port]]\nid = {id}")).expect("it has four");
    format!("{}{}", &whole[..port(1)], &whole[port(3)..port(4)])
}

fn assert_no_other_host(words: &str) {
    let in_now = let_in();
    assert!(in_now.is_subset(&BTreeSet::from([HOST.to_owned()])), "{words}: {in_now:?}");
}

#[test]
fn a_kill_at_every_step_of_apply_and_undo_leaves_all_or_nothing() {
    let Some(target) = Target::ready() else { return };
    target.configure(&text(&target, ""));
    let before = tree();
    target.run(&["apply"]).expect(0, &[]);
    let applied = tree();
    target.undo();
    let reach = |verb, wanted: &BTreeMap<PathBuf, String>, what: &str| {
        if tree() != *wanted {
            target.run(&[verb]).expect(0, &[]);
            assert_eq!(tree(), *wanted, "{what}");
        }
    };
    for (verb, at_least) in [("apply", 20), ("teardown", 8)] {
        for record in 1.. {
            let what = format!("{verb} killed at {record}");
            match verb {
                "apply" => reach("teardown", &before, &what),
                _ => reach("apply", &applied, &what),
            }
            let ended = run(&mut killed_at(record, &["target", verb], &target.configuration()));
            if let Some(code) = ended.code {
                assert_eq!(code, 0, "{ended:#?}");
                println!("{verb}: killed at each of {} records", record - 1);
                assert!(record > at_least, "{verb} has {record} records");
                break;
            }
            assert_no_other_host(&what);
            // The change is completed, or undone.
            match record % 2 {
                0 => reach("apply", &applied, &what),
                _ => reach("teardown", &before, &what),
            }
        }
    }
    reach("teardown", &before, "at the end");
}

/// The sidecar's own start takes the same steps: every third is enough.
#[test]
fn a_kill_while_a_sidecar_starts_leaves_all_or_nothing() {
    let Some(target) = Target::ready() else { return };
    let before = tree();
    let mut at = Place::with_volume(1, 8 << 20);
    let text = text(&target, "on_shutdown = \"teardown\"");
    target.configure(&text);
    // Without the search for the best mode.
    at.configure("device.mode = \"interrupt\"");
    at.configure(&text);
    target.run(&["apply"]).expect(0, &[]);
    let applied = tree();
    target.undo();
    for record in (1..).step_by(3) {
        let command = killed_at(record, &["serve", "--exit-with-parent"], &at.configuration());
        let mut sidecar = Sidecar::launch(&at, command);
        let mut ended = None;
        eventually("it is killed, or serves", || {
            ended = sidecar.ended();
            ended.is_some() || Client::attach(sidecar.socket()).is_ok()
        });
        if ended.is_none() {
            println!("serve: killed at each third of {} records", record - 3);
            assert!(record > 20, "its start has {record} records");
            drop(sidecar);
            break;
        }
        let what = format!("its start killed at {record}");
        assert_eq!(ended.and_then(|status| status.code()), None, "{what}: {}", sidecar.stderr());
        assert_no_other_host(&what);
        if record % 4 == 1 {
            let sidecar = Sidecar::start(&at);
            assert_eq!(tree(), applied, "{what}");
            sidecar.stop();
        } else {
            target.undo();
        }
        assert_eq!(tree(), before, "{what}");
    }
    // The tracer is gone, and the sidecar with it: it removes the target that it made.
    eventually("nothing is exported", || tree() == before);
}
