//! `kvrail check`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use kvrail_check::{Finding, Group, Live, Machine, Purpose, Report, Tried, Verdict, examine};
use kvrail_device::{DeviceError, probe_memory};
use kvrail_memory::Root;

use crate::context::Context;
use crate::failure::{Exit, Failure};
use crate::output::{Format, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  kvrail check                      everything
  kvrail check --for serve          what the sidecar needs
  kvrail check --for gpu --format json
  kvrail check --for bench /data    also the file system below /data

Changes nothing and needs no privilege; what it could not see it calls unseen. Exit status: 0 when
all is well, 6 with warnings, 7 with failures.";

/// Arguments of `kvrail check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    /// Only what matters for this use
    #[arg(long = "for", value_enum, value_name = "USE")]
    purpose: Option<PurposeArg>,
    /// Files or folders of volumes [default: the configured members]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PurposeArg {
    /// Run the sidecar
    Serve,
    /// Export drives over NVMe-oF
    Target,
    /// Connect to NVMe-oF targets
    Host,
    /// Move blocks between drives and GPU memory
    Gpu,
    /// Measure
    Bench,
}

/// Looks, and reports.
///
/// # Errors
/// `Failure` with status 6 or 7 after the report.
pub(crate) fn run(args: &CheckArgs, context: &Context) -> Result<(), Failure> {
    let purpose = args.purpose.map(Into::into);
    let machine = Machine::read(Root::default(), purpose, paths(args, context)?, live());
    let report = examine(&machine);
    match context.format {
        Format::Json => print_json(&report)?,
        Format::Human => print_text(&text(&report))?,
    }
    let (failures, warnings) = (report.count(Verdict::Failure), report.count(Verdict::Warning));
    let words = format!("{failures} failures, {warnings} warnings");
    let ended = match report.worst() {
        Verdict::Ok | Verdict::Unseen => return Ok(()),
        Verdict::Warning => Exit::Warnings,
        Verdict::Failure => Exit::Unfit,
    };
    Err(Failure::new(ended, words).with_remedy("each finding above has its own"))
}

/// Paths that were named, else the members of the configuration, as they are seen from the root.
fn paths(args: &CheckArgs, context: &Context) -> Result<Vec<PathBuf>, Failure> {
    let named = if args.paths.is_empty() {
        let config = context.config()?.config;
        // What is named by what it is, is a drive: those are looked at anyway.
        let members = config.volume.iter().flat_map(|volume| &volume.members);
        members.filter_map(|member| member.path().map(Path::to_path_buf)).collect()
    } else {
        args.paths.clone()
    };
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    Ok(named.into_iter().map(absolute).collect())
}

fn live() -> Live {
    let tried = match probe_memory(None) {
        Ok(probe) => Tried::Works(probe.text),
        Err(error) => failed(&error),
    };
    let cufile_config = std::env::var_os("CUFILE_ENV_PATH_JSON").map(PathBuf::from);
    Live { io_uring: Some(tried), cufile_config }
}

/// The device room's errors end with their remedy.
fn failed(error: &DeviceError) -> Tried {
    let text = error.to_string();
    let (seen, remedy) = text.rsplit_once("; ").unwrap_or((&text, "see the kernel's log (dmesg)"));
    Tried::Fails { seen: seen.to_owned(), remedy: remedy.to_owned() }
}

fn text(report: &Report) -> String {
    let mut lines = Vec::new();
    let mut group: Option<Group> = None;
    for finding in &report.findings {
        if group.replace(finding.group) != Some(finding.group) {
            lines.push(format!("{}{}", if lines.is_empty() { "" } else { "\n" }, finding.group));
        }
        lines.extend(finding_lines(finding));
    }
    let [failures, warnings, unseen, ok] =
        [Verdict::Failure, Verdict::Warning, Verdict::Unseen, Verdict::Ok]
            .map(|verdict| report.count(verdict));
    lines.push(format!(
        "\nkernel {}: {failures} failures, {warnings} warnings, {unseen} unseen, {ok} ok",
        report.kernel
    ));
    lines.join("\n")
}

fn finding_lines(finding: &Finding) -> Vec<String> {
    let subject = match finding.subject.as_str() {
        "" => String::new(),
        subject => format!("{subject}: "),
    };
    let Finding { verdict, check, seen, .. } = finding;
    let mut lines = vec![format!("  {verdict:<8} {check:<24} {subject}{seen}")];
    let indent = " ".repeat(11);
    lines.extend(finding.cost.map(|cost| format!("{indent}costs: {cost}")));
    lines.extend(finding.remedy.as_ref().map(|remedy| format!("{indent}remedy: {remedy}")));
    lines
}

impl From<PurposeArg> for Purpose {
    fn from(purpose: PurposeArg) -> Self {
        match purpose {
            PurposeArg::Serve => Self::Serve,
            PurposeArg::Target => Self::Target,
            PurposeArg::Host => Self::Host,
            PurposeArg::Gpu => Self::Gpu,
            PurposeArg::Bench => Self::Bench,
        }
    }
}
