//! Lines that carry a priority or an end of life.

use std::fmt::Write;

use kvrail_replay::{CachePolicy, Trace};

use crate::{read, run};

const POLICIES: [CachePolicy; 2] = [CachePolicy::All, CachePolicy::Lru];

/// Sessions that come back, and between their turns prompts that no request repeats; the latter
/// carry the hints.
fn mixed(hints: impl Fn(u64) -> String) -> Trace {
    let mut text = String::new();
    for at in 0..3000_u64 {
        let session = at % 40;
        let ids: Vec<u64> = (0..10).map(|block| session * 10 + block).collect();
        writeln!(text, "{{\"timestamp\": {}, \"hash_ids\": {ids:?}}}", at * 1000).unwrap();
        let once: Vec<u64> = (0..10).map(|block| 1_000_000 + at * 10 + block).collect();
        let (time, hints) = (at * 1000 + 500, hints(at * 1000 + 500));
        writeln!(text, "{{\"timestamp\": {time}, \"hash_ids\": {once:?}{hints}}}").unwrap();
    }
    read(&text)
}

/// Blocks of low priority make room for the others; caches without hints are unaffected.
#[test]
fn the_store_takes_the_hints_of_a_line() {
    let hits = |trace: &Trace| {
        let report = run(trace, "600", &POLICIES, 4096);
        let hinted = report.streams[0].facts.odd.hinted;
        let notes =
            report.streams[0].notes.iter().any(|note| note.contains("a priority or an end"));
        assert_eq!(notes, hinted > 0, "{report:?}");
        let runs = &report.streams[0].runs;
        (hinted, [runs[0].hits, runs[1].hits])
    };
    let plain = hits(&mixed(|_| String::new()));
    let ended = mixed(|at| format!(", \"until\": {}", at + 2000));
    let low = hits(&mixed(|_| ", \"priority\": \"low\"".to_owned()));
    let (hinted, over) = hits(&ended);
    println!("plain {plain:?}, low {low:?}, over {over:?}");
    assert_eq!((plain.0, low.0, hinted), (0, 3000, 3000));
    assert!(low.1[0] > plain.1[0], "low priority: {low:?} {plain:?}");
    assert!(over[0] > plain.1[0], "an end: {over:?} {plain:?}");
    assert_eq!((low.1[1], over[1]), (plain.1[1], plain.1[1]), "LRU");
    assert_eq!(hits(&ended.unhinted()), plain);
}

/// An end that all times of the trace are before is none; an end with the request is over at once.
#[test]
fn an_end_is_on_the_clock_of_the_trace() {
    let late = mixed(|_| ", \"until\": 1e13".to_owned());
    let one = run(&late, "600", &[CachePolicy::All], 4096);
    let other = run(&late.unhinted(), "600", &[CachePolicy::All], 4096);
    assert_eq!(one.streams[0].runs, other.streams[0].runs);
}
