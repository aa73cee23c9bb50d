//! The target on a real kernel: nvme-cli as the host, over RDMA, TCP and loop; undone without a
//! trace, killed at any step, repaired while the sidecar runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::fabric::{
    ADDRESSES, HOST, TREE, connect, disconnect, namespace, place, same_data, target, tree,
};
use crate::fabrics::network::Network;
use crate::machine::{self, tool};
use crate::rig::{Place, Sidecar, eventually, kvrail, run};

const SUBSYSTEM: &str = "nqn.2026-01.org.example:kv0";

/// A namespace at three ports; the tables may be given more keys.
fn section(state: &Path, host: &str, device: &str, more: &str) -> String {
    let port = |id: u16, transport: &str, place: &str| {
        format!(
            "[[target.port]]\nid = {id}\ntransport = {transport:?}\n{place}\n\
             subsystems = [{SUBSYSTEM:?}]\n"
        )
    };
    let address = ADDRESSES[0];
    [
        format!("[target]\nstate = {state:?}\n{more}\n"),
        format!("[[target.subsystem]]\nnqn = {SUBSYSTEM:?}\nhosts = [{host:?}]\n"),
        format!("[[target.subsystem.namespace]]\nnsid = 1\ndevice = {device:?}\n"),
        port(1, "rdma", &format!("address = {address:?}")),
        port(2, "tcp", &format!("address = {address:?}\nservice = 4421")),
        port(3, "loop", ""),
    ]
    .concat()
}

struct Ground {
    folder: TempDir,
    _network: Network,
}

impl Ground {
    fn new() -> Option<Self> {
        if !machine::is_ours() {
            return None;
        }
        let network = Network::up();
        blank(&machine::namespace("kvr-main", 2));
        let folder = tempfile::tempdir().expect("a temporary folder");
        Some(Self { folder, _network: network })
    }

