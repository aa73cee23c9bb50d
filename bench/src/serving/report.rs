//! The report of a run.

use std::collections::BTreeMap;
use std::fmt::Write;

use kvrail_units::Size;
use serde::Serialize;

use super::counts::Counts;
use crate::cpu::CpuSeconds;
use crate::environment::Environment;
use crate::options::TraceOptions;
use crate::report::{empty, machine};
use crate::show::show_ns;
use crate::statistics::Latency;

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// The played trace, and its expected hits.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Played {
    #[serde(flatten)]
    pub(super) serving: TraceOptions,
    pub(super) speed: f64,
    pub(super) store_bytes: u64,
    /// How long it was to take.
    pub(super) expected_seconds: f64,
    /// Hits of the same requests in simulated time, in an empty store of that size.
    pub(super) replay_hit_ratio: Option<f64>,
}

/// A trace that was played.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PlayedTrace {
    schema: u32,
    environment: Environment,
    #[serde(flatten)]
    played: Played,
    seconds: f64,
    /// Requests played, and the blocks of their prompts.
    requests: u64,
    asked: u64,
    /// Blocks that were got before the first one of a request that was missing.
    hits: u64,
    hit_ratio: f64,
    /// Blocks that were found and gone when they were got.
    gone: u64,
    stored: u64,
    present: u64,
    declined: BTreeMap<&'static str, u64>,
    errors: BTreeMap<String, u64>,
    /// Sectors that were not what was put.
    wrong: u64,
    words: Vec<String>,
    got_bytes: u64,
    put_bytes: u64,
    bytes_per_second: f64,
    /// Of all processes, kernel threads and interrupts where the machine shows them; without what
    /// making and comparing bytes took.
    cpu_seconds: f64,
    cpu_seconds_per_gib: Option<f64>,
    latency_ns: BTreeMap<&'static str, Latency>,
}

impl PlayedTrace {
    pub(super) fn new(
        played: Played,
        environment: Environment,
        counts: Counts,
        (seconds, cpu): (f64, CpuSeconds),
    ) -> Self {
        let bytes = |blocks: u64| blocks * u64::from(played.serving.block_bytes);
        let (got_bytes, put_bytes) = (bytes(counts.times.get.len()), bytes(counts.put.stored));
        let moved = (got_bytes + put_bytes) as f64;
        let whole = cpu.whole.filter(|_| !environment.load.is_busy());
        let cpu_seconds = whole.unwrap_or(cpu.processes);
        let gib = moved / f64::from(1 << 30);
        let latencies = [
            ("get", &counts.times.get),
            ("lookup", &counts.times.lookup),
            ("put", &counts.times.put),
            ("request", &counts.times.request),
        ];
        Self {
            schema: SCHEMA,
            environment,
            played,
            seconds,
            requests: counts.found.requests,
            asked: counts.found.asked,
            hits: counts.found.hits,
            hit_ratio: counts.found.hits as f64 / counts.found.asked.max(1) as f64,
            gone: counts.found.gone,
            stored: counts.put.stored,
            present: counts.put.present,
            got_bytes,
            put_bytes,
            bytes_per_second: if moved > 0.0 { moved / seconds } else { 0.0 },
            cpu_seconds,
            cpu_seconds_per_gib: (moved > 0.0).then(|| cpu_seconds / gib),
            latency_ns: latencies.map(|(name, from)| (name, Latency::of(from))).into(),
            declined: counts.put.declined,
            errors: counts.failed.errors,
            wrong: counts.failed.wrong,
            words: counts.failed.words,
        }
    }

    /// Sectors that were not what was put.
    pub(crate) fn wrong(&self) -> u64 {
        self.wrong
    }

    /// Gets and puts that failed.
    pub(crate) fn errors(&self) -> u64 {
        self.errors.values().sum()
    }
}

/// The report for people.
pub(crate) fn table(served: &PlayedTrace) -> String {
    let mut text = machine(&served.environment);
    let mut line = |words: String| writeln!(text, "{words}").expect("strings take everything");
    let PlayedTrace { played: Played { serving, speed, store_bytes, .. }, seconds, .. } = served;
    line(format!(
        "{}, {} times as fast as recorded: {} clients, blocks of {}, {} of them in flight each; a \
         store of {}",
        serving.trace.display(),
        speed,
        serving.clients,
        Size::new(serving.block_bytes.into()),
        serving.depth,
        Size::new(*store_bytes)
    ));
    let blocks = |name: &str, count: u64| {
        let share = 100.0 * count as f64 / served.asked.max(1) as f64;
        [name.to_owned(), count.to_string(), format!("{share:.1}")]
    };
    let mut counts = empty(&["blocks", "count", "% of requested"], 1);
    counts.add_row(blocks("requested", served.asked));
    counts.add_row(blocks("hits inside prefixes", served.hits));
    counts.add_row(blocks("found, and gone when got", served.gone));
    counts.add_row(blocks("stored", served.stored));
    counts.add_row(blocks("put, and there already", served.present));
    for (reason, count) in &served.declined {
        counts.add_row(blocks(&format!("declined: {reason}"), *count));
    }
    for (status, count) in &served.errors {
        counts.add_row(blocks(&format!("failed: {status}"), *count));
    }
    line(format!("\n{counts}\n"));
    let mut times = empty(&["time", "min", "p50", "p90", "p99", "p99.9", "max"], 1);
    for (name, latency) in &served.latency_ns {
        let name = match *name {
            "request" => "request, planned start to last hit",
            name => name,
        };
        let shown = latency.named().map(|(_, ns)| show_ns(ns));
        times.add_row([vec![name.to_owned()], shown.to_vec()].concat());
    }
    line(format!("{times}\n"));
    line(format!(
        "{} requests in {seconds:.1} s: {:.3} GB/s, {} got and {} put; CPU {:.2} s, {} s/GiB",
        served.requests,
        served.bytes_per_second / 1e9,
        Size::new(served.got_bytes >> 20 << 20),
        Size::new(served.put_bytes >> 20 << 20),
        served.cpu_seconds,
        served.cpu_seconds_per_gib.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.4}"))
    ));
    if let Some(replayed) = served.played.replay_hit_ratio {
        line(format!(
            "{:.1} % hits with bytes, {:.1} % in the replay: {:+.1} points",
            100.0 * served.hit_ratio,
            100.0 * replayed,
            100.0 * (served.hit_ratio - replayed)
        ));
    }
    let errors = served.errors();
    line(format!("{errors} errors, {} wrong sectors; every byte got was compared", served.wrong));
    served.words.iter().for_each(|words| line(format!("  {words}")));
    text
}
