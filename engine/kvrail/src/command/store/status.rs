//! `kvrail store status`.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use comfy_table::Table;
use indicatif::HumanDuration;
use kvrail_counters::{ServingCounters, StoreCounters};
use kvrail_protocol::{ShardReport, StatusReport};
use serde::Serialize;

use super::pools::together;
use super::target::TargetArgs;
use crate::command::status::{count, short};
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, human_bytes, print_json, print_table, print_text, table};

const EXAMPLES: &str = "\
Examples:
  kvrail store status
  kvrail store status --store cache --format json     every counter, each member and all of them,
                                                      and their pools

FILL is the share of the member's capacity that blocks use; after the first round of the ring it
stays below 100 % because of dropped, cleared and padded bytes. INDEX is the share of the index
that blocks use: it has one entry for each --block-mean of the capacity. WRITTEN/PUT is the bytes
written to the drive for each byte put: above 1 because of records, pages and moved blocks.
DECLINED puts are no errors: colder (of a new chain, while the stored blocks are used too often to
make room), first sight (little write budget is left, and the block was not put before), budget
(none is left), index full, broken (the drive refused a write of the store's own; it only reads),
busy. BUDGET is the bytes that may be written. STATE: starting (reads its heads), warming (serves;
a missing block may still be found), serving, gone (its drive is), missing (its drive was at the
sidecar's start). Pools follow where there are some, all members together.";

/// Rows of pools.
const POOLS_SHOWN: usize = 12;

/// Arguments of `kvrail store status`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StoreStatusArgs {
    #[command(flatten)]
    target: TargetArgs,
}

/// A store, its members, and all of them together.
#[derive(Debug, Serialize)]
struct ShownStore {
    store: String,
    members: Vec<Member>,
    /// Members that were not there when the sidecar started.
    missing: Vec<String>,
    total: ShardReport,
}

#[derive(Debug, Serialize)]
struct Member {
    path: String,
    #[serde(flatten)]
    report: ShardReport,
}

/// Shows.
pub(super) fn run(args: &StoreStatusArgs, context: &Context) -> Result<(), Failure> {
    let session = args.target.attach(context)?;
    let stores = session.stores(args.target.store())?;
    let names: Vec<_> = stores.iter().map(|store| store.name().to_owned()).collect();
    let report = session.ask(kvrail_client::Client::status)?;
    let shown: Vec<ShownStore> = names.into_iter().map(|name| shown(name, &report)).collect();
    if context.format == Format::Json {
        return print_json(&shown);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    print_table(&rows(&shown, now))?;
    let (pools, more) = pools(&shown);
    if !pools.is_empty() {
        print_text("")?;
        print_table(&pools)?;
    }
    if more > 0 {
        print_text(&format!("  and {more} more: kvrail store pools"))?;
    }
    Ok(())
}

/// The pools of stores that have some beside the default one, as far as they fit a terminal of 80
/// by 24, and how many more there are.
fn pools(all: &[ShownStore]) -> (Table, usize) {
    let own = |it: &ShownStore| it.total.pools.len() > 1;
    let all = all.iter().filter(|store| own(store));
    let all =
        all.flat_map(|store| store.total.pools.iter().map(|pool| (store.store.clone(), pool)));
    let mut table = table(&["STORE", "POOL", "MINIMUM", "MAXIMUM", "HAS", "BLOCKS"]);
    table.add_rows(all.clone().take(POOLS_SHOWN).map(|(store, pool)| {
        [
            short(store),
            short(pool.name.clone()),
            human_bytes(pool.minimum_bytes),
            human_bytes(pool.maximum_bytes),
            human_bytes(pool.segment_bytes),
            pool.blocks.to_string(),
        ]
    }));
    (table, all.count().saturating_sub(POOLS_SHOWN))
}

fn shown(store: String, report: &StatusReport) -> ShownStore {
    let own = report.shards.iter().filter(|shard| shard.store == store);
    let member = |report_of: &ShardReport| {
        let device = report.devices.iter().find(|device| device.index == report_of.device);
        let path = device.map_or_else(|| "?".to_owned(), |device| device.name.clone());
        Member { path, report: report_of.clone() }
    };
    let members: Vec<Member> = own.map(member).collect();
    let total = total(&store, members.iter().map(|member| &member.report));
    let missing = report.missing_members().filter(|(volume, _)| *volume == store);
    let missing = missing.map(|(_, member)| member.to_owned()).collect();
    ShownStore { store, members, missing, total }
}

/// All members together; the state is that of the one furthest from serving.
fn total<'a>(store: &str, members: impl Iterator<Item = &'a ShardReport>) -> ShardReport {
    let order = ["serving", "warming", "starting"];
    let rank = |state: &str| order.iter().position(|known| *known == state).unwrap_or(order.len());
    let mut all = ShardReport { state: "serving".into(), ..ShardReport::default() };
    all.store = store.to_owned();
    let members: Vec<&ShardReport> = members.collect();
    all.pools = together(members.iter().copied());
    for it in members {
        if rank(&it.state) > rank(&all.state) {
            all.state.clone_from(&it.state);
        }
        all.capacity_bytes += it.capacity_bytes;
        all.memory_bytes += it.memory_bytes;
        all.blocks_max += it.blocks_max;
        all.blocks += it.blocks;
        all.bytes += it.bytes;
        all.holds += it.holds;
        all.oldest_unix_s = match (all.oldest_unix_s, it.oldest_unix_s) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        all.counters.add(&it.counters);
    }
    all
}

const HEADS: [&str; 18] = [
    "STORE",
    "MEMBER",
    "STATE",
    "FILL",
    "INDEX",
    "BLOCKS",
    "HITS",
    "MISSES",
    "DECLINED",
    "BUDGET",
    "PUT",
    "MOVED",
    "WRITTEN/PUT",
    "EVICTED",
    "SUSPECTS",
    "HOLDS",
    "OLDEST",
    "RAM",
];

fn rows(all: &[ShownStore], now_unix_s: u64) -> Table {
    let mut table = table(&HEADS);
    for it in all {
        for member in &it.members {
            table.add_row(row(&it.store, &member.path, &member.report, now_unix_s));
        }
        for member in &it.missing {
            let gone = ShardReport { state: "missing".into(), ..ShardReport::default() };
            table.add_row(row(&it.store, member, &gone, now_unix_s));
        }
        if it.members.len() > 1 {
            table.add_row(row(&it.store, "all", &it.total, now_unix_s));
        }
    }
    table
}

fn row(store: &str, member: &str, it: &ShardReport, now_unix_s: u64) -> Vec<String> {
    let counters = &it.counters.store;
    let bytes = |counter: Option<u64>| counter.map_or_else(dash, human_bytes);
    let share =
        |part: u64, whole: u64, scale: f64| (whole > 0).then(|| part as f64 / whole as f64 * scale);
    let fill = share(it.bytes, it.capacity_bytes, 100.0);
    let index = share(it.blocks, it.blocks_max, 100.0);
    let written = counters.written_bytes.zip(counters.put_bytes);
    let written = written.and_then(|(written, put)| share(written, put, 1.0));
    let age = it.oldest_unix_s.map(|oldest| now_unix_s.saturating_sub(oldest.into()));
    let age = age.map(|age| HumanDuration(std::time::Duration::from_secs(age)).to_string());
    vec![
        store.to_owned(),
        member.to_owned(),
        it.state.clone(),
        fill.map_or_else(dash, |fill| {
            format!("{fill:.1} % ({} of {})", human_bytes(it.bytes), human_bytes(it.capacity_bytes))
        }),
        index.map_or_else(dash, |index| format!("{index:.1} %")),
        it.blocks.to_string(),
        count(counters.hits),
        count(counters.misses),
        declined(counters),
        budget(&it.counters.serving),
        bytes(counters.put_bytes),
        bytes(counters.moved_bytes),
        written.map_or_else(dash, |written| format!("{written:.2}")),
        count(counters.evicted),
        count(counters.suspects),
        it.holds.to_string(),
        age.unwrap_or_else(dash),
        human_bytes(it.memory_bytes),
    ]
}

/// How many puts were declined, and why.
fn declined(counters: &StoreCounters<Option<u64>>) -> String {
    let reasons = counters.each().filter_map(|(it, count)| {
        let reason = it.name.strip_prefix("declined_")?.replace('_', " ");
        Some(format!("{} {reason}", count.filter(|count| *count > 0)?))
    });
    let reasons: Vec<String> = reasons.collect();
    let all = count(counters.declined);
    if reasons.is_empty() { all } else { format!("{all} ({})", reasons.join(", ")) }
}

/// The bytes that may be written in a day, and at once.
fn budget(counters: &ServingCounters<Option<u64>>) -> String {
    match counters.budget_bytes_per_day {
        None | Some(0) => dash(),
        Some(bytes) => {
            let tokens = counters.write_tokens.map_or_else(dash, human_bytes);
            format!("{}/day, {tokens} now", human_bytes(bytes))
        }
    }
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use kvrail_counters::{MemberCounters, PoolCounters, ServingCounters, StoreCounters};
    use kvrail_protocol::{PoolReport, ShardReport};

    use super::{Member, POOLS_SHOWN, ShownStore, pools, rows, total};

    fn member(state: &str, oldest: Option<u32>) -> ShardReport {
        let store = StoreCounters {
            hits: Some(7),
            put_bytes: Some(1000),
            written_bytes: Some(1350),
            declined: Some(5),
            declined_budget: Some(2),
            declined_first_sight: Some(3),
            ..StoreCounters::default()
        };
        let budget_bytes_per_day = Some(3 << 30);
        let serving = ServingCounters { budget_bytes_per_day, ..ServingCounters::default() };
        ShardReport {
            store: "cache".into(),
            device: 0,
            state: state.into(),
            capacity_bytes: 1 << 40,
            memory_bytes: 100 << 20,
            blocks_max: 1000,
            blocks: 250,
            bytes: 1 << 38,
            holds: 3,
            namespaces: 2,
            namespaces_max: 32,
            oldest_unix_s: oldest,
            counters: MemberCounters { store, serving },
            pools: Vec::new(),
        }
    }

    #[test]
    fn pools_are_shown_where_there_are_some_and_fit_a_terminal() {
        let pool = |at: u64| PoolReport {
            name: format!("{at} is the pool of a team with a name"),
            configured: true,
            minimum_bytes: 1023 << 30,
            maximum_bytes: 1023 << 40,
            segment_bytes: 1023 << 40,
            blocks: 999_999_999,
            bytes: 1,
            counters: PoolCounters::default(),
        };
        let shown = |count: u64| {
            let pools = (0..count).map(pool).collect();
            let total = ShardReport { pools, ..ShardReport::default() };
            let members = Vec::new();
            let store = "a store with a name".into();
            ShownStore { store, members, missing: Vec::new(), total }
        };
        assert!(pools(&[shown(0), shown(1)]).0.is_empty());
        let (table, more) = pools(&[shown(1), shown(16)]);
        assert_eq!((table.lines().count(), more), (1 + POOLS_SHOWN, 16 - POOLS_SHOWN));
        let widest = table.lines().map(|line| line.trim_end().chars().count()).max();
        assert!(widest <= Some(81), "a blank in front goes:\n{table}");
    }

    #[test]
    fn members_are_shown_and_added_up() {
        let reports = [member("serving", Some(1000)), member("warming", None)];
        let total = total("cache", reports.iter());
        assert_eq!((total.state.as_str(), total.blocks, total.holds), ("warming", 500, 6));
        assert_eq!((total.oldest_unix_s, total.counters.store.hits), (Some(1000), Some(14)));
        let members = reports.map(|report| Member { path: "/dev/x".into(), report }).into();
        let missing = vec!["serial:S5XYZ".into()];
        let shown = ShownStore { store: "cache".into(), members, missing, total };
        let shown = rows(&[shown], 1060).to_string();
        for word in [
            "serial:S5XYZ",
            "missing",
            "25.0 %",
            "25.0 % (256.00 GiB of 1.00 TiB)",
            "1.35",
            "60 seconds",
            "warming",
            "all",
            "200.00 MiB",
            "14",
            "5 (3 first sight, 2 budget)",
            "3.00 GiB/day",
        ] {
            assert!(shown.contains(word), "no {word:?} in\n{shown}");
        }
    }
}
