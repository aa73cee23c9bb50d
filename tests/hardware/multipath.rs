//! Two ports, two paths, one device: a path is taken away under load that checks what it reads.

use std::fs;
use std::process::{Command, Stdio};

use crate::fabric::{ADDRESSES, HOST, TREE, connect, disconnect, namespace, place, target, tree};
use crate::fabrics::network::Network;
use crate::fabrics::paths::Multipath;
use crate::machine::{self, tool};
use crate::rig::eventually;

const SUBSYSTEM: &str = "nqn.2026-01.org.example:paths";

fn section(state: &str, states: [&str; 2]) -> String {
    let port = |(index, state): (usize, &str)| {
        format!(
            "[[target.port]]\nid = {}\ntransport = \"rdma\"\naddress = {:?}\n\
             subsystems = [{SUBSYSTEM:?}]\nana = [{{ group = 2, state = {state:?} }}]\n",
            index + 1,
            ADDRESSES[index]
        )
    };
    let ports: String = states.into_iter().enumerate().map(port).collect();
    format!(
        "[target]\nstate = {state:?}\n\
         [[target.subsystem]]\nnqn = {SUBSYSTEM:?}\nhosts = [{HOST:?}]\n\
         [[target.subsystem.namespace]]\nnsid = 1\ndevice = \"serial:kvr-main/2\"\nana_group = 2\n\
         content = \"any\"\n{ports}"
    )
}

#[test]
fn a_path_that_goes_under_load_costs_no_error() {
    if !machine::is_ours() {
        return;
    }
    let _multipath = Multipath::on();
    tool("modprobe nvme poll_queues=2");
    eventually("the drive is back", || machine::find("kvr-main", 2).is_some());
    let _network = Network::up();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let state = folder.path().join("state").display().to_string();
    let configuration = folder.path().join("kvrail.toml");
    let apply = |states| {
        fs::write(&configuration, section(&state, states)).expect("our own folder");
        target(&configuration, &["apply"]).expect(0, &[]);
    };
    let before = tree();
    apply(["optimized", "optimized"]);
    for address in ADDRESSES {
        connect(&place("rdma", address, 4420), SUBSYSTEM, &["-k", "4", "-c", "1"]).expect(0, &[]);
    }
    let device = namespace(SUBSYSTEM, 1);
    let mut load = Command::new("fio");
    load.args(["--name=verified", "--rw=randwrite", "--bs=16k", "--iodepth=8", "--direct=1"]);
    load.args(["--ioengine=libaio", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1"]);
    load.args(["--size=24m", "--rate=1m", "--verify_backlog=64"]);
    load.arg(format!("--filename={}", device.display()));
    // It would write into the line that says how this test ends.
    let mut load = load.stdout(Stdio::null()).spawn().expect("fio");
    let moment = || std::thread::sleep(std::time::Duration::from_secs(3));
    moment();
    apply(["inaccessible", "optimized"]);
    moment();
    apply(["optimized", "non-optimized"]);
    moment();
    // Not through kvrail: the path goes as it goes when somebody pulls a cable.
    let link = format!("{TREE}/ports/1/subsystems/{SUBSYSTEM}");
    fs::remove_file(&link).expect("it is a link");
    moment();
    apply(["optimized", "optimized"]);
    assert!(fs::symlink_metadata(&link).is_ok(), "the path is repaired");
    let ended = load.wait().expect("fio ends");
    assert!(ended.success(), "the load saw an error: {ended}");
    println!("{}", tool("nvme list-subsys"));
    disconnect(SUBSYSTEM);
    target(&configuration, &["undo"]).expect(0, &[]);
    assert_eq!(tree(), before);
}
