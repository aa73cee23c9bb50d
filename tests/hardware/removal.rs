//! Namespaces that are detached from a controller that stays, labels that are destroyed, and two
//! sidecars for one device.

use std::fs;

use kvrail_protocol::DeviceState;

use crate::bed::Bed;
use crate::load::Load;
use crate::machine;
use crate::multipath::Multipath;
use crate::rig::{Sidecar, VOLUME, eventually, run};
use crate::starved::Starved;

/// How often a namespace is detached while the kernel is starved.
const STARVED_ROUNDS: u32 = 4;

/// The controller of a namespace: its node and its number in the subsystem.
fn controller(serial: &str) -> (String, String) {
    let entries = fs::read_dir("/sys/class/nvme").expect("sysfs is mounted");
    let mut paths = entries.map(|entry| entry.expect("sysfs can be listed").path());
    let word = |path: &std::path::Path, name: &str| {
        fs::read_to_string(path.join(name)).unwrap_or_default().trim().to_owned()
    };
    let path = paths.find(|path| word(path, "serial") == serial).expect("it is plugged");
    let name = path.file_name().expect("a name").to_string_lossy().into_owned();
    (format!("/dev/{name}"), word(&path, "cntlid"))
}

#[test]
fn a_namespace_that_is_detached_is_gone_and_served_again_when_it_is_attached() {
    if !machine::is_ours() {
        return;
    }
    for mode in ["interrupt", "iopoll", "passthrough"] {
        detach_and_attach(mode);
    }
}

/// A head outlives its last path for a moment, and fails requests with other errors then.
#[test]
fn a_head_that_loses_its_last_path_is_gone_and_served_again_when_it_has_one() {
    if !machine::is_ours() {
        return;
    }
    let _multipath = Multipath::on();
    assert!(machine::is_head("kvr-pull", 1), "it may have several paths");
    for mode in ["interrupt", "iopoll", "passthrough"] {
        detach_and_attach(mode);
    }
}

/// The moment is long where the kernel learns late that the drive has detached a namespace.
#[test]
fn a_namespace_that_a_starved_kernel_drops_late_is_gone_and_nothing_else() {
    if !machine::is_ours() {
        return;
    }
    detach_from_starved("iopoll", STARVED_ROUNDS);
}

#[test]
fn a_head_that_a_starved_kernel_drops_late_is_gone_and_nothing_else() {
    if !machine::is_ours() {
        return;
    }
    let _multipath = Multipath::on();
    detach_from_starved("iopoll", STARVED_ROUNDS);
    detach_from_starved("passthrough", 1);
}

fn detach_and_attach(mode: &str) {
    let bed = Bed::new(mode, "kvr-pull", 1);
    let field = Field::of(&bed);
    field.detach();
    field.attach();
    field.assert_nothing_else(mode);
}

fn detach_from_starved(mode: &str, rounds: u32) {
    let starved = Starved::on();
    let mut bed = Bed::new(mode, "kvr-pull", 1);
    bed.place.configure("pollers.cpus = [0]");
    let field = Field::of(&bed);
    for _ in 0..rounds {
        let hunger = starved.begin();
        field.detach();
        drop(hunger);
        field.attach();
    }
    field.assert_nothing_else(mode);
}

/// A volume under load on a namespace that is detached from its controller.
struct Field {
    sidecar: Sidecar,
    load: Load,
    node: String,
    number: String,
}

impl Field {
    fn of(bed: &Bed) -> Self {
        let sidecar = bed.serve();
        let load = Load::start(sidecar.socket(), VOLUME);
        eventually("there is load", || load.counts.ok() > 16);
        let (node, number) = controller("kvr-pull");
        Self { sidecar, load, node, number }
    }

    fn change(&self, verb: &str) {
        let Self { node, number, .. } = self;
        machine::tool(&format!("nvme {verb} {node} --namespace-id=1 --controllers={number}"));
    }

    fn detach(&self) {
        let before = self.load.counts.gone();
        self.change("detach-ns");
        eventually("requests end with DEVICE_GONE", || self.load.counts.gone() > before + 8);
    }

    fn attach(&self) {
        self.change("attach-ns");
        let state = || self.sidecar.status().devices[0].state;
        eventually("it is served again", || state() == DeviceState::Serving);
        let before = self.load.counts.ok();
        eventually("requests end well again", || self.load.counts.ok() > before + 16);
    }

    fn assert_nothing_else(self, mode: &str) {
        let outcome = self.load.stop();
        println!("{mode}: {:?}", outcome.statuses);
        let known = ["OK", "DEVICE_GONE"];
        assert!(outcome.statuses.keys().all(|name| known.contains(name)), "{mode}");
        self.sidecar.stop();
    }
}

#[test]
fn a_destroyed_label_and_a_second_sidecar_are_refused() {
    if !machine::is_ours() {
        return;
    }
    let bed = Bed::new("interrupt", "kvr-main", 2);
    let sidecar = bed.serve();
    let mut second = bed.place.serve();
    second.args(["--set", "sidecar.socket=/tmp/second"]);
    let pid = sidecar.pid().to_string();
    run(&mut second).expect(3, &["in use", &format!("process {pid} (kvrail) has it")]);
    sidecar.stop();

    let node = machine::namespace("kvr-main", 2);
    let mut label = machine::read_label(&node);
    for copy in [0, label.len() / 2] {
        label[copy + 100] ^= 1;
    }
    machine::write_label(&node, &label);
    run(&mut bed.place.serve()).expect(3, &["its kvrail label is damaged"]);
    machine::wipe_label(&node);
    run(&mut bed.place.serve()).expect(3, &["it has no kvrail label"]);
}
