//! What `kvrail store status` shows of a member.

use kvrail_poller::{PoolCounters, StoreStats};
use kvrail_protocol::{PoolReport, ShardReport};
use kvrail_store::Sizing;

/// How a member is.
pub(super) fn shard(
    (store, device): (&str, u16),
    (sizing, presence_bytes): (&Sizing, u64),
    stats: &StoreStats,
) -> ShardReport {
    let state = match stats.phase.get() {
        1 => "starting",
        2 => "warming",
        3 => "serving",
        4 => "does not start",
        5 => "gone",
        _ => "absent",
    };
    let counters = [
        ("puts", &stats.puts),
        ("put_bytes", &stats.put_bytes),
        ("present", &stats.present),
        ("pending", &stats.pending),
        ("declined", &stats.declined),
        ("declined_first_sight", &stats.declined_first_sight),
        ("declined_budget", &stats.declined_budget),
        ("declined_index_full", &stats.declined_index_full),
        ("declined_broken", &stats.declined_broken),
        ("declined_busy", &stats.declined_busy),
        ("budget_bytes_per_day", &stats.budget_bytes_per_day),
        ("write_tokens", &stats.write_tokens),
        ("abandoned", &stats.abandoned),
        ("hits", &stats.hits),
        ("misses", &stats.misses),
        ("drops", &stats.drops),
        ("evicted", &stats.evicted),
        ("holds_broken", &stats.holds_broken),
        ("moved", &stats.moved),
        ("moved_bytes", &stats.moved_bytes),
        ("reclaimed", &stats.reclaimed),
        ("pages", &stats.pages),
        ("written_bytes", &stats.written_bytes),
        ("failures", &stats.failures),
        ("recovered", &stats.recovered),
        ("distrusted", &stats.distrusted),
        ("suspects", &stats.suspects),
        ("absolved", &stats.absolved),
        ("rotten", &stats.rotten),
        ("requests", &stats.requests),
        ("parked", &stats.parked),
    ];
    ShardReport {
        store: store.to_owned(),
        device,
        state: state.into(),
        capacity_bytes: sizing.capacity_bytes,
        memory_bytes: sizing.index_bytes + sizing.table_bytes + sizing.pool_bytes + presence_bytes,
        blocks_max: sizing.blocks,
        blocks: stats.entries.get(),
        bytes: stats.bytes.get(),
        holds: u32::try_from(stats.holds.get()).unwrap_or(u32::MAX),
        oldest_unix_s: u32::try_from(stats.oldest.get()).ok().filter(|oldest| *oldest > 0),
        counters: counters.iter().map(|(name, it)| ((*name).to_owned(), it.get())).collect(),
        pools: stats.pools.iter().filter_map(|it| pool(sizing, it)).collect(),
    }
}

/// How a pool is, if it is there.
fn pool(sizing: &Sizing, it: &PoolCounters) -> Option<PoolReport> {
    let state = it.state.get();
    let segment = sizing.capacity_bytes / u64::from(sizing.segments);
    let counters = [
        ("puts", &it.puts),
        ("put_bytes", &it.put_bytes),
        ("declined", &it.declined),
        ("evicted", &it.evicted),
        ("moved", &it.moved),
        ("reclaimed", &it.reclaimed),
        ("given", &it.given),
        ("write_tokens", &it.write_tokens),
    ];
    (state > 0).then(|| PoolReport {
        name: it.name(),
        configured: state > 1,
        minimum_bytes: it.minimum.get() * segment,
        maximum_bytes: it.maximum.get() * segment,
        segment_bytes: it.segments.get() * segment,
        blocks: it.blocks.get(),
        bytes: it.bytes.get(),
        counters: counters.iter().map(|(name, it)| ((*name).to_owned(), it.get())).collect(),
    })
}
