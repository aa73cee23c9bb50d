//! `kvrail store status`.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use comfy_table::Table;
use indicatif::HumanDuration;
use kvrail_counters::{MemberCounters, MetricKind, PoolCounters, ServingCounters};
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

FILL is the share of the member's CAPACITY that blocks use; after the first round of the ring it
stays below 100 % because of dropped, cleared and padded bytes. INDEX is the share of the index
that blocks use: it has one entry for each --block-mean of the capacity. WRITTEN/PUT is the bytes
written to the drive for each byte put: above 1 because of records, pages and moved blocks.
Declined puts are no errors: colder (of a new chain, while the stored blocks are used too often to
make room), first sight (little write budget is left, and the block was not put before), budget
(none is left), index full, broken (the drive refused a write of the store's own; it only reads),
busy. A budget is the bytes that may be written. Missed gets and keys: absent (never put, or
gone), recovering (not all records are read), pending (just being put), distrusted (the segment
is), other length (than the room of the get), drive gone. Absent keys, estimated from a sample of
those that went lately: evicted, expired (evicted after its hint's end), dropped, damaged (dropped
because of wrong bytes), lost (with a segment), budget, colder, declined (the put was), unknown
(never put since the start, cleared with its namespace, or forgotten). Suspect blocks are those
that readers have reported. Hints: bytes of blocks that are retained, blocks with a time to
live, blocks that lookups demoted since the start, and hints without room. STATE: starting
(reads its heads), warming (serves; a missing block may still be found), serving, gone (its
drive is), missing (its drive was at the sidecar's start). Pools follow where there are some,
all members together.";

/// Columns of the notes.
const COLUMNS: usize = 100;
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
    members: Vec<MemberStatus>,
    /// Members that were not there when the sidecar started.
    missing: Vec<String>,
    total: ShardReport,
}

#[derive(Debug, Serialize)]
struct MemberStatus {
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
    for (at, store) in shown.iter().enumerate() {
        if at > 0 {
            print_text("")?;
        }
        print_text(&format!("{}:", store.store))?;
        print_table(&space(store, now))?;
        print_text("")?;
        print_table(&traffic(store))?;
        store.rows().flat_map(notes).chain(misses(store)).try_for_each(|line| print_text(&line))?;
    }
    if let Some(line) = levels(&report) {
        print_text(&format!("\n{line}"))?;
    }
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
        MemberStatus { path, report: report_of.clone() }
    };
    let members: Vec<MemberStatus> = own.map(member).collect();
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

impl ShownStore {
    /// Each member, and all of them together where there are several.
    fn rows(&self) -> impl Iterator<Item = (&str, &ShardReport)> {
        let members = self.members.iter().map(|member| (member.path.as_str(), &member.report));
        let several = self.members.len() > 1;
        members.chain(several.then_some(("all", &self.total)))
    }
}

fn share(part: u64, whole: u64, scale: f64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64 * scale)
}

/// What each member has: 100 columns at most.
fn space(store: &ShownStore, now_unix_s: u64) -> Table {
    let heads = ["MEMBER", "STATE", "FILL", "CAPACITY", "INDEX", "BLOCKS", "OLDEST", "RAM"];
    let mut table = table(&heads);
    let percent = |share: Option<f64>| share.map_or_else(dash, |share| format!("{share:.1} %"));
    let row = |(member, report): (&str, &ShardReport)| {
        let age = report.oldest_unix_s.map(|oldest| now_unix_s.saturating_sub(oldest.into()));
        let age = age.map(|age| HumanDuration(std::time::Duration::from_secs(age)).to_string());
        [
            short(member.to_owned()),
            report.state.clone(),
            percent(share(report.bytes, report.capacity_bytes, 100.0)),
            human_bytes(report.capacity_bytes),
            percent(share(report.blocks, report.blocks_max, 100.0)),
            report.blocks.to_string(),
            age.unwrap_or_else(dash),
            human_bytes(report.memory_bytes),
        ]
    };
    table.add_rows(store.rows().map(row));
    let missing = ShardReport { state: "missing".into(), ..ShardReport::default() };
    table.add_rows(store.missing.iter().map(|member| row((member, &missing))));
    table
}

