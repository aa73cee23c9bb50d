//! Counters a poller writes and everyone may read: one writer each, no read-modify-write.

use crossbeam_utils::CachePadded;
use kvrail_counters::{
    Definition, DeviceCounters, MemberCounters, PollerCounters, PoolCounters, SessionCounters,
};
use kvrail_ring::{Class, LATENCY_BUCKETS, NewLatencies, Opcode, latency_bucket, latency_upper_ns};
use kvrail_store::{POOL_NAME_BYTES_MAX, POOLS_MAX, PoolView, Store};

use crate::counter::Counter;
use crate::segment_map::SegmentMap;

/// Latencies in buckets of a quarter power of two.
#[derive(Debug)]
pub struct Latencies {
    buckets: [Counter; LATENCY_BUCKETS],
    sum_ns: Counter,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| Counter::default()), sum_ns: Counter::default() }
    }
}

impl Latencies {
    /// Counts the same latency this many times.
    #[inline]
    pub fn record(&self, ns: u64, times: u64) {
        self.buckets[latency_bucket(ns)].add(times);
        self.sum_ns.add(ns.wrapping_mul(times));
    }

    /// All latencies together.
    fn sum_ns(&self) -> u64 {
        self.sum_ns.get()
    }

    /// What was counted until now.
    #[must_use]
    pub fn counted(&self) -> LatencyCounts {
        let counts = self.buckets.iter().map(Counter::get).collect();
        LatencyCounts { counts, sum_ns: self.sum_ns.get() }
    }
}

/// Latencies as they were counted at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyCounts {
    counts: Vec<u64>,
    sum_ns: u64,
}

impl Default for LatencyCounts {
    fn default() -> Self {
        Self { counts: vec![0; LATENCY_BUCKETS], sum_ns: 0 }
    }
}

impl LatencyCounts {
    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// Adds what a client has counted since.
    pub fn add_new(&mut self, news: &NewLatencies) {
        for (count, more) in self.counts.iter_mut().zip(&news.counts) {
            *count += u64::from(*more);
        }
        self.sum_ns = self.sum_ns.wrapping_add(news.sum_ns);
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All latencies together, in nanoseconds.
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The buckets that have some, shortest first: the upper bound in nanoseconds, which is
    /// `u64::MAX` of the last bucket there can be, and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        counts.map(|(bucket, &count)| match bucket {
            LAST => (u64::MAX, count),
            _ => (latency_upper_ns(bucket), count),
        })
    }

    /// Upper bound, in nanoseconds, of the bucket in which this share (0 to 1) of all latencies
    /// is reached; 0 when there are none.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let total = self.count();
        if total == 0 {
            return 0;
        }
        let mut left = share * total as f64;
        let reached = self.counts.iter().position(|&count| {
            left -= count as f64;
            left <= 0.0
        });
        latency_upper_ns(reached.unwrap_or(LAST))
    }
}

const LAST: usize = LATENCY_BUCKETS - 1;

/// Kinds of operations whose latencies are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes and discards.
    Other,
}

impl OperationKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Other];

    /// What an operation of a device is.
    #[inline]
    #[must_use]
    pub const fn of(opcode: Opcode) -> Self {
        match opcode {
            Opcode::Read => Self::Read,
            Opcode::Flush | Opcode::Discard => Self::Other,
            _ => Self::Write,
        }
    }
}

/// Latencies of the operations of one kind and class.
#[derive(Debug, Default)]
pub struct IoLatencies {
    /// Submission to completion.
    pub device: Latencies,
    /// Acceptance to submission.
    pub queue: Latencies,
}

