//! `kvrail store size`.

mod drives;
mod model;

use std::path::PathBuf;

use clap::Args;
use kvrail_replay::{CachePolicy, CacheSize, Placement, Plan, RequestStream, Run, Trace, replay};
use serde::Serialize;

use self::drives::{DriveArgs, Drives, StoreLoad, positive};
use self::model::{Model, ModelArgs};
use super::replay::load;
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, human_bytes, print_json, print_table, print_text, table};

const EXAMPLES: &str = "\
Examples:
  kvrail store size --layers 80 --kv-heads 8 --head-size 128 --sessions 200 --context 60000
  kvrail store size --layers 61 --mla-rank 576 --sessions 2000 --context 40000 --live 300
  kvrail store size --token-bytes 40016 --sessions 500 --context 60000 --turns 4 --made 2000
  kvrail store size --layers 32 --kv-heads 8 --head-size 128 --trace trace.jsonl --times 50
  kvrail store size --layers 80 --kv-heads 8 --head-size 128 --sessions 200 --context 60000 \\
      --drive-tb 7.68 --drive-read 12 --drive-write 6 --drive-tbw 14016 --format json

Without a trace: all sessions' contexts are kept, live ones read theirs again at each turn and make
new tokens. A live session of a coding agent reads 4032 tokens and makes 153 a second on
average. With a trace: the store's own code plays it, as `kvrail store replay` does. Drives are
planned to be busy 70 % of the time at most. docs/sizing.md has the formulas.";

/// Tokens that a live session of a coding agent reads again and makes in a second, on average.
const READ_PER_SECOND: f64 = 4032.0;
const MADE_PER_SECOND: f64 = 153.0;

/// Arguments of `kvrail store size`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SizeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Sessions whose context is kept
    #[arg(long, value_name = "N", value_parser = positive, required_unless_present = "trace",
          conflicts_with = "trace")]
    sessions: Option<f64>,
    /// Tokens of a session's context, on average
    #[arg(long, value_name = "TOKENS", value_parser = positive,
          required_unless_present = "trace", conflicts_with = "trace")]
    context: Option<f64>,
    /// Sessions that are live at a time; by default all
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "trace")]
    live: Option<f64>,
    /// Turns of a live session in a minute, each of which reads the context again; by default a
    /// session reads 4032 tokens a second
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "trace")]
    turns: Option<f64>,
    /// New tokens at each turn; by default a session makes 153 a second
    #[arg(long, value_name = "TOKENS", value_parser = positive, requires = "turns")]
    made: Option<f64>,
    /// Bytes written for each byte put: moves and records
    #[arg(long, value_name = "FACTOR", default_value = "1.2", value_parser = positive,
          conflicts_with = "trace")]
    amplification: f64,
    /// Replay this trace instead
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    // An option that is missing is no error to clap where it conflicts with one that is there.
    /// Size of the store: a share of the trace's different blocks, or a number of blocks
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "20%",
        requires = "trace",
        conflicts_with = "sessions"
    )]
    size: CacheSize,
    /// Memory tier above the store, as large
    #[arg(long, value_name = "SIZE", requires = "trace", conflicts_with = "sessions")]
    below: Option<CacheSize>,
    /// Number of such traces at once
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive,
          requires = "trace", conflicts_with = "sessions")]
    times: f64,
    #[command(flatten)]
    drives: DriveArgs,
}

/// The result.
#[derive(Debug, Serialize)]
struct Sized {
    token_bytes: u64,
    block_tokens: u64,
    /// Of what is asked for, where a trace was played.
    hit_ratio: Option<f64>,
    #[serde(flatten)]
    load: StoreLoad,
    #[serde(flatten)]
    drives: Drives,
}

/// Sizes.
pub(super) fn run(args: &SizeArgs, context: &Context) -> Result<(), Failure> {
    let trace = args.trace.as_deref().map(|path| load(path, context)).transpose()?;
    let known = trace.as_ref().and_then(|trace| trace.facts().block_tokens);
    let model = args.model.model(known)?;
    let (load, hit_ratio) = match trace {
        Some(trace) => args.replayed(trace, &model)?,
        None => (args.planned(&model), None),
    };
    let drives = args.drives.bear(&load)?;
    let (token_bytes, block_tokens) = (model.token_bytes, model.block_tokens);
    let sized = Sized { token_bytes, block_tokens, hit_ratio, load, drives };
    match context.format {
        Format::Json => print_json(&sized),
        Format::Human => show(&sized, &model),
    }
}

