//! Latencies of calls, as clients count them and the sidecar shows them.

use std::time::Duration;

use kvrail_client::{BlockKey, BlockRequest, Lookup, Status};
use kvrail_protocol::{CallLatencyReport, StatusReport};
use serde_json::Value;

use crate::rig::{LONG, Place, Sidecar, StoreShape, eventually, kvrail, run};
use crate::store_user::StoreUser;

const SIZES: [(usize, &str); 3] = [(4096, "<=64KiB"), (200 << 10, "<=1MiB"), (2 << 20, ">1MiB")];
const ROUNDS: u64 = 5;

fn place() -> Place {
    let shape = StoreShape { member_bytes: 96 << 20, segment_bytes: 4 << 20, block_mean: 64 << 10 };
    Place::with_shaped_store(2, &shape)
}

/// Puts, looks up and gets blocks of each size, and a key that is not there.
fn work(user: &mut StoreUser) {
    for (bytes, number) in SIZES.iter().flat_map(|(bytes, _)| (0..ROUNDS).map(|at| (*bytes, at))) {
        let key = BlockKey::of(format!("{bytes} {number}").as_bytes());
        user.put(key, bytes, b"");
        let found = user.queue.lookup(&user.space, &[key], &Lookup::default()).unwrap();
        assert_eq!(found.prefix, 1);
        let lease = user.arena.lease(bytes).unwrap();
        assert_eq!(user.run(BlockRequest::get(&user.space, key, lease)), Status::Ok);
    }
    let lease = user.arena.lease(4096).unwrap();
    let absent = BlockRequest::get(&user.space, BlockKey::of(b"absent"), lease);
    assert_eq!(user.run(absent), Status::Miss);
}

fn counts(report: &StatusReport) -> Vec<(String, String, u64)> {
    let count = |call: &CallLatencyReport| {
        (call.operation.clone(), call.size.clone(), call.latency.count())
    };
    report.calls.iter().map(count).collect()
}

/// The calls of this number of runs of `work`, in the order of the report.
fn expected(runs: u64) -> Vec<(String, String, u64)> {
    let call = |operation: &str, size: &str, count| (operation.into(), size.into(), runs * count);
    let of = |operation: &'static str| SIZES.map(|(_, size)| call(operation, size, ROUNDS));
    let lookups = call("lookup", "any", ROUNDS * SIZES.len() as u64);
    of("get").into_iter().chain(of("put")).chain([lookups]).collect()
}

#[test]
fn each_call_is_counted_once_and_outlives_its_client() {
    let place = place();
    let (sidecar, address) = Sidecar::start_with_metrics(&place);
    let watcher = sidecar.attach();
    let mut user = StoreUser::open(&sidecar);
    work(&mut user);
    eventually("all calls are counted", || counts(&watcher.status().unwrap()) == expected(1));
    let report = watcher.status().unwrap();
    let own = report.sessions.iter().find(|session| session.id == user.client.session().0).unwrap();
    let own: Vec<_> =
        own.latencies.iter().map(|call| (&*call.operation, &*call.size, call.count)).collect();
    let all = counts(&report);
    let all: Vec<_> = all.iter().map(|(call, size, count)| (&**call, &**size, *count)).collect();
    assert_eq!(own, all, "this client alone has called");
    // No call takes less than its copy, nor as long as this test may wait.
    for call in &report.calls {
        let (p50_ns, mean_ns) =
            (call.latency.quantile_ns(0.5), call.latency.sum_ns / call.latency.count());
        assert!(p50_ns >= 1000 && Duration::from_nanos(p50_ns) < LONG, "{call:?}");
        assert!(mean_ns <= call.latency.quantile_ns(1.0), "{call:?}");
    }

    let text = run(kvrail().args(["status", "--verbose", "--socket"]).arg(place.socket())).stdout;
    let line = text.lines().find(|line| line.trim_start().starts_with("lookup  any"));
    assert!(line.is_some_and(|line| line.contains(" 15 ")), "{text}");
    let top = run(kvrail().args(["top", "--once", "--socket"]).arg(place.socket())).stdout;
    assert!(top.contains("CALL") && top.contains("<=64KiB"), "{top}");
    let json = run(kvrail().args(["status", "--format", "json", "--socket"]).arg(place.socket()));
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["calls"][0]["operation"], "get");
    let (code, metrics) =
        crate::metrics::exchange(std::net::TcpStream::connect(&address).unwrap(), "/metrics");
    assert_eq!(code, 200);
    let sample = "kvrail_client_latency_seconds_count{operation=\"put\",size=\"<=1MiB\"} 5";
    assert!(metrics.lines().any(|line| line == sample), "{metrics}");

    drop(user);
    let mut next = StoreUser::open(&sidecar);
    work(&mut next);
    drop(next);
    eventually("the calls of both are counted", || {
        counts(&watcher.status().unwrap()) == expected(2)
    });
    drop(watcher);
    sidecar.stop();
}
