//! `kvrail store replay` and `kvrail store size` as an operator meets them.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;

fn store(command: &str) -> Command {
    let mut store = Command::new(env!("CARGO_BIN_EXE_kvrail"));
    store.env("KVRAIL_CONFIG", "/dev/null").args(["store", command]);
    store
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Sessions in turns: each turn asks for all blocks of the one before it, and two more.
fn sessions(directory: &Path, name: &str, count: u64) -> PathBuf {
    let line = |at: u64| {
        let (turn, session) = (at / count, at % count);
        let ids: Vec<u64> = (0..2 * (turn + 1)).map(|block| session * 1000 + block).collect();
        let tokens = ids.len() * 512 - 100;
        format!(
            "{{\"timestamp\": {}, \"input_length\": {tokens}, \"hash_ids\": {ids:?}}}\n",
            at * 900
        )
    };
    let path = directory.join(name);
    fs::write(&path, (0..count * 20).map(line).collect::<String>()).unwrap();
    path
}

#[test]
fn all_traces_and_tiers_stand_in_one_table_and_one_plot() {
    let directory = directory();
    let few = sessions(directory.path(), "few.jsonl", 10);
    let many = sessions(directory.path(), "many.jsonl", 40);
    let plot = directory.path().join("hits.svg");
    let mut command = store("replay");
    command.arg(&few).arg(&many).args(["--below", "5%,50", "--sizes", "20%,100"]);
    let shown = command.arg("--plot").arg(&plot).assert().success();
    let shown = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
    let read = |line: &&str| line.starts_with("few ") && line.contains(" 200 ");
    let read: Vec<&str> = shown.lines().find(read).unwrap().split_whitespace().collect();
    assert_eq!(read[..4], ["few", "200", "4200", "400"], "{shown}");
    assert_eq!(read.last(), Some(&"512"), "tokens a block: {shown}");
    for stream in ["few", "few, below 5 %", "few, below 50", "many", "many, below 50"] {
        for policy in ["kvrail, all admitted", "LRU ", "LRU, leaf first", "S3-FIFO", "Belady"] {
            let row = |line: &&str| {
                let rest = line.strip_prefix(stream).map(str::trim_start);
                line.contains(" / ") && rest.is_some_and(|rest| rest.starts_with(policy))
            };
            assert_eq!(shown.lines().filter(row).count(), 1, "{stream}, {policy}: {shown}");
        }
    }
    let svg = fs::read_to_string(&plot).unwrap();
    assert_eq!(svg.matches("<svg").count(), 1);
    for stream in ["few: 200 requests", "many, below 50: "] {
        assert!(svg.contains(stream), "{stream}");
    }
    let shown = store("replay").arg(&few).args(["--below", "10%", "--format", "json"]).assert();
    let report: Value = serde_json::from_slice(&shown.success().get_output().stdout).unwrap();
    let streams = report["streams"].as_array().unwrap();
    assert_eq!((streams.len(), &streams[1]["below"]), (2, &"10 %".into()), "{report}");
    for name in ["requests", "references", "blocks", "span_s", "block_tokens", "back", "apart"] {
        assert!(streams[0][name].is_number(), "{name}: {report}");
    }
    for run in streams[0]["runs"].as_array().unwrap() {
        assert!(run["hit_ratio"].as_f64() <= Some(1.0) && run["written_bytes"].is_u64(), "{run}");
    }
}

/// Each with file, line, key and value where there are some, and what should stand there.
#[test]
fn what_is_no_trace_is_refused() {
    let directory = directory();
    let cases = [
        ("", "0 requests, and none asks for a block"),
        ("{\"timestamp\": 5, \"hash_ids\": []}\n", "1 requests, and none asks for a block"),
        ("PNG\n", "bad.jsonl:1: not JSON: expected value"),
        ("{\"timestamp\": 5, \"hash_ids\": [1]}\n[]\n", "bad.jsonl:2: []: not an object"),
        ("{\"timestamp\": -5, \"hash_ids\": [1]}\n", "timestamp -5: not a time in milliseconds"),
        ("{\"timestamp\": 5, \"hash_ids\": [1, null]}\n", "hash_ids[1] null: not a whole number"),
        ("0.0 read 0 4KiB\n", "bad.jsonl:1: not JSON"),
    ];
    let bad = directory.path().join("bad.jsonl");
    for (text, words) in cases {
        fs::write(&bad, text).unwrap();
        for (command, option) in [("replay", None), ("size", Some("--trace"))] {
            let mut command = store(command);
            command.args(option).arg(&bad).args((option.is_some()).then_some("--token-bytes=1000"));
            let example = contains("{\"timestamp\": 1500, \"input_length\": 1100, \"hash_ids\"");
            command.assert().code(1).stderr(contains(words).and(example));
        }
    }
    let good = sessions(directory.path(), "good.jsonl", 3);
    let mut missing = store("replay");
    missing.arg(&good).arg(directory.path().join("none.jsonl"));
    missing.assert().code(1).stderr(contains("none.jsonl: the trace cannot be read"));
    let wrong: [(&[&str], &str); 4] = [
        (&["--below", "0%"], "a share of the trace's different blocks"),
        (&["--sizes", "5 GB"], "a number of blocks (5000)"),
        (&["--policy", "lfu"], "leaf-first"),
        (&["--block-bytes", "1GiB"], "128MiB"),
    ];
    for (options, words) in wrong {
        store("replay").arg(&good).args(options).assert().code(2).stderr(contains(words));
    }
    store("replay").assert().code(2).stderr(contains("<TRACE>"));
}

/// Irregular traces are played, with one note for each irregularity.
#[test]
fn what_is_odd_is_said() {
    let directory = directory();
    let odd = directory.path().join("odd.jsonl");
    let lines = [
        "{\"timestamp\": 9000, \"hash_ids\": [1, 2, 3]}",
        "{\"timestamp\": 0, \"hash_ids\": [1, 2, 2]}",
        "{\"timestamp\": 9000, \"hash_ids\": []}",
        "{\"timestamp\": 9000, \"hash_ids\": [1, 3]}",
    ];
    fs::write(&odd, lines.join("\n")).unwrap();
    let shown = store("replay").arg(&odd).args(["--policy", "lru"]).assert().success();
    let shown = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
    for words in [
        "note: odd: 1 requests stand behind one of a later time: each is played at its own time",
        "note: odd: 1 requests have no block",
        "note: odd: 1 references repeat a block of the same request",
        "note: odd: 1 references follow another block than the block's first one did",
    ] {
        assert!(shown.contains(words), "no {words:?} in {shown}");
    }
}

#[test]
fn sizes_follow_from_a_shape_or_from_a_trace() {
    let shape = ["--layers", "80", "--kv-heads", "8", "--head-size", "128"];
    let load = ["--sessions", "200", "--context", "60000"];
    let shown = store("size").args(shape).args(load).assert().success();
    let shown = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
    for words in [
        "327680 bytes  2 (K and V) x 80 layers x 8 heads x 128 x 16 bits (bf16)",
        "256 tokens",
        "3.93 TB",
        "264.24 GB/s",
        "capacity takes 2, bandwidth 60, endurance 271",
        "days",
    ] {
        assert!(shown.contains(words), "no {words:?} in {shown}");
    }
    let json = |command: &mut Command| -> Value {
        let shown = command.args(["--format", "json"]).assert().success();
        serde_json::from_slice(&shown.get_output().stdout).unwrap()
    };
    let chats = json(store("size").args(shape).args(load).args(["--turns", "2", "--made", "300"]));
    let bytes = |name: &str| chats[name].as_f64().unwrap();
    assert!((bytes("kept_bytes") - 200.0 * 60_000.0 * 327_680.0).abs() < 1.0, "{chats}");
    let read = 200.0 * 60_000.0 * 2.0 / 60.0 * 327_680.0;
    assert!((bytes("read_bytes_per_second") - read).abs() < 1.0, "{chats}");
    let written = 200.0 * 300.0 * 2.0 / 60.0 * 327_680.0 * 1.2;
    assert!((bytes("written_bytes_per_second") - written).abs() < 1.0, "{chats}");

    let directory = directory();
    let trace = sessions(directory.path(), "sessions.jsonl", 40);
    let of = |more: &[&str]| {
        json(
            store("size")
                .args(["--layers", "61", "--mla-rank", "576", "--trace"])
                .arg(&trace)
                .args(more),
        )
    };
    let one = of(&["--size", "50%"]);
    assert_eq!((&one["block_tokens"], &one["block_bytes"]), (&512.into(), &35_979_264.into()));
    let ten = of(&["--size", "50%", "--times", "10"]);
    let below = of(&["--size", "50%", "--below", "60%"]);
    let read = |it: &Value| it["read_bytes_per_second"].as_f64().unwrap();
    assert!((read(&ten) / read(&one) - 10.0).abs() < 1e-6, "{one} {ten}");
    assert!(read(&below) < read(&one), "{below} {one}");
}

#[test]
fn sizes_that_cannot_be_are_refused_with_the_remedy() {
    let wrong: [(&[&str], &str); 7] = [
        (&[], "--sessions"),
        (&["--sessions", "10", "--context", "1000"], "--token-bytes"),
        (&["--token-bytes", "1000", "--sessions", "0", "--context", "9"], "above 0"),
        (&["--token-bytes", "1000", "--sessions", "1e15", "--context", "1e15"], "they multiply"),
        (&["--token-bytes", "1000", "--sessions", "9", "--context", "9", "--made", "3"], "--turns"),
        (&["--token-bytes", "1000", "--trace", "t", "--sessions", "9"], "cannot be used with"),
        (
            &["--token-bytes", "1000", "--sessions", "9", "--context", "9", "--size", "5%"],
            "'--sessions <N>' cannot be used with '--size <SIZE>'",
        ),
    ];
    for (options, words) in wrong {
        store("size").args(options).assert().stderr(contains(words)).code(2);
    }
}
