//! The target on a real kernel: nvme-cli as the host, over RDMA, TCP and loop; removed without a
//! trace, repaired and changed while the sidecar runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::fabrics::bytes::same_both_ways;
use crate::fabrics::nvme_cli::{HOST, connect, disconnect, discover, namespace, seen};
use crate::fabrics::target::{LOOP, NQN, RDMA, TCP, TREE, Target, Wish, blank, let_in, shut, tree};
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

/// An unlisted host is admitted nowhere, and a host that is removed loses its connection.
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

/// In-band authentication: the right key is admitted, and no key is not.
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

/// Targets that this kernel or this machine cannot or must not make, each refused without a change.
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
    refuse(&edit("serial:kvr-main/2", "serial:absent"), 3, &["serial:absent", "remedy"]);
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

/// Another program exports the device, under another name, while `done` runs.
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

/// This machine cannot offload: a preferred offload is served by the kernel, through the drive's
/// own memory where both have it, and the data is right.
#[test]
fn preferred_offload_falls_back_and_reports_it() {
    let Some(target) = Target::ready() else { return };
    let before = tree();
    let whole = target.text(&Wish::only(HOST));
    let first_port = &whole[..whole.find("[[target.port]]\nid = 2").expect("it has four")];
    let preferred = format!("nqn = {NQN:?}\noffload = \"preferred\"");
    let text = first_port.replacen(&format!("nqn = {NQN:?}"), &preferred, 1);
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

/// The sidecar holds the drive, repairs the target, and removes it when it stops.
#[test]
fn a_running_sidecar_keeps_it_up() {
    let Some(target) = Target::ready() else { return };
    let before = tree();
    let mut at = Place::with_volume(1, 8 << 20);
    let more = "reconcile_interval = \"200ms\"\non_shutdown = \"teardown\"";
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
    target.run(&["teardown"]).expect(1, &["another kvrail"]);
    let taken = rustix::fs::open(
        machine::namespace("kvr-main", 2),
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::EXCL,
        rustix::fs::Mode::empty(),
    );
    assert!(taken.is_err(), "the sidecar holds the drive");
    sidecar.signal(Signal::TERM);
    assert!(sidecar.wait().success(), "{}", sidecar.stderr());
    assert_eq!(tree(), before, "{}", sidecar.stderr());
}

/// Changed, kept where the change cannot be made, emptied and filled again.
#[test]
fn a_reload_changes_the_target_of_a_running_sidecar() {
    let Some(target) = Target::ready() else { return };
    let before = tree();
    let other = "nqn.2026-01.org.example:another";
    let text =
        |host| target.text(&Wish { more: "reconcile_interval = \"200ms\"", ..Wish::only(host) });
    let mut at = Place::with_volume(1, 8 << 20);
    let plain = at.extra.clone();
    at.configure(&text(HOST));
    let sidecar = Sidecar::start(&at);
    let applied = tree();
    let mut reload = |text: &str| {
        at.extra = format!("{plain}{text}\n");
        at.configuration();
        sidecar.signal(Signal::HUP);
    };
    reload(&text(other));
    eventually("the other host is let in", || let_in() == BTreeSet::from([other.to_owned()]));
    reload(&text(HOST).replace("serial:kvr-main/2", "serial:absent"));
    eventually("a drive that is not there is refused", || {
        sidecar.stderr().contains("the target in force stays")
            && sidecar.stderr().contains("absent")
    });
    assert_eq!(let_in(), BTreeSet::from([other.to_owned()]));
    reload("");
    eventually("nothing is exported", || tree() == before);
    // No other program has it now.
    target.configure(&text(HOST));
    target.run(&["apply"]).expect(0, &[]);
    target.undo();
    reload(&text(HOST));
    eventually("it is as it was at first", || tree() == applied);
    sidecar.stop();
    assert_eq!(tree(), applied, "what is kept stays");
    target.undo();
    assert_eq!(tree(), before);
}

/// A plan loads no module, and names those that apply loads; apply takes the planned steps.
#[test]
fn a_plan_needs_no_module() {
    let Some(target) = Target::ready() else { return };
    target.configure(&target.text(&Wish::only(HOST)));
    tool("for m in nvme-loop nvmet-rdma nvmet-tcp nvmet; do modprobe -r $m; done");
    let words = ["modprobe nvmet\n", "modprobe nvmet_rdma\n", "modprobe nvme_loop\n", "loads them"];
    let planned = target.run(&["plan"]);
    planned.expect(0, &[]);
    assert!(words.iter().all(|word| planned.stdout.contains(word)), "{planned:#?}");
    target.run(&["status"]).expect(8, &["not as planned", "kvrail target apply"]);
    assert!(!Path::new(TREE).exists(), "neither has loaded anything");
    target.run(&["apply"]).expect(0, &[]);
    target.run(&["status"]).expect(0, &[]);
    target.undo();
    // As the machine's other tests expect it.
    assert!(Path::new(TREE).exists());
}

/// The address is that of the card, where it has but one.
#[test]
fn a_port_finds_its_address_at_the_card() {
    let Some(target) = Target::ready() else { return };
    let whole = target.text(&Wish::only(HOST));
    let first = &whole[..whole.find("[[target.port]]\nid = 2").expect("it has four")];
    let configure = |nic: &str| {
        let nic = format!("nic = {nic:?}");
        target.configure(&first.replace("address = \"192.0.2.1\"", &nic));
    };
    configure("nearest");
    target.run(&["plan"]).expect(3, &["target.port.0.nic = nearest", "can be used (rxe0)"]);
    configure("rxe0");
    target.run(&["plan"]).expect(3, &["target.port.0.nic = rxe0", "192.0.2.1, 192.0.2.2"]);
    tool("ip address del 192.0.2.2/24 dev dum0");
    eventually("the card has one address", || target.run(&["plan"]).code == Some(0));
    for nic in ["nearest", "rxe0", "dum0"] {
        configure(nic);
        target.run(&["apply"]).expect(0, &[]);
        let address = fs::read_to_string(format!("{TREE}/ports/1/addr_traddr"));
        assert_eq!(address.expect("the port is there").trim(), "192.0.2.1", "{nic}");
        connect(RDMA, &[]).expect(0, &[]);
        namespace();
        disconnect();
        target.undo();
    }
}

/// nvmetcli's JSON of the present target converts back to it.
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
    let text = format!("[target]\nstate_dir = {:?}\n{}", target.state(), imported.stdout);
    target.configure(&text);
    target.run(&["apply"]).expect(0, &[]);
    assert_eq!(tree(), applied);
    target.undo();
    assert_eq!(tree(), before);
}
