//! Reports to expose.

use kvrail_counters::{ServingCounters, StoreCounters};
use kvrail_protocol::{StatusReport, troubles};
use serde_json::{Value, json};

/// A sidecar with 64 sessions, 16 drives, one of them gone, a full store that misses a seventeenth,
/// and a GPU.
pub(crate) fn busy() -> StatusReport {
    let all = |one: fn(u64) -> Value, count| (0..count).map(one).collect::<Vec<_>>();
    let report = json!({
        "sidecar": {
            "version": "0.1.0", "pid": 4_000, "state": "serving", "uptime_s": 100_000,
            "uptime_ms": 100_000_123, "started_unix_s": 1_770_000_000, "epoch": 7,
            "socket": "/run/kvrail/kvrail.sock", "refused": 3, "sessions_max": 64,
            "log_lines_lost": 5,
        },
        "pollers": all(poller, 16), "devices": all(device, 16), "shards": all(shard, 16),
        "calls": [call("get", "<=64KiB"), call("lookup", "any")],
        "memory_hits": [{"store": "kv0", "pool": "teams", "hits": 5}],
        "sessions": all(session, 64), "volumes": [volume()], "gpus": [gpu()],
        "regions": {
            "arenas": 64, "bytes": 1_u64 << 40, "quarantined": 1, "quarantined_bytes": 4096,
            "quarantined_oldest_s": 9, "limit_bytes": 1_u64 << 41,
        },
        "notes": [],
        "paths": [path("live", "optimized"), path("connecting", "inaccessible")],
        "config": {
            "file": "/etc/kvrail/kvrail.toml", "running": "abc", "since_unix_s": 1_770_000_001,
            "refused": "no volume", "restart_pending": ["pollers.count"],
        },
        "target": {"problem": null, "ana_states": [[1, 2, "non-optimized"]]},
    });
    with_troubles(serde_json::from_value(report).expect("a report"))
}

/// The same with its list of troubles, as the sidecar sends it.
pub(crate) fn with_troubles(report: StatusReport) -> StatusReport {
    StatusReport { troubles: troubles(&report), ..report }
}

fn volume() -> Value {
    json!({
        "name": "kv0", "uuid": "5d5d5d5d-5d5d-5d5d-5d5d-5d5d00000000",
        "members": (0..16).map(|index| format!("/dev/nvme{index}n1")).collect::<Vec<_>>(),
        "missing": ["serial:S5XYZ"], "capacity_bytes": 1_u64 << 46, "stripe_bytes": 1 << 20,
        "logical_block": 4096,
    })
}

fn poller(index: u64) -> Value {
    json!({
        "index": index, "cpu": index, "devices": [index], "lanes": 64, "ticks": 1_000_000,
        "busy_ticks": 400_000, "busy_share": 0.4, "sleeps": 12, "doorbells": 34,
        "heartbeat_age_ns": 123_456, "allocations": 0, "stalled": null,
    })
}

fn device(index: u64) -> Value {
    let buckets: Vec<_> = (0..80).map(|at| json!([(5 + at % 4) << (8 + at / 4), at + 1])).collect();
    let histogram = json!({"sum_ns": 123_456_789, "buckets": buckets});
    let demand = json!({"sum_ns": 90_000_000, "buckets": [[81_920, 2000], [98_304, 1000]]});
    let latency = json!({"p50_ns": 84_211, "p99_ns": 1_920_400, "p999_ns": 4_000_000});
    let counts = json!({"operations": 5_000, "bytes": 1_234_567});
    let kinds = ["read", "write", "other"].into_iter();
    let apart =
        kinds.flat_map(|kind| ["demand", "prefetch", "background"].map(|class| (kind, class)));
    let latencies = apart.map(|(operation, class)| {
        let device = if (operation, class) == ("read", "demand") { &demand } else { &histogram };
        json!({"operation": operation, "class": class, "device": device, "queue": histogram})
    });
    let mut device = json!({
        "index": index, "poller": index, "kind": "block", "capacity_bytes": 1_u64 << 42,
        "logical_block": 4096, "name": format!("/dev/nvme{index}n1"), "volume": "kv0",
        "member": format!("pci:0000:{index:02x}:00.0"),
        "drive": {
            "kernel_name": format!("nvme{index}n1"), "serial": format!("S{index}"),
            "model": "SSD", "address": format!("0000:{index:02x}:00.0"), "health": health(index),
        },
        "state": if index == 7 { "gone" } else { "serving" }, "mode": "iopoll",
        "reason": "auto", "features": [], "io": "direct", "depth": 128, "in_flight": 64,
        "in_flight_bytes": 8 << 20, "write_bytes": 2 << 20, "waiting": 100,
        "reads": counts, "writes": counts, "others": 7, "errors": 0,
        "late": 0, "overdue": 0, "oldest_ms": 3,
        "device_latency": latency, "queue_latency": latency,
        "latencies": latencies.collect::<Vec<_>>(),
    });
    // No NVMe drive, or one that was not asked yet.
    if index == 2 {
        device["drive"].as_object_mut().expect("an object").remove("health");
    }
    device
}

