//! Native multipath: a path that is taken away under verified load costs no error.

use std::process::{Command, Stdio};

use kvrail_tests::span_bytes;

use super::nvme_cli::{connect, disconnect, namespace};
use super::target::{RDMA, RDMA_OTHER, Target, Wish, is_open, shut, tree};
use super::volume_on;
use crate::machine::{self, tool};
use crate::multipath::Multipath;
use crate::rig::{Actor, Sidecar, eventually};

/// Threads of the load.
const THREADS: u32 = 2;

/// The target's configuration with these ANA states at the two RDMA ports.
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
    // Its output would end in the line with this test's result.
    let mut load = load.stdout(Stdio::null()).spawn().expect("fio");
    let moment = || std::thread::sleep(std::time::Duration::from_secs(3));
    moment();
    states_at(&target, ["inaccessible", "optimized"]);
    moment();
    states_at(&target, ["optimized", "non-optimized"]);
    moment();
    // Not through kvrail: the path is lost as when a cable is pulled.
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
    for way in [RDMA, RDMA_OTHER] {
        connect(way, &["-k", "2", "-c", "1", "-l", "600"]).expect(0, &[]);
    }
    tool("echo round-robin | tee /sys/class/nvme-subsystem/*/iopolicy");

    let place = volume_on(&namespace(), span_bytes(THREADS));
    let mut sidecar = Sidecar::start(&place);
    let mut actor = Actor::traffic(&sidecar, 0, THREADS, 12.0);
    assert!(actor.wait_until_running());
    eventually("status has both paths", || ana(&sidecar) == ["optimized", "optimized"]);
    // Requests move to the other path, then one path is lost, then the other one.
    states_at(&target, ["optimized", "inaccessible"]);
    eventually("the state is seen", || ana(&sidecar).contains(&"inaccessible".to_owned()));
    states_at(&target, ["optimized", "optimized"]);
    eventually("the state is seen", || ana(&sidecar) == ["optimized", "optimized"]);
    for port in [1, 4] {
        shut(port);
        eventually("a path is lost", || states(&sidecar).contains(&"connecting".to_owned()));
        states_at(&target, ["optimized", "optimized"]);
        eventually("it comes back", || states(&sidecar) == ["live", "live"]);
    }

    let tally = actor.tally();
    tally.assert_right();
    let statuses: Vec<&String> = tally.statuses.keys().collect();
    assert_eq!(statuses, ["OK"], "{:?}", tally.statuses);
    println!("{} requests, {} verified", tally.ended, tally.verified);
    sidecar.assert_alive();
    sidecar.stop();
    disconnect();
    target.undo();
    assert_eq!(tree(), before);
}

/// ANA states of the paths to the volume's device, in the order of their controllers.
fn ana(sidecar: &Sidecar) -> Vec<String> {
    sidecar.status().paths.into_iter().filter_map(|path| path.ana_state).collect()
}

/// States of the connections.
fn states(sidecar: &Sidecar) -> Vec<String> {
    sidecar.status().paths.into_iter().map(|path| path.state).collect()
}
