//! `kvrail trace`: which requests were slow, and where their time went.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use kvrail_client::{TraceInfo, TraceKind, TracePage, TraceSpent, TraceWork};
use kvrail_units::Period;
use serde::Serialize;

use super::status::{Looker, SidecarArgs, duration};
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, human_bytes, print_json, print_table, print_text, table};
use kvrail_cli::progress::bar;
use kvrail_cli::stop::StopFlag;

const EXAMPLES: &str = "\
Examples:
  kvrail trace                               the slowest requests of the next 10 s
  kvrail trace --slow 20ms --seconds 60
  kvrail trace --slow 500us --rows 200 --format json
  kvrail trace --past                        those of the slow log, which needs no watcher

Columns: LANE the longest time before the poller took the request (* its session had its share in
flight, so more requests waited behind it); STORE waiting for room and a place in the store; QUEUE
behind other requests, and for the device's budget; DEVICE at the device; ANSWER from there to the
answer, of a durable put the write of its record; PUBLISH until the client could see it. A turn is
one round of a poller over all its work: all its requests waited that long. Copies of GPU bytes
count within DEVICE.

The slow log (--past) has requests that took pollers.slow_after or longer: the last 512, and of
older ones the eight slowest of each minute. It measures no waits in lanes; turns show those.

The sidecar's user and root may trace, one at a time, and read the slow log.";

/// Time between two asks: a poller keeps the last 4,096 events.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// What is slow, without `--slow`.
const SLOW: Period = Period::from_ms(5);

/// Arguments of `kvrail trace`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    sidecar: SidecarArgs,

    /// Show slow requests of the past, from the slow log
    #[arg(long, conflicts_with = "seconds")]
    past: bool,

    /// Requests that take at least this long are slow [default: 5ms, of the past all that are kept]
    #[arg(long, value_name = "TIME")]
    slow: Option<Period>,

    /// How long to trace, 1 to 3600; Ctrl-C ends it sooner
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Show this number of the slowest requests, 1 to 100000
    #[arg(long, value_name = "COUNT", default_value_t = 40)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rows: u32,
}

/// The result.
#[derive(Debug, Serialize)]
struct TraceReport {
    slow_ns: u64,
    /// How long the trace lasted; nothing of the slow log.
    seconds: Option<f64>,
    events: Vec<TraceInfo>,
    /// Events that were lost because the sidecar's trace or slow log was full.
    lost: u64,
    /// Events that were quicker than those shown.
    hidden: usize,
    /// Requests of all events.
    requests: u64,
    /// Where the time of all requests went.
    shares: Vec<StageShare>,
}

/// A stage, and its share of the time of all slow requests.
#[derive(Debug, Serialize)]
struct StageShare {
    stage: &'static str,
    percent: f64,
}

/// Traces for a while, and shows the slowest.
///
/// # Errors
/// `Failure` with status 4 when no sidecar answers, with 1 when another one traces.
pub(crate) fn run(args: &TraceArgs, context: &Context) -> Result<(), Failure> {
    let mut looker = args.sidecar.looker(context);
    let found = match args.past {
        true => past(&mut looker, args)?,
        false => collect(&mut looker, args, context)?,
    };
    match context.format {
        Format::Json => print_json(&found),
        Format::Human => print(&found),
    }
}

fn collect(
    looker: &mut Looker,
    args: &TraceArgs,
    context: &Context,
) -> Result<TraceReport, Failure> {
    let (slow, stop) = (args.slow.unwrap_or(SLOW), StopFlag::register()?);
    let lasts = Duration::from_secs(args.seconds);
    let ask = |looker: &mut Looker| looker.ask(|client| client.trace(slow.duration()));
    let (begun, bar) = (Instant::now(), bar(context, BAR, Some(args.seconds)));
    let (mut events, mut lost) = (ask(looker)?.events, 0);
    while begun.elapsed() < lasts && !stop.is_set() {
        thread::sleep(ASK_EVERY.min(lasts.saturating_sub(begun.elapsed())));
        let page = ask(looker)?;
        events.extend(page.events);
        lost = page.lost;
        bar.set_position(begun.elapsed().as_secs());
    }
    bar.finish_and_clear();
    let seconds = Some(begun.elapsed().as_secs_f64());
    let page = TracePage { events, lost, slow_ns: slow.ns() };
    Ok(TraceReport::new(page, seconds, args.rows as usize))
}

