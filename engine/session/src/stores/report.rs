//! Stores in the report of `kvrail store status`, and in the log.

use std::collections::BTreeMap;

use kvrail_poller::{DeviceStats, PollerHandle, PoolStats};
use kvrail_protocol::{PoolMemoryHits, PoolReport, ShardReport};
use kvrail_store::{DEFAULT_POOL, Sizing, UNIT_BYTES};

use super::{Shard, StoreJobs, Stores};
use crate::shutdown::LateLeft;

impl Stores {
    /// A session has counted this many gets from memory under a handle: nonsense, where the session
    /// has no such handle.
    pub(crate) fn count_memory_hits(
        &mut self,
        handles: &[PollerHandle],
        (session, handle): (u64, u16),
        hits: u64,
    ) {
        let Some((of, place)) = self.handles.space(session, handle) else { return };
        let store = self.stores.iter().find(|store| store.volume == of.0);
        let Some(shard) = store.and_then(|store| store.shards.get(place.member)) else { return };
        let stats = &handles[shard.poller].stats.devices[shard.device].store;
        let name = stats.pools[usize::from(place.number)].name();
        // A member shows its pools some times a second.
        let pool = if name.is_empty() { DEFAULT_POOL.to_owned() } else { name };
        self.memory_hits.add(of, pool, hits);
    }

    /// The gets from memory of all pools.
    pub(crate) fn report_memory_hits(&self, handles: &[PollerHandle]) -> Vec<PoolMemoryHits> {
        let of = |store: &StoreJobs| {
            let mut all: BTreeMap<String, u64> = BTreeMap::new();
            for shard in &store.shards {
                let pools = &handles[shard.poller].stats.devices[shard.device].store.pools;
                let there = pools.iter().filter(|pool| pool.state.get() > 0);
                all.extend(there.map(|pool| (pool.name(), 0)));
            }
            let counted = self.memory_hits.by_pool(store.volume);
            all.extend(counted.map(|(pool, hits)| (pool.to_owned(), hits)));
            let store = store.name.clone();
            all.into_iter().map(move |(pool, hits)| PoolMemoryHits {
                store: store.clone(),
                pool,
                hits,
            })
        };
        self.stores.iter().flat_map(of).collect()
    }

    /// How every member is.
    pub(crate) fn report(&self, handles: &[PollerHandle]) -> Vec<ShardReport> {
        let mut reports = Vec::new();
        for store in &self.stores {
            for shard in &store.shards {
                let stats = &handles[shard.poller].stats.devices[shard.device];
                let name = (store.name.as_str(), shard.served.device.0);
                let presence =
                    shard.served.presence.as_ref().map_or(0, |table| table.bytes() as u64);
                reports.push(shard_report(name, (&shard.sizing, presence), stats));
            }
        }
        reports
    }

    /// Logs the blocks that a reader reported and that are wrong on the medium.
    pub(crate) fn log_corrupt(&self, handles: &[PollerHandle]) {
        for (poller, handle) in handles.iter().enumerate() {
            while let Some(block) = handle.mailbox.next_corrupt() {
                let here = |shard: &Shard| (shard.poller, shard.device) == (poller, block.device);
                let store = self.stores.iter().find(|store| store.shards.iter().any(here));
                let described = handle.devices.get(block.device);
                tracing::error!(
                    store = store.map_or("unknown", |store| store.name.as_str()),
                    namespace = %String::from_utf8_lossy(block.namespace()),
                    key = format!("{:016x}{:016x}", block.key.hi(), block.key.lo()),
                    device = described.map_or("unknown", |(_, device)| device.name.as_str()),
                    offset = block.offset,
                    "a block was wrong on the medium, and is dropped"
                );
            }
        }
    }

    /// Takes in what pollers could not write at a stop.
    pub(crate) fn take_losses(&mut self, handles: &[PollerHandle]) {
        for (poller, handle) in handles.iter().enumerate() {
            while let Some(loss) = handle.mailbox.next_loss() {
                let here = |shard: &Shard| (shard.poller, shard.device) == (poller, loss.device);
                let store = self.stores.iter().find(|store| store.shards.iter().any(here));
                let name = store.map_or("unknown", |store| store.name.as_str());
                self.losses.add(name, &loss);
            }
        }
    }

