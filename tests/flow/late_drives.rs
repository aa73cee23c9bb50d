//! Members that are not there yet while the host boots.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use kvrail_client::Client;
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use crate::rig::{Place, Sidecar, eventually};

/// A host that boots until this number of seconds from now.
fn booting(place: &Place, seconds: i64) -> Command {
    let up = clock_gettime(ClockId::Boottime).tv_sec;
    let mut command = place.serve();
    command.arg("--set").arg(format!("sidecar.wait_for_drives={}s", up + seconds));
    command
}

/// Moves a member away; returns its new path.
fn take_away(place: &Place) -> PathBuf {
    let away = place.data_path("away");
    fs::rename(&place.members[1], &away).unwrap();
    away
}

#[test]
fn a_store_waits_for_a_late_member_and_is_whole() {
    let place = Place::with_store(3, 96 << 20);
    let away = take_away(&place);
    let sidecar = Sidecar::launch(&place, booting(&place, 600));
    let member = place.members[1].display().to_string();
    let words = format!("waiting for {member} until this host has been up for");
    eventually("it waits", || sidecar.stderr().contains(&words));
    assert!(!place.socket().exists(), "no client is served yet");
    fs::rename(away, &place.members[1]).unwrap();
    eventually("it serves", || Client::attach(place.socket()).is_ok());
    assert_eq!(sidecar.status().volumes[0].missing, Vec::<String>::new());
    // A client may attach while members still scan their segments.
    eventually("all is well", || sidecar.status().troubles.is_empty());
    sidecar.stop();
}

#[test]
fn a_member_that_does_not_come_is_waited_for_no_longer_than_configured() {
    let place = Place::with_store(3, 96 << 20);
    let _away = take_away(&place);
    let sidecar = Sidecar::start_as(&place, booting(&place, 2));
    assert!(sidecar.stderr().contains("no longer waiting"), "{}", sidecar.stderr());
    assert_eq!(sidecar.status().volumes[0].missing.len(), 1);
    sidecar.stop();
}

#[test]
fn a_host_that_has_been_up_for_long_waits_for_nothing() {
    let place = Place::with_store(3, 96 << 20);
    let _away = take_away(&place);
    let sidecar = Sidecar::start_as(&place, booting(&place, -1));
    assert!(!sidecar.stderr().contains("waiting for"), "{}", sidecar.stderr());
    sidecar.stop();
}

#[test]
fn a_sidecar_that_waits_can_be_stopped() {
    let place = Place::with_store(3, 96 << 20);
    let _away = take_away(&place);
    for signal in [Signal::TERM, Signal::INT] {
        let mut sidecar = Sidecar::launch(&place, booting(&place, 600));
        eventually("it waits", || sidecar.stderr().contains("waiting for"));
        sidecar.signal(signal);
        let status = sidecar.wait();
        assert!(status.success(), "{status}: {}", sidecar.stderr());
        fs::remove_file(place.path("log")).unwrap();
    }
}