/// What each member found and wrote since it was opened: 100 columns at most.
fn traffic(store: &ShownStore) -> Table {
    let heads = ["MEMBER", "HITS", "MISSES", "PUT", "MOVED", "WRITTEN/PUT", "EVICTED", "HOLDS"];
    let mut table = table(&heads);
    table.add_rows(store.rows().map(|(member, report)| {
        let counters = &report.counters.store;
        let bytes = |counter: Option<u64>| counter.map_or_else(dash, human_bytes);
        let written = counters.written_bytes.zip(counters.put_bytes);
        let written = written.and_then(|(written, put)| share(written, put, 1.0));
        [
            short(member.to_owned()),
            count(counters.hits),
            count(counters.misses),
            bytes(counters.put_bytes),
            bytes(counters.moved_bytes),
            written.map_or_else(dash, |written| format!("{written:.2}")),
            count(counters.evicted),
            report.holds.to_string(),
        ]
    }));
    table
}

/// What is worth a line of a member, where there is any.
fn notes((member, report): (&str, &ShardReport)) -> Vec<String> {
    let ShardReport { counters, .. } = report;
    let suspects = counters.store.suspects.filter(|count| *count > 0);
    let notes = [
        by_reason(member, counters, ("declined", "puts declined")),
        suspects.map(|count| format!("  {member}: {count} suspect blocks")),
        hints(report).map(|hints| format!("  {member}: hints: {hints}")),
        budget(&counters.serving).map(|budget| format!("  {member}: budget {budget}")),
        tier(&counters.serving).map(|tier| format!("  {member}: memory tier {tier}")),
    ];
    notes.into_iter().flatten().collect()
}

/// What became of hints, if there were any.
fn hints(report: &ShardReport) -> Option<String> {
    let store = &report.counters.store;
    let sum = |of: fn(&PoolCounters<Option<u64>>) -> Option<u64>| {
        report.pools.iter().filter_map(|pool| of(&pool.counters)).sum::<u64>()
    };
    let (retained, ends) = (sum(|pool| pool.retained_bytes), sum(|pool| pool.ends));
    let [demoted, refused] = [store.demoted, store.hints_refused].map(Option::unwrap_or_default);
    let parts = [
        (retained, format!("{} retained", human_bytes(retained))),
        (ends, format!("{ends} blocks with an end")),
        (demoted, format!("{demoted} demoted")),
        (refused, format!("{refused} refused")),
    ];
    let there: Vec<_> = parts.into_iter().filter(|part| part.0 > 0).map(|part| part.1).collect();
    (!there.is_empty()).then(|| there.join(", "))
}

/// Why keys were not found: all members together.
fn misses(store: &ShownStore) -> Vec<String> {
    let sums = [
        ("misses", "gets missed"),
        ("lookup_misses", "keys of lookups missed"),
        ("absent_estimated", "keys absent, estimated"),
    ];
    let last = store.rows().last();
    let lines = last.map(|(member, report)| {
        sums.into_iter().filter_map(move |sum| by_reason(member, &report.counters, sum))
    });
    lines.into_iter().flatten().collect()
}

/// A sum with its parts, where it is not 0, in lines of 100 columns.
fn by_reason(
    member: &str,
    counters: &MemberCounters<Option<u64>>,
    (sum, words): (&str, &str),
) -> Option<String> {
    let counted = counters.each().filter_map(|(counter, count)| Some((counter, (*count)?)));
    let counted: Vec<_> = counted.filter(|(_, count)| *count > 0).collect();
    let (whole, count) = counted.iter().find(|(counter, _)| counter.name == sum)?;
    let mut lines = vec![format!("  {}: {count} {words}", short(member.to_owned()))];
    let mut before = " (";
    for (counter, count) in &counted {
        let MetricKind::Part(reason) = counter.kind else { continue };
        if counter.metric != whole.metric {
            continue;
        }
        let part = format!("{count} {}", reason.replace('_', " "));
        let line = lines.last_mut().expect("the first line");
        // The next mark is behind it.
        if line.chars().count() + before.len() + part.len() < COLUMNS {
            line.push_str(before);
            line.push_str(&part);
        } else {
            line.push_str(before.trim_end());
            lines.push(format!("    {part}"));
        }
        before = ", ";
    }
    if before == ", " {
        lines.last_mut().expect("the first line").push(')');
    }
    Some(lines.join("\n"))
}

