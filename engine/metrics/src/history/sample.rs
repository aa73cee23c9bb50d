//! What happened between two reports.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvrail_protocol::{DeviceReport, DeviceState, HistogramReport, ShardReport, StatusReport};

use super::{History, Slot};
use crate::snapshot::RenderedReport;

/// Makes samples of reports; keeps the last one.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    before: Option<Arc<RenderedReport>>,
}

impl Sampler {
    /// Adds what happened since the last report; of the first one, since the sidecar's start.
    pub(crate) fn take(&mut self, report: Arc<RenderedReport>, to: &mut History) {
        let before = self.before.as_ref().map(|before| &before.report);
        to.add(sample(&report.report, before));
        self.before = Some(report);
    }
}

/// The values in the order of `SERIES`.
pub(super) fn sample(now: &StatusReport, before: Option<&StatusReport>) -> Slot {
    let since_ms = before.map_or(0, |before| before.sidecar.uptime_ms);
    let (mut gets, mut drives_p99_ns) = (Merged::default(), 0);
    for call in now.calls.iter().filter(|call| call.operation == "get") {
        let calls = before.map_or(&[][..], |before| &before.calls);
        let was =
            calls.iter().find(|was| (&was.operation, &was.size) == (&call.operation, &call.size));
        gets.add(&call.latency, was.map(|was| &was.latency));
    }
    let (mut read, mut written) = (0, 0);
    for device in &now.devices {
        let devices = before.map_or(&[][..], |before| &before.devices);
        let was = devices.iter().find(|was| was.index == device.index);
        read += grown(device.reads.bytes, was.map(|was| was.reads.bytes));
        written += grown(device.writes.bytes, was.map(|was| was.writes.bytes));
        drives_p99_ns = drives_p99_ns.max(p99_of_drive(device, was));
    }
    let (mut hits, mut misses) = (0, 0);
    for shard in &now.shards {
        let shards = before.map_or(&[][..], |before| &before.shards);
        let was = shards.iter().find(|was| was.device == shard.device);
        hits += grown(hits_of(shard), was.map(hits_of));
        misses += grown(misses_of(shard), was.map(misses_of));
    }
    let memory_hits = grown(now.memory_hits(), before.map(StatusReport::memory_hits));
    let gone = |device: &&DeviceReport| device.state == DeviceState::Gone && !device.retired;
    let gone = now.devices.iter().filter(gone).count();
    let held = || now.shards.iter().filter(|shard| !shard.is_retired());
    [
        now.sidecar.uptime_ms.saturating_sub(since_ms),
        hits + memory_hits,
        memory_hits,
        misses,
        read,
        written,
        gets.p99_ns(),
        drives_p99_ns,
        now.troubles.len() as u64,
        (gone + now.missing_members().count()) as u64,
        held().map(|shard| shard.bytes).sum(),
        held().map(|shard| shard.capacity_bytes).sum(),
    ]
}

/// How much a counter has grown. One that is smaller began anew: its store was replaced.
fn grown(now: u64, before: Option<u64>) -> u64 {
    now.checked_sub(before.unwrap_or(0)).unwrap_or(now)
}

/// Of the requested keys, those whose block was returned.
fn hits_of(shard: &ShardReport) -> u64 {
    shard.counters.store.hits.unwrap_or(0)
}

/// An engine looks keys up and gets what was found: its misses are misses of lookups.
fn misses_of(shard: &ShardReport) -> u64 {
    let counters = &shard.counters.store;
    counters.misses.unwrap_or(0) + counters.lookup_misses.unwrap_or(0)
}

/// Of reads and writes, at the device.
fn p99_of_drive(now: &DeviceReport, before: Option<&DeviceReport>) -> u64 {
    let mut merged = Merged::default();
    for kind in now.latencies.iter().filter(|kind| kind.operation != "other") {
        let kinds = before.map_or(&[][..], |before| &before.latencies);
        let was =
            kinds.iter().find(|was| (&was.operation, &was.class) == (&kind.operation, &kind.class));
        merged.add(&kind.device, was.map(|was| &was.device));
    }
    merged.p99_ns()
}

/// Latencies of several histograms together.
#[derive(Debug, Default)]
struct Merged(BTreeMap<u64, u64>);

impl Merged {
    /// Adds what has come since.
    fn add(&mut self, now: &HistogramReport, before: Option<&HistogramReport>) {
        let new = now.since(before.unwrap_or(&HistogramReport::default()));
        for (upper_ns, count) in new.buckets {
            *self.0.entry(upper_ns).or_default() += count;
        }
    }

    fn p99_ns(self) -> u64 {
        let buckets = self.0.into_iter().collect();
        HistogramReport { sum_ns: 0, buckets }.quantile_ns(0.99)
    }
}
