//! SIGTERM, SIGINT, both twice, twice at once, and a parent's end.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use kvrail_client::Pages;
use kvrail_tests::{Tally, span_bytes, verify};
use rustix::process::Signal;

use crate::rig::{Actor, Place, Sidecar, eventually, kvrail_program, rounds};

const THREADS: u32 = 4;

#[test]
fn a_drain_under_load_answers_everything_each_time() {
    let place = Place::with_volume(1, span_bytes(2 * THREADS));
    let mut dice = fastrand::Rng::with_seed(4);
    for round in 0..rounds(10, 4) {
        let mut sidecar = Sidecar::start(&place);
        let mut actors = [0, THREADS].map(|first| Actor::traffic(&sidecar, first, THREADS, 120.0));
        for actor in &mut actors {
            assert!(actor.wait_until_running(), "traffic before the drain");
        }
        std::thread::sleep(Duration::from_millis(dice.u64(..50)));
        sidecar.signal(if round % 2 == 0 { Signal::TERM } else { Signal::INT });
        let status = sidecar.wait();
        assert!(status.success(), "round {round}: {status}: {}", sidecar.stderr());
        let mut all = Tally::default();
        for actor in actors {
            let tally = actor.tally();
            tally.assert_right();
            // Accepted requests were finished, later ones refused; none is in doubt.
            assert_eq!(tally.count("RESTARTED"), 0, "round {round}: {:?}", tally.statuses);
            all.add(tally);
        }
        assert!(!place.socket().exists(), "its socket goes with it");
        let sidecar = Sidecar::start(&place);
        verify(&sidecar.attach(), "kv", &all.acknowledged).unwrap().assert_right();
        sidecar.stop();
    }
}

#[test]
fn an_idle_sidecar_stops_on_either_signal() {
    let place = Place::with_volume(1, 4 << 20);
    for signal in [Signal::TERM, Signal::INT] {
        let mut sidecar = Sidecar::start(&place);
        let visitor = sidecar.attach();
        sidecar.signal(signal);
        let status = sidecar.wait();
        assert!(status.success(), "{status}: {}", sidecar.stderr());
        assert!(sidecar.stderr().contains("drained and stopped"), "{}", sidecar.stderr());
        drop(visitor);
    }
}

/// Some supervisors signal a process and then its group.
#[test]
fn two_signals_at_once_are_one() {
    let place = Place::with_volume(1, 4 << 20);
    for signals in [[Signal::TERM, Signal::TERM], [Signal::TERM, Signal::INT]] {
        for _ in 0..5 {
            let mut sidecar = Sidecar::start(&place);
            signals.into_iter().for_each(|signal| sidecar.signal(signal));
            let status = sidecar.wait();
            assert!(status.success(), "{status}: {}", sidecar.stderr());
        }
    }
}

#[test]
fn a_second_signal_stops_at_once() {
    let place = Place::with_volume(1, span_bytes(THREADS));
    for _ in 0..3 {
        let mut sidecar = Sidecar::start(&place);
        let mut actor = Actor::traffic(&sidecar, 0, THREADS, 120.0);
        assert!(actor.wait_until_running());
        sidecar.signal(Signal::TERM);
        std::thread::sleep(Duration::from_millis(600));
        sidecar.signal(Signal::INT);
        let status = sidecar.wait();
        // The first of the two signals decides how the sidecar ends; it does end, and logs how.
        let stderr = sidecar.stderr();
        let drained = status.success() && stderr.contains("drained and stopped");
        let forced = status.code() == Some(1) && stderr.contains("stopped with work left");
        assert!(drained || forced, "{status}: {stderr}");
        let tally = actor.tally();
        tally.assert_right();
    }
}

#[test]
fn a_hangup_changes_nothing_and_is_explained() {
    let place = Place::with_volume(1, 4 << 20);
    let sidecar = Sidecar::start(&place);
    sidecar.signal(Signal::HUP);
    crate::rig::eventually("the log names the signal", || sidecar.stderr().contains("SIGHUP"));
    assert_eq!(sidecar.status().sessions.len(), 1);
    sidecar.stop();
}

/// The kernel takes rings apart after a process has ended; the next start need not wait.
#[test]
fn a_sidecar_starts_again_the_moment_the_old_one_is_gone() {
    let place = Place::with_volume(2, span_bytes(THREADS));
    for round in 0..6 {
        let sidecar = Sidecar::start(&place);
        let mut actor = Actor::traffic(&sidecar, 0, THREADS, 120.0);
        assert!(actor.wait_until_running());
        if round % 2 == 0 {
            sidecar.kill();
        } else {
            sidecar.stop();
        }
        // No pause here.
        Sidecar::start(&place).stop();
        actor.tally().assert_right();
    }
}

/// The kernel signals a process when the thread that started it ends.
#[test]
fn a_sidecar_outlives_the_thread_that_started_it() {
    let place = Place::with_volume(1, 4 << 20);
    let (starter, mut sidecar) = std::thread::scope(|scope| {
        let start = || (rustix::thread::gettid(), Sidecar::start(&place));
        scope.spawn(start).join().expect("it starts")
    });
    // The kernel has signalled the thread's children by the time the thread is gone.
    let thread = format!("/proc/self/task/{}", starter.as_raw_nonzero());
    eventually("the thread is gone", || !std::path::Path::new(&thread).exists());
    sidecar.assert_alive();
    assert!(sidecar.attach().create_arena(4096, Pages::Base).is_ok(), "it serves");
    sidecar.stop();
}

/// A named pipe as its configuration stops the sidecar between its first step and the moment from
/// which it can be stopped.
#[test]
fn a_parent_that_is_killed_during_the_start_is_noticed_after_it() {
    let place = Place::with_volume(1, 4 << 20);
    let (pipe, folder) = (place.path("pipe"), place.path("kvrail-made-by-the-parent"));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("volume.img"), "large").unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let script = "\"$0\" serve --exit-with-parent --config \"$1\" --remove \"$2\" & wait";
    let mut parent = Command::new("sh");
    parent.args(["-c", script]).arg(kvrail_program()).args([&pipe, &folder]);
    let mut parent = parent.stderr(Stdio::null()).spawn().unwrap();
    let mut configuration = None;
    eventually("the sidecar reads its configuration", || {
        let mut options = File::options();
        let opened = options.write(true).custom_flags(libc::O_NONBLOCK).open(&pipe);
        configuration = opened.ok();
        configuration.is_some()
    });
    parent.kill().unwrap();
    parent.wait().unwrap();
    let text = fs::read(place.configuration()).unwrap();
    configuration.unwrap().write_all(&text).unwrap();
    eventually("the sidecar has ended and cleaned up", || !folder.exists());
}
