//! `kvrail store replay`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::HumanDuration;
use kvrail_replay::{Placement, Plan, Policy, Report, Share, Trace, plot, replay};
use kvrail_units::Size;

use crate::context::Context;
use crate::failure::{Exit, Failure};
use crate::output::{Format, human_bytes, print_json, print_table, print_text, table};
use crate::progress::bar;

const EXAMPLES: &str = "\
Examples:
  kvrail store replay trace.jsonl
  kvrail store replay trace.jsonl --sizes 1%,10%,50000 --block-bytes 640256
  kvrail store replay trace.jsonl --policy budget,lru --budget 0.1 --format json
  kvrail store replay trace.jsonl --sizes 1%,2%,5%,10%,20%,50% --plot hits.svg

A trace has one JSON object a line, such as {\"timestamp\": 1500, \"hash_ids\": [7, 8, 9]}:
milliseconds, and the ids of the prompt's blocks from the front, equal for equal prefixes. Each
request gets its blocks until the first miss, and puts the rest. No sidecar, no drive and no bytes
are needed: the store's own code runs in simulated time. With a budget, its ring is full of other
blocks when the trace begins, as it is after the first filling, which no budget limits.";

/// Blocks are as long as this unless another size is named.
const BLOCK_BYTES: u64 = 1 << 20;

/// Arguments of `kvrail store replay`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReplayArgs {
    /// File with the trace
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Sizes of the cache: shares of the trace's different blocks, or numbers of blocks
    #[arg(long, value_delimiter = ',', default_value = "5%,10%,20%")]
    sizes: Vec<Share>,
    /// Bytes of a block, up to 128MiB; the store's segments are chosen to suit
    #[arg(long, value_name = "SIZE", default_value_t = Size::new(BLOCK_BYTES))]
    block_bytes: Size,
    /// Members of the store: each has its share of the size, and of the keys
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    members: u16,
    /// Who caches
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "all,budget,lru,s3-fifo,belady"
    )]
    policy: Vec<PolicyArg>,
    /// Bytes that the budgeted store may write for each byte asked for
    #[arg(long, value_name = "SHARE", default_value = "0.20", value_parser = share)]
    budget: f64,
    /// Also draw hits over size into this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PolicyArg {
    /// The store, everything admitted
    All,
    /// The store with the write budget of --budget
    Budget,
    /// Least recently used
    Lru,
    /// S3-FIFO
    #[value(name = "s3-fifo")]
    S3Fifo,
    /// With knowledge of what comes: the most that can be had
    Belady,
}

impl PolicyArg {
    fn policy(self, budget: f64) -> Policy {
        match self {
            Self::All => Policy::All,
            Self::Budget => Policy::Budget(budget),
            Self::Lru => Policy::Lru,
            Self::S3Fifo => Policy::S3Fifo,
            Self::Belady => Policy::Belady,
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=100.0).contains(share));
    share.ok_or_else(|| {
        "write bytes written for each byte asked for: a number from 0 to 100, such as 0.20".into()
    })
}

/// Replays.
pub(super) fn run(args: &ReplayArgs, context: &Context) -> Result<(), Failure> {
    let plan = plan(args)?;
    let trace = load(args, context)?;
    let bar = bar(context, "replaying {bar:40} {percent} % {eta} left", Some(plan.work(&trace)));
    let report = replay(&trace, &plan, &mut |asked| bar.inc(asked));
    bar.finish_and_clear();
    let report = report.map_err(|why| Failure::new(Exit::Failed, why.to_string()))?;
    if let Some(path) = &args.plot {
        let svg = plot(&report).map_err(|why| Failure::new(Exit::Failed, why))?;
        std::fs::write(path, svg).map_err(|why| {
            let words = format!("--plot {}: {why}", path.display());
            Failure::new(Exit::Failed, words).with_remedy("name a file that can be written")
        })?;
    }
    match context.format {
        Format::Json => print_json(&report),
        Format::Human => show(&report),
    }
}

