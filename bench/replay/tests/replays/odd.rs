//! Irregular traces.

use std::io::{self, BufReader, Read};

use kvrail_replay::{CachePolicy, CacheSize, Trace, plot};

use crate::chats::chats;
use crate::{read, run, run_on};

pub(crate) const ALL: [CachePolicy; 5] = [
    CachePolicy::All,
    CachePolicy::Lru,
    CachePolicy::LeafFirst,
    CachePolicy::S3Fifo,
    CachePolicy::Belady,
];

/// Requests without a block are counted and ask for nothing.
#[test]
fn requests_may_have_no_block() {
    let line = "{\"timestamp\": 7, \"hash_ids\": []}\n";
    let text = line.repeat(2) + &"{\"timestamp\": 9, \"hash_ids\": [1, 2]}\n".repeat(2);
    let report = run_on(1, &read(&text), ("100", "1"), &ALL, 4096);
    assert_eq!((report.streams[0].facts.requests, report.streams[0].facts.references), (4, 4));
    assert!(report.streams[0].notes[0].starts_with("2 requests have no block"), "{report:?}");
    assert!(report.streams[0].runs.iter().all(|run| run.hits == 2), "{report:?}");
    assert_eq!(report.streams[1].facts.requests, 2, "nothing is left of them below a tier");
    assert!(plot(&report).unwrap().contains("<svg"));
}

/// As below a memory tier: what a request has is taken as its prompt.
#[test]
fn traces_may_have_holes() {
    let text = "{\"timestamp\": 1, \"hash_ids\": [1, 2, 3, 4]}\n\
                {\"timestamp\": 2, \"hash_ids\": [1, 3, 4]}\n\
                {\"timestamp\": 3, \"hash_ids\": [4]}\n";
    let report = run(&read(text), "100", &ALL, 4096);
    let stream = &report.streams[0];
    assert!(stream.notes[0].starts_with("2 references follow another block"), "{stream:?}");
    assert!(stream.runs.iter().all(|run| run.hits == 4), "{stream:?}");
}

/// The lines of a million sessions, two requests each, as they are read.
struct Sessions {
    next: u32,
    line: io::Cursor<Vec<u8>>,
}

impl Sessions {
    const COUNT: u32 = 1_000_000;
}

impl Read for Sessions {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.line.position() == self.line.get_ref().len() as u64 && self.next < 2 * Self::COUNT {
            let (at, session) = (self.next, self.next / 2);
            let ids = &[2 * session, 2 * session + 1][..1 + at as usize % 2];
            let text = format!("{{\"timestamp\": {at}, \"hash_ids\": {ids:?}}}\n");
            (self.next, self.line) = (at + 1, io::Cursor::new(text.into_bytes()));
        }
        self.line.read(into)
    }
}

#[test]
fn a_million_sessions_are_read_and_played() {
    let lines = BufReader::new(Sessions { next: 0, line: io::Cursor::default() });
    let trace = Trace::read(lines, "generated".as_ref(), &mut |_| {}).unwrap();
    assert_eq!(
        (trace.requests(), trace.asked(), trace.distinct()),
        (2_000_000, 3_000_000, 2_000_000)
    );
    let peers =
        [CachePolicy::Lru, CachePolicy::LeafFirst, CachePolicy::S3Fifo, CachePolicy::Belady];
    let report = run(&trace, "1%", &peers, 1 << 20);
    for run in &report.streams[0].runs {
        assert_eq!(run.hits, 1_000_000, "each session comes back at once: {run:?}");
    }
    assert_eq!(trace.below(CacheSize::Blocks(4)).asked(), 2_000_000);
}

#[test]
fn a_size_that_no_store_has_is_noted() {
    let report = run(&read("{\"timestamp\": 0, \"hash_ids\": [1, 2, 1]}"), "5%,2", &ALL, 4096);
    let stream = &report.streams[0];
    assert!(stream.runs.iter().all(|run| run.store.is_none()), "{report:?}");
    let notes = stream.notes.iter().filter(|note| note.contains("too few for a store"));
    assert_eq!(notes.count(), 2, "{report:?}");
    let most = run(&read("{\"timestamp\": 0, \"hash_ids\": [1]}"), "4294967296", &ALL, 1 << 20);
    let words = "4294967296 blocks are too many for a store";
    assert!(most.streams[0].notes[0].contains(words), "{most:?}");
    assert!(stream.runs.iter().all(|run| run.hits == 0), "the first miss ends a prefix");
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
        let report = run(&read(&told), "20%", &[CachePolicy::Budget(0.2)], 1 << 20);
        let ratio = report.streams[0].runs[0].write_ratio;
        assert!((0.15..0.205).contains(&ratio), "{name}: {ratio}");
    }
}

/// Ids that repeat within a request, from the first and from the second request on.
#[test]
fn ids_may_repeat() {
    let line = "{\"timestamp\": 7, \"hash_ids\": [9, 9, 8, 9, 8]}\n";
    let report = run(&read(&line.repeat(3)), "100", &ALL, 4096);
    assert!(report.streams[0].notes[0].starts_with("9 references repeat a block"), "{report:?}");
    for run in &report.streams[0].runs {
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
        report.streams[0].runs.iter().map(|run| run.hits).collect()
    };
    assert!(mixed.streams[0].notes[0].contains("stand behind one of a later time"), "{mixed:?}");
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
        for run in &report.streams[0].runs {
            assert_eq!(run.hits, 160, "{block_bytes} {run:?}");
        }
        assert!(report.streams[0].notes.is_empty(), "{:?}", report.streams[0].notes);
    }
}
