//! The target on a real kernel: nvme-cli as the host, over RDMA, TCP and loop; undone without a
//! trace, killed at any step, repaired while the sidecar runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::fabrics::bytes::same_both_ways;
use crate::fabrics::nvme_cli::{HOST, connect, disconnect, discover, namespace, seen};
use crate::fabrics::target::{LOOP, NQN, RDMA, TCP, TREE, Target, Wish, blank, shut, tree};
use crate::machine::{self, tool};
use crate::rig::{Place, Sidecar, eventually, kvrail, run};

#[test]
fn a_host_reaches_it_over_each_transport_and_undo_leaves_no_trace() {
    let Some(target) = Target::ready() else { return };
    target.configure(&target.text(&Wish::only(HOST)));
    let before = tree();
    let planned = target.run(&["plan", "--format", "json"]);
    assert_eq!(planned.code, Some(0), "{planned:#?}");
    assert_eq!(tree(), before, "a plan changes nothing");
    target.run(&["apply"]).expect(0, &[]);
    assert!(target.run(&["apply"]).stdout.contains("nothing to do"));
    let local = machine::namespace("kvr-main", 2);
    for way in [RDMA, TCP, LOOP] {
        let listed = discover(way);
        assert!(listed.contains(NQN), "{way}: {listed}");
        connect(way, &[]).expect(0, &[]);
        same_both_ways(&namespace(), &local);
        disconnect();
        println!("same data over {way}");
    }
    let status = target.run(&["status"]);
    assert!(status.stdout.contains("as planned"), "{status:#?}");
    target.undo();
    assert_eq!(tree(), before);
}

/// A name that is not listed is let in nowhere, and one that leaves loses its connection.
#[test]
fn only_listed_hosts_get_in() {
    let Some(target) = Target::ready() else { return };
    let before = tree();
    let other = "nqn.2026-01.org.example:somebody-else";
    target.apply(&Wish::only(other));
    assert_ne!(connect(TCP, &[]).code, Some(0), "a stranger is in");
    target.apply(&Wish::only(HOST));
    connect(TCP, &["-l", "2"]).expect(0, &[]);
    namespace();
    target.apply(&Wish::only(other));
    eventually("the connection is gone", || seen().is_none());
    target.undo();
    assert_eq!(tree(), before);
}

/// In-band authentication: the key opens, and no key does not.
#[test]
fn a_host_with_a_key_must_bring_it() {
    let Some(target) = Target::ready() else { return };
    let before = tree();
    let key = tool(&format!("nvme gen-dhchap-key -n {HOST}"));
    let file = target.folder.path().join("key");
    fs::write(&file, &key).expect("our own folder");
    tool(&format!("chmod 0600 {}", file.display()));
    target.apply(&Wish { key: Some(&file), ..Wish::only(HOST) });
    assert_ne!(connect(TCP, &[]).code, Some(0), "without a key");
    connect(TCP, &["-S", key.trim()]).expect(0, &[]);
    namespace();
    disconnect();
    let shown = target.run(&["export", "--tree", TREE]);
    assert!(!shown.stdout.contains(key.trim()) && shown.stdout.contains(NQN), "{shown:#?}");
    target.undo();
    assert_eq!(tree(), before);
}

