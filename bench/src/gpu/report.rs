//! What was found: a row for each case and arm, as table and as JSON.

use comfy_table::{Table, presets};
use serde::{Deserialize, Serialize};

use super::case::Run;

/// Results of `kvrail bench --gpu`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GpuReport {
    /// The GPU.
    pub gpu: String,
    /// The device under the file, as kvrail drove it.
    pub device: String,
    /// What each mechanism said about itself.
    pub mechanisms: Vec<String>,
    /// One for each case and arm, medians over rounds.
    pub rows: Vec<GpuRow>,
    /// Bytes read back and compared.
    pub verified_bytes: u64,
    /// Arms that were left out, and why.
    pub notes: Vec<String>,
}

/// One arm in one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GpuRow {
    /// The case.
    pub case: String,
    /// The arm.
    pub arm: String,
    /// 10^9 bytes in a second.
    pub gb_per_second: f64,
    /// Latency of a block, microseconds: half are faster.
    pub p50_us: f64,
    /// And 99 of 100.
    pub p99_us: f64,
    /// CPU seconds of the whole process for 2^30 bytes.
    pub cpu_seconds_per_gib: f64,
}

#[expect(clippy::cast_precision_loss, reason = "figures of a benchmark")]
impl GpuRow {
    /// The run with the median throughput.
    pub(super) fn of(case: &str, arm: &str, mut runs: Vec<Run>) -> Self {
        let rate = |run: &Run| run.bytes as f64 / run.seconds / 1e9;
        runs.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        let run = &runs[runs.len() / 2];
        Self {
            case: case.to_owned(),
            arm: arm.to_owned(),
            gb_per_second: rate(run),
            p50_us: run.latency_ns.value_at_quantile(0.5) as f64 / 1e3,
            p99_us: run.latency_ns.value_at_quantile(0.99) as f64 / 1e3,
            cpu_seconds_per_gib: run.cpu_seconds * f64::from(1 << 30) / run.bytes as f64,
        }
    }
}

impl GpuReport {
    /// For people.
    pub(super) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(["case", "arm", "GB/s", "p50 us", "p99 us", "CPU s/GiB"]);
        for row in &self.rows {
            table.add_row([
                row.case.clone(),
                row.arm.clone(),
                format!("{:.2}", row.gb_per_second),
                format!("{:.1}", row.p50_us),
                format!("{:.1}", row.p99_us),
                format!("{:.3}", row.cpu_seconds_per_gib),
            ]);
        }
        let mut out = format!("{}\n{}\n", self.gpu, self.device);
        for line in self.mechanisms.iter().chain(&self.notes) {
            out += &format!("{line}\n");
        }
        out + &format!("{table}\n{} bytes read back and compared\n", self.verified_bytes)
    }
}
