//! Native multipath: a path that is taken away under verified load costs no error.

use std::process::{Command, Stdio};

use kvrail_tests::span_bytes;

use super::connect::volume_on;
use super::nvme_cli::{connect, disconnect, namespace};
use super::target::{NQN, RDMA, RDMA_OTHER, Target, Wish, is_open, shut, tree};
use super::{host, listed};
use crate::machine::{self, tool};
use crate::multipath::Multipath;
use crate::rig::{Actor, Sidecar, eventually, kvrail, run};

/// Threads of the load.
const THREADS: u32 = 2;

/// With these ANA states at the two RDMA ports.
fn states_at(target: &Target, ana: [&str; 2]) {
    target.apply(&Wish { ana, ..Wish::default() });
}

#[test]
fn a_path_that_goes_under_a_load_that_is_not_ours_costs_no_error() {
    if !machine::is_ours() {
        return;
    }
    let _multipath = Multipath::on();
    let target = Target::ready().expect("it is our machine");
    let before = tree();
    states_at(&target, ["optimized", "optimized"]);
    for way in [RDMA, RDMA_OTHER] {
        connect(way, &["-k", "4", "-c", "1"]).expect(0, &[]);
    }
    let device = namespace();
    let mut load = Command::new("fio");
    load.args(["--name=verified", "--rw=randwrite", "--bs=16k", "--iodepth=8", "--direct=1"]);
    load.args(["--ioengine=libaio", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1"]);
    load.args(["--size=24m", "--rate=1m", "--verify_backlog=64"]);
    load.arg(format!("--filename={}", device.display()));
    // It would write into the line that says how this test ends.
    let mut load = load.stdout(Stdio::null()).spawn().expect("fio");
    let moment = || std::thread::sleep(std::time::Duration::from_secs(3));
    moment();
    states_at(&target, ["inaccessible", "optimized"]);
    moment();
    states_at(&target, ["optimized", "non-optimized"]);
    moment();
    // Not through kvrail: the path goes as it goes when somebody pulls a cable.
    shut(1);
    moment();
    states_at(&target, ["optimized", "optimized"]);
    assert!(is_open(1), "the path is repaired");
    let ended = load.wait().expect("fio ends");
    assert!(ended.success(), "the load saw an error: {ended}");
    println!("{}", tool("nvme list-subsys"));
    disconnect();
    target.undo();
    assert_eq!(tree(), before);
}

#[test]
fn a_lost_path_costs_no_error() {
    if !machine::is_ours() {
        return;
    }
    let _multipath = Multipath::on();
    let target = Target::ready().expect("it is our machine");
    let before = tree();
    states_at(&target, ["optimized", "optimized"]);
    let quick = "--keep-alive-tmo 2 --reconnect-delay 1 --ctrl-loss-tmo 600";
    let first = host(&format!("connect {RDMA} -n {NQN} {quick} --iopolicy round-robin"));
    host(&format!("connect {RDMA_OTHER} -n {NQN} {quick}"));
    let device = first["namespaces"][0]["device"].as_str().expect("a device").to_owned();
    assert_eq!(ana(), ["optimized", "optimized"]);
    assert_eq!(listed(NQN).expect("listed")["io_policy"], "round-robin");
    host(&format!("set-iopolicy -n {NQN} --iopolicy numa"));
    assert_eq!(listed(NQN).expect("listed")["io_policy"], "numa");
    host(&format!("set-iopolicy -n {NQN} --iopolicy round-robin"));

    let place = volume_on(&device, span_bytes(THREADS));
    let mut sidecar = Sidecar::start(&place);
    let mut actor = Actor::traffic(&sidecar, 0, THREADS, 12.0);
    assert!(actor.wait_until_running());
    // Told to go elsewhere, then lost, then the other one.
    states_at(&target, ["optimized", "inaccessible"]);
    eventually("the state is seen", || ana().contains(&"inaccessible".to_owned()));
    states_at(&target, ["optimized", "optimized"]);
    eventually("the state is seen", || ana() == ["optimized", "optimized"]);
    for port in [1, 4] {
        shut(port);
        eventually("a path is lost", || states().contains(&"connecting".to_owned()));
        states_at(&target, ["optimized", "optimized"]);
        eventually("it comes back", || states() == ["live", "live"]);
    }
    // One path of two may go although the volume is in use; the last one not.
    let one = first["controller"].as_str().expect("a name");
    host(&format!("disconnect -d {one}"));
    run(kvrail().args(["host", "disconnect", "-n", NQN])).expect(3, &["is in use"]);

    let tally = actor.tally();
    tally.assert_right();
    let statuses: Vec<&String> = tally.statuses.keys().collect();
    assert_eq!(statuses, ["OK"], "{:?}", tally.statuses);
    println!("{} requests, {} verified", tally.ended, tally.verified);
    sidecar.assert_alive();
    sidecar.stop();
    host(&format!("disconnect -n {NQN}"));
    assert_eq!(listed(NQN), None);
    target.undo();
    assert_eq!(tree(), before);
}

/// ANA states of the paths to the namespace, in the order of their controllers.
fn ana() -> Vec<String> {
    let shown = listed(NQN).expect("it is listed");
    let paths = shown["namespaces"][0]["paths"].as_array().cloned().unwrap_or_default();
    paths.iter().filter_map(|path| Some(path["ana_state"].as_str()?.to_owned())).collect()
}

/// States of the connections.
fn states() -> Vec<String> {
    let shown = listed(NQN).expect("it is listed");
    let all = shown["controllers"].as_array().cloned().unwrap_or_default();
    all.iter().filter_map(|it| Some(it["state"].as_str()?.to_owned())).collect()
}