/// What this kernel or this machine cannot or must not do, each with nothing done.
#[test]
fn refusals_leave_the_tree_alone() {
    let Some(target) = Target::ready() else { return };
    let before = tree();
    let device = machine::namespace("kvr-main", 2);
    let good = target.text(&Wish::only(HOST));
    let refuse = |text: &str, code: i32, words: &[&str]| {
        target.configure(text);
        target.run(&["apply"]).expect(code, words);
        assert_eq!(tree(), before, "{words:?}");
    };
    let edit = |from: &str, to: &str| good.replacen(from, to, 1);
    refuse(&edit("serial:kvr-main/2", "serial:nobody"), 3, &["serial:nobody", "remedy"]);
    refuse(&edit("serial:kvr-main/2", "serial:kvr-main"), 3, &["serial:kvr-main", "NSID"]);
    refuse(
        &edit("address = \"192.0.2.1\"", "address = \"203.0.113.9\""),
        3,
        &["no network interface"],
    );
    refuse(
        &edit("address = \"192.0.2.1\"", "address = \"127.0.0.1\""),
        3,
        &["no RDMA device", "rxe0"],
    );
    let required = format!("nqn = {NQN:?}\noffload = \"required\"");
    let port = "[[target.port]]\nid = 2";
    let one_port = &good[..good.find(port).expect("it has four")];
    let offload = one_port.replacen(&format!("nqn = {NQN:?}"), &required, 1);
    refuse(&offload, 3, &["no parameter num_p2p_queues", "vendor"]);
    let listener = std::net::TcpListener::bind(("192.0.2.1", 4421)).expect("our own address");
    refuse(&good, 3, &["something else listens", "4421"]);
    drop(listener);
    let claimed = rustix::fs::open(
        &device,
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::EXCL,
        rustix::fs::Mode::empty(),
    );
    refuse(&good, 3, &["in use"]);
    drop(claimed);
    tool(&format!("mkfs.ext4 -q -F {}", device.display()));
    refuse(&good, 3, &["ext2/3/4", "content = \"any\""]);
    let mounted = target.folder.path().join("mounted");
    fs::create_dir(&mounted).expect("our own folder");
    tool(&format!("mount {} {}", device.display(), mounted.display()));
    let any = edit("nsid = 1", "nsid = 1\ncontent = \"any\"");
    refuse(&any, 3, &["mounted at", "umount"]);
    tool(&format!("umount {}", mounted.display()));
    fs::create_dir(format!("{TREE}/ports/2")).expect("the kernel makes it");
    let clash = tree();
    target.configure(&any);
    target.run(&["apply"]).expect(3, &["ports/2", "kvrail did not make it"]);
    assert_eq!(tree(), clash);
    fs::remove_dir(format!("{TREE}/ports/2")).expect("it is ours");
    elsewhere(&device, &|| {
        let words = ["nqn.2020-01.org.other:s/namespaces/1", "kvrail did not make"];
        target.run(&["apply"]).expect(3, &words);
    });
    assert_eq!(tree(), before);
    target.run(&["apply"]).expect(0, &[]);
    target.undo();
    assert_eq!(tree(), before);
    blank(&device);
}

/// Somebody else exports the device, by another name of it, while this is done.
fn elsewhere(device: &Path, done: &dyn Fn()) {
    let alias = tempfile::tempdir().expect("a temporary folder");
    let link = alias.path().join("disk");
    std::os::unix::fs::symlink(device, &link).expect("our own folder");
    let subsystem = PathBuf::from(format!("{TREE}/subsystems/nqn.2020-01.org.other:s"));
    let namespace = subsystem.join("namespaces/1");
    fs::create_dir(&subsystem).expect("the kernel makes it");
    fs::create_dir(&namespace).expect("the kernel makes it");
    let link = link.display().to_string();
    fs::write(namespace.join("device_path"), link).expect("the kernel takes it");
    done();
    fs::remove_dir(&namespace).expect("it is ours");
    fs::remove_dir(&subsystem).expect("it is ours");
}

/// Neither kernel offloads: what is preferred is served by the kernel, through the drive's own
/// memory where both have that, and the data is right.
#[test]
fn preferred_offload_falls_back_and_says_so() {
    let Some(target) = Target::ready() else { return };
    let before = tree();
    let whole = target.text(&Wish::only(HOST));
    let first_port = &whole[..whole.find("[[target.port]]\nid = 2").expect("it has four")];
    let asked = format!("nqn = {NQN:?}\noffload = \"preferred\"");
    let text = first_port.replacen(&format!("nqn = {NQN:?}"), &asked, 1);
    target.configure(&text);
    let applied = target.run(&["apply", "--format", "json"]);
    assert_eq!(applied.code, Some(0), "{applied:#?}");
    let report: serde_json::Value = serde_json::from_str(&applied.stdout).expect("it is JSON");
    let outcome = &report["subsystems"][0];
    assert_eq!(outcome["serving"]["by"], "kernel", "{report:#}");
    let path = format!("{TREE}/subsystems/{NQN}/namespaces/1/p2pmem");
    let through_peer = fs::read_to_string(&path).is_ok_and(|text| text.trim() != "0");
    assert_eq!(outcome["p2p_memory"] == serde_json::json!([1]), through_peer, "{report:#}");
    println!("through peer-to-peer memory: {through_peer}");
    connect(RDMA, &[]).expect(0, &[]);
    same_both_ways(&namespace(), &machine::namespace("kvr-main", 2));
    disconnect();
    target.undo();
    assert_eq!(tree(), before);
}