    fn configuration(&self, text: &str) -> PathBuf {
        let path = self.folder.path().join("kvrail.toml");
        fs::write(&path, text).expect("our own folder");
        path
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn ordinary(&self) -> PathBuf {
        self.configuration(&section(&self.state(), HOST, "serial:kvr-main/2", ""))
    }
}

/// Nothing known on it.
fn blank(device: &Path) {
    let to = device.display();
    tool(&format!("dd if=/dev/zero of={to} bs=1M count=2 oflag=direct status=none"));
}

#[test]
fn a_host_reaches_it_over_each_transport_and_undo_leaves_no_trace() {
    let Some(ground) = Ground::new() else { return };
    let configuration = ground.ordinary();
    let before = tree();
    let planned = target(&configuration, &["plan", "--format", "json"]);
    assert_eq!(planned.code, Some(0), "{planned:#?}");
    assert_eq!(tree(), before, "a plan changes nothing");
    target(&configuration, &["apply"]).expect(0, &[]);
    assert!(target(&configuration, &["apply"]).stdout.contains("nothing to do"));
    let local = machine::namespace("kvr-main", 2);
    for (transport, service) in [("rdma", 4420), ("tcp", 4421), ("loop", 0)] {
        let place = place(transport, ADDRESSES[0], service);
        let listed = tool(&format!("nvme discover {}", place.join(" ")));
        assert!(listed.contains(SUBSYSTEM), "{transport}: {listed}");
        connect(&place, SUBSYSTEM, &[]).expect(0, &[]);
        let remote = namespace(SUBSYSTEM, 1);
        same_data(ground.folder.path(), &remote, &local);
        same_data(ground.folder.path(), &local, &remote);
        disconnect(SUBSYSTEM);
        println!("same data over {transport}");
    }
    let status = target(&configuration, &["status"]);
    assert!(status.stdout.contains("as planned"), "{status:#?}");
    target(&configuration, &["undo"]).expect(0, &[]);
    assert_eq!(tree(), before);
}

/// A name that is not listed is let in nowhere, and one that leaves loses its connection.
#[test]
fn only_listed_hosts_get_in() {
    let Some(ground) = Ground::new() else { return };
    let before = tree();
    let other = "nqn.2026-01.org.example:somebody-else";
    let section = |host| section(&ground.state(), host, "serial:kvr-main/2", "");
    let configuration = ground.configuration(&section(other));
    target(&configuration, &["apply"]).expect(0, &[]);
    let place = place("tcp", ADDRESSES[0], 4421);
    assert_ne!(connect(&place, SUBSYSTEM, &[]).code, Some(0), "a stranger is in");
    ground.configuration(&section(HOST));
    target(&configuration, &["apply"]).expect(0, &[]);
    connect(&place, SUBSYSTEM, &["-l", "2"]).expect(0, &[]);
    namespace(SUBSYSTEM, 1);
    ground.configuration(&section(other));
    target(&configuration, &["apply"]).expect(0, &[]);
    eventually("the connection is gone", || crate::fabric::seen(SUBSYSTEM, 1).is_none());
    target(&configuration, &["undo"]).expect(0, &[]);
    assert_eq!(tree(), before);
}

/// In-band authentication: the key opens, and no key does not.
#[test]
fn a_host_with_a_key_must_bring_it() {
    let Some(ground) = Ground::new() else { return };
    let before = tree();
    let key = tool(&format!("nvme gen-dhchap-key -n {HOST}"));
    let file = ground.folder.path().join("key");
    fs::write(&file, &key).expect("our own folder");
    tool(&format!("chmod 0600 {}", file.display()));
    let host = format!("[[target.host]]\nnqn = {HOST:?}\ndhchap_key_file = {file:?}\n");
    let text = section(&ground.state(), HOST, "serial:kvr-main/2", "") + &host;
    let configuration = ground.configuration(&text);
    target(&configuration, &["apply"]).expect(0, &[]);
    let place = place("tcp", ADDRESSES[0], 4421);
    assert_ne!(connect(&place, SUBSYSTEM, &[]).code, Some(0), "without a key");
    connect(&place, SUBSYSTEM, &["-S", key.trim()]).expect(0, &[]);
    namespace(SUBSYSTEM, 1);
    disconnect(SUBSYSTEM);
    let shown = target(&configuration, &["export", "--tree", TREE]);
    assert!(!shown.stdout.contains(key.trim()) && shown.stdout.contains(SUBSYSTEM), "{shown:#?}");
    target(&configuration, &["undo"]).expect(0, &[]);
    assert_eq!(tree(), before);
}

/// What this kernel or this machine cannot or must not do, each with nothing done.
#[test]
fn refusals_leave_the_tree_alone() {
    let Some(ground) = Ground::new() else { return };
    let before = tree();
    let device = machine::namespace("kvr-main", 2);
    let good = section(&ground.state(), HOST, "serial:kvr-main/2", "");
    let refuse = |text: &str, code: i32, words: &[&str]| {
        let configuration = ground.configuration(text);
        target(&configuration, &["apply"]).expect(code, words);
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
    let required = format!("nqn = {SUBSYSTEM:?}\noffload = \"required\"");
    let port = "[[target.port]]\nid = 2";
    let one_port = &good[..good.find(port).expect("it has three")];
    let offload = one_port.replacen(&format!("nqn = {SUBSYSTEM:?}"), &required, 1);
    refuse(&offload, 3, &["no parameter num_p2p_queues", "vendor"]);
    let listener = std::net::TcpListener::bind((ADDRESSES[0], 4421)).expect("our own address");
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
    let mounted = ground.folder.path().join("mounted");
    fs::create_dir(&mounted).expect("our own folder");
    tool(&format!("mount {} {}", device.display(), mounted.display()));
    let any = edit("nsid = 1", "nsid = 1\ncontent = \"any\"");
    refuse(&any, 3, &["mounted at", "umount"]);
    tool(&format!("umount {}", mounted.display()));
    fs::create_dir(format!("{TREE}/ports/2")).expect("the kernel makes it");
    let clash = tree();
    let outcome = target(&ground.configuration(&any), &["apply"]);
    outcome.expect(3, &["ports/2", "kvrail did not make it"]);
    assert_eq!(tree(), clash);
    fs::remove_dir(format!("{TREE}/ports/2")).expect("it is ours");
    elsewhere(&device, &|| {
        let outcome = target(&ground.configuration(&any), &["apply"]);
        outcome.expect(3, &["nqn.2020-01.org.other:s/namespaces/1", "kvrail did not make"]);
    });
    assert_eq!(tree(), before);
    target(&ground.configuration(&any), &["apply"]).expect(0, &[]);
    target(&ground.configuration(&any), &["undo"]).expect(0, &[]);
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
    let Some(ground) = Ground::new() else { return };
    let before = tree();
    let whole = section(&ground.state(), HOST, "serial:kvr-main/2", "");
    let first_port = &whole[..whole.find("[[target.port]]\nid = 2").expect("it has three")];
    let asked = format!("nqn = {SUBSYSTEM:?}\noffload = \"preferred\"");
    let text = first_port.replacen(&format!("nqn = {SUBSYSTEM:?}"), &asked, 1);
    let configuration = ground.configuration(&text);
    let applied = target(&configuration, &["apply", "--format", "json"]);
    assert_eq!(applied.code, Some(0), "{applied:#?}");
    let report: serde_json::Value = serde_json::from_str(&applied.stdout).expect("it is JSON");
    let outcome = &report["subsystems"][0];
    assert_eq!(outcome["serving"]["by"], "kernel", "{report:#}");
    let path = format!("{TREE}/subsystems/{SUBSYSTEM}/namespaces/1/p2pmem");
    let through_peer = fs::read_to_string(&path).is_ok_and(|text| text.trim() != "0");
    assert_eq!(outcome["p2p_memory"] == serde_json::json!([1]), through_peer, "{report:#}");
    println!("through peer-to-peer memory: {through_peer}");
    connect(&place("rdma", ADDRESSES[0], 4420), SUBSYSTEM, &[]).expect(0, &[]);
    same_data(ground.folder.path(), &namespace(SUBSYSTEM, 1), &machine::namespace("kvr-main", 2));
    disconnect(SUBSYSTEM);
    target(&configuration, &["undo"]).expect(0, &[]);
    assert_eq!(tree(), before);
}

/// Killed right before its n-th record is in place: the tree may hold a half, the next start none.
#[test]
fn a_kill_at_any_step_leaves_all_or_nothing() {
    let Some(ground) = Ground::new() else { return };
    let configuration = ground.ordinary();
    let before = tree();
    target(&configuration, &["apply"]).expect(0, &[]);
    let applied = tree();
    target(&configuration, &["undo"]).expect(0, &[]);
    let mut kills = 0;
    for verb in ["apply", "undo"] {
        for step in (1..60).step_by(4) {
            if verb == "undo" {
                target(&configuration, &["apply"]).expect(0, &[]);
            }
            let inject = format!("inject=rename,renameat,renameat2:signal=KILL:when={step}");
            let mut command = Command::new("strace");
            command.args(["-f", "-qq", "-o", "/dev/null", "-e", &inject]);
            command.arg(crate::rig::kvrail_program()).args(["target", verb, "--config"]);
            let ended = run(command.arg(&configuration));
            if ended.code == Some(0) {
                target(&configuration, &["undo"]).expect(0, &[]);
                break;
            }
            kills += 1;
            if step % 8 == 1 {
                target(&configuration, &["apply"]).expect(0, &[]);
                assert_eq!(tree(), applied, "{verb} killed at {step}");
            }
            target(&configuration, &["undo"]).expect(0, &[]);
            assert_eq!(tree(), before, "{verb} killed at {step}");
        }
    }
    println!("killed {kills} times");
    assert!(kills >= 10, "{kills}");
}

/// The sidecar holds the drive, repairs the target, and takes it down when it is told to.
#[test]
fn a_running_sidecar_keeps_it_up() {
    let Some(ground) = Ground::new() else { return };
    let before = tree();
    let mut at = Place::with_volume(1, 8 << 20);
    let more = "watch = \"200ms\"\nat_stop = \"undo\"";
    at.configure(&section(&ground.state(), HOST, "serial:kvr-main/2", more));
    let mut sidecar = Sidecar::start(&at);
    let applied = tree();
    assert!(applied.len() > before.len());
    let enable = format!("{TREE}/subsystems/{SUBSYSTEM}/namespaces/1/enable");
    fs::write(&enable, "0").expect("the kernel takes it");
    eventually("the namespace is enabled again", || tree() == applied);
    fs::remove_file(format!("{TREE}/ports/2/subsystems/{SUBSYSTEM}")).expect("it is a link");
    eventually("the port is open again", || tree() == applied);
    let configuration = at.configuration();
    target(&configuration, &["undo"]).expect(1, &["another kvrail"]);
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
    let Some(ground) = Ground::new() else { return };
    let before = tree();
    let configuration = ground.ordinary();
    target(&configuration, &["apply"]).expect(0, &[]);
    let applied = tree();
    let saved = ground.folder.path().join("saved.json");
    fs::write(&saved, target(&configuration, &["export", "--tree", TREE]).stdout).expect("ours");
    target(&configuration, &["undo"]).expect(0, &[]);
    let imported = run(kvrail().args(["target", "import"]).arg(&saved));
    assert_eq!(imported.code, Some(0), "{imported:#?}");
    let text = format!("[target]\nstate = {:?}\n{}", ground.state(), imported.stdout);
    let again = ground.configuration(&text);
    target(&again, &["apply"]).expect(0, &[]);
    assert_eq!(tree(), applied);
    target(&again, &["undo"]).expect(0, &[]);
    assert_eq!(tree(), before);
}
