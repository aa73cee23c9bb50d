//! The columns of each table of a report.

use kvrail_protocol::{
    CallLatencyReport, DeviceReport, DriveHealth, GpuReport, GpuState, PollerReport, SessionReport,
    ShardReport, VolumeReport,
};

use super::cells::{bytes, client_pid, count, cpu, dash, duration, percent, ranges, waker};
use StatusDetail::{Screen, Verbose};
use kvrail_cli::output::human_bytes;

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StatusDetail {
    /// The columns that fit a screen.
    Screen,
    /// Everything.
    Verbose,
}

/// A column of a table: its head, from which detail on it is shown, and what stands in it.
pub(crate) type Column<T> = (&'static str, StatusDetail, fn(&T) -> String);

pub(super) const VOLUMES: [Column<VolumeReport>; 7] = [
    ("VOLUME", Screen, |volume| volume.name.clone()),
    ("UUID", Verbose, |volume| volume.uuid.to_string()),
    ("CAPACITY", Screen, |volume| human_bytes(volume.capacity_bytes)),
    ("STRIPE", Screen, |volume| human_bytes(volume.stripe_bytes)),
    ("BLOCK", Screen, |volume| format!("{} B", volume.logical_block)),
    ("MEMBERS", Screen, |volume| match volume.missing.len() {
        0 => volume.members.len().to_string(),
        missing => format!("{} of {}", volume.members.len(), volume.members.len() + missing),
    }),
    ("THEY ARE", Verbose, |volume| volume.members.join(" ")),
];

/// Members of stores.
pub(crate) const SHARDS: [Column<ShardReport>; 7] = [
    ("STORE", Screen, |shard| shard.store.clone()),
    ("DEVICE", Screen, |shard| shard.device.to_string()),
    ("STATE", Screen, |shard| shard.state.clone()),
    ("BLOCKS", Screen, |shard| format!("{} of {}", shard.blocks, shard.blocks_max)),
    ("HITS", Screen, |shard| count(shard.counters.store.hits)),
    ("MISSES", Screen, |shard| count(shard.counters.store.misses)),
    ("RAM", Screen, |shard| human_bytes(shard.memory_bytes)),
];

pub(super) const DEVICES: [Column<DeviceReport>; 19] = [
    ("DEVICE", Screen, |device| device.index.to_string()),
    ("NAME", Screen, |device| device.name.clone()),
    ("MODE", Screen, |device| device.absence().map_or_else(|| device.mode.clone(), Into::into)),
    ("I/O", Verbose, |device| device.io.clone()),
    ("DEPTH", Verbose, |device| device.depth.to_string()),
    ("BYTES", Verbose, |device| bytes(device.counters.in_flight_bytes)),
    ("WRITES UP TO", Verbose, |device| bytes(device.counters.write_bytes)),
    ("NOW", Screen, |device| count(device.counters.in_flight)),
    ("WAIT", Screen, |device| count(device.counters.waiting)),
    ("READS", Verbose, |device| device.reads.operations.to_string()),
    ("READ", Screen, |device| human_bytes(device.reads.bytes)),
    ("WRITES", Verbose, |device| device.writes.operations.to_string()),
    ("WRITTEN", Screen, |device| human_bytes(device.writes.bytes)),
    ("P50", Verbose, |device| duration(device.device_latency.p50_ns)),
    ("P99", Screen, |device| duration(device.device_latency.p99_ns)),
    ("P99.9", Verbose, |device| duration(device.device_latency.p999_ns)),
    ("QUEUED P99", Verbose, |device| duration(device.queue_latency.p99_ns)),
    ("ERRORS", Screen, |device| count(device.counters.errors)),
    ("LATE", Verbose, |device| count(device.counters.late)),
];

/// A device's number, and its drive's health.
pub(super) type DriveRow = (u16, DriveHealth);

pub(super) const DRIVES: [Column<DriveRow>; 6] = [
    ("DRIVE OF", Verbose, |(device, _)| device.to_string()),
    ("TEMPERATURE", Verbose, |(_, health)| {
        let limit =
            health.warning_celsius.map_or_else(String::new, |at| format!(" (warns at {at})"));
        health.celsius.map_or_else(dash, |celsius| format!("{celsius} C{limit}"))
    }),
    ("LIFE USED", Verbose, |(_, health)| percent(health.used_percent)),
    ("SPARE", Verbose, |(_, health)| {
        let least = health.spare_threshold_percent.map(|least| format!(" (warns below {least} %)"));
        percent(health.spare_percent) + &least.unwrap_or_default()
    }),
    ("MEDIA ERRORS", Verbose, |(_, health)| count(health.media_errors)),
    ("WARNINGS", Verbose, |(_, health)| match &health.warnings {
        None => dash(),
        Some(none) if none.is_empty() => "none".into(),
        Some(some) => some.join(", "),
    }),
];

pub(super) const GPUS: [Column<GpuReport>; 12] = [
    ("GPU", Screen, |gpu| gpu.gpu.index.to_string()),
    ("UUID", Verbose, |gpu| gpu.gpu.uuid.clone()),
    ("STATE", Screen, |gpu| match gpu.state {
        GpuState::Serving => "serving".into(),
        GpuState::Failed => "failed".into(),
    }),
    ("CPU", Screen, |gpu| cpu(gpu.cpu)),
    ("REGIONS", Screen, |gpu| format!("{} ({})", gpu.regions, human_bytes(gpu.region_bytes))),
    ("SLOTS", Screen, |gpu| format!("{} of {}", gpu.staging.taken, gpu.staging.slots)),
    ("LAUNCHES", Verbose, |gpu| count(gpu.counters.launches)),
    ("MOVES", Verbose, |gpu| count(gpu.counters.moves)),
    ("TO GPU", Screen, |gpu| bytes(gpu.counters.scattered_bytes)),
    ("FROM GPU", Screen, |gpu| bytes(gpu.counters.gathered_bytes)),
    ("DIRECT", Screen, |gpu| bytes(gpu.counters.direct_bytes)),
    ("FAILED", Screen, |gpu| count(gpu.counters.failed)),
];

pub(super) const POLLERS: [Column<PollerReport>; 8] = [
    ("POLLER", Screen, |poller| poller.index.to_string()),
    ("CPU", Screen, |poller| cpu(poller.cpu)),
    ("BUSY", Screen, |poller| format!("{:.1} %", poller.busy_share * 100.0)),
    ("SLEEPS", Verbose, |poller| count(poller.counters.sleeps)),
    ("DOORBELLS", Verbose, |poller| count(poller.counters.doorbells)),
    ("LANES", Screen, |poller| poller.lanes.to_string()),
    ("BEAT", Screen, |poller| match &poller.stalled {
        None => format!("{} ms ago", poller.heartbeat_age_ns / 1_000_000),
        Some(stall) => format!("STALLED {} s", stall.for_s),
    }),
    ("DEVICES", Screen, |poller| ranges(&poller.devices)),
];

pub(super) const SESSIONS: [Column<SessionReport>; 15] = [
    ("SESSION", Screen, |session| session.id.to_string()),
    ("PID", Screen, client_pid),
    ("POD", Verbose, |session| session.pod.clone().unwrap_or_else(|| "-".into())),
    ("UID", Verbose, |session| session.uid.to_string()),
    ("NAME", Screen, |session| session.name.clone()),
    ("STATE", Screen, |session| session.state.clone()),
    ("FOR", Verbose, |session| format!("{} s", session.since_s)),
    ("QUEUES", Verbose, |session| session.queues.to_string()),
    ("WOKEN BY", Verbose, |session| waker(session.woken_by).to_owned()),
    ("ARENAS", Screen, |session| human_bytes(session.arena_bytes)),
    ("GPU REGIONS", Verbose, |session| {
        format!("{} ({})", session.gpu_regions, human_bytes(session.gpu_bytes))
    }),
    ("ACCEPTED", Verbose, |session| count(session.counters.accepted)),
    ("COMPLETED", Verbose, |session| count(session.counters.completed)),
    ("FAILED", Screen, |session| count(session.counters.failed)),
    ("MOVED", Screen, |session| bytes(session.counters.bytes)),
];

/// Calls of clients, from call to answer.
pub(crate) const CALLS: [Column<CallLatencyReport>; 6] = [
    ("CALL", Screen, |call| call.operation.clone()),
    ("SIZE", Screen, |call| call.size.clone()),
    ("CALLS", Screen, |call| call.latency.count().to_string()),
    ("P50", Screen, |call| duration(call.latency.quantile_ns(0.5))),
    ("P99", Screen, |call| duration(call.latency.quantile_ns(0.99))),
    ("P99.9", Screen, |call| duration(call.latency.quantile_ns(0.999))),
];
