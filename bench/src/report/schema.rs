//! The JSON of a benchmark, and how it comes from the figures.

use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::lanes::LaneReport;
use crate::memory::MemoryReport;
use crate::plan::{CaseInfo, KVRAIL};
use crate::statistics::{Figures, Latency, Relation};

/// The name in ratios of the arm that a store is compared with: the same sidecar's volume.
const VOLUME: &str = "volume";

/// Version of the JSON.
pub const SCHEMA: u32 = 2;

/// One arm in one case, over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The case.
    #[serde(flatten)]
    pub case: CaseInfo,
    /// The arm: `kvrail`, `store`, `raw`, `raw:MODE`, `fio`, or a way between a file and GPU
    /// memory.
    pub arm: String,
    /// Operations counted, all rounds; a lookup is one.
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
    pub fn new(case: CaseInfo, arm: &str, rounds: &[Figures]) -> Self {
        let figures = Figures::over_rounds(rounds);
        Self {
            case,
            arm: arm.to_owned(),
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

/// kvrail's volume or store against another arm in one case, medians over rounds. A figure that
/// cannot be divided is null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// As in the run.
    pub op: String,
    /// As in the run.
    pub block_bytes: u32,
    /// As in the run.
    pub depth: u32,
    /// The compared arm: `kvrail` or `store`.
    pub arm: String,
    /// The reference: `raw`, or `volume`, which is the arm `kvrail`.
    pub against: String,
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
            op: comparison.case.op.clone(),
            block_bytes: comparison.case.block_bytes,
            depth: comparison.case.depth,
            arm: comparison.arm.clone(),
            against: if comparison.against == KVRAIL { VOLUME } else { &comparison.against }
                .to_owned(),
            p50: p50.map(|spread| spread.median),
            p99: p99.map(|spread| spread.median),
            throughput: throughput.map(|spread| spread.median),
            cpu: cpu.map(|spread| spread.median),
        }
    }
}

/// An arm against another in one case, with the spread over rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The case.
    #[serde(flatten)]
    pub case: CaseInfo,
    /// The arm that is compared.
    pub arm: String,
    /// The reference.
    pub against: String,
    /// Planned operations per second of an open loop.
    pub planned_per_second: Option<f64>,
    /// The ratios.
    #[serde(flatten)]
    pub relation: Relation,
}

/// The comparison of bytes read with bytes written.
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
    /// Blocks that a store's ring overwrote since their put.
    #[serde(default)]
    pub evicted: u64,
    /// The first failures and errors in words.
    pub first: Vec<String>,
}

/// The cost of an idle sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SidecarCost {
    /// Percent of one core.
    pub idle_cpu_percent: f64,
    /// Resident memory that is not shared (arenas are), in bytes.
    pub resident_bytes: u64,
    /// The memory of its stores' tables and buffers once all of them are used; unused parts are not
    /// resident, so this may be more than `resident_bytes`.
    #[serde(default)]
    pub stores_bytes: u64,
    /// Heap allocations on its pollers after their start, where they are counted.
    pub poller_allocations: u64,
}

/// A GPU and its libraries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFound {
    /// Its name.
    pub name: String,
    /// Which one.
    pub uuid: String,
    /// Its PCIe address.
    pub pci_address: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Version of CUDA that the driver supports, 1000 * major + 10 * minor.
    pub cuda: Option<u32>,
    /// Version of cuFile, likewise.
    pub cufile: Option<u32>,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The value should not exceed the aim.
    AtMost,
    /// The value should reach the aim.
    AtLeast,
}

/// One aim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Aim {
    /// The compared value.
    pub what: String,
    /// Which way is better.
    pub bound: Bound,
    /// The aim.
    pub aim: f64,
    /// The measured value.
    pub value: f64,
    /// Whether it was reached.
    pub met: bool,
}

impl Aim {
    /// An aim, unless nothing was measured for it.
    #[must_use]
    pub fn new(what: &str, bound: Bound, aim: f64, value: Option<f64>) -> Option<Self> {
        let value = value?;
        let met = match bound {
            Bound::AtMost => value <= aim,
            Bound::AtLeast => value >= aim,
        };
        Some(Self { what: what.to_owned(), bound, aim, value, met })
    }
}

/// The whole report of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// `SCHEMA`.
    pub schema: u32,
    /// The machine and the settings.
    pub environment: Environment,
    /// The GPU, where blocks went to or came from its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuFound>,
    /// Every arm in every case.
    pub runs: Vec<Run>,
    /// kvrail / raw, store / raw, store / kvrail, in the order of the cases.
    pub ratios: Vec<Ratio>,
    /// Every pair of arms that is compared, with spread.
    pub comparisons: Vec<Comparison>,
    /// Lanes and their ceilings, where they were asked for.
    pub lanes: Option<LaneReport>,
    /// Hot blocks of a memory tier, where they were asked for.
    pub memory: Option<MemoryReport>,
    /// The idle sidecar, where there is one.
    pub sidecar: Option<SidecarCost>,
    /// The aims that this report covers.
    pub aims: Vec<Aim>,
    /// Verification.
    pub verification: Verification,
    /// Omissions, with reasons.
    pub notes: Vec<String>,
}

impl Report {
    /// Operations that failed, all arms.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.runs.iter().map(|run| run.errors).sum()
    }

    /// An arm against another in a case of this shape, whatever its words.
    #[must_use]
    pub fn compared(&self, case: &CaseInfo, arms: (&str, &str)) -> Option<&Comparison> {
        let matches = |one: &&Comparison| {
            CaseInfo { name: case.name.clone(), ..one.case.clone() } == *case
                && (one.arm.as_str(), one.against.as_str()) == arms
        };
        self.comparisons.iter().find(matches)
    }

    /// Sectors that were wrong, all arms and the last sweep.
    #[must_use]
    pub fn verify_failures(&self) -> u64 {
        self.verification.failures
    }

    /// The JSON, one line for each value.
    ///
    /// # Errors
    /// Never for reports made by this crate; the library's signature has it.
    pub fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::{Aim, Bound};

    #[test]
    fn an_aim_is_met_at_its_bound_and_unknown_without_a_value() {
        let met = |bound, value| Aim::new("it", bound, 1.5, Some(value)).unwrap().met;
        assert!(met(Bound::AtMost, 1.5) && !met(Bound::AtMost, 1.51));
        assert!(met(Bound::AtLeast, 1.5) && !met(Bound::AtLeast, 1.49));
        assert!(!met(Bound::AtMost, f64::NAN) && !met(Bound::AtLeast, f64::NAN));
        assert_eq!(Aim::new("it", Bound::AtMost, 1.5, None), None);
    }
}
