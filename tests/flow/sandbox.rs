//! The rights that a sidecar has given up. That it works without them all other flows show: they
//! run within the sandbox.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use rustix::process::Signal;

use crate::rig::{Loops, Place, Sidecar, actor_program, eventually, is_root, run};

/// Actions that `actor confined` tries.
const ATTEMPTS: usize = 22;

/// Of `CAP_DAC_OVERRIDE` and `CAP_IPC_LOCK`.
const KEPT: u64 = 1 << 1 | 1 << 14;

/// `CAP_SYS_ADMIN`.
const ADMIN: u64 = 1 << 21;

/// Actions that were refused to a process, in its sandbox or without one.
fn refused(mode: &str) -> Vec<String> {
    let place = Place::empty(0);
    let own = place.path("own");
    fs::create_dir(&own).unwrap();
    fs::write(own.with_extension("there"), "").unwrap();
    let outcome = run(Command::new(actor_program()).args(["confined", mode]).arg(&own));
    outcome.expect(0, &[]);
    serde_json::from_str(outcome.stdout.trim()).unwrap()
}

/// Without a sandbox root is refused nothing, so each refusal is the sandbox's. The root of a
/// container may not mount either.
#[test]
fn each_forbidden_thing_is_refused_within_and_allowed_without() {
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let held = u64::from_str_radix(&field(&own, "CapEff"), 16).unwrap();
    if !is_root() || held & ADMIN == 0 {
        println!("skipped: what is forbidden: the kernel forbids half of it to other users anyway");
        return;
    }
    assert_eq!(refused("off"), Vec::<String>::new());
    assert_eq!(refused("on").len(), ATTEMPTS, "{:?}", refused("on"));
}

/// A line of `/proc/PID/task/TID/status`.
fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    line.unwrap().to_owned()
}

#[test]
fn every_thread_of_a_sidecar_is_within() {
    let place = Place::with_volume(1, 8 << 20);
    let sidecar = Sidecar::start(&place);
    let client = sidecar.attach();
    let threads = fs::read_dir(format!("/proc/{}/task", sidecar.pid())).unwrap();
    let threads: Vec<_> = threads.map(|thread| thread.unwrap().path()).collect();
    assert!(threads.len() > 4, "{threads:?}");
    for thread in threads {
        let status = fs::read_to_string(thread.join("status")).unwrap();
        let name = field(&status, "Name");
        assert_eq!(field(&status, "Seccomp"), "2", "{name}");
        assert_eq!(field(&status, "NoNewPrivs"), "1", "{name}");
        for set in ["CapEff", "CapPrm", "CapInh"] {
            let held = u64::from_str_radix(&field(&status, set), 16).unwrap();
            assert_eq!(held & !KEPT, 0, "{set} of {name}");
        }
    }
    let sandbox = client.status().unwrap().sandbox;
    assert_eq!((sandbox.mode.as_str(), sandbox.files.as_str()), ("on", "whole"));
    assert!(sandbox.calls_filtered && sandbox.capabilities.len() <= 2, "{sandbox:?}");
    drop(client);
    sidecar.stop();
}

/// The sandbox leaves the right to read which devices lie below a member.
#[test]
fn a_loop_device_over_a_served_file_is_not_served_again() {
    let place = Place::with_store(1, 64 << 20);
    let served = Sidecar::start(&place);
    let Some(loops) = Loops::over(&place.members) else { return };
    let mut again = Place::empty(0);
    again.members = loops.nodes().to_vec();
    let mut refused = Sidecar::launch(&again, again.serve());
    assert_eq!(refused.wait().code(), Some(3), "{}", refused.stderr());
    let words = [format!("it rests on {}", place.members[0].display()), served.pid().to_string()];
    for word in words.iter().map(String::as_str).chain(["stop process"]) {
        assert!(refused.stderr().contains(word), "no {word:?} in {}", refused.stderr());
    }
    served.stop();
    // The reverse: the process that serves the device holds the file below.
    let served = Sidecar::start(&again);
    assert!(fs::File::open(&place.members[0]).unwrap().try_lock().is_err());
    let mut refused = Sidecar::launch(&place, place.serve());
    assert_eq!(refused.wait().code(), Some(3), "{}", refused.stderr());
    served.stop();
}

#[test]
fn a_configuration_that_leads_out_of_its_folder_is_not_read() {
    let place = Place::with_volume(1, 8 << 20);
    let mut sidecar = Sidecar::start(&place);
    let elsewhere = tempfile::tempdir().unwrap();
    let (file, moved) = (place.path("kvrail.toml"), elsewhere.path().join("kvrail.toml"));
    fs::rename(&file, &moved).or_else(|_| fs::copy(&file, &moved).map(drop)).unwrap();
    let _gone = fs::remove_file(&file);
    symlink(&moved, &file).unwrap();
    sidecar.signal(Signal::HUP);
    eventually("a refusal", || sidecar.stderr().contains("the configuration in force stays"));
    assert!(sidecar.stderr().contains("ermission denied"), "{}", sidecar.stderr());
    sidecar.assert_alive();
    sidecar.stop();
}

#[test]
fn a_target_where_there_was_none_waits_for_a_restart() {
    let mut place = Place::with_volume(1, 8 << 20);
    let sidecar = Sidecar::start(&place);
    place.configure(
        "[[target.subsystem]]\nnqn = \"nqn.2026-01.org.example:kv0\"\nallow_any_host = true\n\
         [[target.subsystem.namespace]]\nnsid = 1\ndevice = \"serial:absent/1\"\n\
         [[target.port]]\nid = 1\ntransport = \"loop\"\n\
         subsystems = [\"nqn.2026-01.org.example:kv0\"]",
    );
    place.configuration();
    sidecar.signal(Signal::HUP);
    eventually("the log names the key", || {
        sidecar.stderr().contains("after a restart only: target.port")
    });
    sidecar.stop();
}

#[test]
fn a_sandbox_that_is_off_is_logged_as_a_warning() {
    let mut place = Place::with_volume(1, 8 << 20);
    place.configure("sidecar.sandbox = \"off\"");
    let sidecar = Sidecar::start(&place);
    let status = sidecar.status();
    assert_eq!(status.sandbox.mode, "off");
    assert!(status.notes.iter().any(|note| note.contains("sidecar.sandbox = \"off\"")));
    eventually("the log names it", || {
        let log = sidecar.stderr();
        log.contains("WARN") && log.contains("sandbox off")
    });
    sidecar.stop();
}

/// A container's profile may forbid the filter: the log names that, or a strict sidecar does not
/// start.
#[test]
fn a_missing_kernel_feature_is_logged_or_refused_by_strict() {
    let mut place = Place::with_volume(1, 8 << 20);
    let without = |place: &Place| crate::rig::under(place, &["no-landlock=38"]);
    let sidecar = Sidecar::start_as(&place, without(&place));
    let status = sidecar.status();
    assert_eq!(status.sandbox.files, "none");
    assert!(status.notes.iter().any(|note| note.contains("landlock is missing")), "{status:?}");
    sidecar.stop();
    place.configure("sidecar.sandbox = \"strict\"");
    run(&mut without(&place)).expect(3, &["landlock is missing", "sidecar.sandbox = \"on\""]);
    // With the whole sandbox a strict sidecar serves.
    let sidecar = Sidecar::start(&place);
    assert_eq!(sidecar.status().sandbox.mode, "strict");
    sidecar.stop();
}
