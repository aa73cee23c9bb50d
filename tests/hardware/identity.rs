//! Namespaces named by their identity, while their kernel names change every time.

use std::path::PathBuf;

use kvrail_tests::{span_bytes, verify};

use crate::machine::{self, address, find, name, tool};
use crate::rig::{Actor, Place, Sidecar, eventually, kvrail, run};

const DRIVER: &str = "/sys/bus/pci/drivers/nvme";
const THREADS: u32 = 2;

/// Makes the kernel forget two drives and find them again in the other order, as after a boot.
fn swap(one: &str, other: &str) {
    let numbered = |serial: &str| {
        let name = name(serial, 1);
        let digits = name["nvme".len()..].split('n').next().unwrap();
        (digits.parse::<u32>().unwrap(), serial.to_owned())
    };
    let mut drives = [one, other].map(numbered);
    drives.sort_unstable();
    let addresses = [&drives[1], &drives[0]].map(|(_, serial)| address(serial, 1));
    for address in &addresses {
        tool(&format!("echo {address} >{DRIVER}/unbind"));
    }
    // The numbers are taken in the order of binding, the lowest free one first.
    let before = [one, other].map(|serial| drives.iter().position(|drive| drive.1 == serial));
    for address in &addresses {
        tool(&format!("echo {address} >{DRIVER}/bind"));
    }
    eventually("both drives are back", || {
        [one, other].iter().all(|serial| find(serial, 1).is_some())
    });
    let mut after = [one, other].map(numbered);
    after.sort_unstable();
    let after = [one, other].map(|serial| after.iter().position(|drive| drive.1 == serial));
    assert_eq!(after, [before[1], before[0]], "the names have not been swapped");
}

/// An empty place, and drives without a label: other tests leave theirs behind.
fn blank() -> Place {
    for (serial, nsid) in [("kvr-main", 1), ("kvr-main", 2), ("kvr-slow", 1)] {
        machine::wipe_label(&machine::namespace(serial, nsid));
    }
    Place::empty(0)
}

fn wipe(volume: &str, members: &[PathBuf]) {
    run(kvrail().args(["volume", "wipe", volume]).args(members)).expect(0, &[]);
}

#[test]
fn names_swapped_between_boots_are_found_again() {
    if !machine::is_ours() {
        return;
    }
    let mut place = blank();
    let slow = format!("pci:{}", address("kvr-slow", 1));
    place.members = vec!["serial:kvr-main/1".into(), slow.clone().into()];
    place.create(span_bytes(THREADS), "256KiB").expect(0, &[]);
    let sidecar = Sidecar::start(&place);
    let tally = Actor::traffic(&sidecar, 0, THREADS, 1.0).tally();
    tally.assert_right();
    let log = sidecar.stop();
    let today =
        |serial: &str| format!("/dev/{} today: QEMU NVMe Ctrl, serial {serial}", name(serial, 1));
    let before = ["kvr-main", "kvr-slow"].map(today);
    assert!(before.iter().all(|words| log.contains(words)), "no {before:?} in {log}");

    swap("kvr-main", "kvr-slow");
    let sidecar = Sidecar::start(&place);
    let after = ["kvr-main", "kvr-slow"].map(today);
    assert_ne!(before, after);
    let notes = sidecar.status().notes;
    for words in [format!("serial:kvr-main/1 is {}", after[0]), format!("{slow} is {}", after[1])] {
        assert!(notes.iter().any(|note| note.starts_with(&words)), "no {words:?} in {notes:?}");
    }
    verify(&sidecar.attach(), "kv", &tally.acknowledged).unwrap().assert_right();
    sidecar.stop();
    wipe("kv", &place.members);
}

#[test]
fn a_plain_name_that_means_another_drive_now_is_refused() {
    if !machine::is_ours() {
        return;
    }
    let mut place = blank();
    // The drive with one namespace: the other has two, which the kernel numbers in the order of
    // discovery, so that either may have the name then.
    place.members = vec![machine::namespace("kvr-slow", 1)];
    place.create(8 << 20, "256KiB").expect(0, &[]);
    let others = ["serial:kvr-main/1", "serial:kvr-main/2"];
    let mut other = kvrail();
    other.args(["volume", "create", "other", "--size", "8MiB", "-q", "--force"]).args(others);
    run(&mut other).expect(0, &[]);
    swap("kvr-main", "kvr-slow");
    run(&mut place.serve()).expect(3, &["\"other\"", "\"kv\"", "correct the name or the members"]);
    place.members = vec!["serial:kvr-slow".into()];
    Sidecar::start(&place).stop();
    wipe("kv", &place.members);
    wipe("other", &others.map(PathBuf::from));
}

#[test]
fn names_that_mean_nothing_or_several_are_refused() {
    if !machine::is_ours() {
        return;
    }
    let two = address("kvr-main", 1);
    let node = machine::namespace("kvr-main", 1);
    let controller =
        tool(&format!("basename $(readlink -f /sys/block/{}/device)", name("kvr-main", 1)));
    let generic = node.display().to_string().replace("nvme", "ng");
    for (named, words) in [
        ("serial:kvr-main".to_owned(), "2 namespaces are that"),
        (format!("pci:{two}"), "add /NSID"),
        ("serial:kvr-main/3".into(), "serial:kvr-main/2"),
        ("wwid:eui.0025385b71b0a1b2".into(), "no NVMe namespace of this host is that"),
        (format!("/dev/{}", controller.trim()), "it is a controller"),
        ("/dev/null".into(), "no NVMe device"),
        ("/etc/passwd".into(), "it is no device"),
    ] {
        run(kvrail().args(["devices", &named])).expect(2, &[&named, words]);
    }
    // `kvrail devices` accepts the character device, too; it is no member.
    run(kvrail().args(["devices", &generic])).expect(0, &[]);
    run(kvrail().args(["volume", "create", "kv", &generic])).expect(2, &["character device"]);
}
