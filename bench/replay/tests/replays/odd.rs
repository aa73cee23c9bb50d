//! Traces that nobody planned for.

use kvrail_replay::{Policy, plot};

use crate::chats::chats;
use crate::{read, run};

const ALL: [Policy; 4] = [Policy::All, Policy::Lru, Policy::S3Fifo, Policy::Belady];

#[test]
fn an_empty_trace_has_no_hits() {
    let report = run(&read(""), "5%,100", &ALL, 4096);
    assert!(report.runs.iter().all(|run| run.hits == 0 && run.hit_ratio == 0.0), "{report:?}");
    assert!(report.notes.iter().any(|note| note.contains("no request")), "{report:?}");
    assert!(plot(&report).unwrap().contains("<svg"));
}

#[test]
fn a_size_that_no_store_has_is_noted() {
    let report = run(&read("{\"timestamp\": 0, \"hash_ids\": [1, 2, 1]}"), "5%,2", &ALL, 4096);
    assert!(report.runs.iter().all(|run| run.store.is_none()), "{report:?}");
    assert!(report.notes[0].contains("too few for a store"), "{report:?}");
    let most = run(&read("{\"timestamp\": 0, \"hash_ids\": [1]}"), "4294967296", &ALL, 1 << 20);
    assert!(most.notes[0].contains("4294967296 blocks are too many for a store"), "{most:?}");
    assert!(report.runs.iter().all(|run| run.hits == 0), "the first miss ends a prefix");
}

/// Times that are no times: all requests at once, and in seconds where milliseconds belong.
#[test]
fn a_budget_holds_whatever_the_times_are() {
    let text = chats(6, 2000);
    let times = [("at once", 0.0), ("in microseconds", 1e-6), ("in seconds", 1e-3), ("right", 1.0)];
    for (name, factor) in times {
        let mut told = String::new();
        for line in text.lines() {
            let (at, ids) = line.strip_prefix("{\"timestamp\": ").unwrap().split_once(',').unwrap();
            let at: f64 = at.parse().unwrap();
            told += &format!("{{\"timestamp\": {},{ids}\n", at * factor);
        }
        let report = run(&read(&told), "20%", &[Policy::Budget(0.2)], 1 << 20);
        let ratio = report.runs[0].write_ratio;
        assert!((0.15..0.205).contains(&ratio), "{name}: {ratio}");
    }
}

/// Ids that repeat within a request, from the first and from the second request on.
#[test]
fn ids_may_repeat() {
    let line = "{\"timestamp\": 7, \"hash_ids\": [9, 9, 8, 9, 8]}\n";
    let report = run(&read(&line.repeat(3)), "100", &ALL, 4096);
    for run in &report.runs {
        assert_eq!((run.hits, run.blocks), (10, 100), "{run:?}");
        // Belady never writes what is not asked for again.
        assert!(run.store.is_none_or(|store| store.puts == 2), "{run:?}");
    }
}

/// The order of the lines is that of the times.
#[test]
fn lines_may_be_out_of_order() {
    let text = chats(5, 300);
    let mut lines: Vec<&str> = text.lines().collect();
    let sorted = run(&read(&text), "50%", &ALL, 4096);
    fastrand::Rng::with_seed(1).shuffle(&mut lines);
    let mixed = run(&read(&lines.join("\n")), "50%", &ALL, 4096);
    let hits = |report: &kvrail_replay::Report| -> Vec<u64> {
        report.runs.iter().map(|run| run.hits).collect()
    };
    // Requests of the same millisecond may change places.
    for (one, other) in hits(&sorted).into_iter().zip(hits(&mixed)) {
        assert!(one.abs_diff(other) * 100 <= one, "{one} {other}");
    }
}

/// Blocks of any length, years between requests, and a burst at one time.
#[test]
fn lengths_and_times_may_be_anything() {
    let mut text = String::new();
    for at in [0_u64, 0, 0, 4_000_000_000_000, 9_999_999_999_999] {
        let ids: Vec<u64> = (0..40).map(|id| u64::MAX - id * 3).collect();
        text += &format!("{{\"timestamp\": {at}, \"hash_ids\": {ids:?}}}\n");
    }
    for block_bytes in [1, 511, 4096, 640_256, 128 << 20] {
        let report = run(&read(&text), "2000", &ALL, block_bytes);
        for run in &report.runs {
            assert_eq!(run.hits, 160, "{block_bytes} {run:?}");
        }
        assert!(report.notes.is_empty(), "{:?}", report.notes);
    }
}
