//! Refusals before any command is sent: partitions of a namespace, and character devices without
//! permission.

use std::os::unix::process::CommandExt;
use std::process::Command;

use kvrail_client::{Request, Status};
use kvrail_device::{AnyDevice, DirectIo, ModeChoice, ModeName, UringOptions, open_path};

use crate::bed::Bed;
use crate::devices::UNPRIVILEGED;
use crate::machine::{self, name, tool};
use crate::one::One;
use crate::rig::{Copies, Place, Sidecar, kvrail, open_folder, run, without_configuration};

#[test]
fn a_partition_is_refused_in_every_mode_and_nothing_is_written() {
    if !machine::is_ours() {
        return;
    }
    let disk = name("kvr-main", 2);
    machine::wipe_label(&machine::namespace("kvr-main", 2));
    tool(&format!("printf 'n\\np\\n1\\n\\n+32M\\nw\\n' | fdisk /dev/{disk}"));
    let head = || tool(&format!("dd if=/dev/{disk} bs=1M count=4 iflag=direct | md5sum"));
    let before = head();
    let part = format!("/dev/{disk}p1");
    let what = format!("{part}: it is a partition of {disk}, no namespace");
    let remedy = format!("name {disk} itself");
    for mode in ["interrupt", "iopoll", "passthrough"] {
        let mut place = Place::empty(0);
        place.members = vec![part.clone().into()];
        place.extra.clear();
        place.configure(&format!("device.mode = {mode:?}"));
        for force in [&[][..], &["--force"]] {
            let mut create = kvrail();
            create.args(["volume", "create", "kv"]).args(force);
            run(create.args(&place.members)).expect(2, &[&what, &remedy]);
        }
        run(&mut place.serve()).expect(2, &[&what, &remedy]);
    }
    // Opening it directly is refused with the reason, where commands would reach the neighbours.
    let fd = open_path(&part, DirectIo::Required).expect("our own device");
    let passed = ModeChoice::Fixed(ModeName::Passthrough);
    let refused = AnyDevice::open(passed, UringOptions::new(&part, fd)).expect_err("a partition");
    let words = format!("is a partition of {disk}: commands would reach all of the namespace");
    assert!(refused.to_string().contains(&words), "{refused}");
    assert_eq!(head(), before, "something was written");
    tool(&format!("wipefs -qa /dev/{disk}; partx -d /dev/{disk} || true"));
}

#[test]
fn a_user_without_the_character_device_gets_its_name_and_the_remedy() {
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
    let Some(reachable) = open_folder() else { return };
    let program = Copies::in_folder(reachable.path()).kvrail;
    let serve = || {
        let template = bed.place.serve();
        let mut command = Command::new(&program);
        without_configuration(&mut command);
        command.args(template.get_args()).uid(UNPRIVILEGED).gid(UNPRIVILEGED);
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
