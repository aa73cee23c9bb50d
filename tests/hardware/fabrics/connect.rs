//! Discover, connect, use, disconnect: over each transport, with nothing left behind.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::bytes::same_both_ways;
use super::target::{LOOP, NQN, RDMA, TCP, Target, Wish, tree};
use super::{host, listed, traces};
use crate::machine;
use crate::rig::{Place, Sidecar, kvrail, run};

/// The device that a connection gave.
fn device(connected: &serde_json::Value) -> String {
    connected["namespaces"][0]["device"].as_str().expect("a namespace").to_owned()
}

#[test]
fn each_transport_gives_the_device_and_leaves_nothing() {
    let Some(target) = Target::ready() else { return };
    let empty = tree();
    target.apply(&Wish::default());
    let before = traces();
    for way in [RDMA, TCP, LOOP] {
        let found = host(&format!("discover {way}"));
        let entries = found.as_array().expect("a list");
        assert!(entries.iter().any(|it| it["nqn"] == NQN && it["subtype"] == "nvme"), "{found}");
        assert_eq!(traces(), before, "the discovery controller of {way} is gone");

        let connected = host(&format!("connect {way} -n {NQN}"));
        let device = device(&connected);
        let shown = listed(NQN).expect("it is listed");
        assert_eq!(shown["controllers"][0]["state"], "live", "{shown}");
        assert_eq!(shown["namespaces"][0]["device"], device.as_str(), "{shown}");
        // A client that is not ours sees it too.
        let other = Command::new("nvme").args(["list-subsys", &device]).output().expect("nvme-cli");
        assert!(String::from_utf8_lossy(&other.stdout).contains(NQN), "{other:?}");

        let words = format!("connect {way} -n {NQN}");
        let second = run(kvrail().arg("host").args(words.split_whitespace()));
        second.expect(3, &["already connected", "--duplicate-connect"]);
        same_both_ways(Path::new(&device), &machine::namespace("kvr-main", 2));

        let gone = host(&format!("disconnect -n {NQN}"));
        assert_eq!(gone["disconnected"][0], connected["controller"]);
        assert_eq!(listed(NQN), None);
        assert_eq!(traces(), before, "{way} left something");
    }
    target.undo();
    assert_eq!(tree(), empty);
    assert_eq!(traces(), before);
}

#[test]
fn polled_queues_serve_a_polled_ring() {
    let Some(target) = Target::ready() else { return };
    target.apply(&Wish::default());
    for way in [RDMA, TCP] {
        let connected = host(&format!("connect {way} -n {NQN} --nr-poll-queues 1 --queue-size 64"));
        let device = device(&connected);
        let name = device.trim_start_matches("/dev/");
        let polled = fs::read_to_string(format!("/sys/class/block/{name}/queue/io_poll"));
        assert_eq!(polled.expect("a queue").trim(), "1", "{way}");
        let place = volume_on(&device, 32 << 20);
        let mut command = place.serve();
        command.args(["--set", "device.mode=\"iopoll\"", "--set", "device.direct=\"required\""]);
        let sidecar = Sidecar::start_as(&place, command);
        assert_eq!(sidecar.status().devices[0].mode, "iopoll");
        // In use: the last path stays unless it is forced.
        let refused = run(kvrail().args(["host", "disconnect", "-n", NQN]));
        refused.expect(3, &["is in use", &format!("process {}", sidecar.pid()), "--force"]);
        sidecar.stop();
        host(&format!("disconnect -n {NQN}"));
    }
}

/// A place whose volume lies on a connected namespace.
pub(super) fn volume_on(device: &str, bytes: u64) -> Place {
    machine::tool(&format!("dd if=/dev/zero of={device} bs=1M count=1 oflag=direct"));
    let mut place = Place::empty(0);
    place.members = vec![device.into()];
    place.create(bytes, "256KiB").expect(0, &[]);
    place
}

#[test]
fn a_secret_lets_in_and_none_or_another_does_not() {
    let Some(target) = Target::ready() else { return };
    let host_nqn = "nqn.2026-11.org.example:host";
    let [right, wrong] = [(), ()].map(|()| {
        let made = machine::tool(&format!("nvme gen-dhchap-key --nqn {host_nqn}"));
        assert!(made.starts_with("DHHC-1:"), "{made}");
        made.trim().to_owned()
    });
    let [key, file] = [(), ()].map(|()| tempfile::NamedTempFile::new().expect("a temporary file"));
    fs::write(key.path(), &right).expect("our own file");
    target.apply(&Wish { key: Some(key.path()), ..Wish::only(host_nqn) });
    let before = traces();
    let secret = format!("--dhchap-secret-file {}", file.path().display());
    let words = format!("connect {LOOP} -n {NQN} --hostnqn {host_nqn}");
    let cases = [("", wrong.as_str()), (secret.as_str(), wrong.as_str())];
    for (option, content) in cases {
        fs::write(file.path(), content).expect("our own file");
        let refused =
            run(kvrail().arg("host").args(format!("{words} {option}").split_whitespace()));
        refused.expect(1, &["remedy", "secret"]);
        assert!(!refused.stderr.contains(&right) && !refused.stderr.contains(&wrong));
        assert_eq!(traces(), before, "a refused connection is gone");
    }
    fs::write(file.path(), &right).expect("our own file");
    host(&format!("{words} {secret}"));
    let shown = listed(NQN).expect("it is listed");
    assert_eq!(shown["controllers"][0]["authenticated"], true);
    assert!(!shown.to_string().contains(&right), "the secret does not show");
    host(&format!("disconnect -n {NQN}"));
    assert_eq!(traces(), before);
}
