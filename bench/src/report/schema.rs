//! The JSON of a benchmark, and how it comes from the figures.

use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::lanes::LaneReport;
use crate::plan::Case;
use crate::report::parts::{Aim, Latency};
use crate::statistics::{Figures, Relation};

/// Version of the JSON.
pub const SCHEMA: u32 = 1;

/// One arm in one case, over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The case in words; not in the JSON.
    #[serde(skip)]
    pub case: String,
    /// `kvrail`, `raw`, `raw:MODE` or `fio`.
    pub arm: String,
    /// `read`, `write`, `mixed` or `replay`.
    pub op: String,
    /// Bytes of an operation; of the largest in a replay.
    pub block_bytes: u32,
    /// Operations under way for each client.
    pub depth: u32,
    /// Client threads.
    pub clients: u32,
    /// `closed` or `open`; a replay is `open`.
    #[serde(rename = "loop")]
    pub pace: String,
    /// Operations counted, all rounds.
    pub operations: u64,
    /// Seconds they were counted over, all rounds.
    pub seconds: f64,
    /// Operations per second, median over rounds.
    pub iops: f64,
    /// Bytes per second, median over rounds.
    pub bytes_per_second: f64,
    /// Medians over rounds; `min` and `max` over all.
    pub latency_ns: Latency,
    /// CPU seconds of all processes, kernel threads and interrupts for each GiB, median over
    /// rounds; of its own processes alone for fio, and where the machine shows no more.
    pub cpu_seconds_per_gib: Option<f64>,
    /// Operations that failed.
    pub errors: u64,
    /// Sectors that were not what they should be.
    pub verify_failures: u64,
}

impl Run {
    /// The run of an arm in a case.
    #[must_use]
    pub fn new(arm: &str, case: &Case, rounds: &[Figures]) -> Self {
        let figures = Figures::over_rounds(rounds);
        Self {
            case: case.to_string(),
            arm: arm.to_owned(),
            op: case.op.name().to_owned(),
            block_bytes: case.block_bytes,
            depth: case.depth,
            clients: case.clients,
            pace: case.pace.name().to_owned(),
            operations: figures.operations,
            seconds: figures.seconds,
            iops: figures.iops,
            bytes_per_second: figures.bytes_per_second,
            latency_ns: figures.latency_ns,
            cpu_seconds_per_gib: figures.whole_cpu_per_gib.or(figures.process_cpu_per_gib),
            errors: figures.errors,
            verify_failures: figures.verify_failures,
        }
    }
}

/// kvrail / raw in one case, medians over rounds. A figure that cannot be divided is null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// As in the run.
    pub op: String,
    /// As in the run.
    pub block_bytes: u32,
    /// As in the run.
    pub depth: u32,
    /// Median latency.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Bytes per second.
    pub throughput: Option<f64>,
    /// CPU seconds for each GiB.
    pub cpu: Option<f64>,
}

impl Ratio {
    /// The short form of a comparison.
    #[must_use]
    pub fn of(comparison: &Comparison) -> Self {
        let Relation { p50, p99, throughput, cpu, .. } = comparison.relation;
        Self {
            op: comparison.op.clone(),
            block_bytes: comparison.block_bytes,
            depth: comparison.depth,
            p50: p50.map(|spread| spread.median),
            p99: p99.map(|spread| spread.median),
            throughput: throughput.map(|spread| spread.median),
            cpu: cpu.map(|spread| spread.median),
        }
    }
}

/// An arm against `raw` in one case, with the spread over rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The case in words; not in the JSON.
    #[serde(skip)]
    pub case: String,
    /// The arm that is compared.
    pub arm: String,
    /// What it is compared with.
    pub against: String,
    /// As in the run.
    pub op: String,
    /// As in the run.
    pub block_bytes: u32,
    /// As in the run.
    pub depth: u32,
    /// As in the run.
    pub clients: u32,
    /// As in the run.
    #[serde(rename = "loop")]
    pub pace: String,
    /// Planned operations per second of an open loop.
    pub planned_per_second: Option<f64>,
    /// The ratios.
    #[serde(flatten)]
    pub relation: Relation,
}

/// What was compared with what had been written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// How, in words.
    pub method: String,
    /// Blocks whose headers were compared within timed runs.
    pub sampled_blocks: u64,
    /// Bytes compared in full outside of them.
    pub verified_bytes: u64,
    /// Sectors that were wrong, all arms.
    pub failures: u64,
    /// The first failures and errors in words.
    pub first: Vec<String>,
}

/// What the sidecar costs while nobody asks for anything.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SidecarCost {
    /// Percent of one core.
    pub idle_cpu_percent: f64,
    /// Resident memory that is not shared (arenas are), in bytes.
    pub resident_bytes: u64,
    /// Heap allocations on its pollers after their start, where they are counted.
    pub poller_allocations: u64,
}

/// Everything a benchmark says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// `SCHEMA`.
    pub schema: u32,
    /// The machine and the settings.
    pub environment: Environment,
    /// Every arm in every case.
    pub runs: Vec<Run>,
    /// kvrail / raw, in the order of the cases.
    pub ratios: Vec<Ratio>,
    /// Every arm against raw, with spread.
    pub comparisons: Vec<Comparison>,
    /// Lanes and their ceilings, where they were asked for.
    pub lanes: Option<LaneReport>,
    /// The idle sidecar, where there is one.
    pub sidecar: Option<SidecarCost>,
    /// The aims that this report says something about.
    pub aims: Vec<Aim>,
    /// Verification.
    pub verification: Verification,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

impl Report {
    /// Operations that failed, all arms.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.runs.iter().map(|run| run.errors).sum()
    }

    /// Sectors that were wrong, all arms and the last sweep.
    #[must_use]
    pub fn verify_failures(&self) -> u64 {
        self.verification.failures
    }

    /// The JSON, one line for each value.
    ///
    /// # Errors
    /// Never for reports made by this crate; the library says so.
    pub fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }
}