/// The slow log.
fn past(looker: &mut Looker, args: &TraceArgs) -> Result<TraceReport, Failure> {
    let mut page = looker.ask(kvrail_client::Client::slow_log)?;
    page.slow_ns = page.slow_ns.max(args.slow.map_or(0, Period::ns));
    page.events.retain(|event| event.spent.total_ns >= page.slow_ns);
    Ok(TraceReport::new(page, None, args.rows as usize))
}

impl TraceReport {
    /// The slowest `rows` of a page.
    fn new(page: TracePage, seconds: Option<f64>, rows: usize) -> Self {
        let TracePage { mut events, lost, slow_ns } = page;
        let (requests, shares) = (requests(&events), shares(&events));
        events.sort_by_key(|event| std::cmp::Reverse(event.spent.total_ns));
        let hidden = events.len().saturating_sub(rows);
        events.truncate(rows);
        Self { slow_ns, seconds, events, lost, hidden, requests, shares }
    }
}

const BAR: &str = "tracing {bar:40} {pos}/{len} s";

/// Clients' requests; turns and what stores do for themselves are none.
fn of_clients(events: &[TraceInfo]) -> impl Iterator<Item = (&TraceWork, &TraceSpent)> {
    let asked = |event: &&TraceInfo| matches!(event.kind, TraceKind::Batch | TraceKind::Keyed);
    events.iter().filter(asked).filter_map(|event| Some((event.work.as_ref()?, &event.spent)))
}

fn requests(events: &[TraceInfo]) -> u64 {
    of_clients(events).map(|(work, _)| u64::from(work.requests)).sum()
}

