//! Tenants by the user ids that the kernel reports: their rights on namespaces, by the program
//! itself.

use std::os::unix::process::CommandExt;
use std::process::Command;

use kvrail_ring::Status;
use kvrail_tests::{Op, bytes_of, key_of};

use super::{seat, shape};
use crate::rig::{Copies, Outcome, Place, Sidecar, is_root, run};

const UNPRIVILEGED: u32 = 65_534;
const TENANTS: &str = "tenant = [{ namespaces = \"shared\", uids = [65534], rights = \"read\" }]";

#[test]
fn a_user_reads_its_own_namespaces_and_is_refused_others() {
    if !is_root() {
        println!("skipped: a client of another user: only root becomes somebody else");
        return;
    }
    let Some(mut place) = Place::open_to_all(1) else { return };
    place.create_store(&shape(40 << 20)).expect(0, &[]);
    place.configure("sidecar.allow_uids = [65534]\nsidecar.socket_mode = \"0666\"");
    place.configure_volume(TENANTS);
    let sidecar = Sidecar::start(&place);
    for space in ["shared", "theirs"] {
        let block = bytes_of(7, 1, 5000);
        let put = seat(&sidecar, space).one(Op::put(key_of(7), &block)).expect("it stays");
        assert_eq!(put.status, Status::Ok, "root may do everything");
    }
    let program = Copies::in_folder(&place.path("")).kvrail;
    let store = |arguments: &[&str]| -> Outcome {
        let mut command = Command::new(&program);
        command.arg("store").args(arguments).arg("--socket").arg(sidecar.socket());
        run(command.uid(UNPRIVILEGED).gid(UNPRIVILEGED))
    };
    let shown = store(&["namespaces"]);
    shown.expect(0, &[]);
    assert!(shown.stdout.contains("shared") && !shown.stdout.contains("theirs"), "{shown:?}");
    let listed = store(&["list", "shared"]);
    listed.expect(0, &[]);
    assert!(listed.stdout.contains("4.88 KiB"), "{listed:?}");
    for (arguments, words) in [
        (&["list", "theirs"][..], "may not open namespace \"theirs\""),
        (&["clear", "theirs", "--yes", "theirs"], "may not clear namespace \"theirs\""),
        (&["clear", "shared", "--yes", "shared"], "its rights are \"read\""),
        (&["remove", "shared", "--yes", "shared"], "may not remove namespace \"shared\""),
    ] {
        let refused = store(arguments);
        assert_ne!(refused.code, Some(0), "{arguments:?}: {refused:?}");
        for words in [words, "user 65534", "[[volume.tenant]]"] {
            assert!(refused.stderr.contains(words), "{words}: {refused:?}");
        }
    }
    let kept = seat(&sidecar, "shared").one(Op::Get { key: key_of(7), capacity: 5000 });
    assert_eq!(kept.expect("it stays").status, Status::Ok, "nothing was cleared");
    sidecar.stop();
}
