//! `kvrail store pools`.

use std::collections::BTreeMap;

use clap::Args;
use comfy_table::Table;
use kvrail_protocol::{PoolMemoryHits, PoolReport, ShardReport, StatusReport};
use serde::Serialize;

use super::target::TargetArgs;
use crate::command::status::{age, bytes, count, short};
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, human_bytes, print_json, print_table, print_text, table};

const EXAMPLES: &str = "\
Examples:
  kvrail store pools
  kvrail store pools --store cache --format json      every counter

All members together. A pool takes free space up to MAXIMUM while the minimums of others stay free;
then it evicts its own oldest blocks. A pool below its MINIMUM takes space from the pool that is
furthest above its own minimum: GIVEN counts the space that a pool gave. HAS is the space of its
segments, with what is open or ready for the next blocks. CONFIGURED no: its [[volume.pool]] is
gone; it keeps its blocks until others need the space. The last table is about gets that reached the
store or were served from memory, and about the memory tier: LATE blocks there are not on a drive,
UNWRITTEN are the bytes of those that left it so.";

/// Arguments of `kvrail store pools`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PoolsArgs {
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Serialize)]
struct ShownStore {
    store: String,
    pools: Vec<ShownPool>,
}

#[derive(Debug, Serialize)]
struct ShownPool {
    #[serde(flatten)]
    report: PoolReport,
    /// Gets that the memory tier has served: clients count them, for all members together. Nothing
    /// from a sidecar of an earlier release.
    memory_hits: Option<u64>,
}

impl ShownPool {
    fn new(report: PoolReport, (store, status): (&str, &StatusReport)) -> Self {
        let is_it = |hits: &&PoolMemoryHits| hits.store == store && hits.pool == report.name;
        let all = status.memory_hits.as_ref();
        let memory_hits = all.map(|all| all.iter().find(is_it).map_or(0, |memory| memory.hits));
        Self { report, memory_hits }
    }
}

/// Shows.
pub(super) fn run(args: &PoolsArgs, context: &Context) -> Result<(), Failure> {
    let session = args.target.attach(context)?;
    let stores = session.stores(args.target.store())?;
    let names: Vec<_> = stores.iter().map(|store| store.name().to_owned()).collect();
    let report = session.ask(kvrail_client::Client::status)?;
    let shown = names.into_iter().map(|store| {
        let own = report.shards.iter().filter(|shard| shard.store == store);
        let pools = together(own).into_iter();
        let pools = pools.map(|pool| ShownPool::new(pool, (&store, &report))).collect();
        ShownStore { store, pools }
    });
    let shown: Vec<ShownStore> = shown.collect();
    if context.format == Format::Json {
        return print_json(&shown);
    }
    for (at, store) in shown.iter().enumerate() {
        if at > 0 {
            print_text("")?;
        }
        print_text(&format!("{}:", store.store))?;
        print_table(&space(&store.pools))?;
        print_text("")?;
        print_table(&traffic(&store.pools))?;
        print_text("")?;
        print_table(&levels(&store.pools))?;
    }
    Ok(())
}

/// The pools of all members, by their names; the default one first.
pub(super) fn together<'a>(members: impl Iterator<Item = &'a ShardReport>) -> Vec<PoolReport> {
    let mut all: BTreeMap<(bool, &str), PoolReport> = BTreeMap::new();
    for it in members.flat_map(|shard| &shard.pools) {
        let order = (it.name != kvrail_store::DEFAULT_POOL, it.name.as_str());
        let sum = all.entry(order).or_default();
        sum.name.clone_from(&it.name);
        sum.configured |= it.configured;
        sum.minimum_bytes += it.minimum_bytes;
        sum.maximum_bytes += it.maximum_bytes;
        sum.segment_bytes += it.segment_bytes;
        sum.blocks += it.blocks;
        sum.bytes += it.bytes;
        sum.counters.add(&it.counters);
    }
    all.into_values().collect()
}

