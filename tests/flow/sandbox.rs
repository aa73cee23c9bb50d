//! What a sidecar has taken away from itself. That it lives well without, all other flows show:
//! they run within the sandbox.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use rustix::process::Signal;

use crate::rig::{Loops, Place, Sidecar, actor_program, eventually, is_root, run};

/// What `actor confined` tries.
const ATTEMPTS: usize = 22;

/// Of `CAP_DAC_OVERRIDE` and `CAP_IPC_LOCK`.
const KEPT: u64 = 1 << 1 | 1 << 14;

/// `CAP_SYS_ADMIN`.
const ADMIN: u64 = 1 << 21;

/// What was refused to a process, in its sandbox or without one.
fn refused(mode: &str) -> Vec<String> {
    let place = Place::empty(0);
    let own = place.path("own");
    fs::create_dir(&own).unwrap();
    fs::write(own.with_extension("there"), "").unwrap();
    let outcome = run(Command::new(actor_program()).args(["confined", mode]).arg(&own));
    outcome.expect(0, &[]);
    serde_json::from_str(outcome.stdout.trim()).unwrap()
}

/// Without it nothing is refused to root, so each refusal is the sandbox's. The root of a container
/// may not mount either.
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
    let threads: Vec<_> = threads.map(|it| it.unwrap().path()).collect();
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

/// The sandbox leaves the right to look at what a member rests on.
#[test]
fn a_loop_device_over_a_served_file_is_not_served_again() {
    let place = Place::with_store(1, 64 << 20);
    let served = Sidecar::start(&place);
    let Some(loops) = Loops::over(&place.members) else { return };
    let mut again = Place::empty(0);
    again.members = loops.nodes().to_vec();
    let mut refused = Sidecar::launch(&again, again.serve());
    assert_eq!(refused.wait().code(), Some(3), "{}", refused.said());
    let words = [format!("it rests on {}", place.members[0].display()), served.pid().to_string()];
    for word in words.iter().map(String::as_str).chain(["stop process"]) {
        assert!(refused.said().contains(word), "no {word:?} in {}", refused.said());
    }
    served.stop();
    // And the other way round: who serves it holds the file below.
    let served = Sidecar::start(&again);
    assert!(fs::File::open(&place.members[0]).unwrap().try_lock().is_err());
    let mut refused = Sidecar::launch(&place, place.serve());
    assert_eq!(refused.wait().code(), Some(3), "{}", refused.said());
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
    eventually("a refusal", || sidecar.said().contains("the configuration in force stays"));
    assert!(sidecar.said().contains("ermission denied"), "{}", sidecar.said());
    sidecar.assert_alive();
    sidecar.stop();
}

#[test]
fn a_target_where_there_was_none_waits_for_a_restart() {
    let mut place = Place::with_volume(1, 8 << 20);
    let sidecar = Sidecar::start(&place);
    place.configure(
        "[[target.subsystem]]\nnqn = \"nqn.2026-01.org.example:kv0\"\nallow_any_host = true\n\
         [[target.subsystem.namespace]]\nnsid = 1\ndevice = \"serial:nobody/1\"\n\
         [[target.port]]\nid = 1\ntransport = \"loop\"\n\
         subsystems = [\"nqn.2026-01.org.example:kv0\"]",
    );
    place.configuration();
    sidecar.signal(Signal::HUP);
    eventually("the word", || sidecar.said().contains("after a restart only: target.port"));
    sidecar.stop();
}

#[test]
fn a_sandbox_that_is_off_is_said_loudly() {
    let mut place = Place::with_volume(1, 8 << 20);
    place.configure("sidecar.sandbox = \"off\"");
    let sidecar = Sidecar::start(&place);
    let status = sidecar.status();
    assert_eq!(status.sandbox.mode, "off");
    assert!(status.notes.iter().any(|note| note.contains("sidecar.sandbox = \"off\"")));
    eventually("the log names it", || {
        let said = sidecar.said();
        said.contains("WARN") && said.contains("sandbox off")
    });
    sidecar.stop();
}

/// A container's profile may forbid the filter: that is said, or a strict sidecar does not start.
#[test]
fn what_the_kernel_lacks_is_said_or_strict_refuses() {
    let mut place = Place::with_volume(1, 8 << 20);
    let without = |place: &Place| crate::rig::under(place, &["no-landlock=38"]);
    let sidecar = Sidecar::start_as(&place, without(&place));
    let status = sidecar.status();
    assert_eq!(status.sandbox.files, "none");
    assert!(status.notes.iter().any(|note| note.contains("landlock is missing")), "{status:?}");
    sidecar.stop();
    place.configure("sidecar.sandbox = \"strict\"");
    run(&mut without(&place)).expect(3, &["landlock is missing", "sidecar.sandbox = \"on\""]);
    // With all of it strict serves.
    let sidecar = Sidecar::start(&place);
    assert_eq!(sidecar.status().sandbox.mode, "strict");
    sidecar.stop();
}
