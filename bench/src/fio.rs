//! The arm `fio`: the field's own tool on the same files, where it is installed.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use kvrail_device::{DirectIo, ModeName};
use kvrail_memory::PinLimit;
use serde::Deserialize;

use crate::options::BenchOptions;
use crate::plan::{Case, Op, Pace};
use crate::statistics::{Figures, Latency};

/// fio, and the parts of the volume it works on. It writes no pattern, so its writes stay in a
/// scratch part behind the pattern.
#[derive(Clone, Debug)]
pub struct Fio {
    /// How it is called.
    pub program: PathBuf,
    /// Its version.
    pub version: String,
    /// The volume's only member.
    pub file: PathBuf,
    /// The ring mode.
    pub mode: ModeName,
    /// Whether the file is opened as the other arms do.
    pub io: DirectIo,
    /// Bytes of the member that it reads: the pattern.
    pub read: Range<u64>,
    /// Bytes that it writes: the scratch part.
    pub write: Range<u64>,
}

impl Fio {
    /// Finds fio; nothing where it is not installed.
    ///
    /// # Errors
    /// When it is there and cannot be run.
    pub fn find(program: &Path) -> Result<Option<String>> {
        match Command::new(program).arg("--version").output() {
            Ok(output) if output.status.success() => {
                Ok(Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
            }
            Ok(output) => bail!(
                "{} --version: {}; reinstall it or leave the arm out",
                program.display(),
                String::from_utf8_lossy(&output.stderr).trim()
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("running {}", program.display())),
        }
    }

    fn engine(&self) -> &'static str {
        if self.mode.passes_through() { "io_uring_cmd" } else { "io_uring" }
    }

    /// Version and engine, for the report.
    #[must_use]
    pub fn mode(&self) -> String {
        let (mode, version, engine) = (self.mode, &self.version, self.engine());
        let registered = if registers_buffers() { "files and buffers" } else { "files" };
        format!("{mode} ({version}, {engine}, registered {registered})")
    }

    /// Whether it can run a case: closed loops, and writes only where there is room for them.
    #[must_use]
    pub fn takes(&self, case: &Case) -> bool {
        let room = if case.op == Op::Read { &self.read } else { &self.write };
        let fits = room.end - room.start >= case.span_bytes_min();
        case.fits_volumes() && case.pace == Pace::Closed && fits
    }