/// The bytes that may be written in a day, and at once, where there is a limit.
fn budget(counters: &ServingCounters<Option<u64>>) -> Option<String> {
    let bytes = counters.budget_bytes_per_day.filter(|bytes| *bytes > 0)?;
    let tokens = counters.write_tokens.map_or_else(dash, human_bytes);
    Some(format!("{}/day, {tokens} now", human_bytes(bytes)))
}

/// Where gets found their blocks, where there is a memory tier: of all stores together, as clients
/// do not count by store what they copy from memory.
fn levels(report: &StatusReport) -> Option<String> {
    let shards = &report.shards;
    let sum = |of: fn(&ShardReport) -> Option<u64>| shards.iter().filter_map(of).sum::<u64>();
    if sum(|shard| shard.counters.serving.tier_bytes_max) == 0 {
        return None;
    }
    let memory = report.memory_hits();
    let hits = sum(|shard| shard.counters.store.hits);
    // As the page has it: a lookup that finds nothing saves its get.
    let misses =
        sum(|shard| shard.counters.store.misses) + sum(|shard| shard.counters.store.lookup_misses);
    let percent = share(memory, memory + hits + misses, 100.0).unwrap_or(0.0);
    Some(format!(
        "gets of all stores: {memory} from memory ({percent:.1} %), {hits} from drives,\n    \
         {misses} missed, with lookups"
    ))
}

/// The fill of the memory tier, and what came and went, where there is one.
fn tier(counters: &ServingCounters<Option<u64>>) -> Option<String> {
    let size = human_bytes(counters.tier_bytes_max.filter(|bytes| *bytes > 0)?);
    let used = counters.tier_bytes.map_or_else(dash, human_bytes);
    let [blocks, came, went, refused, wrong] = [
        counters.tier_blocks,
        counters.tier_fills,
        counters.tier_evictions,
        counters.tier_refused,
        counters.tier_wrong,
    ]
    .map(count);
    let late = late(counters).unwrap_or_default();
    Some(format!(
        "{used} of {size}\n    {blocks} blocks; {came} came in, {went} went\n    \
         {refused} found no room, {wrong} were wrong{late}"
    ))
}

