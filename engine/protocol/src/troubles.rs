//! Reasons why a sidecar does not do all that it is configured for: one list, for status, page,
//! readiness, metrics and `kvrail top`.
//!
//! A trouble is added here and to its code, and nowhere else: a function finds it in a report.

use crate::gpu::GpuState;
use crate::report::{DeviceState, SidecarState, StatusReport};
use crate::store::ShardReport;
use crate::trouble::{Trouble, TroubleCode};

/// All troubles that a report shows, the gravest first.
#[must_use]
pub fn troubles(report: &StatusReport) -> Vec<Trouble> {
    let mut all = stalled_pollers(report);
    all.extend(draining(report));
    all.extend(idle_stores(report));
    all.extend(missing_members(report));
    all.extend(devices(report));
    all.extend(slow_devices(report));
    all.extend(members(report));
    all.extend(indexes(report));
    all.extend(gpus(report));
    all.extend(target(report));
    all.extend(config(report));
    all.extend(endpoint(report));
    all
}

fn stalled_pollers(report: &StatusReport) -> Vec<Trouble> {
    let stalled = report.pollers.iter().filter_map(|poller| {
        let (index, stall) = (poller.index, poller.stalled.as_ref()?);
        let (seconds, kernel) = (stall.for_s, &stall.kernel);
        let words = format!("poller {index} has not turned for {seconds} s: {kernel}");
        Some(Trouble::new(TroubleCode::PollerStalled, format!("poller {index}"), words))
    });
    stalled.collect()
}

fn draining(report: &StatusReport) -> Option<Trouble> {
    let words = "draining: what was accepted is finished, nothing new is taken".to_owned();
    (report.sidecar.state == SidecarState::Draining)
        .then(|| Trouble::new(TroubleCode::Draining, "sidecar", words))
}

fn idle_stores(report: &StatusReport) -> Vec<Trouble> {
    let mut stores: Vec<&str> = report.shards.iter().map(|shard| shard.store.as_str()).collect();
    stores.dedup();
    let idle = stores.into_iter().filter_map(|store| {
        let own = |shard: &&ShardReport| shard.store == store && !shard.is_retired();
        let members = || report.shards.iter().filter(own);
        let states: Vec<_> = members().map(|shard| shard.state.as_str()).collect();
        let words = format!("no member of store {store} serves: {}", states.join(", "));
        let serves = members().any(ShardReport::serves);
        (!serves).then(|| Trouble::new(TroubleCode::StoreOutOfService, store, words))
    });
    idle.collect()
}

fn missing_members(report: &StatusReport) -> Vec<Trouble> {
    let missing = report.missing_members().map(|(volume, member)| {
        let words = format!("{volume}: {member} was not there when the sidecar started");
        Trouble::new(TroubleCode::MemberMissing, member, words)
    });
    missing.collect()
}

fn devices(report: &StatusReport) -> Vec<Trouble> {
    let troubled = report.devices.iter().filter(|device| !device.retired).filter_map(|device| {
        let label = report.device_label(device.index);
        let (code, words) = match (device.state, device.counters.overdue.unwrap_or(0)) {
            (DeviceState::Gone, _) => (TroubleCode::DeviceGone, "is gone"),
            (DeviceState::Serving, 0) => return None,
            (DeviceState::Serving, _) => (TroubleCode::DeviceSilent, "does not answer"),
        };
        let words = format!("device {} {words}", named(&label, &device.name));
        Some(Trouble::new(code, label, words))
    });
    troubled.collect()
}

/// How long an operation of a slow device takes at least, and how many times as long as one of its
/// quickest peer: members of a volume do the same work.
const SLOW_NS: u64 = 20_000_000;
const SLOW_TIMES: u64 = 10;

fn slow_devices(report: &StatusReport) -> Vec<Trouble> {
    let slow = report.devices.iter().filter(|device| !device.retired).filter_map(|device| {
        let peers = report.devices.iter().filter(|peer| peer.volume == device.volume);
        let quickest = peers.map(|peer| peer.recent_ns).filter(|ns| *ns > 0).min()?;
        if device.recent_ns < SLOW_NS.max(quickest.saturating_mul(SLOW_TIMES)) {
            return None;
        }
        let label = report.device_label(device.index);
        let words = format!(
            "device {} takes {:.1} ms for an operation, another one of volume {} {:.1} ms",
            named(&label, &device.name),
            device.recent_ns as f64 / 1e6,
            device.volume,
            quickest as f64 / 1e6,
        );
        Some(Trouble::new(TroubleCode::DeviceSlow, label, words))
    });
    slow.collect()
}

/// A device as the configuration names it, and as the kernel does where that differs.
fn named(label: &str, name: &str) -> String {
    if label == name { label.to_owned() } else { format!("{label} ({name})") }
}

/// Members whose device is there: one that is gone has its line already.
fn members(report: &StatusReport) -> Vec<Trouble> {
    let gone = |index: u16| {
        let device = report.devices.iter().find(|device| device.index == index);
        device.is_some_and(|device| device.state == DeviceState::Gone)
    };
    let troubled = |shard: &&ShardReport| !shard.serves() || shard.refuses_writes();
    let idle = report.shards.iter().filter(troubled).filter(|shard| !gone(shard.device));
    let idle = idle.map(|shard| {
        let label = report.device_label(shard.device);
        let words = format!("store {} at device {label}: {}", shard.store, shard.state);
        Trouble::new(TroubleCode::MemberOutOfService, label, words)
    });
    idle.collect()
}

