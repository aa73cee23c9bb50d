//! The whole benchmark on a plain file for a moment, with the raw arm.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::FileExt;

use clap::Parser;
use kvrail_bench::drive::{Sweep, sweep};
use kvrail_bench::port::Target;
use kvrail_bench::raw::RawTarget;
use kvrail_bench::report::Report;
use kvrail_bench::versions::VersionMap;
use kvrail_bench::{
    BenchOptions, FileHarness, Ground, Harness, OutputFormat, RunVerdict, command, run,
};
use kvrail_device::{DirectIo, ModeName};
use kvrail_ring::Geometry;
use uuid::Uuid;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    bench: BenchOptions,
}

const SHORT: &str = "--arms raw --seconds 0.05 --warm-up 0.01 --rounds 2 --volume-size 32MiB";

fn options(line: &str) -> BenchOptions {
    let line = format!("bench {SHORT} {line}");
    Cli::try_parse_from(line.split_whitespace()).expect("options of a test").bench
}

fn harness() -> FileHarness {
    FileHarness::default()
}

/// On the disk of the build directory: /tmp is often memory.
fn here(line: &str) -> BenchOptions {
    let mut options = options(line);
    options.dirs = vec![env!("CARGO_TARGET_TMPDIR").into()];
    options
}

fn clean(line: &str) -> Report {
    let report = run(&here(line), &mut harness()).expect(line).report;
    assert_eq!((report.errors(), report.verify_failures()), (0, 0), "{:?}", report.verification);
    // In a moment on a busy disk a run may end before its first operation does; not all of them.
    assert!(report.runs.iter().any(|run| run.operations > 0), "{report:?}");
    for run in report.runs.iter().filter(|run| run.operations > 0) {
        let named = run.latency_ns.named().map(|(_, ns)| ns);
        assert!(named.is_sorted() && named[0] > 0.0, "{run:?}");
    }
    assert!(report.verification.verified_bytes >= 32 << 20, "the last sweep reads everything");
    report
}

#[test]
fn reads_writes_and_mixtures_with_several_clients_verify() {
    let report = clean("--op read,write,mixed --block 4KiB,256KiB --depth 1,8 --clients 1,3");
    assert_eq!(report.runs.len(), 3 * 2 * 2 * 2);
    let mut worked = report.runs.iter().filter(|run| run.operations > 0);
    assert!(worked.all(|run| run.cpu_seconds_per_gib.is_some()));
    assert!(report.verification.sampled_blocks > 0);
}

#[test]
fn odd_blocks_and_open_loops_verify() {
    let line = "--op mixed --block 1098KiB --depth 2 --open 50%,200";
    // Half of a maximum needs one: on a busy disk nothing may complete in a short run.
    let mut tried = (0..8).map(|doubled| {
        let mut options = here(line);
        options.seconds *= f64::from(1 << doubled);
        run(&options, &mut harness())
    });
    let nothing = |error: &anyhow::Error| format!("{error:#}").contains("completed nothing");
    let report = tried.find(|outcome| !outcome.as_ref().is_err_and(nothing));
    let report = report.expect("something completes within 6 s").expect(line).report;
    assert_eq!(report.verify_failures(), 0, "{:?}", report.verification);
    // A busy machine may not keep up with a fixed rate: the shortfall is reported and counted, and
    // is the only error.
    let too_high = |note: &String| note.contains("the rate is too high");
    assert!(report.verification.first.iter().all(too_high), "{:?}", report.verification);
    assert!(report.runs.iter().all(|run| run.case.pace == "open"));
    assert!(report.runs.iter().any(|run| run.operations > 0));
    assert!(report.verification.verified_bytes >= 32 << 20, "the last sweep reads everything");
}

#[test]
fn a_kernel_thread_submits_too() {
    let report = clean("--mode sqpoll --op mixed --block 64KiB --depth 4");
    assert_eq!(report.environment.modes[0].mode, "sqpoll");
}

