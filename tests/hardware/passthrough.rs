//! What mode passthrough refuses before anything is sent.

use std::os::unix::process::CommandExt;

use kvrail_client::{Request, Status};

use crate::bed::Bed;
use crate::devices::NOBODY;
use crate::machine::{self, name, tool};
use crate::one::One;
use crate::rig::{Place, Sidecar, kvrail, run};

#[test]
fn a_partition_cannot_be_passed_through() {
    if !machine::is_ours() {
        return;
    }
    let disk = name("kvr-main", 2);
    machine::wipe_label(&machine::namespace("kvr-main", 2));
    tool(&format!("printf 'n\\np\\n1\\n\\n+32M\\nw\\n' | fdisk /dev/{disk}"));
    let mut place = Place::empty(0);
    place.members = vec![format!("/dev/{disk}p1").into()];
    place.extra.clear();
    place.configure("device.mode = \"passthrough\"");
    place.create(8 << 20, "256KiB").expect(0, &[]);
    let words = format!("is a partition of {disk}: commands would reach all of the namespace");
    run(&mut place.serve()).expect(3, &[&words, "use mode iopoll or interrupt"]);
    run(kvrail().args(["volume", "wipe", "kv"]).args(&place.members)).expect(0, &[]);
    tool(&format!("wipefs -qa /dev/{disk}; partx -d /dev/{disk} || true"));
}

#[test]
fn a_user_without_the_character_device_is_told_which_and_how() {
    if !machine::is_ours() {
        return;
    }
    let mut bed = Bed::new("passthrough", "kvr-main", 2);
    let block = machine::namespace("kvr-main", 2).display().to_string();
    let generic = block.replace("nvme", "ng");
    bed.place.configure("sidecar.allow_uids = [0]");
    // The socket is made there.
    let folder = bed.place.path("");
    tool(&format!("chmod 777 {}; chmod o+rw {block}", folder.display()));
    let serve = || {
        let mut command = bed.place.serve();
        command.uid(NOBODY).gid(NOBODY);
        command
    };
    let cannot = format!("its character device {generic} cannot be opened (Permission denied");
    let remedy = format!("give this user read and write permission on {generic}");
    run(&mut serve()).expect(3, &[&cannot, &remedy, "or use mode iopoll or interrupt"]);
    tool(&format!("chmod o+rw {generic}"));
    let sidecar = Sidecar::start_as(&bed.place, serve());
    let mut one = One::of(&sidecar);
    let ends = [one.end(0, Request::write), one.end(0, Request::read)];
    assert_eq!(ends, [Status::Ok; 2], "the remedy helps");
    drop(one);
    sidecar.stop();
    tool(&format!("chmod o-rw {block} {generic}"));
}
