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
