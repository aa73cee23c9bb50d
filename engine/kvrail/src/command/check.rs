//! `kvrail check`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use kvrail_check::{
    CheckGroup, CheckReport, ConfiguredMember, Finding, HostPurpose, Live, Machine, MemberBudget,
    Tried, Verdict, examine,
};
use kvrail_device::{DeviceError, probe_memory};
use kvrail_memory::Root;
use kvrail_nvme::Selector;
use kvrail_poller::STORE_OWNERS;
use kvrail_session::WriteBudget as Wanted;
use kvrail_store::{Budget, Sizing};
use kvrail_volume::{Content, Label, inspect};

use crate::members::{drive_of, locate};
use kvrail_cli::config::{Config, VolumeConfig, WriteBudget};
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, human_bytes, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  kvrail check                      everything
  kvrail check --for serve          what the sidecar needs
  kvrail check --for store          endurance of drives, write budgets, memory of indexes
  kvrail check --for gpu --format json
  kvrail check --for bench /data    also the file system below /data

Changes nothing and needs no privilege; unreadable facts are reported as unseen. Exit status: 0
when all is well, 6 with warnings, 7 with failures.";

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
    /// Keep blocks by key: endurance, write budgets, memory
    Store,
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
    let unnamed = args.paths.is_empty();
    let config = if unnamed { context.config()?.config } else { Config::default() };
    let volumes = config.volume;
    let named = args.paths.iter().filter_map(|path| named_store(path));
    let live = Live {
        stores: stores(&volumes).into_iter().chain(named).collect(),
        ..live(config.device.queue_depth)
    };
    let machine = Machine::read(Root::default(), purpose, paths(args, &volumes), live);
    let report = examine(&machine);
    match context.format {
        Format::Json => print_json(&report)?,
        Format::Human => print_text(&text(&report))?,
    }
    let (failures, warnings) = (report.count(Verdict::Failure), report.count(Verdict::Warning));
    let (ended, words) = match report.worst() {
        Verdict::Ok | Verdict::Unseen => return Ok(()),
        Verdict::Warning => (Exit::Warnings, format!("{warnings} warnings, no failure")),
        Verdict::Failure => (Exit::Unfit, format!("{failures} failures, {warnings} warnings")),
    };
    Err(Failure::new(ended, words).with_remedy("each finding above has its own"))
}

/// Paths that were named, else the members of the configuration, as they are seen from the root.
fn paths(args: &CheckArgs, volumes: &[VolumeConfig]) -> Vec<PathBuf> {
    // A name by identity is a drive: drives are checked anyway.
    let members = volumes.iter().flat_map(|volume| &volume.members);
    let named = args.paths.iter().map(PathBuf::as_path);
    let all = named.chain(members.filter_map(Selector::path));
    all.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned())).collect()
}

/// The members of configured stores. A member whose label cannot be read may be one.
fn stores(volumes: &[VolumeConfig]) -> Vec<ConfiguredMember> {
    let member = |(volume, named): (&VolumeConfig, &Selector)| {
        if volume.null_size(named).is_some() {
            return None;
        }
        let name = format!("{} of {}", named, volume.name);
        let path = match locate(named) {
            Ok(located) => located.path,
            Err(failure) => return Some(unseen(name, failure.log_text())),
        };
        match inspect(&path).map(|seen| seen.content) {
            Ok(Content::Ours(label)) => store(name, &path, &label, volume.write_budget),
            Ok(_) => None,
            Err(error) => Some(unseen(name, error.to_string())),
        }
    };
    let all =
        volumes.iter().flat_map(|volume| volume.members.iter().map(move |member| (volume, member)));
    all.filter_map(member).collect()
}

/// The named path, if it is a member of a store; no configuration sets its write budget.
fn named_store(path: &Path) -> Option<ConfiguredMember> {
    match inspect(path).ok()?.content {
        Content::Ours(label) => {
            let name = format!("{} of {}", path.display(), label.volume_name);
            store(name, path, &label, WriteBudget::default())
        }
        _ => None,
    }
}

fn unseen(name: String, why: String) -> ConfiguredMember {
    let (drive, budget) = (None, MemberBudget::Rated);
    ConfiguredMember { name, drive, budget, tables: Err(why), pinned_bytes: 0 }
}

fn store(
    name: String,
    path: &Path,
    label: &Label,
    budget: WriteBudget,
) -> Option<ConfiguredMember> {
    let shape = label.purpose.store()?;
    let member = kvrail_volume::StoreMember::new(label.member_bytes, label.logical_block);
    let sizing = Sizing::of(&shape.config(member, STORE_OWNERS)).map_err(|error| error.to_string());
    let pinned_bytes = sizing.as_ref().map_or(0, |sizing| sizing.pool_bytes);
    let tables = sizing.map(|sizing| {
        let bytes = sizing.index_bytes + sizing.table_bytes + sizing.pool_bytes;
        let segment = human_bytes(shape.segment_bytes);
        (bytes, format!("{sizing}; segments of {segment}"))
    });
    let budget = match budget.wanted() {
        Wanted::Rated => MemberBudget::Rated,
        other => match other.of(label.member_bytes, None) {
            Budget::Unlimited => MemberBudget::Unlimited,
            Budget::BytesPerDay(bytes) => MemberBudget::BytesPerDay(bytes),
        },
    };
    let drive = drive_of(path).map(|drive| drive.namespace.name);
    Some(ConfiguredMember { name, drive, budget, tables, pinned_bytes })
}

fn live(depth: u32) -> Live {
    let tried = match probe_memory(None, depth) {
        Ok(probe) => Tried::Works(probe.text),
        Err(error) => failed(&error),
    };
    let cufile_config = std::env::var_os("CUFILE_ENV_PATH_JSON").map(PathBuf::from);
    // Other checks list the drives and the reasons why some cannot be seen.
    let drives = kvrail_nvme::drives(&Root::default()).unwrap_or_default();
    Live { io_uring: Some(tried), cufile_config, drives, stores: Vec::new() }
}

/// The device room's errors end with their remedy.
fn failed(error: &DeviceError) -> Tried {
    let text = error.to_string();
    let (seen, remedy) = text.rsplit_once("; ").unwrap_or((&text, "see the kernel's log (dmesg)"));
    Tried::Fails { seen: seen.to_owned(), remedy: remedy.to_owned() }
}

fn text(report: &CheckReport) -> String {
    let mut lines = Vec::new();
    let mut group: Option<CheckGroup> = None;
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

impl From<PurposeArg> for HostPurpose {
    fn from(purpose: PurposeArg) -> Self {
        match purpose {
            PurposeArg::Serve => Self::Serve,
            PurposeArg::Store => Self::Store,
            PurposeArg::Target => Self::Target,
            PurposeArg::Host => Self::Host,
            PurposeArg::Gpu => Self::Gpu,
            PurposeArg::Bench => Self::Bench,
        }
    }
}
