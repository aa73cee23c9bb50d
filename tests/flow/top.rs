//! `kvrail top`, without a terminal.

use kvrail_client::{Pages, Request};
use serde_json::Value;

use crate::rig::{LONG, Place, Sidecar, kvrail, run};

#[test]
fn one_frame_has_every_section() {
    let place = Place::with_store(1, 64 << 20);
    let sidecar = Sidecar::start(&place);
    let client = sidecar.attach();
    let top = run(kvrail().args(["top", "--once", "--socket"]).arg(place.socket()));
    top.expect(0, &[]);
    for word in ["Serving", "DEVICE", "READ/S", "POLLER", "BUSY", "STORE", "SESSION", "the test"] {
        assert!(top.stdout.contains(word), "no {word:?} in {}", top.stdout);
    }
    // Nothing of a terminal: no keys, no colours, no frame padded with blank lines.
    assert!(!top.stdout.contains("q quit") && !top.stdout.contains('\u{1b}'), "{}", top.stdout);
    let blank = |text: &str| text.trim().is_empty();
    let lines: Vec<&str> = top.stdout.lines().collect();
    assert!(!lines.windows(2).any(|pair| blank(pair[0]) && blank(pair[1])), "{}", top.stdout);
    assert!(!blank(lines.last().unwrap()), "{}", top.stdout);
    drop(client);
    sidecar.stop();
}

#[test]
fn rates_are_those_of_the_interval() {
    let place = Place::with_volume(1, 8 << 20);
    let sidecar = Sidecar::start(&place);
    let client = sidecar.attach();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    let mut top = kvrail();
    top.args(["top", "--once", "--format", "json", "--socket"]).arg(place.socket());
    let top = std::thread::spawn(move || run(&mut top));
    while !top.is_finished() {
        queue.submit(Request::write(&volume, 0, arena.lease(4096).unwrap())).unwrap();
        assert!(queue.wait(LONG).unwrap().is_some());
    }
    let outcome = top.join().unwrap();
    outcome.expect(0, &[]);
    let reports: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let of = |at: usize| reports[at]["devices"][0]["writes"]["operations"].as_u64().unwrap();
    assert!(of(1) > of(0), "{} {}", of(0), of(1));
    assert_eq!(reports[1]["sessions"].as_array().unwrap().len(), 1, "top is no session");
    drop((queue, arena, client));
    sidecar.stop();
}

#[test]
fn without_a_terminal_it_prints_the_remedy() {
    let place = Place::empty(0);
    let top = run(kvrail().args(["top", "--socket"]).arg(place.socket()));
    top.expect(2, &["needs a terminal", "--once", "kvrail status --watch"]);
    let absent = run(kvrail().args(["top", "--once", "--socket"]).arg(place.socket()));
    absent.expect(4, &["no sidecar at"]);
}