impl SizeArgs {
    /// The load of sessions.
    fn planned(&self, model: &Model) -> StoreLoad {
        let (sessions, context) =
            (self.sessions.unwrap_or_default(), self.context.unwrap_or_default());
        let turns_per_second = self.turns.map(|turns| turns / 60.0);
        let read = turns_per_second.map_or(READ_PER_SECOND, |turns| turns * context);
        let made = self.made.zip(turns_per_second);
        let made = made.map_or(MADE_PER_SECOND, |(made, turns)| made * turns);
        let bytes = |tokens: f64| tokens * model.token_bytes as f64;
        let live = self.live.unwrap_or(sessions);
        StoreLoad {
            block_bytes: model.block_bytes,
            kept_bytes: bytes(sessions * context),
            read_bytes_per_second: bytes(live * read),
            written_bytes_per_second: bytes(live * made) * self.amplification,
        }
    }

    /// The load of a trace, and the store's part of it.
    fn replayed(&self, trace: Trace, model: &Model) -> Result<(StoreLoad, Option<f64>), Failure> {
        let seconds = trace.span_ns() as f64 / 1e9;
        if seconds <= 0.0 {
            let words = "--trace: all requests have one time, so nothing is known of a second";
            return Err(Failure::new(Exit::Failed, words)
                .with_remedy("name a trace whose timestamps are milliseconds"));
        }
        let plan = Plan {
            sizes: vec![self.size],
            policies: vec![CachePolicy::All],
            block_bytes: model.block_bytes,
            members: 1,
            placement: Placement::Hash,
        };
        let mut streams = RequestStream::with_tiers("trace", trace, self.below.as_slice());
        let stream = streams.split_off(streams.len() - 1);
        let report = replay(&stream, &plan, &|_| {});
        let report = report.map_err(|why| Failure::new(Exit::Failed, why.to_string()))?;
        let Some(run) = report.streams[0].runs.first() else {
            let words = format!("--size {}", report.streams[0].notes.join("; "));
            return Err(Failure::new(Exit::Usage, words).with_remedy("name another --size"));
        };
        let Run { blocks, hits, written_bytes, hit_ratio, .. } = *run;
        let bytes = |blocks: u64| blocks as f64 * f64::from(model.block_bytes);
        let load = StoreLoad {
            block_bytes: model.block_bytes,
            kept_bytes: bytes(blocks) * self.times,
            read_bytes_per_second: bytes(hits) / seconds * self.times,
            written_bytes_per_second: written_bytes as f64 / seconds * self.times,
        };
        Ok((load, Some(hit_ratio)))
    }
}

fn show(sized: &Sized, model: &Model) -> Result<(), Failure> {
    let Sized { load, drives, .. } = sized;
    let mut rows = table(&[]);
    let blocks = load.kept_bytes / f64::from(load.block_bytes);
    let block = human_bytes(load.block_bytes.into());
    rows.add_row(["a token", &format!("{} bytes", model.token_bytes), &model.words]);
    rows.add_row(["a block", &block, &format!("{} tokens", model.block_tokens)]);
    rows.add_row(["kept", &decimal(load.kept_bytes), &format!("{blocks:.0} blocks")]);
    let hits = sized.hit_ratio.map_or_else(String::new, |hits| {
        format!("{:.1} % of what the trace asks for", 100.0 * hits)
    });
    rows.add_row(["read", &format!("{}/s", decimal(load.read_bytes_per_second)), &hits]);
    let day = format!(
        "{} a day, moves and records too",
        decimal(load.written_bytes_per_second * 86_400.0)
    );
    rows.add_row(["written", &format!("{}/s", decimal(load.written_bytes_per_second)), &day]);
    let needs = format!(
        "capacity takes {}, bandwidth {}, endurance {}",
        drives.for_capacity, drives.for_bandwidth, drives.for_endurance
    );
    rows.add_row(["drives", &drives.drives.to_string(), &needs]);
    rows.add_row(["busy", &format!("{:.0} %", 100.0 * drives.busy), "of their time"]);
    let days = format!("{:.0} days", drives.days.min(1e6));
    rows.add_row(["last", &days, &format!("{:.2} drive writes a day", drives.dwpd)]);
    let each =
        format!("{} bytes for each block that the drives hold", drives.index_bytes_per_block);
    rows.add_row(["index", &decimal(drives.index_bytes as f64), &each]);
    print_table(&rows)?;
    if model.block_bytes < 64 << 10 {
        print_text(
            "note: blocks are small: the index grows with their number; more tokens a block make \
             it smaller",
        )?;
    }
    Ok(())
}

/// Bytes as drives' makers count them.
fn decimal(bytes: f64) -> String {
    indicatif::DecimalBytes(whole(bytes)).to_string()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
fn whole(bytes: f64) -> u64 {
    bytes.round() as u64
}