fn plan(args: &ReplayArgs) -> Result<Plan, Failure> {
    let most = kvrail_store::BLOCK_BYTES_MAX;
    let bytes = u32::try_from(args.block_bytes.bytes()).ok();
    let block_bytes = bytes.filter(|bytes| (1..=most).contains(bytes)).ok_or_else(|| {
        let words = format!("--block-bytes {}: a block has 1 byte to 128MiB", args.block_bytes);
        Failure::new(Exit::Usage, words)
    })?;
    let mut policies: Vec<Policy> = Vec::new();
    for policy in args.policy.iter().map(|it| it.policy(args.budget)) {
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    let mut sizes: Vec<Share> = Vec::new();
    for size in &args.sizes {
        if !sizes.contains(size) {
            sizes.push(*size);
        }
    }
    let (members, placement) = (args.members, Placement::Hash);
    Ok(Plan { sizes, policies, block_bytes, members, placement })
}

fn load(args: &ReplayArgs, context: &Context) -> Result<Trace, Failure> {
    let bytes = std::fs::metadata(&args.trace).map_or(0, |file| file.len());
    let bar = bar(context, "reading {bar:40} {binary_bytes}/{binary_total_bytes}", Some(bytes));
    let trace = Trace::load(&args.trace, &mut |read| bar.set_position(read));
    bar.finish_and_clear();
    trace.map_err(|why| Failure::new(Exit::Failed, why.to_string()))
}

fn show(report: &Report) -> Result<(), Failure> {
    print_text(&head(report))?;
    print_table(&ratios(report))?;
    print_text("hits inside unbroken prefixes / bytes written, of those asked for")?;
    if report.runs.iter().any(|run| run.store.is_some()) {
        print_text("")?;
        print_table(&counts(report))?;
    }
    for note in &report.notes {
        print_text(&format!("note: {note}"))?;
    }
    Ok(())
}

fn head(report: &Report) -> String {
    let trace = &report.trace;
    let span = Duration::try_from_secs_f64(trace.span_s).unwrap_or_default();
    format!(
        "{} requests in {} ask for {} blocks of {}, {} different ones\n",
        trace.requests,
        HumanDuration(span),
        trace.asked,
        human_bytes(report.block_bytes.into()),
        trace.distinct
    )
}

/// A line for each policy, a column for each size.
fn ratios(report: &Report) -> comfy_table::Table {
    let (mut sizes, mut policies) = (Vec::new(), Vec::new());
    for run in &report.runs {
        let size = format!("{} ({} blocks)", run.size, run.blocks);
        if !sizes.iter().any(|(known, _)| *known == run.size) {
            sizes.push((run.size.clone(), size));
        }
        if !policies.contains(&run.policy) {
            policies.push(run.policy.clone());
        }
    }
    let heads: Vec<&str> = sizes.iter().map(|(_, head)| head.as_str()).collect();
    let mut rows = table(&[&["POLICY"], heads.as_slice()].concat());
    for policy in policies {
        let cell = |size: &String| {
            let run = report.runs.iter().find(|run| run.policy == policy && run.size == *size);
            run.map_or_else(dash, |run| format!("{:.3} / {:.3}", run.hit_ratio, run.write_ratio))
        };
        let cells: Vec<String> = sizes.iter().map(|(size, _)| cell(size)).collect();
        rows.add_row(std::iter::once(policy.clone()).chain(cells));
    }
    rows
}

fn counts(report: &Report) -> comfy_table::Table {
    let heads = ["STORE", "SIZE", "SEGMENTS", "PUT", "MOVED", "EVICTED", "DECLINED", "WRITTEN"];
    let mut rows = table(&heads);
    for run in &report.runs {
        let Some(store) = run.store else { continue };
        rows.add_row([
            run.policy.clone(),
            run.size.clone(),
            format!("{} of {}", store.segments, human_bytes(store.segment_bytes)),
            store.puts.to_string(),
            store.moved.to_string(),
            store.evicted.to_string(),
            (store.declined_first_sight + store.declined_budget).to_string(),
            human_bytes(run.written_bytes),
        ]);
    }
    rows
}

fn dash() -> String {
    "-".to_owned()
}