/// What the store on a device did. A poller writes them every few milliseconds.
#[derive(Debug, Default)]
pub struct StoreStats {
    /// How far it is: 0 there is none, 1 starting, 2 warming, 3 serving, 4 it does not start (a
    /// call says why), 5 its device is gone.
    pub phase: Counter,
    /// What it counts.
    pub counters: MemberCounters<Counter>,
    /// The status with which the drive refuses writes now; 0: it takes them.
    pub refused: Counter,
    /// Entries of the index in use.
    pub entries: Counter,
    /// Bytes of all blocks.
    pub bytes: Counter,
    /// Holds in force.
    pub holds: Counter,
    /// Namespaces that there are, and that there may be.
    pub namespaces: [Counter; 2],
    /// Seconds since 1970 when the oldest segment with content was opened; 0: none.
    pub oldest: Counter,
    /// Its pools, by their numbers on the medium.
    pub pools: [PoolStats; POOLS_MAX],
    /// What its segments hold.
    pub map: SegmentMap,
}

/// What a pool of a store has and counts. See `kvrail_store::PoolView`.
#[derive(Debug, Default)]
pub struct PoolStats {
    /// 1 for a pool that is there, 2 for one with a rule.
    pub state: Counter,
    /// Its name, as numbers of eight bytes.
    name: [Counter; POOL_NAME_BYTES_MAX / 8],
    /// Segments kept for it.
    pub minimum: Counter,
    /// Segments that it has at most.
    pub maximum: Counter,
    /// Segments that it has.
    pub segments: Counter,
    /// Blocks in it.
    pub blocks: Counter,
    /// Bytes of them.
    pub bytes: Counter,
    /// What it counts.
    pub counters: PoolCounters<Counter>,
}

impl PoolStats {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        let bytes = self.name.iter().flat_map(|word| word.get().to_le_bytes());
        let name: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&name).into_owned()
    }

    fn show(&self, view: &PoolView<'_>, tier: &PoolTier, segments: u32) {
        let mut name = [0; POOL_NAME_BYTES_MAX];
        let length = view.name.len().min(name.len());
        name[..length].copy_from_slice(&view.name.as_bytes()[..length]);
        for (word, bytes) in self.name.iter().zip(name.chunks_exact(8)) {
            word.set(bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
        let (limits, stats) = (view.limits, view.stats);
        let rows = [
            (&self.state, if view.ruled { 2 } else { 1 }),
            (&self.minimum, limits.minimum.into()),
            (&self.maximum, limits.maximum.min(segments).into()),
            (&self.segments, view.segments.into()),
            (&self.blocks, view.blocks),
            (&self.bytes, view.bytes),
        ];
        rows.iter().for_each(|(counter, value)| counter.set(*value));
        let counted = PoolCounters {
            tier_blocks: tier.blocks,
            tier_bytes: tier.bytes,
            tier_ages_s: tier.ages_s,
            late_blocks: tier.late_blocks,
            late_dropped_bytes: tier.late_dropped_bytes,
            ..stats
        };
        show_all(self.counters.each(), counted.each());
    }
}

/// What a pool's namespaces have in the memory tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolTier {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) ages_s: u64,
    pub(crate) late_blocks: u64,
    /// Since the start.
    pub(crate) late_dropped_bytes: u64,
}

impl StoreStats {
    /// Shows how a store's pools are, with what they have in the memory tier.
    pub(crate) fn show_pools(&self, store: &Store, tiers: &[PoolTier; POOLS_MAX]) {
        let segments = store.sizing().segments;
        for view in store.pools() {
            let pool = usize::from(view.number);
            self.pools[pool].show(&view, &tiers[pool], segments);
        }
    }

    /// Shows what a store counted.
    pub(crate) fn show(&self, counted: &kvrail_store::Stats) {
        show_all(self.counters.store.each(), counted.each());
    }
}

/// Shows counters, which are those of the same table.
pub(crate) fn show_all<'a>(
    shown: impl Iterator<Item = (&'static Definition, &'a Counter)>,
    counted: impl Iterator<Item = (&'static Definition, &'a u64)>,
) {
    for ((_, shown), (_, count)) in shown.zip(counted) {
        shown.set(*count);
    }
}

