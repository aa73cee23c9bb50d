//! SIGHUP: what a running sidecar takes over from a changed configuration.

use std::fs;

use kvrail_client::{Pages, Request, Status};
use rustix::process::Signal;

use crate::rig::{LONG, Place, Sidecar, eventually, kvrail, run};

#[test]
fn a_reload_changes_limits_for_those_who_ask_next_and_names_what_waits() {
    let mut place = Place::with_volume(1, 8 << 20);
    place.configure("limits.arena_bytes_per_session = \"1MiB\"");
    let sidecar = Sidecar::start(&place);
    let client = sidecar.attach();
    let first = client.create_arena(1 << 20, Pages::Base).unwrap();
    let refused = client.create_arena(2 << 20, Pages::Base).unwrap_err().to_string();
    assert!(refused.contains("limits.arena_bytes_per_session"), "{refused}");

    place.configure("pollers.heartbeat = \"2s\"\nsidecar.log = \"debug\"");
    let text = fs::read_to_string(place.configuration()).unwrap();
    fs::write(place.path("kvrail.toml"), text.replace("\"1MiB\"", "\"8MiB\"")).unwrap();
    sidecar.signal(Signal::HUP);
    eventually("the new limit", || client.create_arena(2 << 20, Pages::Base).is_ok());
    let now_on = "now on: limits.arena_bytes_per_session, sidecar.log";
    eventually("the log", || sidecar.said().contains(now_on));
    let said = sidecar.said();
    assert!(said.contains("restart only: pollers.heartbeat"), "{said}");

    // What was there is served on.
    let volume = client.volume("kv").unwrap();
    let mut queue = client.open_queue(8).unwrap();
    queue.submit(Request::write(&volume, 0, first.lease(4096).unwrap())).unwrap();
    assert_eq!(queue.wait(LONG).unwrap().unwrap().status, Status::Ok);
    drop(queue);
    sidecar.stop();
}

#[test]
fn a_reload_of_a_broken_configuration_changes_nothing() {
    let place = Place::with_volume(1, 8 << 20);
    let mut sidecar = Sidecar::start(&place);
    fs::write(place.path("kvrail.toml"), "limits.sesions = 1\n").unwrap();
    sidecar.signal(Signal::HUP);
    eventually("an error", || sidecar.said().contains("the configuration in force stays"));
    assert!(sidecar.said().contains("sesions"), "{}", sidecar.said());
    sidecar.assert_alive();
    sidecar.attach();
    sidecar.stop();
}

/// The target's own thread says why it stays; the rest of the configuration is taken over.
#[test]
fn a_target_that_cannot_be_made_leaves_the_sidecar_as_it_is() {
    let mut place = Place::with_volume(1, 8 << 20);
    place.configure("sidecar.sandbox = \"off\"");
    let mut sidecar = Sidecar::start(&place);
    let state = place.path("state");
    place.configure(&format!(
        "sidecar.log = \"debug\"\n[target]\nstate_dir = {state:?}\n\
         [[target.subsystem]]\nnqn = \"nqn.2026-01.org.example:kv0\"\nallow_any_host = true\n\
         [[target.subsystem.namespace]]\nnsid = 1\ndevice = \"serial:nobody/1\"\n\
         [[target.port]]\nid = 1\ntransport = \"loop\"\n\
         subsystems = [\"nqn.2026-01.org.example:kv0\"]"
    ));
    place.configuration();
    for times in 1..=2 {
        sidecar.signal(Signal::HUP);
        let told = || sidecar.said().matches("the target in force stays").count() == times;
        eventually("the reason", told);
    }
    let said = sidecar.said();
    assert!(said.contains("no NVMe namespace") && said.contains("serial:nobody/1"), "{said}");
    assert!(said.contains("now on: sidecar.log, target.state_dir"), "{said}");
    // Whoever comes next may have the target.
    let teardown = ["target", "teardown", "--config"];
    run(kvrail().args(teardown).arg(place.configuration())).expect(0, &[]);
    sidecar.assert_alive();
    sidecar.stop();
}
