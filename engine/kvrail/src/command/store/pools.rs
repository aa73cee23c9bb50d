//! `kvrail store pools`.

use std::collections::BTreeMap;

use clap::Args;
use comfy_table::Table;
use kvrail_protocol::{PoolReport, ShardReport};
use serde::Serialize;

use super::target::TargetArgs;
use crate::command::status::count;
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, human_bytes, print_json, print_table, table};

const EXAMPLES: &str = "\
Examples:
  kvrail store pools
  kvrail store pools --store cache --format json      every counter

All members together. A pool takes free space up to MAXIMUM while the minimums of others stay free;
then it evicts its own oldest blocks. A pool below its MINIMUM takes space from the pool that is
furthest above its own minimum: GIVEN counts the space that a pool gave. HAS is the space of its
segments, with what is open or ready for the next blocks. CONFIGURED no: its [[volume.pool]] is
gone; it keeps its blocks until others need the space.";

/// Arguments of `kvrail store pools`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PoolsArgs {
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Serialize)]
struct ShownPool {
    store: String,
    pools: Vec<PoolReport>,
}

/// Shows.
pub(super) fn run(args: &PoolsArgs, context: &Context) -> Result<(), Failure> {
    let session = args.target.attach(context)?;
    let stores = session.stores(args.target.store())?;
    let names: Vec<_> = stores.iter().map(|store| store.name().to_owned()).collect();
    let report = session.ask(kvrail_client::Client::status)?;
    let shown = names.into_iter().map(|store| {
        let own = report.shards.iter().filter(|shard| shard.store == store);
        let pools = together(own);
        ShownPool { store, pools }
    });
    let shown: Vec<ShownPool> = shown.collect();
    if context.format == Format::Json {
        return print_json(&shown);
    }
    print_table(&rows(&shown))
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

const HEADS: [&str; 13] = [
    "STORE",
    "POOL",
    "CONFIGURED",
    "MINIMUM",
    "MAXIMUM",
    "HAS",
    "BLOCKS",
    "BYTES",
    "PUT",
    "DECLINED",
    "EVICTED",
    "MOVED",
    "GIVEN",
];

fn rows(all: &[ShownPool]) -> Table {
    let mut table = table(&HEADS);
    for it in all {
        for pool in &it.pools {
            table.add_row(row(&it.store, pool));
        }
    }
    table
}

fn row(store: &str, it: &PoolReport) -> Vec<String> {
    let configured = if it.configured { "yes" } else { "no" };
    vec![
        store.to_owned(),
        it.name.clone(),
        configured.to_owned(),
        human_bytes(it.minimum_bytes),
        human_bytes(it.maximum_bytes),
        human_bytes(it.segment_bytes),
        it.blocks.to_string(),
        human_bytes(it.bytes),
        it.counters.put_bytes.map_or_else(|| "-".to_owned(), human_bytes),
        count(it.counters.declined),
        count(it.counters.evicted),
        count(it.counters.moved),
        count(it.counters.given),
    ]
}

#[cfg(test)]
mod tests {
    use kvrail_counters::PoolCounters;
    use kvrail_protocol::{PoolReport, ShardReport};

    use super::{row, together};

    fn pool(name: &str, puts: u64) -> PoolReport {
        PoolReport {
            name: name.into(),
            configured: true,
            minimum_bytes: 1 << 30,
            maximum_bytes: 2 << 30,
            segment_bytes: 3 << 29,
            blocks: 7,
            bytes: 7 << 20,
            counters: PoolCounters {
                evicted: Some(puts),
                given: Some(1),
                ..PoolCounters::default()
            },
        }
    }

    #[test]
    fn members_are_added_and_the_default_pool_comes_first() {
        let member = |pools: Vec<PoolReport>| ShardReport { pools, ..ShardReport::default() };
        let members = [member(vec![pool("default", 5), pool("a", 6)]), member(vec![pool("a", 2)])];
        let all = together(members.iter());
        assert_eq!(all.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>(), ["default", "a"]);
        let cells = [
            "kv",
            "a",
            "yes",
            "2.00 GiB",
            "4.00 GiB",
            "3.00 GiB",
            "14",
            "14.00 MiB",
            "-",
            "-",
            "8",
            "-",
            "2",
        ];
        assert_eq!(row("kv", &all[1]), cells);
    }
}