/// What one device did.
#[derive(Debug, Default)]
pub struct DeviceStats {
    /// Reads finished.
    pub reads: Counter,
    /// Writes finished.
    pub writes: Counter,
    /// Flushes and discards finished.
    pub others: Counter,
    /// Bytes read.
    pub read_bytes: Counter,
    /// Bytes written.
    pub write_bytes: Counter,
    /// What it counts beside them.
    pub counters: DeviceCounters<Counter>,
    /// 1 while the device is gone.
    pub gone: Counter,
    /// 1 once the device was taken out of service for good; it is gone, too, from then on.
    pub retired: Counter,
    /// How often it was to let go of its file, and 1 once it has.
    pub releases: [Counter; 2],
    /// Monotonic nanoseconds at which the oldest request was accepted; 0 when there is none.
    pub oldest_ns: Counter,
    /// By kind, then by class.
    latencies: [[IoLatencies; Class::ALL.len()]; OperationKind::ALL.len()],
    /// The store on it, if it is a member of one.
    pub store: StoreStats,
}

impl DeviceStats {
    /// Latencies of the operations of one kind and class.
    #[inline]
    #[must_use]
    pub fn latencies(&self, kind: OperationKind, class: Class) -> &IoLatencies {
        &self.latencies[kind as usize][class as usize]
    }

    /// Operations that ended, and their time at the device in nanoseconds.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        let times = self.latencies.iter().flatten().map(|latencies| latencies.device.sum_ns());
        let operations = [&self.reads, &self.writes, &self.others].map(Counter::get);
        (operations.iter().sum(), times.fold(0, u64::wrapping_add))
    }
}

/// What one session asked of one poller.
#[derive(Debug, Default)]
pub struct SessionStats {
    /// What it counts.
    pub counters: SessionCounters<Counter>,
    /// Blocks of stores that it reported, and that were what they should be.
    pub false_reports: Counter,
}

/// What one poller did. Padded, so that its lines are its own.
#[derive(Debug)]
pub struct PollerStats {
    /// What it counts.
    pub counters: CachePadded<PollerCounters<Counter>>,
    /// Monotonic nanoseconds of the last tick: the heartbeat.
    pub beat_ns: Counter,
    /// The kernel's number of its thread; 0 before it runs.
    pub thread: Counter,
    /// Its devices, in their local order.
    pub devices: Vec<DeviceStats>,
    /// Sessions by slot. They only grow: who gives a slot out anew remembers where it began.
    pub sessions: Vec<SessionStats>,
}

impl PollerStats {
    /// Counters for a poller with this many devices.
    #[must_use]
    pub fn new(devices: usize) -> Self {
        Self {
            counters: CachePadded::default(),
            beat_ns: Counter::default(),
            thread: Counter::default(),
            devices: (0..devices).map(|_| DeviceStats::default()).collect(),
            sessions: (0..crate::limits::SESSIONS_MAX).map(|_| SessionStats::default()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Latencies;

    #[test]
    fn quantiles_walk_the_buckets() {
        let latencies = Latencies::default();
        assert_eq!(latencies.counted().quantile_ns(0.5), 0);
        latencies.record(1000, 99);
        latencies.record(1_000_000, 1);
        let counted = latencies.counted();
        assert_eq!(counted.quantile_ns(0.5), 1024);
        assert!(counted.quantile_ns(0.999) >= 1_000_000);
        assert_eq!(counted.sum_ns(), 1_099_000);
        let mut twice = counted.clone();
        twice.add(&counted);
        let buckets: Vec<_> = twice.buckets().collect();
        assert_eq!(buckets, [(1024, 198), (1_048_576, 2)]);
    }

    #[test]
    fn the_last_bucket_has_no_bound() {
        let latencies = Latencies::default();
        latencies.record(u64::MAX, 1);
        let buckets: Vec<_> = latencies.counted().buckets().collect();
        assert_eq!(buckets, [(u64::MAX, 1)]);
    }
}