/// Killed right before its n-th record is in place: the tree may hold a half, the next start none.
#[test]
fn a_kill_at_any_step_leaves_all_or_nothing() {
    let Some(target) = Target::ready() else { return };
    target.configure(&target.text(&Wish::only(HOST)));
    let before = tree();
    target.run(&["apply"]).expect(0, &[]);
    let applied = tree();
    target.undo();
    let mut kills = 0;
    for verb in ["apply", "undo"] {
        for step in (1..60).step_by(4) {
            if verb == "undo" {
                target.run(&["apply"]).expect(0, &[]);
            }
            let inject = format!("inject=rename,renameat,renameat2:signal=KILL:when={step}");
            let mut command = Command::new("strace");
            command.args(["-f", "-qq", "-o", "/dev/null", "-e", &inject]);
            command.arg(crate::rig::kvrail_program()).args(["target", verb, "--config"]);
            let ended = run(command.arg(target.configuration()));
            if ended.code == Some(0) {
                target.undo();
                break;
            }
            kills += 1;
            if step % 8 == 1 {
                target.run(&["apply"]).expect(0, &[]);
                assert_eq!(tree(), applied, "{verb} killed at {step}");
            }
            target.undo();
            assert_eq!(tree(), before, "{verb} killed at {step}");
        }
    }
    println!("killed {kills} times");
    assert!(kills >= 10, "{kills}");
}

/// The sidecar holds the drive, repairs the target, and takes it down when it is told to.
#[test]
fn a_running_sidecar_keeps_it_up() {
    let Some(target) = Target::ready() else { return };
    let before = tree();
    let mut at = Place::with_volume(1, 8 << 20);
    let more = "watch = \"200ms\"\nat_stop = \"undo\"";
    let text = target.text(&Wish { more, ..Wish::only(HOST) });
    target.configure(&text);
    at.configure(&text);
    let mut sidecar = Sidecar::start(&at);
    let applied = tree();
    assert!(applied.len() > before.len());
    let enable = format!("{TREE}/subsystems/{NQN}/namespaces/1/enable");
    fs::write(&enable, "0").expect("the kernel takes it");
    eventually("the namespace is enabled again", || tree() == applied);
    shut(2);
    eventually("the port is open again", || tree() == applied);
    target.run(&["undo"]).expect(1, &["another kvrail"]);
    let taken = rustix::fs::open(
        machine::namespace("kvr-main", 2),
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::EXCL,
        rustix::fs::Mode::empty(),
    );
    assert!(taken.is_err(), "the sidecar holds the drive");
    sidecar.signal(Signal::TERM);
    assert!(sidecar.wait().success(), "{}", sidecar.said());
    assert_eq!(tree(), before, "{}", sidecar.said());
}

/// nvmetcli's JSON of what is there leads back to it.
#[test]
fn what_is_exported_can_be_imported() {
    let Some(target) = Target::ready() else { return };
    let before = tree();
    target.configure(&target.text(&Wish::only(HOST)));
    target.run(&["apply"]).expect(0, &[]);
    let applied = tree();
    let saved = target.folder.path().join("saved.json");
    fs::write(&saved, target.run(&["export", "--tree", TREE]).stdout).expect("ours");
    target.undo();
    let imported = run(kvrail().args(["target", "import"]).arg(&saved));
    assert_eq!(imported.code, Some(0), "{imported:#?}");
    let text = format!("[target]\nstate = {:?}\n{}", target.state(), imported.stdout);
    target.configure(&text);
    target.run(&["apply"]).expect(0, &[]);
    assert_eq!(tree(), applied);
    target.undo();
    assert_eq!(tree(), before);
}
