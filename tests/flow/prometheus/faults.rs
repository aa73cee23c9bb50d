//! Faults of a real sidecar: each fires its alert and no other, and is over when the fault is.
//!
//! A minute of a rule is a second here: rules are looked at each second. `promtool` tests all rules
//! as they are shipped.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::process::Command;

use kvrail_client::Client;
use rustix::process::Signal;

use super::{Prometheus, rules};
use crate::rig::{Place, Sidecar, StoreShape, eventually};

const SHAPE: StoreShape =
    StoreShape { member_bytes: 32 << 20, segment_bytes: 1 << 20, block_mean: 8 << 10 };

/// The rules in quick motion: seconds for minutes, and one second for seconds.
fn quick(rules: &str) -> String {
    let mut quick = String::new();
    for line in rules.lines() {
        let line = match line.split_once("for: ") {
            Some((before, after)) if after.ends_with('s') => format!("{before}for: 1s"),
            Some((before, after)) => format!("{before}for: {}", after.replace('m', "s")),
            None => line.replace("m]", "s]"),
        };
        quick += &line;
        quick.push('\n');
    }
    quick
}

/// A place of sidecars that start one after the other at one address, and their Prometheus.
struct Watch {
    place: Place,
    address: String,
    prometheus: Prometheus,
    /// Names of alerts that were expected so far.
    expected: BTreeSet<String>,
}

impl Watch {
    fn start(place: Place) -> Option<Self> {
        // Free at the moment: the kernel gives other sockets other ports for a while.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let prometheus = Prometheus::start(&address, &quick(&rules()))?;
        Some(Self { place, address, prometheus, expected: BTreeSet::new() })
    }

    fn firing(&self) -> BTreeSet<String> {
        let alerts = self.prometheus.ask("alerts")["alerts"].as_array().cloned().unwrap();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until this alert alone fires.
    fn wait_for(&mut self, alert: &str) {
        self.expected.insert(alert.into());
        let alone = BTreeSet::from([alert.to_owned()]);
        eventually(&format!("{alert} alone fires"), || self.firing() == alone);
    }

    fn wait_for_peace(&self) {
        eventually("nothing fires", || self.firing().is_empty());
    }

    fn command(&self) -> Command {
        let mut command = self.place.serve();
        command.arg("--set").arg(format!("metrics.listen={}", self.address));
        command
    }

    fn serve(&self) -> Sidecar {
        let sidecar = Sidecar::start_as(&self.place, self.command());
        eventually("it is scraped", || self.prometheus.query("up") == [1.0]);
        sidecar
    }

    /// No other alert has fired at any time.
    fn end(self) {
        let query = "count+by+(alertname)+(count_over_time(ALERTS{alertstate=\"firing\"}[1h]))";
        let data = self.prometheus.ask(&format!("query?query={query}"));
        let fired = data["result"].as_array().expect("a vector").iter();
        let names = fired.map(|one| one["metric"]["alertname"].as_str().unwrap().to_owned());
        assert_eq!(names.collect::<BTreeSet<_>>(), self.expected);
    }
}

/// A file that is refused, at a reload and at the start after it.
fn refuse_a_file(watch: &mut Watch, sidecar: &Sidecar) {
    let file = watch.place.configuration();
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("limits.sesions = 1\n{good}")).unwrap();
    sidecar.signal(Signal::HUP);
    watch.wait_for("KvrailConfigRefused");
    fs::write(&file, good).unwrap();
    sidecar.signal(Signal::HUP);
    watch.wait_for_peace();
}

/// A port in use, and free again.
fn take_the_port(watch: &mut Watch) -> Sidecar {
    let other = TcpListener::bind(&watch.address).unwrap();
    let sidecar = Sidecar::start_as(&watch.place, watch.command());
    watch.wait_for("KvrailDown");
    drop(other);
    watch.wait_for_peace();
    sidecar
}

/// A drive that is missing at one start, and present at the next.
fn lose_a_drive(watch: &mut Watch) {
    let (member, away) = (watch.place.members[1].clone(), watch.place.data_path("away"));
    fs::rename(&member, &away).unwrap();
    let sidecar = watch.serve();
    watch.wait_for("KvrailDeviceGone");
    sidecar.stop();
    fs::rename(&away, &member).unwrap();
    let sidecar = watch.serve();
    watch.wait_for_peace();
    sidecar.stop();
}

/// A disk without room for the log.
fn fill_the_log(watch: &mut Watch) {
    let mut command = Command::new("sh");
    let serve = watch.command();
    command.args(["-c", "exec \"$0\" \"$@\" 2>/dev/full"]).arg(serve.get_program());
    command.args(serve.get_args());
    let sidecar = Sidecar::launch(&watch.place, command);
    let alone = BTreeSet::from(["KvrailLogLost".to_owned()]);
    watch.expected.extend(alone.clone());
    // Each session that has a volume is logged.
    eventually("lost lines fire", || {
        let client = Client::attach(watch.place.socket());
        let _volume = client.map(|client| client.volume("kv"));
        watch.firing() == alone
    });
    watch.wait_for_peace();
    sidecar.kill();
}

/// Kills until the alert fires.
fn kill_again_and_again(watch: &mut Watch) -> Sidecar {
    watch.expected.insert("KvrailCrashLoop".into());
    let mut serving = Some(watch.serve());
    eventually("KvrailCrashLoop fires", || {
        serving.take().expect("it serves").kill();
        serving = Some(watch.serve());
        watch.firing().contains("KvrailCrashLoop")
    });
    watch.wait_for_peace();
    serving.expect("the last one")
}

#[test]
fn each_fault_fires_its_alert_and_no_other() {
    let mut place = Place::with_shaped_store(3, &SHAPE);
    // Far above the pauses of a busy machine.
    place.configure("pollers.stall_after = \"10m\"\npollers.overdue_after = \"10m\"");
    let Some(mut watch) = Watch::start(place) else { return };
    let sidecar = take_the_port(&mut watch);
    refuse_a_file(&mut watch, &sidecar);
    sidecar.stop();
    lose_a_drive(&mut watch);
    fill_the_log(&mut watch);
    let sidecar = kill_again_and_again(&mut watch);
    sidecar.stop();
    watch.wait_for("KvrailDown");
    watch.end();
}

#[test]
fn quick_motion_changes_times_alone() {
    let quick = quick("for: 5m\nfor: 30s\nexpr: rate(a_max[15m]) > 0 # min\n");
    assert_eq!(quick, "for: 5s\nfor: 1s\nexpr: rate(a_max[15s]) > 0 # min\n");
}
