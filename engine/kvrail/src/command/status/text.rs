//! A report as people read it.

use std::cmp::Reverse;

use kvrail_protocol::{
    DeviceReport, DeviceState, GpuReport, GpuState, PollerReport, SessionReport, ShardReport,
    StatusReport, VolumeReport, Waker,
};

use Detail::{Screen, Verbose};

use crate::output::{human_bytes, table};

/// Sessions that are shown without `--verbose`: those that moved most.
const BUSIEST: usize = 8;

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Detail {
    /// What fits a screen.
    Screen,
    /// Everything.
    Verbose,
}

/// A column of a table: its head, from which detail on it is shown, and what stands in it.
pub(crate) type Column<T> = (&'static str, Detail, fn(&T) -> String);

/// The whole report.
pub(crate) fn text(report: &StatusReport, detail: Detail) -> String {
    let sections = [
        sidecar(report),
        rows(&VOLUMES, &report.volumes, detail),
        rows(&SHARDS, &report.shards, detail),
        rows(&DEVICES, &report.devices, detail),
        doubts(report),
        gpus(report, detail),
        rows(&POLLERS, &report.pollers, detail) + &stalls(report),
        sessions(report, detail),
        reasons(report, detail),
        notes(report),
    ];
    sections.into_iter().filter(|section| !section.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// A table of the columns that the detail asks for; nothing where there are no items.
pub(crate) fn rows<'a, T: 'a>(
    columns: &[Column<T>],
    items: impl IntoIterator<Item = &'a T>,
    detail: Detail,
) -> String {
    let shown = || columns.iter().filter(|(_, from, _)| *from <= detail);
    let mut rows = table(&shown().map(|(head, ..)| *head).collect::<Vec<_>>());
    rows.add_rows(items.into_iter().map(|item| shown().map(move |(.., show)| show(item))));
    if rows.is_empty() {
        return String::new();
    }
    rows.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

fn sidecar(report: &StatusReport) -> String {
    let it = &report.sidecar;
    let regions = &report.regions;
    let mut text = format!(
        "kvrail {} pid {} {:?} for {} s on {} (epoch {})\n{} arenas, {} of {} shared; \
         {} of {} sessions, at most {} of one user",
        it.version,
        it.pid,
        it.state,
        it.uptime_s,
        it.socket,
        it.epoch,
        regions.arenas,
        human_bytes(regions.bytes),
        human_bytes(regions.limit_bytes),
        report.sessions.len(),
        it.sessions_max,
        it.sessions_per_uid,
    );
    if regions.quarantined > 0 {
        text += &format!(
            "\n{} arenas of dead clients ({}) wait for their devices, the oldest for {} s",
            regions.quarantined,
            human_bytes(regions.quarantined_bytes),
            regions.quarantined_oldest_s
        );
    }
    if it.closing > 0 {
        text += &format!(
            "\n{} ended connections wait for what their clients had sent to be closed",
            it.closing
        );
    }
    if !report.sandbox.mode.is_empty() {
        text += &format!("\nsandbox {}", report.sandbox.words());
    }
    if it.refused > 0 {
        text += &format!("\n{} connections were refused", it.refused);
    }
    text
}

const VOLUMES: [Column<VolumeReport>; 6] = [
    ("VOLUME", Screen, |it| it.name.clone()),
    ("UUID", Verbose, |it| it.uuid.to_string()),
    ("CAPACITY", Screen, |it| human_bytes(it.capacity_bytes)),
    ("STRIPE", Screen, |it| human_bytes(it.stripe_bytes)),
    ("BLOCK", Screen, |it| format!("{} B", it.logical_block)),
    ("MEMBERS", Screen, |it| it.members.join(" ")),
];

/// Members of stores.
pub(crate) const SHARDS: [Column<ShardReport>; 7] = [
    ("STORE", Screen, |it| it.store.clone()),
    ("DEVICE", Screen, |it| it.device.to_string()),
    ("STATE", Screen, |it| it.state.clone()),
    ("BLOCKS", Screen, |it| format!("{} of {}", it.blocks, it.blocks_max)),
    ("HITS", Screen, |it| it.counters.get("hits").copied().unwrap_or(0).to_string()),
    ("MISSES", Screen, |it| it.counters.get("misses").copied().unwrap_or(0).to_string()),
    ("RAM", Screen, |it| human_bytes(it.memory_bytes)),
];

const DEVICES: [Column<DeviceReport>; 19] = [
    ("DEVICE", Screen, |it| it.index.to_string()),
    ("NAME", Screen, |it| it.name.clone()),
    ("MODE", Screen, |it| match it.state {
        DeviceState::Serving => it.mode.clone(),
        DeviceState::Gone => "gone".into(),
    }),
    ("I/O", Verbose, |it| it.io.clone()),
    ("DEPTH", Verbose, |it| it.depth.to_string()),
    ("BYTES", Verbose, |it| human_bytes(it.in_flight_bytes)),
    ("WRITES UP TO", Verbose, |it| human_bytes(it.write_bytes)),
    ("NOW", Screen, |it| it.in_flight.to_string()),
    ("WAIT", Screen, |it| it.waiting.to_string()),
    ("READS", Verbose, |it| it.reads.operations.to_string()),
    ("READ", Screen, |it| human_bytes(it.reads.bytes)),
    ("WRITES", Verbose, |it| it.writes.operations.to_string()),
    ("WRITTEN", Screen, |it| human_bytes(it.writes.bytes)),
    ("P50", Screen, |it| micros(it.device_latency.p50_ns)),
    ("P99", Screen, |it| micros(it.device_latency.p99_ns)),
    ("P99.9", Verbose, |it| micros(it.device_latency.p999_ns)),
    ("QUEUED P99", Screen, |it| micros(it.queue_latency.p99_ns)),
    ("ERRORS", Screen, |it| it.errors.to_string()),
    ("LATE", Verbose, |it| it.late.to_string()),
];

/// Devices that do not answer.
pub(crate) fn doubts(report: &StatusReport) -> String {
    let overdue = report.devices.iter().filter(|device| device.overdue > 0).map(|device| {
        let (index, count, age) = (device.index, device.overdue, device.oldest_ms / 1000);
        format!("  {index}: {count} requests are too old, the oldest {age} s: it does not answer")
    });
    overdue.collect::<Vec<_>>().join("\n")
}

/// Why each device has the mode it has.
pub(crate) fn reasons(report: &StatusReport, detail: Detail) -> String {
    let devices = report.devices.iter().filter(|_| detail == Verbose);
    let why = devices.map(|device| {
        let features = device.features.join(", ");
        format!("device {}: {}; {features}", device.index, device.reason)
    });
    why.collect::<Vec<_>>().join("\n")
}

const GPUS: [Column<GpuReport>; 12] = [
    ("GPU", Screen, |it| it.gpu.index.to_string()),
    ("UUID", Verbose, |it| it.gpu.uuid.clone()),
    ("STATE", Screen, |it| match it.state {
        GpuState::Serving => "serving".into(),
        GpuState::Failed => "failed".into(),
    }),
    ("CPU", Screen, |it| cpu(it.cpu)),
    ("REGIONS", Screen, |it| format!("{} ({})", it.regions, human_bytes(it.region_bytes))),
    ("SLOTS", Screen, |it| format!("{} of {}", it.staging.taken, it.staging.slots)),
    ("LAUNCHES", Verbose, |it| it.launches.to_string()),
    ("MOVES", Verbose, |it| it.moves.to_string()),
    ("TO GPU", Screen, |it| human_bytes(it.scattered_bytes)),
    ("FROM GPU", Screen, |it| human_bytes(it.gathered_bytes)),
    ("DIRECT", Screen, |it| human_bytes(it.direct_bytes)),
    ("FAILED", Screen, |it| it.failed.to_string()),
];

/// The GPUs, why one failed, and how each volume's bytes get there.
pub(crate) fn gpus(report: &StatusReport, detail: Detail) -> String {
    let mut lines = Vec::new();
    for it in &report.gpus {
        lines.extend(it.failure.iter().map(|why| format!("\n  {}: {why}", it.gpu.index)));
        lines.extend(it.routes.iter().map(|route| {
            let volume = report.volumes.get(usize::from(route.volume));
            let volume = volume.map_or("?", |volume| volume.name.as_str());
            let why = if detail == Verbose { format!(": {}", route.reason) } else { String::new() };
            format!("\n  {}: volume {volume} is {}{why}", it.gpu.index, route.mechanism)
        }));
    }
    rows(&GPUS, &report.gpus, detail) + &lines.concat()
}

const POLLERS: [Column<PollerReport>; 8] = [
    ("POLLER", Screen, |it| it.index.to_string()),
    ("CPU", Screen, |it| cpu(it.cpu)),
    ("BUSY", Screen, |it| format!("{:.1} %", it.busy_share * 100.0)),
    ("SLEEPS", Verbose, |it| it.sleeps.to_string()),
    ("BELLS", Verbose, |it| it.bells.to_string()),
    ("LANES", Screen, |it| it.lanes.to_string()),
    ("BEAT", Screen, |it| match &it.stalled {
        None => format!("{} ms ago", it.heartbeat_age_ns / 1_000_000),
        Some(stall) => format!("STALLED {} s", stall.for_s),
    }),
    ("DEVICES", Screen, |it| {
        it.devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }),
];

/// What keeps the pollers that do not turn.
pub(crate) fn stalls(report: &StatusReport) -> String {
    let stalled = report.pollers.iter().filter_map(|poller| {
        let kernel = &poller.stalled.as_ref()?.kernel;
        Some(format!("\n  {} is stalled, a device keeps it: {kernel}", poller.index))
    });
    stalled.collect()
}

const SESSIONS: [Column<SessionReport>; 14] = [
    ("SESSION", Screen, |it| it.id.to_string()),
    ("PID", Screen, |it| it.pid.to_string()),
    ("UID", Screen, |it| it.uid.to_string()),
    ("NAME", Screen, |it| it.name.clone()),
    ("STATE", Screen, |it| it.state.clone()),
    ("FOR", Screen, |it| format!("{} s", it.since_s)),
    ("QUEUES", Verbose, |it| it.queues.to_string()),
    ("WOKEN BY", Verbose, |it| waker(it.woken_by).to_owned()),
    ("ARENAS", Screen, |it| human_bytes(it.arena_bytes)),
    ("GPU REGIONS", Verbose, |it| format!("{} ({})", it.gpu_regions, human_bytes(it.gpu_bytes))),
    ("ACCEPTED", Verbose, |it| it.accepted.to_string()),
    ("COMPLETED", Screen, |it| it.completed.to_string()),
    ("FAILED", Screen, |it| it.failed.to_string()),
    ("MOVED", Screen, |it| human_bytes(it.bytes)),
];

/// The sessions; of many those that moved most, and those that are on their way out.
fn sessions(report: &StatusReport, detail: Detail) -> String {
    let mut all: Vec<_> = report.sessions.iter().collect();
    let shown = if detail == Verbose { all.len() } else { BUSIEST.min(all.len()) };
    if shown < all.len() {
        all.sort_by_key(|it| (it.state == "attached", Reverse(it.bytes), it.id));
    }
    let mut text = rows(&SESSIONS, all.iter().take(shown).copied(), detail);
    if shown < all.len() {
        text += &format!("\n  and {} more: kvrail status --verbose", all.len() - shown);
    }
    text
}

/// Where a thread runs.
pub(crate) fn cpu(number: Option<u32>) -> String {
    number.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string())
}

fn waker(by: Waker) -> &'static str {
    match by {
        Waker::Poller => "poller",
        Waker::Ringer => "ringer",
    }
}

/// What an operator should know.
pub(crate) fn notes(report: &StatusReport) -> String {
    report.notes.iter().map(|note| format!("note: {note}")).collect::<Vec<_>>().join("\n")
}

/// Nanoseconds as microseconds.
pub(crate) fn micros(ns: u64) -> String {
    if ns == 0 {
        return "-".to_owned();
    }
    let tenths = ns.div_ceil(100);
    format!("{}.{} us", tenths / 10, tenths % 10)
}

#[cfg(test)]
pub(super) mod tests {
    use kvrail_protocol::StatusReport;
    use serde_json::{Value, json};

    use super::{Detail, text};

    /// A sidecar with eight drives and a session for each of sixty clients.
    pub(in super::super) fn report() -> StatusReport {
        let latency = json!({"p50_ns": 84_211, "p99_ns": 1_920_400, "p999_ns": 4_000_000});
        let counts = json!({"operations": 123_456_789, "bytes": 1_234_567_890_123_u64});
        let device = |index: u64| -> Value {
            json!({
                "index": index, "poller": index, "kind": "block", "capacity_bytes": 1,
                "logical_block": 512, "name": format!("/dev/nvme{index}n1"), "state": "serving",
                "mode": "iopoll", "reason": "auto: the fastest of four", "features": ["NODROP"],
                "io": "direct", "depth": 128, "in_flight": 64, "waiting": 1000, "reads": counts,
                "writes": counts, "others": 0, "errors": 0, "late": 0, "overdue": 0,
                "oldest_ms": 0, "device_latency": latency, "queue_latency": latency,
            })
        };
        let poller = |index: u64| {
            json!({
                "index": index, "cpu": index, "devices": [index], "lanes": 64, "ticks": 1,
                "busy_share": 0.5, "sleeps": 1, "bells": 1, "heartbeat_age_ns": 1,
                "allocations": 0, "stalled": null,
            })
        };
        let session = |id: u64| {
            json!({
                "id": id, "pid": 4_000_000 + id, "uid": 1000, "gid": 1000, "name": "vllm-worker-0",
                "library": "kvrail 0.1.0", "arenas": 1, "arena_bytes": 1_u64 << 36, "queues": 8,
                "accepted": 1, "completed": 123_456_789, "failed": 0,
                "bytes": id << 40, "since_s": 100_000,
                "state": if id == 7 { "reclaiming: it ended" } else { "attached" },
            })
        };
        let all = |one: &dyn Fn(u64) -> Value, count| (0..count).map(one).collect::<Vec<_>>();
        serde_json::from_value(json!({
            "sidecar": {
                "version": "0.1.0", "pid": 4_000_000, "state": "serving", "uptime_s": 1_000_000,
                "epoch": 1_770_000_000, "socket": "/run/kvrail/kvrail.sock", "refused": 0,
                "sessions_max": 64,
            },
            "pollers": all(&poller, 8), "devices": all(&device, 8), "sessions": all(&session, 60),
            "volumes": [{
                "name": "kv0", "uuid": "5d5d5d5d-5d5d-5d5d-5d5d-5d5d00000000", "members": ["a"],
                "capacity_bytes": 1_u64 << 45, "stripe_bytes": 262_144, "logical_block": 512,
            }],
            "regions": {
                "arenas": 60, "bytes": 1, "quarantined": 0, "quarantined_bytes": 0,
                "quarantined_oldest_s": 0, "limit_bytes": 1,
            },
            "notes": [],
            "shards": [],
        }))
        .expect("a report")
    }

    #[test]
    fn a_busy_host_fits_a_screen() {
        let shown = text(&report(), Detail::Screen);
        let width = shown.lines().map(|line| line.chars().count()).max();
        assert!(shown.lines().count() <= 45 && width <= Some(120), "{width:?}\n{shown}");
        // Who is on its way out is named, then those that moved most.
        for word in ["reclaiming", "4000059", "and 52 more", "/dev/nvme7n1", "84.3 us"] {
            assert!(shown.contains(word), "no {word:?} in\n{shown}");
        }
        assert!(!shown.contains("4000051") && !shown.contains("auto: "), "{shown}");
    }

    #[test]
    fn all_is_there_when_asked_for() {
        let shown = text(&report(), Detail::Verbose);
        for word in ["4000000", "device 7: auto: the fastest of four; NODROP", "5d5d5d5d-", "LATE"]
        {
            assert!(shown.contains(word), "no {word:?} in\n{shown}");
        }
        assert!(!shown.contains("more: "), "{shown}");
    }
}
