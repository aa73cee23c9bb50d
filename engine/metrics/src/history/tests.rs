//! Rings of the history, and samples.

use std::collections::BTreeMap;

use kvrail_protocol::{
    CallLatencyReport, DeviceReport, DeviceState, HistogramReport, IoCounts, ShardReport,
    StatusReport,
};
use proptest::prelude::{Strategy, any, proptest};
use serde_json::Value;

use super::sample::sample;
use super::{EMPTY, Fold, GAP_STEPS_MAX, History, RINGS, SERIES, STEP_S, Slot};

const STEP_MS: u64 = STEP_S * 1000;

/// A month, in steps and in milliseconds.
const MONTH_STEPS: u64 = 30 * 86_400 / STEP_S;
const MONTH_MS: u64 = MONTH_STEPS * STEP_MS;

/// A sample of `ms` with this value in every series.
fn of(ms: u64, value: u64) -> Slot {
    let mut slot = [value; SERIES.len()];
    slot[0] = ms;
    slot
}

/// What a ring is to hold after these samples of these steps: its slots by number.
fn expected(samples: &[(u64, Slot)], (steps, slots): (u64, usize)) -> BTreeMap<u64, Slot> {
    let mut kept = BTreeMap::<u64, Vec<Slot>>::new();
    for (step, sample) in samples {
        kept.entry(step / steps).or_default().push(*sample);
    }
    let newest = samples.last().map_or(0, |(step, _)| step / steps);
    kept.retain(|number, _| newest - number < slots as u64);
    let folded = |samples: Vec<Slot>| {
        std::array::from_fn(|at| {
            let mut values = samples.iter().map(|sample| sample[at]);
            match SERIES[at].1 {
                Fold::Sum => values.sum(),
                Fold::Most => values.max().unwrap(),
                Fold::Last => values.next_back().unwrap(),
            }
        })
    };
    kept.into_iter().map(|(number, samples)| (number, folded(samples))).collect()
}

fn held(history: &History, ring: usize) -> BTreeMap<u64, Slot> {
    let ring = &history.rings[ring];
    let slots: Vec<_> = ring.there().collect();
    let first = ring.newest + 1 - slots.len() as u64;
    let numbered = slots.into_iter().zip(first..).filter(|(slot, _)| **slot != EMPTY);
    numbered.map(|(slot, number)| (number, *slot)).collect()
}

/// Times between two samples: mostly a step, now and then a gap, seldom a month or a clock that
/// went back.
fn times() -> impl Strategy<Value = u64> {
    (any::<u8>(), 1_u64..400).prop_map(|(kind, steps)| match kind {
        0..=220 => STEP_MS + u64::from(kind),
        221..=249 => steps * STEP_MS,
        250..=252 => MONTH_MS,
        253..=255 => 0,
    })
}

proptest! {
    /// Each ring has what the samples of its time add up to: no sum is lost or counted twice where
    /// one slot ends and the next begins, whatever the clock does.
    #[test]
    fn every_ring_has_all_samples_of_its_time(
        samples in proptest::collection::vec((times(), 0_u64..1 << 40), 1..2000),
    ) {
        let (mut history, mut given, mut step) = (History::new(), Vec::new(), 0);
        for (ms, value) in samples {
            let (sample, ms) = (of(ms, value), if ms == 0 { STEP_MS } else { ms });
            step += ((ms + STEP_MS / 2) / STEP_MS).clamp(1, GAP_STEPS_MAX);
            given.push((step, of(ms, value)));
            history.add(sample);
        }
        for (at, size) in RINGS.into_iter().enumerate() {
            assert_eq!(held(&history, at), expected(&given, size), "ring {at}");
        }
    }
}

#[test]
fn memory_is_the_same_however_long_it_runs() {
    let bytes = |history: &History| {
        let slots = history.rings.iter().map(|ring| size_of_val(&*ring.slots)).sum::<usize>();
        slots + size_of::<History>()
    };
    let mut history = History::new();
    let before = bytes(&history);
    assert!(before < 400 << 10, "{before} bytes");
    // Three months, with the largest numbers that there can be.
    for _ in 0..3 * MONTH_STEPS {
        history.add(of(STEP_MS, u64::MAX / 2));
    }
    assert_eq!(bytes(&history), before);
    for ring in &history.rings {
        assert_eq!(ring.there().count(), ring.slots.len());
        assert!(ring.there().all(|slot| *slot != EMPTY));
    }
    let text = history.text();
    assert!(text.len() < 1 << 20, "{} bytes of text", text.len());
    assert_eq!(text, history.text());
}

#[test]
fn a_clock_that_jumps_by_a_month_and_back_leaves_what_was() {
    let mut history = History::new();
    (0..100).for_each(|_| history.add(of(STEP_MS, 1)));
    for jump in [MONTH_MS, 0, u64::MAX, 0] {
        history.add(of(jump, 1));
        (0..50).for_each(|_| history.add(of(STEP_MS, 1)));
    }
    let hits = |ring: usize| history.rings[ring].there().map(|slot| slot[1]).sum::<u64>();
    // An hour at most has gone by with each jump: the finest ring has what came since the last one
    // ahead, all others have everything.
    assert_eq!([0, 1, 2, 3].map(hits), [102, 304, 304, 304]);
}

fn parsed(history: &mut History) -> Value {
    serde_json::from_slice(&history.text()).unwrap()
}

