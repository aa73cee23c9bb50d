//! Native multipath: a path that is taken away under verified load costs no error.

use std::fs;
use std::path::PathBuf;

use super::connect::volume_on;
use super::network::{Network, must};
use super::target::{NQN, RDMA, RDMA_OTHER, Target};
use super::{host, listed};
use crate::machine;
use crate::rig::{Actor, Sidecar, eventually, kvrail, run};

/// The NVMe drivers with native multipath. The machine's own drives go for as long: the suite's
/// other tests want them without.
struct Multipath;

impl Multipath {
    fn on() -> Self {
        reload("nvme_core multipath=Y");
        Self
    }
}

impl Drop for Multipath {
    fn drop(&mut self) {
        reload("nvme_core multipath=N");
        must("modprobe nvme poll_queues=2");
        eventually("the machine's own drives are back", || {
            ["kvr-main", "kvr-pull", "kvr-fault", "kvr-slow"]
                .iter()
                .all(|serial| machine::find(serial, 1).is_some())
        });
    }
}

fn reload(core: &str) {
    must("modprobe -r nvme-loop nvme-rdma nvme-tcp nvme nvme-fabrics nvme-core");
    must(&format!("modprobe {core}"));
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

    let place = volume_on(&device, "device.mode = \"interrupt\"");
    let mut sidecar = Sidecar::start(&place);
    let mut actor = Actor::traffic(&sidecar, 0, 2, 12.0);
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

/// A file in memory that stands for a drive.
struct Backing(PathBuf);

impl Backing {
    fn new() -> Self {
        let path = PathBuf::from("/dev/shm/backing");
        let file = fs::File::create(&path).expect("memory");
        file.set_len(128 << 20).expect("a sparse file");
        Self(path)
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
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
