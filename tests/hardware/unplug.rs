//! A controller pulled under load, and plugged in again.

use std::time::{Duration, Instant};

use kvrail_client::Client;
use kvrail_protocol::DeviceState;
use kvrail_tests::verify;

use crate::bed::{Bed, OTHER};
use crate::load::Load;
use crate::machine;
use crate::monitor::Monitor;
use crate::multipath::Multipath;
use crate::rig::{Actor, Sidecar, eventually};
use crate::timeline::Timeline;

/// The serial of the controller that is pulled, and its subsystem.
const PULLED: (&str, &str) = ("kvr-pull", "subsys-pull");

/// How long each phase lasts at least.
const PHASE: Duration = Duration::from_millis(1500);

/// How long the load on the other device lasts: all phases.
const LOAD_SECONDS: f64 = 10.0;

/// Longest pause of a healthy device, on a machine where all hardware is emulated.
const PAUSE_MAX: Duration = Duration::from_secs(5);

fn state(sidecar: &Sidecar) -> DeviceState {
    let report = sidecar.status();
    report.devices.iter().find(|device| device.index == 0).expect("the pulled one").state
}

/// `other` is device 0 (it stands first in the configuration) and is pulled; `kv` is device 1.
fn pull_and_put_back(mode: &str) {
    println!("== {mode}");
    let mut monitor = Monitor::open();
    let bed = Bed::new(mode, "kvr-main", 2).with_other(PULLED.0, 1);
    let sidecar = bed.serve();
    let mut calm = Actor::traffic(&sidecar, 0, 2, LOAD_SECONDS);
    assert!(calm.wait_until_running());
    let load = Load::start(sidecar.socket(), OTHER);
    let mut timeline = Timeline::start(sidecar.socket());
    std::thread::sleep(PHASE);

    timeline.note("the controller of the first device is pulled");
    let pulled = Instant::now();
    monitor.pull(PULLED.0);
    eventually("requests end with DEVICE_GONE", || load.counts.gone() > 8);
    let waited = pulled.elapsed();
    timeline.note(format!("all outstanding requests have ended, {} ms later", waited.as_millis()));
    assert_eq!(state(&sidecar), DeviceState::Gone);
    std::thread::sleep(PHASE);

    timeline.note("it is put back");
    monitor.plug(PULLED.0, PULLED.1);
    timeline.note("the kernel has it again");
    eventually("it is served again", || state(&sidecar) == DeviceState::Serving);
    timeline.note("it is served again");
    let before = load.counts.ok();
    eventually("requests end well again", || load.counts.ok() > before + 16);
    std::thread::sleep(PHASE);
    let pause = timeline.print(1);
    println!("{mode}: longest pause of the other device: {pause:?} over a step");
    assert!(pause < PAUSE_MAX, "the other device was disturbed");
    let outcome = load.stop();
    let others: Vec<_> =
        outcome.statuses.keys().filter(|name| !["OK", "DEVICE_GONE"].contains(name)).collect();
    assert!(others.is_empty(), "a pulled device ended requests with {:?}", outcome.statuses);
    println!("{mode}: {:?}, {} reads compared", outcome.statuses, outcome.verified);
    let client = Client::attach(sidecar.socket()).expect("the sidecar serves");
    let stands = verify(&client, OTHER, &outcome.acknowledged).expect("the sidecar lives");
    stands.assert_right();
    let tally = calm.tally();
    tally.assert_right();
    assert_eq!(tally.count("OK"), tally.ended, "the other device was disturbed");
    for line in sidecar.stop().lines().filter(|line| line.contains("/dev/nvme")) {
        println!("log: {line}");
    }
}

#[test]
fn a_pulled_controller_is_gone_and_served_again_when_it_is_back() {
    if !machine::is_ours() {
        return;
    }
    for mode in ["interrupt", "iopoll", "passthrough"] {
        pull_and_put_back(mode);
    }
}

/// The namespace is then a head, without any path.
#[test]
fn a_pulled_path_that_was_the_last_is_gone_and_served_again_when_it_is_back() {
    if !machine::is_ours() {
        return;
    }
    let _multipath = Multipath::on();
    assert!(machine::is_head(PULLED.0, 1), "it may have several paths");
    for mode in ["iopoll", "passthrough"] {
        pull_and_put_back(mode);
    }
}

#[test]
fn what_comes_back_with_another_label_is_not_served() {
    if !machine::is_ours() {
        return;
    }
    let mut monitor = Monitor::open();
    let bed = Bed::new("interrupt", "kvr-main", 2).with_other(PULLED.0, 1);
    let sidecar = bed.serve();
    let load = Load::start(sidecar.socket(), OTHER);
    eventually("there is load", || load.counts.ok() > 16);
    let label = machine::read_label(&machine::namespace(PULLED.0, 1));
    machine::wipe_label(&machine::namespace(PULLED.0, 1));
    monitor.pull(PULLED.0);
    eventually("requests end with DEVICE_GONE", || load.counts.gone() > 8);
    monitor.plug(PULLED.0, PULLED.1);
    eventually("the log has the reason of its absence", || {
        sidecar.stderr().contains("it has no kvrail label")
    });
    assert_eq!(state(&sidecar), DeviceState::Gone);
    machine::write_label(&machine::namespace(PULLED.0, 1), &label);
    eventually("it is served again", || state(&sidecar) == DeviceState::Serving);
    let outcome = load.stop();
    println!("{:?}", outcome.statuses);
    let client = Client::attach(sidecar.socket()).expect("the sidecar serves");
    verify(&client, OTHER, &outcome.acknowledged).expect("the sidecar lives").assert_right();
    sidecar.stop();
}