/// What each pool is kept and has: 100 columns at most.
fn space(pools: &[ShownPool]) -> Table {
    let heads = ["POOL", "CONFIGURED", "MINIMUM", "MAXIMUM", "HAS", "BLOCKS", "BYTES"];
    let mut table = table(&heads);
    table.add_rows(pools.iter().map(|pool| {
        let pool = &pool.report;
        [
            short(pool.name.clone()),
            if pool.configured { "yes" } else { "no" }.to_owned(),
            human_bytes(pool.minimum_bytes),
            human_bytes(pool.maximum_bytes),
            human_bytes(pool.segment_bytes),
            pool.blocks.to_string(),
            human_bytes(pool.bytes),
        ]
    }));
    table
}

/// What happened in each pool since the store was opened: 100 columns at most.
fn traffic(pools: &[ShownPool]) -> Table {
    let mut table = table(&["POOL", "PUT", "DECLINED", "EVICTED", "MOVED", "GIVEN"]);
    table.add_rows(pools.iter().map(|pool| {
        let (name, counters) = (&pool.report.name, &pool.report.counters);
        [
            short(name.clone()),
            counters.put_bytes.map_or_else(|| "-".to_owned(), human_bytes),
            count(counters.declined),
            count(counters.evicted),
            count(counters.moved),
            count(counters.given),
        ]
    }));
    table
}

/// Where each pool's gets found their blocks, and what it has in memory: 100 columns at most.
fn levels(pools: &[ShownPool]) -> Table {
    let heads = ["POOL", "FROM MEMORY", "FROM DRIVE", "MISSED", "IN MEMORY", "MEAN AGE"];
    let mut table = table(&[&heads[..], &["LATE", "UNWRITTEN"]].concat());
    table.add_rows(pools.iter().map(|pool| {
        let (name, counters) = (&pool.report.name, &pool.report.counters);
        let age_s = counters.tier_ages_s.zip(counters.tier_blocks);
        [
            short(name.clone()),
            count(pool.memory_hits),
            count(counters.hits),
            count(counters.misses),
            bytes(counters.tier_bytes),
            age(age_s.and_then(|(ages_s, blocks)| ages_s.checked_div(blocks))),
            count(counters.late_blocks),
            bytes(counters.late_dropped_bytes),
        ]
    }));
    table
}

#[cfg(test)]
mod tests {
    use kvrail_counters::PoolCounters;
    use kvrail_protocol::{PoolReport, ShardReport};

    use super::{ShownPool, levels, space, together, traffic};

    fn pool(name: &str, puts: u64) -> PoolReport {
        let counters = PoolCounters {
            evicted: Some(puts),
            given: Some(1),
            hits: Some(puts),
            misses: Some(0),
            tier_blocks: Some(3),
            tier_bytes: Some(3 << 20),
            tier_ages_s: Some(360),
            ..PoolCounters::default()
        };
        PoolReport {
            name: name.into(),
            configured: true,
            minimum_bytes: 1 << 30,
            maximum_bytes: 2 << 30,
            segment_bytes: 3 << 29,
            blocks: 7,
            bytes: 7 << 20,
            counters,
        }
    }

    #[test]
    fn members_are_added_and_the_default_pool_comes_first() {
        let member = |pools: Vec<PoolReport>| ShardReport { pools, ..ShardReport::default() };
        let members = [member(vec![pool("default", 5), pool("a", 6)]), member(vec![pool("a", 2)])];
        let all = together(members.iter());
        assert_eq!(all.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>(), ["default", "a"]);
        let words = |table: comfy_table::Table| -> Vec<Vec<String>> {
            let words = |line: String| line.split_whitespace().map(str::to_owned).collect();
            table.lines().map(words).collect()
        };
        let all: Vec<_> =
            all.into_iter().map(|report| ShownPool { report, memory_hits: Some(9) }).collect();
        let [space, traffic, levels] = [space(&all), traffic(&all), levels(&all)].map(words);
        let has = ["a", "yes", "2.00", "GiB", "4.00", "GiB", "3.00", "GiB", "14", "14.00", "MiB"];
        assert_eq!(space[2], has);
        assert_eq!(traffic[2], ["a", "-", "-", "8", "-", "2"]);
        let has = ["a", "9", "8", "0", "6.00", "MiB", "2", "minutes", "-", "-"];
        assert_eq!(levels[2], has);
    }
}
