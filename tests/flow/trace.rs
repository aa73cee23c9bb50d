//! `kvrail trace` while clients move blocks.

use std::process::Command;
use std::time::Duration;

use kvrail_client::{ClientError, Pages, Request, Status};
use serde_json::Value;

use crate::rig::{LONG, Outcome, Place, Sidecar, eventually, kvrail, run};

fn trace(place: &Place, arguments: &[&str]) -> Command {
    let mut trace = kvrail();
    trace.arg("trace").args(arguments).arg("--socket").arg(place.socket());
    trace
}

/// Writes blocks until the trace has ended.
fn while_writing(sidecar: &Sidecar, mut trace: Command) -> Outcome {
    let client = sidecar.attach();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    let trace = std::thread::spawn(move || run(&mut trace));
    while !trace.is_finished() {
        queue.submit(Request::write(&volume, 0, arena.lease(4096).unwrap())).unwrap();
        assert_eq!(queue.wait(LONG).unwrap().unwrap().status, Status::Ok);
    }
    trace.join().unwrap()
}

#[test]
fn slow_requests_are_traced_by_stage() {
    let place = Place::with_volume(1, 8 << 20);
    let sidecar = Sidecar::start(&place);
    let arguments = ["--slow", "1us", "--seconds", "1", "--format", "json"];
    let outcome = while_writing(&sidecar, trace(&place, &arguments));
    outcome.expect(0, &[]);
    let found: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let events = found["events"].as_array().unwrap();
    let batches: Vec<_> = events.iter().filter(|event| event["kind"] == "batch").collect();
    assert!(!batches.is_empty(), "{found}");
    let mut device_ns = 0;
    for event in batches {
        let (work, spent) = (&event["work"], &event["spent"]);
        let ns = |stage: &str| spent[format!("{stage}_ns")].as_u64().unwrap();
        let stages = ["lane", "store", "queue", "device", "answer", "completion"].map(ns);
        assert_eq!(stages.iter().sum::<u64>(), ns("total"), "{event}");
        // A poller that lost its CPU within a turn may see start and end in the same one.
        device_ns += ns("device");
        assert!(ns("total") >= 1000 && ns("store") == 0, "{event}");
        assert_eq!([&work["operation"], &work["client"]], ["write", "the test"], "{event}");
        assert_eq!((&work["requests"], &work["bytes"]), (&1.into(), &4096.into()), "{event}");
    }
    assert!(device_ns > 0, "{found}");
    let outcome =
        while_writing(&sidecar, trace(&place, &["--slow", "1us", "--seconds", "1", "--rows", "3"]));
    outcome.expect(0, &[]);
    for word in
        ["requests took 1us or longer", "device ", "demand write 4.00 KiB", "the test", "--rows"]
    {
        assert!(outcome.stdout.contains(word), "no {word:?} in {}", outcome.stdout);
    }
    let outcome = while_writing(&sidecar, trace(&place, &["--slow", "30s", "--seconds", "1"]));
    outcome.expect(0, &[]);
    assert!(outcome.stdout.starts_with("0 requests took 30s or longer"), "{}", outcome.stdout);
    sidecar.stop();
}

/// Writes until the slow log has a write; returns the log.
fn slow_log(place: &Place, sidecar: &Sidecar) -> Value {
    let client = sidecar.attach();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(4 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    let mut found = Value::Null;
    eventually("a slow write", || {
        for _ in 0..8 {
            queue.submit(Request::write(&volume, 0, arena.lease(4 << 20).unwrap())).unwrap();
            assert_eq!(queue.wait(LONG).unwrap().unwrap().status, Status::Ok);
        }
        let outcome = run(&mut trace(place, &["--past", "--format", "json"]));
        outcome.expect(0, &[]);
        found = serde_json::from_str(&outcome.stdout).unwrap();
        found["events"].as_array().unwrap().iter().any(|event| event["kind"] == "batch")
    });
    found
}

#[test]
fn slow_requests_of_the_past_are_kept_without_a_watcher() {
    let mut place = Place::with_volume(1, 8 << 20);
    place.configure("pollers.slow_after = \"100us\"");
    let sidecar = Sidecar::start(&place);
    let found = slow_log(&place, &sidecar);
    assert_eq!((&found["slow_ns"], &found["seconds"]), (&100_000.into(), &Value::Null));
    let events = found["events"].as_array().unwrap();
    let event = events.iter().find(|event| event["kind"] == "batch").unwrap();
    let work = &event["work"];
    assert_eq!([&work["operation"], &work["client"]], ["write", "the test"], "{event}");
    assert!(events.iter().all(|event| event["spent"]["total_ns"].as_u64() >= Some(100_000)));
    let last = |found: &Value| {
        let events = found["events"].as_array().unwrap().iter();
        events.map(|event| event["ended_unix_ms"].as_u64().unwrap()).max().unwrap()
    };
    let seen = last(&found);

    // They are logged beside a trace, also one that looks for slower ones, and after it.
    let watcher = sidecar.attach();
    assert!(watcher.trace(Duration::from_secs(30)).unwrap().events.is_empty());
    eventually("it is logged beside a trace", || last(&slow_log(&place, &sidecar)) > seen);
    assert!(watcher.trace(Duration::from_secs(30)).unwrap().events.is_empty());
    let seen = last(&slow_log(&place, &sidecar));
    drop(watcher);
    eventually("it is logged after a trace", || last(&slow_log(&place, &sidecar)) > seen);

    let shown = run(&mut trace(&place, &["--past", "--rows", "1"]));
    shown.expect(0, &[]);
    assert!(shown.stdout.contains("since the sidecar's start"), "{}", shown.stdout);
    let slower = run(&mut trace(&place, &["--past", "--slow", "1h"]));
    assert!(slower.stdout.starts_with("0 requests took 1h or longer"), "{}", slower.stdout);
    run(&mut trace(&place, &["--past", "--seconds", "1"])).expect(2, &["--seconds"]);
    sidecar.stop();
}

#[test]
fn a_reload_changes_what_is_slow() {
    let mut place = Place::with_volume(1, 8 << 20);
    place.configure("pollers.slow_after = \"1h\"");
    let sidecar = Sidecar::start(&place);
    let text = std::fs::read_to_string(place.configuration()).unwrap();
    assert_eq!(sidecar.attach().slow_log().unwrap().slow_ns, 3_600_000_000_000);
    std::fs::write(place.path("kvrail.toml"), text.replace("\"1h\"", "\"100us\"")).unwrap();
    let reload = ["reload", "--config"];
    run(kvrail().args(reload).arg(place.path("kvrail.toml"))).expect(0, &[]);
    slow_log(&place, &sidecar);
    sidecar.stop();
}

#[test]
fn one_trace_runs_at_a_time_and_ends_with_its_client() {
    let place = Place::with_volume(1, 8 << 20);
    let sidecar = Sidecar::start(&place);
    let (first, second) = (sidecar.attach(), sidecar.attach());
    let (slow, slower) = (Duration::from_millis(1), Duration::from_millis(2));
    first.trace(slow).unwrap();
    first.trace(slow).unwrap();
    assert!(matches!(first.trace(slower), Err(ClientError::Denied { .. })), "another limit");
    let refused = run(&mut trace(&place, &["--seconds", "1"]));
    refused.expect(1, &[&format!("session {} traces already", first.session().0)]);
    drop(first);
    eventually("the trace ends with its client", || second.trace(slower).is_ok());
    sidecar.stop();
}