    /// Logs all that a stop has lost, and returns what pollers that still run have not written, and
    /// what was lost.
    pub(crate) fn end_late(&mut self, handles: &[PollerHandle]) -> (LateLeft, LateLeft) {
        self.take_losses(handles);
        let lost = self.losses.log();
        let running = handles.iter().filter(|handle| !handle.thread.is_finished());
        let devices = running.flat_map(|handle| &handle.stats.devices);
        let left = devices.fold(LateLeft::default(), |sum, device| {
            let counted = &device.store.counters.serving;
            LateLeft {
                blocks: sum.blocks + counted.late_blocks.get(),
                bytes: sum.bytes + counted.late_bytes.get(),
            }
        });
        (left, lost)
    }

    /// Logs once for each member when its index is full and its medium is not.
    pub(crate) fn look_at_sizes(&mut self, handles: &[PollerHandle]) {
        for store in &mut self.stores {
            for shard in &mut store.shards {
                let device = &handles[shard.poller].devices[shard.device].1.name;
                let stats = &handles[shard.poller].stats.devices[shard.device].store;
                let (blocks, bytes) = (stats.entries.get(), stats.bytes.get());
                let capacity = shard.sizing.capacity_bytes;
                let small = blocks >= shard.sizing.blocks && bytes < capacity / 2;
                if small && !shard.logged_small {
                    let mean = bytes / blocks;
                    tracing::warn!(
                        device,
                        "store {}: the index is full with {} % of the bytes in use: blocks have {} \
                         bytes on average, and it was made for {}; older ones are evicted early, \
                         and puts may be declined. A new store with --block-mean {} holds \
                         more",
                        store.name,
                        bytes * 100 / capacity,
                        mean,
                        shard.served.config.block_mean,
                        mean.max(UNIT_BYTES.into()), // the least that a store is made for
                    );
                    shard.logged_small = true;
                }
            }
        }
    }
}

/// The word for a member's phase.
fn state(device: &DeviceStats) -> &'static str {
    let stats = &device.store;
    match stats.phase.get() {
        1 => "starting",
        2 | 3 if stats.refused.get() != 0 => "refuses writes",
        2 => "warming",
        3 => "serving",
        4 => "does not start",
        5 if device.retired.get() != 0 => "retired",
        5 => "gone",
        _ => "absent",
    }
}

/// How a member is.
fn shard_report(
    (store, device): (&str, u16),
    (sizing, presence_bytes): (&Sizing, u64),
    device_stats: &DeviceStats,
) -> ShardReport {
    let stats = &device_stats.store;
    let mut counters = stats.counters.map(|counter| Some(counter.get()));
    let serving = &stats.counters.serving;
    let gone = [serving.misses_drive_gone.get(), serving.lookup_misses_drive_gone.get()];
    let sums = [&mut counters.store.misses, &mut counters.store.lookup_misses];
    for (misses, gone) in sums.into_iter().zip(gone) {
        *misses = misses.map(|misses| misses + gone);
    }
    ShardReport {
        store: store.to_owned(),
        device,
        state: state(device_stats).into(),
        capacity_bytes: sizing.capacity_bytes,
        memory_bytes: sizing.index_bytes + sizing.table_bytes + sizing.pool_bytes + presence_bytes,
        blocks_max: sizing.blocks,
        blocks: stats.entries.get(),
        bytes: stats.bytes.get(),
        holds: u32::try_from(stats.holds.get()).unwrap_or(u32::MAX),
        namespaces: stats.namespaces[0].get(),
        namespaces_max: stats.namespaces[1].get(),
        oldest_unix_s: u32::try_from(stats.oldest.get()).ok().filter(|oldest| *oldest > 0),
        counters,
        pools: stats.pools.iter().filter_map(|gauges| pool(sizing, gauges)).collect(),
    }
}

/// How a pool is, if it is there.
fn pool(sizing: &Sizing, it: &PoolStats) -> Option<PoolReport> {
    let state = it.state.get();
    let segment = sizing.capacity_bytes / u64::from(sizing.segments);
    (state > 0).then(|| PoolReport {
        name: it.name(),
        configured: state > 1,
        minimum_bytes: it.minimum.get() * segment,
        maximum_bytes: it.maximum.get() * segment,
        segment_bytes: it.segments.get() * segment,
        blocks: it.blocks.get(),
        bytes: it.bytes.get(),
        counters: it.counters.map(|counter| Some(counter.get())),
    })
}
