//! Native multipath: a path that is taken away under verified load costs no error.

use std::path::PathBuf;

use kvrail_tests::span_bytes;

use super::connect::volume_on;
use super::network::Network;
use super::target::{NQN, RDMA, RDMA_OTHER, Target};
use super::{host, listed};
use crate::machine::{self, tool};
use crate::rig::{Actor, Sidecar, eventually, kvrail, run};

/// Threads of the load.
const THREADS: u32 = 2;

/// The NVMe drivers with native multipath. The machine's own drives go for as long: the suite's
/// other tests want them without.
pub(crate) struct Multipath;

impl Multipath {
    pub(crate) fn on() -> Self {
        reload("nvme_core multipath=Y");
        Self
    }
}

impl Drop for Multipath {
    fn drop(&mut self) {
        reload("nvme_core multipath=N");
        tool("modprobe nvme poll_queues=2");
        eventually("the machine's own drives are back", || {
            ["kvr-main", "kvr-pull", "kvr-fault", "kvr-slow"]
                .iter()
                .all(|serial| machine::find(serial, 1).is_some())
        });
    }
}

fn reload(core: &str) {
    // Whichever of them is loaded; the target uses the core too.
    tool(
        "for m in nvme-loop nvmet-rdma nvmet-tcp nvmet nvme-rdma nvme-tcp nvme nvme-fabrics; do \
         modprobe -rq $m || :; done",
    );
    tool(&format!("modprobe -r nvme-core && modprobe {core}"));
}

#[test]
fn a_lost_path_costs_no_error() {
    if !machine::is_ours() {
        return;
    }
    let _multipath = Multipath::on();
    let _network = Network::up();
    let backing = Backing::new();
    let target = Target::of(&backing.0);
    let quick = "--keep-alive-tmo 2 --reconnect-delay 1 --ctrl-loss-tmo 600";
    let first = host(&format!("connect {RDMA} -n {NQN} {quick} --iopolicy round-robin"));
    host(&format!("connect {RDMA_OTHER} -n {NQN} {quick}"));
    let device = first["namespaces"][0]["device"].as_str().expect("a device").to_owned();
    assert_eq!(ana(), ["optimized", "optimized"]);
    assert_eq!(listed(NQN).expect("listed")["io_policy"], "round-robin");
    host(&format!("policy -n {NQN} --iopolicy numa"));
    assert_eq!(listed(NQN).expect("listed")["io_policy"], "numa");
    host(&format!("policy -n {NQN} --iopolicy round-robin"));

    let place = volume_on(&device, span_bytes(THREADS));
    let mut sidecar = Sidecar::start(&place);
    let mut actor = Actor::traffic(&sidecar, 0, THREADS, 12.0);
    assert!(actor.wait_until_running());
    // Told to go elsewhere, then lost, then the other one.
    target.ana(4, "inaccessible");
    eventually("the state is seen", || ana().contains(&"inaccessible".to_owned()));
    target.ana(4, "optimized");
    eventually("the state is seen", || ana() == ["optimized", "optimized"]);
    for port in [1, 4] {
        target.shut(port);
        eventually("a path is lost", || states().contains(&"connecting".to_owned()));
        target.open(port);
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
}

/// A block device in memory that stands for a drive. A file would do as well for the target, but
/// shows blocks of 4 KiB, and the load has smaller ones.
struct Backing(PathBuf);

const FILE: &str = "/dev/shm/backing";

impl Backing {
    fn new() -> Self {
        let bytes = span_bytes(THREADS) + (16 << 20);
        let made = tool(&format!("truncate -s {bytes} {FILE} && losetup -f --show {FILE}"));
        Self(made.trim().into())
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        tool(&format!("losetup -d {}; rm {FILE}", self.0.display()));
    }
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