#[test]
fn json_and_log_are_written_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("latency.hlog");
    let mut out = Vec::new();
    let options = here(&format!("--block 4KiB --depth 1 --hdr-log {}", log.display()));
    let verdict = command(&options, &mut harness(), OutputFormat::Json, &mut out).unwrap();
    assert_eq!(verdict, RunVerdict::Clean);
    let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(json["schema"], 2);
    let run = &json["runs"][0];
    let percentiles = run["latency_ns"].as_object().unwrap().keys().map(String::as_str);
    assert_eq!(percentiles.collect::<Vec<_>>(), ["max", "min", "p50", "p90", "p99", "p999"]);
    let _typed: Report = serde_json::from_slice(&out).unwrap();
    assert!(fs::read_to_string(log).unwrap().contains("Tag=raw:read_4KiB_d1:0"));
}

#[test]
fn a_block_that_another_wrote_is_found_and_named() {
    let bytes = 4_u64 << 20;
    let mut harness = FileHarness::default();
    let ground = harness.open(&here(""), bytes).unwrap();
    let target = target(&ground, ModeName::Interrupt);
    let mut map = VersionMap::new(bytes, 4096);
    let quiet = |_: u64| ();
    sweep(&target, ground.uuid, &mut map, Sweep::Fill, &quiet).unwrap();
    let whole = sweep(&target, ground.uuid, &mut map, Sweep::Verify, &quiet).unwrap();
    assert_eq!((whole.verify_failures, whole.verified_bytes), (0, bytes));
    let file = fs::OpenOptions::new().write(true).read(true).open(&ground.members[0]).unwrap();
    let mut block = vec![0; 4096];
    file.read_exact_at(&mut block, 8192).unwrap();
    file.write_all_at(&block, 1 << 20).unwrap();
    file.sync_all().unwrap();
    let broken = sweep(&target, ground.uuid, &mut map, Sweep::Verify, &quiet).unwrap();
    assert_eq!(broken.verify_failures, 8);
    assert!(broken.failures[0].contains("found offset 8192 version 1: misdirected"), "{broken:?}");
    harness.close().unwrap();
}

fn target(ground: &Ground, mode: ModeName) -> RawTarget {
    RawTarget::open(&ground.members, ground.geometry, ground.io, mode).unwrap()
}

#[test]
fn operations_that_cross_stripes_are_split_and_joined() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let members: Vec<_> = (0..3).map(|n| dir.path().join(format!("member-{n}"))).collect();
    for member in &members {
        let file = fs::File::create(member).unwrap();
        file.set_len((1 << 20) + (4 << 20)).unwrap();
    }
    let geometry = Geometry {
        members: 3,
        stripe_bytes: 256 << 10,
        member_bytes: 4 << 20,
        data_offset: 1 << 20,
        logical_block: 512,
        memory_alignment: 512,
    };
    let target =
        RawTarget::open(&members, geometry, DirectIo::Required, ModeName::Interrupt).unwrap();
    let mut map = VersionMap::new(geometry.capacity(), 4096);
    let (volume, quiet) = (Uuid::new_v4(), |_: u64| ());
    sweep(&target, volume, &mut map, Sweep::Fill, &quiet).unwrap();
    let tally = sweep(&target, volume, &mut map, Sweep::Verify, &quiet).unwrap();
    assert_eq!((tally.verify_failures, tally.verified_bytes), (0, 12 << 20));
    for member in &members {
        let label = fs::read(member).unwrap();
        assert!(label[..1 << 20].iter().all(|byte| *byte == 0), "labels are left alone");
    }
}

#[test]
fn errors_are_counted_and_end_the_run_with_a_verdict() {
    // Reading behind the end of the file: short, so never a completed operation.
    let mut harness = FileHarness::default();
    let ground = harness.open(&here(""), 1 << 20).unwrap();
    let geometry = Geometry { member_bytes: 2 << 20, ..ground.geometry };
    let target =
        RawTarget::open(&ground.members, geometry, ground.io, ModeName::Interrupt).unwrap();
    assert_eq!(target.mode(), "interrupt");
    let mut map = VersionMap::new(2 << 20, 4096);
    let tally = sweep(&target, ground.uuid, &mut map, Sweep::Verify, &|_| ()).unwrap();
    assert_eq!(tally.errors, 1);
    assert!(tally.failures[0].contains("ended after 0 bytes"), "{:?}", tally.failures);
    harness.close().unwrap();
}

#[test]
fn an_arm_that_is_not_there_is_named() {
    let mut options = here("");
    options.arms = vec!["kvrail".parse().unwrap()];
    let said = run(&options, &mut harness()).unwrap_err().to_string();
    assert!(said.contains("no sidecar"), "{said}");
}
