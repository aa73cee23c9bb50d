//! `kvrail store replay`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::HumanDuration;
use kvrail_replay::{
    CachePolicy, CacheSize, Placement, Plan, Report, RequestStream, Routing, StreamReport,
    TierEntry, TierUses, TierWrites, Trace, plot, replay,
};
use kvrail_units::Size;

use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, human_bytes, print_json, print_table, print_text, table};
use kvrail_cli::progress::bar;

const EXAMPLES: &str = "\
Examples:
  kvrail store replay trace.jsonl
  kvrail store replay chats.jsonl agents.jsonl --below 5%,10%       all in one table
  kvrail store replay trace.jsonl --sizes 1%,10%,50000 --block-bytes 640256
  kvrail store replay trace.jsonl --policy budget,lru --budget 0.1 --format json
  kvrail store replay trace.jsonl --sizes 1%,2%,5%,10%,20%,50% --plot hits.svg
  kvrail store replay trace.jsonl --policy all,memory-apart,memory-at-once,memory-late --memory 5%
  kvrail store replay trace.jsonl --policy memory-tier,memory-engines --memory 5% --engines 4

A trace has Mooncake's form, one JSON object a line, such as
{\"timestamp\": 1500, \"input_length\": 1100, \"hash_ids\": [7, 8, 9]}: milliseconds, tokens, and
the ids of the prompt's blocks from the front, equal for equal prefixes. `kvrail bench --store
--trace` plays the same file with bytes. Each request gets its blocks until the first miss, and puts
the rest. No sidecar, no drive and no bytes are needed: the store's own code runs in simulated time.
With a budget, its ring is full of other blocks when the trace begins, as it is after the first
filling, which no budget limits. `kvrail store size` computes the drives for a size.";

/// Blocks are as long as this unless another size is named.
const BLOCK_BYTES: u64 = 1 << 20;

/// Arguments of `kvrail store replay`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReplayArgs {
    /// Files with traces
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// Also replay what each trace leaves to a store below a memory tier of this size, which takes
    /// all of each request: a share of the trace's different blocks, or a number of blocks
    #[arg(long, value_delimiter = ',', value_name = "SIZE")]
    below: Vec<CacheSize>,
    /// Sizes of the cache: shares of the trace's different blocks, or numbers of blocks
    #[arg(long, value_delimiter = ',', default_value = "5%,10%,20%")]
    sizes: Vec<CacheSize>,
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
    /// The policies to compare
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "all,budget,lru,leaf-first,s3-fifo,belady"
    )]
    policy: Vec<PolicyArg>,
    /// Bytes that the budgeted store may write for each byte asked for
    #[arg(long, value_name = "SHARE", default_value = "0.20", value_parser = share)]
    budget: f64,
    /// Blocks of the memory tier of the `memory-` policies: a share of the trace's different
    /// blocks, or a number of blocks
    #[arg(long, value_name = "SIZE", default_value = "5%")]
    memory: CacheSize,
    /// Engines that have that memory together, each with its part to itself, of `memory-engines`
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    engines: u16,
    /// Also draw hits over size into this SVG file, a field for each trace and tier
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
    /// The same, but a prompt's tail counts as used before its head, and so goes first
    LeafFirst,
    /// S3-FIFO
    #[value(name = "s3-fifo")]
    S3Fifo,
    /// With knowledge of what comes: the most that can be had
    Belady,
    /// The store below a memory tier of the engine's own of --memory, which takes everything
    MemoryApart,
    /// The store below a memory tier of the sidecar, one policy for both; written at the put
    MemoryAtOnce,
    /// The same, but blocks are written when they leave memory: used ones, and a share of others
    MemoryLate,
    /// The store below a memory tier that blocks enter at their second get; one use of a block
    /// counts in the store in a round of the tier's hand
    MemoryTier,
    /// The same, but blocks enter at their put too
    MemoryTierAtPut,
    /// As memory-tier, but each use in memory counts in the store: what the sidecar has, whose
    /// clients report a block once in a second
    MemoryTierAllUses,
    /// As memory-tier-at-put, and each use in memory counts in the store
    MemoryTierAtPutAllUses,
    /// As memory-tier-all-uses, but blocks enter at their put, and are written once the hand is
    /// near: used ones, and a share of others
    MemoryTierLate,
    /// The store below --engines, each with its part of --memory, which takes everything; they get
    /// requests in turns
    MemoryEngines,
    /// The same, but the engine with the longest prefix gets a request
    MemoryEnginesRouted,
    /// LRU in memory and LRU below it, without the store
    MemoryLru,
}

impl PolicyArg {
    fn policy(self, args: &ReplayArgs) -> CachePolicy {
        let ReplayArgs { budget, memory, engines, .. } = *args;
        match self {
            Self::All => CachePolicy::All,
            Self::Budget => CachePolicy::Budget(budget),
            Self::Lru => CachePolicy::Lru,
            Self::LeafFirst => CachePolicy::LeafFirst,
            Self::S3Fifo => CachePolicy::S3Fifo,
            Self::Belady => CachePolicy::Belady,
            Self::MemoryApart => CachePolicy::Tiered(memory, TierWrites::Apart),
            Self::MemoryAtOnce => CachePolicy::Tiered(memory, TierWrites::AtOnce),
            Self::MemoryLate => CachePolicy::Tiered(memory, TierWrites::Late),
            Self::MemoryTier => CachePolicy::Sidecar(memory, TierEntry::SecondGet, TierUses::Once),
            Self::MemoryTierAtPut => CachePolicy::Sidecar(memory, TierEntry::AtPut, TierUses::Once),
            Self::MemoryTierAllUses => {
                CachePolicy::Sidecar(memory, TierEntry::SecondGet, TierUses::Each)
            }
            Self::MemoryTierAtPutAllUses => {
                CachePolicy::Sidecar(memory, TierEntry::AtPut, TierUses::Each)
            }
            Self::MemoryTierLate => CachePolicy::Sidecar(memory, TierEntry::Late, TierUses::Each),
            Self::MemoryEngines => CachePolicy::Engines(memory, Routing::InTurns, engines),
            Self::MemoryEnginesRouted => {
                CachePolicy::Engines(memory, Routing::LongestPrefix, engines)
            }
            Self::MemoryLru => CachePolicy::TwoLru(memory),
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=100.0).contains(share));
    share.ok_or_else(|| {
        "write bytes written for each byte requested: a number from 0 to 100, such as 0.20".into()
    })
}

/// Replays.
pub(super) fn run(args: &ReplayArgs, context: &Context) -> Result<(), Failure> {
    let plan = plan(args)?;
    let streams = streams(args, context)?;
    let bar = bar(context, "replaying {bar:40} {percent} % {eta} left", Some(plan.work(&streams)));
    let report = replay(&streams, &plan, &|asked| bar.inc(asked));
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
    let policies = once(args.policy.iter().map(|choice| choice.policy(args)));
    let sizes = once(args.sizes.iter().copied());
    let (members, placement) = (args.members, Placement::Hash);
    Ok(Plan { sizes, policies, block_bytes, members, placement })
}

/// Each value once, in the order in which they first came.
fn once<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut kept, value| {
        if !kept.contains(&value) {
            kept.push(value);
        }
        kept
    })
}

/// All traces, each with what is below its tiers.
fn streams(args: &ReplayArgs, context: &Context) -> Result<Vec<RequestStream>, Failure> {
    let tiers = once(args.below.iter().copied());
    let mut streams = Vec::new();
    let paths = once(args.traces.iter());
    for path in &paths {
        let trace = load(path, context)?;
        streams.extend(RequestStream::with_tiers(&name(path, &paths), trace, &tiers));
    }
    Ok(streams)
}

/// A trace's name: its file's name, or its path where others have that name.
fn name(path: &Path, all: &[&PathBuf]) -> String {
    let same = all.iter().filter(|other| other.file_stem() == path.file_stem()).count();
    let stem = path.file_stem().filter(|_| same == 1).unwrap_or(path.as_os_str());
    stem.to_string_lossy().into_owned()
}

/// Reads a trace.
pub(super) fn load(path: &Path, context: &Context) -> Result<Trace, Failure> {
    let bytes = std::fs::metadata(path).map_or(0, |file| file.len());
    let bar = bar(context, "reading {bar:40} {binary_bytes}/{binary_total_bytes}", Some(bytes));
    let trace = Trace::load(path, &mut |read| bar.set_position(read));
    bar.finish_and_clear();
    trace.map_err(|why| Failure::new(Exit::Failed, why.to_string()))
}

fn show(report: &Report) -> Result<(), Failure> {
    print_table(&facts(report))?;
    print_text(&format!("blocks of {}\n", human_bytes(report.block_bytes.into())))?;
    print_table(&ratios(report))?;
    print_text("hits inside unbroken prefixes / bytes written, of those requested")?;
    if report.streams.iter().flat_map(|stream| &stream.runs).any(|run| run.store.is_some()) {
        print_text("")?;
        print_table(&counts(report))?;
    }
    for stream in &report.streams {
        for note in &stream.notes {
            print_text(&format!("note: {}: {note}", stream.name()))?;
        }
    }
    Ok(())
}

/// Facts of the trace.
fn facts(report: &Report) -> comfy_table::Table {
    let mut rows = table(&["TRACE", "REQUESTS", "REFERENCES", "BLOCKS", "SPAN", "TOKENS A BLOCK"]);
    for stream in &report.streams {
        let facts = &stream.facts;
        let span = Duration::try_from_secs_f64(facts.span_s).unwrap_or_default();
        rows.add_row([
            stream.name(),
            facts.requests.to_string(),
            facts.references.to_string(),
            facts.blocks.to_string(),
            HumanDuration(span).to_string(),
            facts.block_tokens.map_or_else(dash, |tokens| tokens.to_string()),
        ]);
    }
    rows
}

/// A line for each policy over each stream, a column for each size.
fn ratios(report: &Report) -> comfy_table::Table {
    let runs = || report.streams.iter().flat_map(|stream| &stream.runs);
    let sizes = once(runs().map(|run| run.size.as_str()));
    let policies = once(runs().map(|run| run.policy.as_str()));
    let mut rows = table(&[&["TRACE", "POLICY"], sizes.as_slice()].concat());
    for stream in &report.streams {
        for policy in &policies {
            let cells = sizes.iter().map(|size| cell(stream, policy, size));
            rows.add_row([stream.name(), (*policy).to_owned()].into_iter().chain(cells));
        }
    }
    rows
}

fn cell(stream: &StreamReport, policy: &str, size: &str) -> String {
    let run = stream.runs.iter().find(|run| run.policy == policy && run.size == size);
    run.map_or_else(dash, |run| format!("{:.3} / {:.3}", run.hit_ratio, run.write_ratio))
}

fn counts(report: &Report) -> comfy_table::Table {
    let heads = [
        "TRACE",
        "STORE",
        "SIZE",
        "BLOCKS",
        "SEGMENTS",
        "PUT",
        "MOVED",
        "EVICTED",
        "DECLINED",
        "WRITTEN",
        "MEMORY HITS",
    ];
    let mut rows = table(&heads);
    for stream in &report.streams {
        for run in &stream.runs {
            let Some(store) = run.store else { continue };
            rows.add_row([
                stream.name(),
                run.policy.clone(),
                run.size.clone(),
                run.blocks.to_string(),
                format!("{} of {}", store.segments, human_bytes(store.segment_bytes)),
                store.puts.to_string(),
                store.moved.to_string(),
                store.evicted.to_string(),
                store.declined().to_string(),
                human_bytes(run.written_bytes),
                run.memory_hits.map_or_else(dash, |hits| hits.to_string()),
            ]);
        }
    }
    rows
}

fn dash() -> String {
    "-".to_owned()
}