/// The stages of a request, in their order.
fn stages(spent: &TraceSpent) -> [(&'static str, u64); 6] {
    [
        ("lane", spent.lane_ns),
        ("store", spent.store_ns),
        ("queue", spent.queue_ns),
        ("device", spent.device_ns),
        ("answer", spent.answer_ns),
        ("publish", spent.completion_ns),
    ]
}

/// Where the time of all of them went.
fn shares(events: &[TraceInfo]) -> Vec<StageShare> {
    let mut sums = stages(&TraceSpent::default()).map(|(stage, _)| (stage, 0.0));
    for (work, spent) in of_clients(events) {
        for ((_, sum), (_, ns)) in sums.iter_mut().zip(stages(spent)) {
            *sum += ns as f64 * f64::from(work.requests);
        }
    }
    let all: f64 = sums.iter().map(|(_, sum)| sum).sum();
    let percent = |sum: f64| if all > 0.0 { (sum / all * 1000.0).round() / 10.0 } else { 0.0 };
    sums.map(|(stage, sum)| StageShare { stage, percent: percent(sum) }).into()
}

fn print(found: &TraceReport) -> Result<(), Failure> {
    let when = match found.seconds {
        Some(seconds) => format!("in {seconds:.1} s"),
        None => "since the sidecar's start, of those that the slow log keeps".into(),
    };
    let slow = Period::from_ns(found.slow_ns);
    let mut text = format!("{} requests took {slow} or longer {when}", found.requests);
    let shares = found.shares.iter().filter(|share| share.percent > 0.0);
    let shares: Vec<_> =
        shares.map(|share| format!("{} {:.1} %", share.stage, share.percent)).collect();
    if !shares.is_empty() {
        text += &format!("; their time went to: {}", shares.join(", "));
    }
    let turns = found.events.iter().filter(|event| event.kind == TraceKind::Turn).count();
    if turns > 0 {
        text += &format!(
            "\n{turns} turns of pollers took that long: a device kept its thread in the kernel, \
             or it had no CPU"
        );
    }
    if found.lost > 0 {
        let why = match found.seconds {
            Some(_) => "were lost because the trace was full; raise --slow",
            None => "are no longer kept",
        };
        text += &format!("\n{} more events {why}", found.lost);
    }
    if found.events.is_empty() {
        return print_text(&text);
    }
    print_text(&format!("{text}\n"))?;
    let header = [
        "AT", "TOTAL", "LANE", "STORE", "QUEUE", "DEVICE", "ANSWER", "PUBLISH", "WHAT", "WHERE",
        "WHO",
    ];
    let mut rows = table(&header);
    let last = match found.seconds {
        Some(_) => found.events.iter().map(|event| event.ended_unix_ms).max().unwrap_or(0),
        None => now_unix_ms(),
    };
    for event in &found.events {
        rows.add_row(row(event, last));
    }
    print_table(&rows)?;
    match found.hidden {
        0 => Ok(()),
        hidden => print_text(&format!("\n{hidden} more were quicker; see --rows")),
    }
}

fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds only of what was a moment ago.
fn ago(ms: u64) -> String {
    let s = ms / 1000;
    match s / 60 {
        0 => format!("-{s}.{:03}s", ms % 1000),
        m @ 1..60 => format!("-{m}m{:02}s", s % 60),
        m => format!("-{}h{:02}m", m / 60, m % 60),
    }
}

fn row(event: &TraceInfo, last_unix_ms: u64) -> Vec<String> {
    let ago = ago(last_unix_ms.saturating_sub(event.ended_unix_ms));
    let mut cells = vec![ago, duration(event.spent.total_ns)];
    cells.extend(stages(&event.spent).map(|(stage, ns)| {
        let held = if stage == "lane" && event.spent.held { "*" } else { "" };
        duration(ns) + held
    }));
    let poller = format!("poller {}", event.poller);
    let Some(work) = &event.work else {
        cells.extend(["turn".into(), poller, String::new()]);
        return cells;
    };
    cells.extend([what(work, event.kind), format!("{} ({poller})", work.device), who(work)]);
    cells
}

fn what(work: &TraceWork, kind: TraceKind) -> String {
    let of = match kind {
        TraceKind::Store => "store's own ",
        _ => "",
    };
    let count = if work.requests > 1 { format!("{} x ", work.requests) } else { String::new() };
    let each = work.bytes / u64::from(work.requests.max(1));
    let mut text = format!("{of}{count}{} {} {}", work.class, work.operation, human_bytes(each));
    if work.status != "OK" {
        text += &format!(" {}", work.status);
    }
    if let Some(key) = work.key {
        text += &format!(" {:032x}", key.0);
    }
    text
}

fn who(work: &TraceWork) -> String {
    match (work.session, &work.client) {
        (Some(session), Some(client)) => format!("{session} {client}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use kvrail_client::{TraceInfo, TraceKey, TraceKind, TraceSpent, TraceWork};

    use super::{ago, row, shares};

    fn event(kind: TraceKind, requests: u32, spent: TraceSpent) -> TraceInfo {
        let work = TraceWork {
            device: "nvme0n1".into(),
            session: Some(7),
            client: Some("vllm".into()),
            operation: "get".into(),
            class: "demand".into(),
            status: "MISS".into(),
            requests,
            bytes: 8192,
            key: Some(TraceKey(0xab)),
        };
        let work = (kind != TraceKind::Turn).then_some(work);
        TraceInfo { kind, poller: 1, ended_unix_ms: 5000, work, spent }
    }

    #[test]
    fn shares_are_of_requests_and_count_each() {
        let spent = |device_ns, queue_ns| TraceSpent { device_ns, queue_ns, ..Default::default() };
        let events = [
            event(TraceKind::Batch, 3, spent(100, 0)),
            event(TraceKind::Keyed, 1, spent(0, 100)),
            event(TraceKind::Store, 1, spent(100_000, 0)),
            event(TraceKind::Turn, 1, spent(100_000, 0)),
        ];
        let shares = shares(&events);
        let share = |stage| shares.iter().find(|share| share.stage == stage).unwrap().percent;
        assert_eq!((share("device"), share("queue"), share("lane")), (75.0, 25.0, 0.0));
    }

    #[test]
    fn an_age_has_two_units() {
        let ages = [999, 59_999, 60_000, 3_599_999, 3_600_000, 90_061_000];
        let texts = ["-0.999s", "-59.999s", "-1m00s", "-59m59s", "-1h00m", "-25h01m"];
        assert_eq!(ages.map(ago), texts);
    }

    #[test]
    fn a_row_says_what_where_and_who() {
        let spent =
            TraceSpent { total_ns: 9_000_000, held: true, lane_ns: 1000, ..Default::default() };
        let cells = row(&event(TraceKind::Keyed, 2, spent), 6500).join("|");
        for part in [
            "-1.500s|9.0 ms|1.0 us*|",
            "|2 x demand get 4.00 KiB MISS 0000",
            "ab|nvme0n1 (poller 1)|7 vllm",
        ] {
            assert!(cells.contains(part), "no {part:?} in {cells}");
        }
        let cells = row(&event(TraceKind::Turn, 1, spent), 5000);
        assert_eq!(cells.len(), 11);
    }
}
