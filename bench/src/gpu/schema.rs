//! The JSON of `kvrail bench --gpu`: that of `kvrail bench`, with how blocks lie in GPU memory.

use kvrail_units::Size;
use serde::{Deserialize, Serialize};

use super::case::Case;
use crate::environment::Environment;
use crate::report::{Aim, Run, Verification};
use crate::statistics::{Figures, Relation, Spread};

/// Results of `kvrail bench --gpu`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuReport {
    /// As in the report of `kvrail bench`.
    pub schema: u32,
    /// The machine and the settings; `modes` says what each arm is and which way its bytes go.
    pub environment: Environment,
    /// The GPU.
    pub gpu: GpuFound,
    /// Every arm in every case.
    pub runs: Vec<GpuRun>,
    /// Pairs of arms in one case, medians over rounds.
    pub ratios: Vec<GpuRatio>,
    /// The aims that this report says something about.
    pub aims: Vec<Aim>,
    /// What was read back and compared.
    pub verification: Verification,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

/// The GPU and its libraries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFound {
    /// What it is called.
    pub name: String,
    /// Which one.
    pub uuid: String,
    /// Its PCIe address.
    pub pci_address: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Version of CUDA that the driver speaks, 1000 * major + 10 * minor.
    pub cuda: Option<u32>,
    /// Version of cuFile, likewise.
    pub cufile: Option<u32>,
}

/// One arm in one case, over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuRun {
    /// As in the report of `kvrail bench`.
    #[serde(flatten)]
    pub run: Run,
    /// `contiguous`, `paged` (one tensor) or `layers` (32 tensors).
    pub layout: String,
    /// Pieces that a block consists of.
    pub fragments: u16,
}

/// One arm against another in one case, neighbours in time divided round by round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuRatio {
    /// As in the run.
    pub op: String,
    /// As in the run.
    pub block_bytes: u32,
    /// As in the run.
    pub layout: String,
    /// As in the run.
    pub depth: u32,
    /// The arm.
    pub arm: String,
    /// What it is compared with.
    pub against: String,
    /// The ratios, with their spread.
    #[serde(flatten)]
    pub relation: Relation,
}

impl GpuRun {
    pub(super) fn of(case: Case, arm: &str, rounds: &[Figures]) -> Self {
        let figures = Figures::over_rounds(rounds);
        let run = Run {
            case: case.name(),
            arm: arm.to_owned(),
            op: case.op().name().to_owned(),
            block_bytes: case.block_bytes,
            depth: case.depth,
            clients: 1,
            pace: "closed".to_owned(),
            operations: figures.operations,
            seconds: figures.seconds,
            iops: figures.iops,
            bytes_per_second: figures.bytes_per_second,
            latency_ns: figures.latency_ns,
            cpu_seconds_per_gib: figures.whole_cpu_per_gib.or(figures.process_cpu_per_gib),
            errors: figures.errors,
            verify_failures: figures.verify_failures,
        };
        Self { run, layout: case.shape.name().to_owned(), fragments: case.shape.fragments() }
    }
}

impl GpuRatio {
    pub(super) fn of(case: Case, arms: (&str, &str), rounds: (&[Figures], &[Figures])) -> Self {
        Self {
            op: case.op().name().to_owned(),
            block_bytes: case.block_bytes,
            layout: case.shape.name().to_owned(),
            depth: case.depth,
            arm: arms.0.to_owned(),
            against: arms.1.to_owned(),
            relation: Relation::between(rounds.0, rounds.1),
        }
    }

    /// The case in words.
    pub(super) fn case(&self) -> String {
        let size = Size::new(self.block_bytes.into());
        format!("{} {size} {} d{}", self.op, self.layout, self.depth)
    }
}

impl GpuReport {
    /// A ratio's median.
    pub(super) fn ratio(
        &self,
        case: (&str, u32, &str),
        arms: (&str, &str),
        of: fn(&Relation) -> Option<Spread>,
    ) -> Option<f64> {
        let (op, block_bytes, layout) = case;
        let found = self.ratios.iter().find(|one| {
            (one.op.as_str(), one.block_bytes, one.layout.as_str()) == (op, block_bytes, layout)
                && (one.arm.as_str(), one.against.as_str()) == arms
        })?;
        of(&found.relation).map(|spread| spread.median)
    }

    /// Bytes per second of an arm.
    pub(super) fn rate(&self, case: (&str, u32, &str), arm: &str) -> Option<f64> {
        let found = self.runs.iter().find(|one| {
            (one.run.op.as_str(), one.run.block_bytes, one.layout.as_str()) == case
                && one.run.arm == arm
        })?;
        Some(found.run.bytes_per_second)
    }
}