/// Of the second drive the kernel has the temperature, and no more is known; of the fourth nothing.
fn health(index: u64) -> Value {
    if index == 3 {
        return json!({"read_unix_s": 1_770_000_000, "unseen": "no rights"});
    }
    if index == 1 {
        return json!({"read_unix_s": 1_770_000_000, "celsius": 33, "unseen": "no rights"});
    }
    json!({
        "read_unix_s": 1_770_000_000, "celsius": 41, "warning_celsius": 70, "used_percent": 7,
        "spare_percent": 100, "spare_threshold_percent": 10, "media_errors": 2,
        "warnings": ["media read-only"],
    })
}

fn shard(device: u64) -> Value {
    let table = StoreCounters::TABLE.iter().chain(&ServingCounters::TABLE);
    let mut counters: serde_json::Map<String, Value> =
        table.map(|counter| (counter.name.to_owned(), Value::from(1000))).collect();
    counters.insert("declined_budget".into(), 30.into());
    json!({
        "store": "kv0", "device": device, "state": "serving", "capacity_bytes": 1_u64 << 42,
        "memory_bytes": 1_u64 << 30, "blocks_max": 4_000_000, "blocks": 3_900_000,
        "bytes": 4_000_000_000_000_u64, "holds": 12, "namespaces": 31,
        "namespaces_max": 32,
        "oldest_unix_s": 1_769_000_000, "counters": counters,
    })
}

fn path(state: &str, ana: &str) -> Value {
    json!({
        "device": 0, "controller": format!("nvme-{state}"), "transport": "rdma",
        "address": "traddr=192.0.2.1,trsvcid=4420", "state": state, "ana_state": ana,
    })
}

fn gpu() -> Value {
    json!({
        "gpu": {
            "index": 0, "uuid": "GPU-0", "name": "a \"GPU\"", "pci_address": "0000:01:00.0",
            "memory_bytes": 1_u64 << 36,
        },
        "cpu": 3, "state": "serving", "failure": null, "configured": "auto", "routes": [],
        "regions": 2, "region_bytes": 1_u64 << 34, "launches": 10, "moves": 20,
        "gathered_bytes": 30, "scattered_bytes": 40, "direct_bytes": 50, "failed": 0,
        "staging": {"slots": 64, "slot_bytes": 2 << 20, "taken": 3, "page_bytes": 2 << 20},
    })
}

fn session(index: u64) -> Value {
    let mut session = json!({
        "id": index + 1, "pid": 4_000 + index, "uid": 1000, "gid": 1000, "name": "vllm-worker",
        "library": "kvrail 0.1.0", "arenas": 1, "arena_bytes": 1_u64 << 34, "queues": 8,
        "accepted": 123_456_789, "completed": 123_456_789, "failed": 0, "bytes": 1_u64 << 44,
        "state": "attached", "since_s": 1000,
    });
    if index == 0 {
        session["pod"] = json!("0a1b2c3d-0000-4000-8000-000000000001");
    }
    session
}

fn call(operation: &str, size: &str) -> Value {
    let latency = json!({"sum_ns": 700_000_000, "buckets": [[20_480, 4000], [1_048_576, 3000]]});
    json!({"operation": operation, "size": size, "latency": latency})
}