/// Members whose blocks are shorter than the store was made for.
fn indexes(report: &StatusReport) -> Vec<Trouble> {
    let full = report.shards.iter().filter(|shard| shard.is_index_full()).map(|shard| {
        let label = report.device_label(shard.device);
        let words = format!(
            "store {} at device {label}: the index is full with {} % of the bytes in use: blocks \
             have {} bytes on average, and it was made for {}",
            shard.store,
            shard.bytes * 100 / shard.capacity_bytes,
            shard.bytes / shard.blocks,
            shard.capacity_bytes / shard.blocks_max,
        );
        Trouble::new(TroubleCode::IndexFull, label, words)
    });
    full.collect()
}

fn gpus(report: &StatusReport) -> Vec<Trouble> {
    let failed = report.gpus.iter().filter(|gpu| gpu.state == GpuState::Failed).map(|gpu| {
        let subject = format!("GPU {}", gpu.gpu.index);
        let why = gpu.failure.as_deref().unwrap_or("no reason is known");
        let words = format!("{subject} has failed: {why}");
        Trouble::new(TroubleCode::GpuFailed, subject, words)
    });
    failed.collect()
}

fn target(report: &StatusReport) -> Option<Trouble> {
    let problem = report.target.as_ref()?.problem.as_ref()?;
    let words = format!("the NVMe-oF target is not as configured: {problem}");
    Some(Trouble::new(TroubleCode::TargetNotAsPlanned, "target", words))
}

/// A file that the next start refuses is named before a reload that was refused: it may be the
/// reason, and it is what is to be corrected.
fn config(report: &StatusReport) -> Option<Trouble> {
    let config = &report.config;
    let words = match (&config.refused, &config.reload_refused) {
        (Some(why), _) => format!("the configuration on the disk would not start: {why}"),
        (None, Some(why)) => format!("the last reload was refused: {why}"),
        (None, None) => return None,
    };
    Some(Trouble::new(TroubleCode::ConfigRefused, "configuration", words))
}

fn endpoint(report: &StatusReport) -> Option<Trouble> {
    let problem = report.endpoint_problem.as_ref()?;
    let words = format!("no metrics, no health and no page: {problem}");
    Some(Trouble::new(TroubleCode::MetricsNotListening, "metrics", words))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{StatusReport, TroubleCode, troubles};
    use crate::store::ShardReport;

    fn report(blocks: u64, bytes: u64) -> StatusReport {
        let shard = ShardReport {
            store: "kv".to_owned(),
            state: "serving".to_owned(),
            capacity_bytes: 1 << 30,
            blocks_max: 1 << 14,
            blocks,
            bytes,
            ..ShardReport::default()
        };
        serde_json::from_value(json!({
            "sidecar": {
                "version": "0.1.0", "pid": 1, "state": "serving", "uptime_s": 1, "epoch": 1,
                "socket": "/run/kvrail.sock", "refused": 0, "sessions_max": 64,
            },
            "pollers": [], "devices": [], "sessions": [], "volumes": [], "notes": [],
            "regions": {
                "arenas": 0, "bytes": 0, "quarantined": 0, "quarantined_bytes": 0,
                "quarantined_oldest_s": 0, "limit_bytes": 1,
            },
            "shards": [shard],
        }))
        .expect("a report")
    }

    #[test]
    fn a_device_that_drags_its_volume_is_named() {
        let codes = |devices: &[(&str, u64)]| {
            let mut all = report(0, 0);
            all.shards.clear();
            let latency = json!({ "p50_ns": 0, "p99_ns": 0, "p999_ns": 0 });
            let counts = json!({ "operations": 0, "bytes": 0 });
            for (index, (volume, recent_ns)) in devices.iter().enumerate() {
                let device = json!({
                    "index": index, "poller": 0, "name": format!("/dev/d{index}"),
                    "volume": volume, "kind": "block", "state": "serving", "mode": "interrupt",
                    "reason": "", "features": [], "io": "direct", "capacity_bytes": 1,
                    "logical_block": 512, "depth": 1, "reads": counts, "writes": counts,
                    "others": 0, "recent_ns": recent_ns, "device_latency": latency,
                    "queue_latency": latency, "latencies": [],
                });
                all.devices.push(serde_json::from_value(device).expect("a device"));
            }
            troubles(&all)
        };
        let ms = 1_000_000;
        let all = codes(&[("kv", 2 * ms), ("kv", 900 * ms), ("kv", 0), ("other", 500 * ms)]);
        let [slow] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((slow.code, slow.subject.as_str()), (TroubleCode::DeviceSlow, "/dev/d1"));
        assert!(slow.words.contains("900.0 ms") && slow.words.contains("kv 2.0 ms"), "{slow:?}");
        // All are slow; slow beside a quicker one, and quick enough; alone; quiet.
        for devices in [
            [("kv", 600 * ms), ("kv", 900 * ms)],
            [("kv", ms / 10), ("kv", 19 * ms)],
            [("kv", 2 * ms), ("other", 900 * ms)],
            [("kv", 0), ("kv", 900 * ms)],
        ] {
            assert_eq!(codes(&devices), [], "{devices:?}");
        }
    }

    #[test]
    fn an_index_that_is_full_before_its_drive_is_a_trouble() {
        let all = troubles(&report(1 << 14, 20 << 20));
        let [full] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(full.code, TroubleCode::IndexFull);
        for words in ["store kv", "1 % of the bytes", "1280 bytes on average", "for 65536"] {
            assert!(full.words.contains(words), "no {words:?} in {}", full.words);
        }
        // Room in the index, and a drive that is full, too.
        for report in [report(1 << 13, 20 << 20), report(1 << 14, 1000 << 20)] {
            assert_eq!(troubles(&report), []);
        }
    }
}