    /// Runs a closed-loop case once.
    ///
    /// # Errors
    /// When fio fails, with fio's message.
    pub fn run(&self, case: &Case, options: &BenchOptions) -> Result<Figures> {
        ensure!(self.takes(case), "fio does not run {case}");
        let output = Command::new(&self.program)
            .args(self.arguments(case, options))
            .output()
            .with_context(|| format!("running {}", self.program.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "fio failed on {case}: {}", said.trim());
        parse(&String::from_utf8_lossy(&output.stdout), case)
    }

    fn arguments(&self, case: &Case, options: &BenchOptions) -> Vec<String> {
        let (pattern, area) = match case.op {
            Op::Read | Op::Lookup => ("randread", &self.read),
            Op::Write => ("randwrite", &self.write),
            Op::Mixed => ("randrw", &self.write),
        };
        let pairs = [
            ("name", "kvrail".to_owned()),
            ("filename", self.file.display().to_string()),
            ("ioengine", self.engine().to_owned()),
            ("registerfiles", "1".to_owned()),
            ("fixedbufs", u8::from(registers_buffers()).to_string()),
            ("hipri", u8::from(self.mode.polls_device()).to_string()),
            ("sqthread_poll", u8::from(self.mode.has_kernel_thread()).to_string()),
            ("rw", pattern.to_owned()),
            ("unified_rw_reporting", u8::from(case.op == Op::Mixed).to_string()),
            ("bs", case.block_bytes.to_string()),
            ("iodepth", case.depth.to_string()),
            ("numjobs", case.clients.to_string()),
            ("offset", area.start.to_string()),
            ("size", (area.end - area.start).to_string()),
            ("ramp_time", format!("{}ms", milliseconds(options.warm_up))),
            ("runtime", format!("{}ms", milliseconds(options.seconds))),
            ("norandommap", "1".to_owned()),
            ("random_generator", "tausworthe64".to_owned()),
            ("randseed", options.seed.to_string()),
            ("lat_percentiles", "1".to_owned()),
            ("clat_percentiles", "0".to_owned()),
            ("percentile_list", "50:90:99:99.9".to_owned()),
            ("output-format", "json".to_owned()),
        ];
        let mut all: Vec<String> =
            pairs.iter().map(|(key, value)| format!("--{key}={value}")).collect();
        if self.mode.passes_through() {
            all.push("--cmd_type=nvme".to_owned());
        } else {
            all.push("--nonvectored=1".to_owned());
            all.push(format!("--direct={}", u8::from(self.io != DirectIo::Off)));
        }
        all.extend(["--time_based", "--group_reporting"].map(str::to_owned));
        all
    }
}

/// fio fails where it cannot register its buffers, and others of this user may have taken what the
/// limit of pinned memory allows.
fn registers_buffers() -> bool {
    PinLimit::of_this_process() == PinLimit::Unlimited
}

#[expect(clippy::cast_possible_truncation, reason = "`as` saturates; seconds of a run are few")]
#[expect(clippy::cast_sign_loss, reason = "as above: negative becomes 0, then 1")]
fn milliseconds(seconds: f64) -> u64 {
    ((seconds * 1e3) as u64).max(1)
}

/// The parts of fio's JSON that are used.
#[derive(Debug, Deserialize)]
struct Output {
    jobs: Vec<FioJob>,
}

#[derive(Debug, Deserialize)]
struct FioJob {
    error: i64,
    #[serde(default)]
    total_err: u64,
    read: Option<FioDirection>,
    write: Option<FioDirection>,
    mixed: Option<FioDirection>,
    /// Milliseconds of all jobs together.
    job_runtime: f64,
    /// Percent of `job_runtime`.
    usr_cpu: f64,
    sys_cpu: f64,
}

#[derive(Debug, Deserialize)]
struct FioDirection {
    io_bytes: f64,
    bw_bytes: f64,
    iops: f64,
    /// Milliseconds.
    runtime: f64,
    total_ios: u64,
    lat_ns: LatencyNs,
}

#[derive(Debug, Deserialize)]
struct LatencyNs {
    min: f64,
    max: f64,
    #[serde(default)]
    percentile: std::collections::BTreeMap<String, f64>,
}

/// The figures in fio's JSON output.
fn parse(text: &str, case: &Case) -> Result<Figures> {
    // fio prints warnings before the JSON.
    let begin = text.find('{').context("fio printed no JSON")?;
    let output: Output = serde_json::from_str(&text[begin..]).context("fio's JSON")?;
    let job = output.jobs.into_iter().next().context("fio's JSON holds no job")?;
    ensure!(job.error == 0, "fio ended with error {}", job.error);
    let direction = match case.op {
        Op::Read | Op::Lookup => job.read,
        Op::Write => job.write,
        Op::Mixed => job.mixed,
    };
    let direction = direction.with_context(|| format!("fio's JSON lacks {}", case.op.name()))?;
    let at = |name: &str| direction.lat_ns.percentile.get(name).copied().unwrap_or(0.0);
    let latency_ns = Latency {
        min: direction.lat_ns.min,
        p50: at("50.000000"),
        p90: at("90.000000"),
        p99: at("99.000000"),
        p999: at("99.900000"),
        max: direction.lat_ns.max,
    };
    let cpu_seconds = (job.usr_cpu + job.sys_cpu) / 100.0 * job.job_runtime / 1e3;
    let gib = direction.io_bytes / (1_u64 << 30) as f64;
    Ok(Figures {
        operations: direction.total_ios,
        seconds: direction.runtime / 1e3,
        iops: direction.iops,
        bytes_per_second: direction.bw_bytes,
        latency_ns,
        // fio's own account: interrupts are not in it.
        whole_cpu_per_gib: None,
        process_cpu_per_gib: (gib > 0.0).then(|| cpu_seconds / gib),
        errors: job.total_err,
        verify_failures: 0,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Fio, parse};
    use crate::plan::{Case, Op};

    const OUTPUT: &str = r#"fio: a warning
    {"fio version": "fio-3.33", "jobs": [{"jobname": "kvrail", "error": 0,
      "mixed": {"io_bytes": 2147483648, "bw_bytes": 2480023656, "iops": 9460.5, "runtime": 1001,
        "total_ios": 9470, "lat_ns": {"min": 5437, "max": 2825173, "mean": 844863.0,
          "percentile": {"50.000000": 913408, "90.000000": 1335296, "99.000000": 1564672,
                         "99.900000": 1990656}}},
      "job_runtime": 1000, "usr_cpu": 2.8, "sys_cpu": 6.4}]}"#;

    #[test]
    fn the_figures_are_found() {
        let case = Case::closed(Op::Mixed, 256 << 10, 8);
        let figures = parse(OUTPUT, &case).unwrap();
        assert_eq!((figures.operations, figures.seconds), (9470, 1.001));
        assert_eq!((figures.latency_ns.p50, figures.latency_ns.p999), (913_408.0, 1_990_656.0));
        assert!((figures.process_cpu_per_gib.unwrap() - 0.046).abs() < 1e-9);
    }

    #[test]
    fn what_is_missing_is_named() {
        let case = Case::closed(Op::Read, 4096, 1);
        assert!(format!("{:#}", parse(OUTPUT, &case).unwrap_err()).contains("lacks read"));
        assert!(parse("nothing", &case).unwrap_err().to_string().contains("no JSON"));
    }

    #[test]
    fn a_fio_that_is_not_installed_is_no_error() {
        assert!(Fio::find(Path::new("/nonexistent/fio")).unwrap().is_none());
    }
}
