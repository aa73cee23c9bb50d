//! The log for the journal and for collectors. When its reader stops reading, clients and operators
//! notice nothing.

use std::fs::{self, File};
use std::io::pipe;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::Instant;

use kvrail_client::{Client, Pages, Request};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::rig::{LONG, Place, Sidecar, eventually, kvrail, run};

/// Sessions that come and go, each of which is logged: more than a pipe of 64 KiB takes.
const SESSIONS: usize = 600;

/// Collectors parse every line.
#[test]
fn a_log_in_json_has_no_other_line() {
    let place = Place::with_volume(1, 4 << 20);
    let json = || {
        let mut command = place.serve();
        command.args(["--set", "sidecar.log_format=json"]);
        command
    };
    let sidecar = Sidecar::start_as(&place, json());
    drop(sidecar.attach());
    let refused = run(json().args(["--set", "memory.node=4095"]));
    let log = sidecar.stop();
    let file = place.configuration();
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("limits.sesions = 1\n[sidecar]\nlog_format = \"json\"\n{good}"))
        .unwrap();
    let broken = run(kvrail().args(["serve", "--config"]).arg(&file));
    assert_eq!((broken.code, broken.stderr.lines().count()), (Some(2), 1), "{broken:?}");
    assert!(broken.stderr.contains("sesions"), "{broken:?}");
    let lines = log.lines().chain(refused.stderr.lines()).chain(broken.stderr.lines());
    for line in lines {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        assert!(value.is_object(), "{line}");
    }
    assert!(log.contains("drained and stopped") && log.contains("kv"), "{log}");
    assert_eq!((refused.code, refused.stderr.lines().count()), (Some(2), 1), "{refused:?}");
}

/// The journal has priorities, and the time.
#[test]
fn the_journal_gets_priorities_and_no_time() {
    let place = Place::with_volume(1, 4 << 20);
    let log = File::create(place.path("log")).unwrap().metadata().unwrap();
    let journal = format!("{}:{}", log.dev(), log.ino());
    let mut command = place.serve();
    let sidecar = Sidecar::start_as(&place, {
        command.env("JOURNAL_STREAM", &journal);
        command
    });
    drop(sidecar.attach());
    fs::write(place.path("kvrail.toml"), "[[[\n").unwrap();
    sidecar.signal(Signal::HUP);
    eventually("an error", || sidecar.stderr().contains("<3>"));
    let log = sidecar.stop();
    let logged: Vec<_> = log.lines().filter(|line| line.contains("kvrail_session")).collect();
    assert!(!logged.is_empty() && logged.iter().all(|line| line.starts_with("<6>")), "{log}");
    let error = log.lines().find(|line| line.contains("in force stays")).unwrap();
    assert!(error.starts_with("<3>"), "{error}");
    let dated = |line: &str| line.starts_with("20") || line.starts_with("<6>20");
    assert!(!log.lines().any(dated), "the journal has the time: {log}");
    // Elsewhere there are no priorities: only the journal reads them.
    let mut other = place.serve();
    other.env("JOURNAL_STREAM", "1:1");
    let log = Sidecar::start_as(&place, other).stop();
    assert!(!log.lines().last().unwrap().starts_with('<'), "{log}");
}

/// A stopped journald, a collector that was killed.
#[test]
fn lines_without_a_reader_are_counted() {
    let (reader, writer) = pipe().unwrap();
    count_lost_lines(writer, || drop(reader));
}

/// A full disk below a log that is a file.
#[test]
fn lines_without_room_are_counted() {
    count_lost_lines(File::options().write(true).open("/dev/full").unwrap(), || ());
}

/// Serves with a log whose writes fail once `fail` was called.
fn count_lost_lines(log: impl Into<Stdio>, fail: impl FnOnce()) {
    let place = Place::with_volume(1, 4 << 20);
    let mut command = place.serve();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let mut sidecar = command.spawn().unwrap();
    drop(command);
    let lost = || {
        let client = Client::attach(place.socket()).ok()?;
        client.status().unwrap().sidecar.counters.log_lines_lost
    };
    eventually("it serves", || lost().is_some());
    fail();
    let (mut before, mut counts) = (lost().expect("it serves"), 0);
    // Each look is a session, which is logged.
    eventually("lost lines are counted", || {
        let now = lost().expect("it serves");
        counts += u64::from(now > before);
        before = now;
        counts > 3
    });
    kill_process(Pid::from_child(&sidecar), Signal::TERM).unwrap();
    assert!(sidecar.wait().unwrap().success());
}

#[test]
fn a_log_without_a_reader_blocks_no_client() {
    let place = Place::with_volume(1, 4 << 20);
    let (reader, writer) = pipe().unwrap();
    let mut command = place.serve();
    command.args(["--set", "sidecar.log=debug"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
    let mut sidecar = command.spawn().unwrap();
    drop(command);
    eventually("it serves", || Client::attach(place.socket()).is_ok());
    // The pipe stays unread, until it is full and long after.
    let start = Instant::now();
    for _ in 0..SESSIONS {
        let client = Client::attach(place.socket()).expect("it answers");
        let volume = client.volume("kv").unwrap();
        let arena = client.create_arena(4096, Pages::Base).unwrap();
        let mut queue = client.open_queue(8).unwrap();
        queue.submit(Request::write(&volume, 0, arena.lease(4096).unwrap())).unwrap();
        assert!(queue.wait(LONG).unwrap().is_some());
    }
    println!("{SESSIONS} sessions in {:?}", start.elapsed());
    let full = rustix::io::ioctl_fionread(&reader).unwrap();
    assert!(full > 60_000, "{full} bytes: the pipe is not full, so nothing was shown");
    // Nor does its end wait for a reader.
    kill_process(Pid::from_child(&sidecar), Signal::TERM).unwrap();
    let start = Instant::now();
    assert!(sidecar.wait().unwrap().success());
    assert!(start.elapsed() < LONG / 3, "{:?}", start.elapsed());
    drop(reader);
}