/// Puts that were acknowledged from memory, where there were some.
fn late(counters: &ServingCounters<Option<u64>>) -> Option<String> {
    let puts = counters.late_puts.filter(|puts| *puts > 0)?;
    let [waiting, written, dropped] =
        [counters.late_blocks, counters.late_written, counters.late_dropped].map(count);
    let words = |bytes: Option<u64>| bytes.map_or_else(dash, human_bytes);
    let [unwritten, lost] = [counters.late_bytes, counters.late_dropped_bytes].map(words);
    Some(format!(
        "\n    {puts} puts were acknowledged from memory: {waiting} blocks ({unwritten}) are\n    \
         not written yet, {written} were, {dropped} never will be ({lost})"
    ))
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use kvrail_counters::{MemberCounters, PoolCounters, ServingCounters, StoreCounters};
    use kvrail_protocol::{CallLatencyReport, HistogramReport, PoolReport, ShardReport};

    use super::{
        COLUMNS, MemberStatus, POOLS_SHOWN, ShownStore, hints, levels, misses, notes, pools, space,
        total, traffic,
    };

    fn member(state: &str, oldest: Option<u32>) -> ShardReport {
        let store = StoreCounters {
            hits: Some(7),
            put_bytes: Some(1000),
            written_bytes: Some(1350),
            declined: Some(5),
            declined_budget: Some(2),
            declined_first_sight: Some(3),
            lookup_misses: Some(20),
            lookup_misses_absent: Some(20),
            absent_estimated: Some(21),
            absent_estimated_unknown: Some(14),
            absent_estimated_evicted: Some(7),
            hints_refused: Some(4),
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
        let members = reports.map(|report| MemberStatus { path: "/dev/x".into(), report }).into();
        let missing = vec!["serial:S5XYZ".into()];
        let shown = ShownStore { store: "cache".into(), members, missing, total };
        let notes: Vec<String> = shown.rows().flat_map(notes).chain(misses(&shown)).collect();
        let shown = format!("{}\n{}\n{}", space(&shown, 1060), traffic(&shown), notes.join("\n"));
        for word in [
            "serial:S5XYZ",
            "missing",
            "25.0 %",
            "1.00 TiB",
            "1.35",
            "60 seconds",
            "warming",
            "all",
            "200.00 MiB",
            "14",
            "all: 10 puts declined (6 first sight, 4 budget)",
            "/dev/x: budget 3.00 GiB/day",
            "all: 40 keys of lookups missed (40 absent)",
            "all: 42 keys absent, estimated (28 unknown, 14 evicted)",
            "/dev/x: hints: 4 refused",
        ] {
            assert!(shown.contains(word), "no {word:?} in\n{shown}");
        }
    }

    #[test]
    fn levels_are_shown_where_there_is_a_tier() {
        let mut report = crate::command::status::report();
        report.shards = vec![member("serving", None), member("serving", None)];
        let latency = HistogramReport { sum_ns: 9, buckets: vec![(1000, 20), (2000, 6)] };
        let (operation, size) = ("get_from_memory".into(), "any".into());
        report.calls = vec![CallLatencyReport { operation, size, latency }];
        assert_eq!(levels(&report), None);
        report.shards[1].counters.serving.tier_bytes_max = Some(1 << 20);
        report.shards[1].counters.store.misses = Some(12);
        let line = "gets of all stores: 26 from memory (28.3 %), 14 from drives,\n    52 missed, \
                    with lookups";
        assert_eq!(levels(&report).as_deref(), Some(line));
    }

    #[test]
    fn hints_of_all_pools_are_in_one_line() {
        let mut report = member("serving", None);
        let pool = |retained: u64, ends: u64| PoolReport {
            counters: PoolCounters {
                retained_bytes: Some(retained),
                ends: Some(ends),
                ..PoolCounters::default()
            },
            ..PoolReport::default()
        };
        report.pools = vec![pool(3 << 20, 0), pool(1 << 20, 7)];
        (report.counters.store.demoted, report.counters.store.hints_refused) = (Some(9), None);
        let line = hints(&report).unwrap();
        assert_eq!(line, "4.00 MiB retained, 7 blocks with an end, 9 demoted");
        assert_eq!(hints(&ShardReport::default()), None);
    }

    fn lines(text: String) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn tables_fit_a_hundred_columns() {
        let mut report = member("starting", Some(1));
        report.counters = report.counters.map(|_| Some(99_999_999_999));
        let store = &mut report.counters.store;
        for counter in [&mut store.hits, &mut store.misses, &mut store.evicted] {
            *counter = Some(99_999_999_999);
        }
        (store.put_bytes, store.moved_bytes) = (Some(1023 << 40), Some(1023 << 30));
        (report.blocks, report.blocks_max) = (9_999_999_999, 9_999_999_999);
        (report.bytes, report.capacity_bytes, report.memory_bytes) =
            (1023 << 40, 1023 << 40, 1023 << 30);
        report.holds = 99_999;
        let path = "/dev/disk/by-id/nvme-a-drive-with-a-long-name".to_owned();
        let members = vec![
            MemberStatus { path, report: report.clone() },
            MemberStatus { path: "/dev/x".into(), report: report.clone() },
        ];
        let store =
            ShownStore { store: "cache".into(), members, missing: Vec::new(), total: report };
        for table in [space(&store, 7_000_000), traffic(&store)] {
            let widest = table.lines().map(|line| line.trim_end().chars().count()).max();
            assert!(widest <= Some(101), "a blank in front goes:\n{table}");
        }
        let reasons = misses(&store);
        assert!(reasons.last().is_some_and(|line| line.ends_with("99999999999 declined)")));
        for line in store.rows().flat_map(notes).chain(reasons).flat_map(lines) {
            assert!(line.chars().count() <= COLUMNS, "{line}");
        }
    }
}