#[test]
fn the_text_has_each_ring_with_gaps() {
    let mut history = History::new();
    let empty = parsed(&mut history);
    assert_eq!(empty["rings"].as_array().unwrap().len(), RINGS.len());
    assert_eq!(empty["rings"][0]["series"]["hits"], serde_json::json!([null]));
    history.add(of(STEP_MS, 5));
    history.add(of(3 * STEP_MS, 7));
    let text = parsed(&mut history);
    let fine = &text["rings"][0];
    assert_eq!((&fine["step_s"], &fine["slots"]), (&10.into(), &360.into()));
    assert_eq!(fine["series"]["hits"], serde_json::json!([null, 5, null, null, 7]));
    assert_eq!(fine["series"]["covered_ms"], serde_json::json!([null, 10_000, null, null, 30_000]));
    assert_eq!(text["rings"][1]["series"]["hits"], serde_json::json!([12]));
    assert_eq!(text["rings"][1]["series"]["get_p99_ns"], serde_json::json!([7]));
    assert_eq!(text["rings"][3]["step_s"], 3600);
}

fn histogram(buckets: &[(u64, u64)]) -> HistogramReport {
    HistogramReport { sum_ns: 0, buckets: buckets.to_vec() }
}

/// A report with a store on one drive.
fn report() -> StatusReport {
    let device = serde_json::json!({
        "index": 3, "poller": 0, "name": "/dev/nvme0n1", "kind": "block", "state": "serving",
        "mode": "", "reason": "", "features": [], "io": "direct", "capacity_bytes": 1,
        "logical_block": 512, "depth": 1, "reads": {"operations": 0, "bytes": 0},
        "writes": {"operations": 0, "bytes": 0}, "others": 0,
        "device_latency": {"p50_ns": 0, "p99_ns": 0, "p999_ns": 0},
        "queue_latency": {"p50_ns": 0, "p99_ns": 0, "p999_ns": 0},
    });
    let device: DeviceReport = serde_json::from_value(device).unwrap();
    let mut shard = ShardReport { device: 3, capacity_bytes: 1000, ..ShardReport::default() };
    shard.counters.store.hits = Some(0);
    let report = serde_json::json!({
        "sidecar": {
            "pid": 1, "epoch": 1, "version": "", "uptime_s": 0, "socket": "", "state": "serving",
        },
        "pollers": [], "devices": [device], "volumes": [], "shards": [shard], "sessions": [],
        "regions": {
            "arenas": 0, "bytes": 0, "quarantined": 0, "quarantined_bytes": 0,
            "quarantined_oldest_s": 0, "limit_bytes": 0,
        },
        "notes": [],
    });
    serde_json::from_value(report).unwrap()
}

fn named(slot: &Slot) -> BTreeMap<&'static str, u64> {
    SERIES.iter().zip(slot).map(|((name, _), value)| (*name, *value)).collect()
}

#[test]
fn a_sample_has_what_happened_between_two_reports() {
    let mut first = report();
    first.sidecar.uptime_ms = 4000;
    first.devices[0].reads = IoCounts { operations: 1, bytes: 100 };
    first.shards[0].counters.store.hits = Some(8);
    first.shards[0].counters.store.misses = Some(1);
    let get = |buckets: &[(u64, u64)]| CallLatencyReport {
        operation: "get".into(),
        size: ">1MiB".into(),
        latency: histogram(buckets),
    };
    first.calls = vec![get(&[(9_000, 500)])];
    // The first one counts from the start on.
    let since_start = named(&sample(&first, None));
    assert_eq!((since_start["covered_ms"], since_start["read_bytes"]), (4000, 100));
    assert_eq!((since_start["hits"], since_start["get_p99_ns"]), (8, 9_000));

    let mut second = first.clone();
    second.sidecar.uptime_ms = 14_500;
    second.devices[0].reads.bytes = 350;
    second.devices[0].writes.bytes = 70;
    second.devices[0].state = DeviceState::Gone;
    second.shards[0].counters.store.hits = Some(10);
    second.shards[0].counters.store.lookup_misses = Some(6);
    second.shards[0].bytes = 900;
    second.calls = vec![
        get(&[(1_000, 98), (9_000, 500), (70_000, 2)]),
        CallLatencyReport { operation: "put".into(), ..get(&[(u64::MAX, 900)]) },
        CallLatencyReport { operation: "get_from_memory".into(), ..get(&[(500, 5)]) },
    ];
    let between = named(&sample(&second, Some(&first)));
    let wanted = [
        ("covered_ms", 10_500),
        ("hits", 7),
        ("memory_hits", 5),
        ("misses", 6),
        ("read_bytes", 250),
        ("written_bytes", 70),
        ("get_p99_ns", 70_000),
        ("drive_p99_ns", 0),
        ("troubles", 0),
        ("lost_drives", 1),
        ("stored_bytes", 900),
        ("capacity_bytes", 1000),
    ];
    assert_eq!(between, BTreeMap::from(wanted));

    // The drive is replaced, and its store begins anew; nothing else happens.
    let mut third = second.clone();
    third.shards[0].counters.store.hits = Some(1);
    third.sidecar.uptime_ms = 24_500;
    let after = named(&sample(&third, Some(&second)));
    assert_eq!((after["hits"], after["misses"], after["get_p99_ns"]), (1, 0, 0));
    // A clock that went back.
    third.sidecar.uptime_ms = 3;
    assert_eq!(named(&sample(&third, Some(&second)))["covered_ms"], 0);
}
