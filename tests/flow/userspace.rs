//! File systems in user space: no member may lie on one.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use kvrail_tests::{Fuse, FuseRequest};

use crate::rig::{Place, Sidecar, eventually, kvrail, run};

const REFUSAL: [&str; 4] = ["file system in user space", "FUSE", "short transfers", "local disk"];

/// A file system whose only file is this one; `None`, with a line printed, where there can be none.
fn mounted(at: &Path, content: &Path) -> Option<Fuse> {
    fs::create_dir(at).unwrap();
    let content = File::options().read(true).write(true).open(content).unwrap();
    Fuse::mount(at, content).map_err(|why| println!("skipped: FUSE: {why}")).ok()
}

#[test]
fn a_member_on_a_file_system_in_user_space_is_refused() {
    let mut place = Place::with_volume(1, 4 << 20);
    let below = place.members[0].clone();
    let Some(fuse) = mounted(&place.path("mount"), &below) else { return };
    // A volume's member, seen through it.
    place.members = vec![fuse.file()];
    place.extra = "device.direct = \"off\"\nmetrics.listen = \"off\"\n".into();
    let mut sidecar = Sidecar::launch(&place, place.serve());
    assert_eq!(sidecar.wait().code(), Some(3), "{}", sidecar.stderr());
    for word in REFUSAL {
        assert!(sidecar.stderr().contains(word), "no {word:?} in {}", sidecar.stderr());
    }
    // A blank file.
    File::options().write(true).open(&below).unwrap().set_len(0).unwrap();
    place.create(4 << 20, "256KiB").expect(3, &REFUSAL);
    assert_eq!(fs::metadata(&below).unwrap().len(), 0, "nothing was written");
    // A file that does not exist yet.
    place.members = vec![fuse.file().with_file_name("other")];
    place.create(4 << 20, "256KiB").expect(3, &REFUSAL);
}

#[test]
fn a_loop_device_over_one_is_refused() {
    let place = Place::empty(0);
    let below = place.data_path("below");
    File::create(&below).unwrap().set_len(8 << 20).unwrap();
    let Some(fuse) = mounted(&place.path("mount"), &below) else { return };
    let made = Command::new("losetup").args(["--find", "--show"]).arg(fuse.file()).output();
    let made = match made {
        Ok(made) if made.status.success() => made.stdout,
        other => return println!("skipped: loop device over FUSE: {other:?}"),
    };
    let node = String::from_utf8(made).unwrap().trim().to_owned();
    let mut create = kvrail();
    create.args(["volume", "create", "kv", "--size", "4MiB", "--direct", "optional", &node]);
    let outcome = run(&mut create);
    let _detached = Command::new("losetup").args(["--detach", &node]).status();
    outcome.expect(3, &REFUSAL);
    assert!(outcome.stderr.contains("through"), "{}", outcome.stderr);
}

/// The premise of other tests: a close without an answer blocks until the file system is gone.
#[test]
fn an_unanswered_flush_keeps_a_close_waiting() {
    let place = Place::empty(0);
    let below = place.data_path("below");
    File::create(&below).unwrap();
    let Some(fuse) = mounted(&place.path("mount"), &below) else { return };
    fuse.withhold_answers(FuseRequest::Flush);
    let mut closer = Command::new("sh").arg("-c").arg("exec 3<\"$0\"").arg(fuse.file()).spawn();
    let closer = closer.as_mut().unwrap();
    eventually("the close has sent its request", || fuse.unanswered() > 0);
    assert!(closer.try_wait().unwrap().is_none(), "it waits");
    drop(fuse);
    closer.wait().unwrap();
}
