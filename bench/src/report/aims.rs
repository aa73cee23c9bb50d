//! The speed that kvrail aims for, against what was measured.

use crate::lanes::KeyedOperation;
use crate::plan::{
    CHECKED, Case, CaseInfo, DEPTH_MAX, FILES, KVRAIL, Op, Pace, RAW, Rate, STORE, keyed_case,
};
use crate::report::schema::{Aim, Bound, Comparison, Report, Run};
use crate::statistics::Spread;

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;
/// The least number of cores at which the added latency has an absolute aim: below, client, poller
/// and kernel share cores.
const MANY_CORES: usize = 8;

/// The aims that this report covers.
#[must_use]
pub fn aims(report: &Report) -> Vec<Aim> {
    let storage = storage(report).into_iter();
    storage.chain(store(report)).chain(lanes(report)).chain(sidecar(report)).flatten().collect()
}

fn storage(report: &Report) -> Vec<Option<Aim>> {
    use Bound::{AtLeast, AtMost};
    let small = find(report, &Case::closed(Op::Read, 4 * KIB, 1));
    let deep = find(report, &Case::closed(Op::Read, 4 * KIB, 32));
    let block = find(report, &Case::closed(Op::Read, 256 * KIB, 8));
    let large = find(report, &Case::closed(Op::Read, MIB, 8));
    let pace = Pace::Open(Rate::PercentOfMax(80.0));
    let open = find(report, &Case { pace, ..Case::closed(Op::Read, 4 * KIB, DEPTH_MAX) });
    let throughput = |one: Option<&Comparison>| middle(one?.relation.throughput);
    let latency = if report.environment.cores_usable >= MANY_CORES {
        let above = small.and_then(|one| middle(one.relation.p50_above_ns));
        Aim::new("read 4KiB d1: p50 above raw, ns", AtMost, 1000.0, above)
    } else {
        let ratio = small.and_then(|one| middle(one.relation.p50));
        Aim::new("read 4KiB d1: p50 / raw", AtMost, 1.15, ratio)
    };
    let cpu = large.and_then(|one| middle(one.relation.cpu));
    let tail = open.and_then(|one| middle(one.relation.p999));
    vec![
        latency,
        Aim::new("read 4KiB d32: throughput / raw", AtLeast, 0.90, throughput(deep)),
        Aim::new("read 256KiB d8: throughput / raw", AtLeast, 0.98, throughput(block)),
        Aim::new("read 1MiB d8: throughput / raw", AtLeast, 0.98, throughput(large)),
        Aim::new("read 1MiB d8: CPU per GiB / raw", AtMost, 1.2, cpu),
        Aim::new("read 4KiB open 80%: p99.9 / raw", AtMost, 1.5, tail),
    ]
}

/// A store against the volume beside it, with every get verified.
fn store(report: &Report) -> Vec<Option<Aim>> {
    use Bound::{AtLeast, AtMost};
    let to = |arm, case: Case| report.compared(&case.info().keyed(), (STORE, arm));
    let volume = |block_bytes, depth| to(KVRAIL, Case::closed(Op::Read, block_bytes, depth));
    let checked = |block_bytes| to(CHECKED, Case::closed(Op::Read, block_bytes, 8));
    let throughput = |one: Option<&Comparison>| middle(one?.relation.throughput);
    let p50 = volume(4 * KIB, 1).and_then(|one| middle(one.relation.p50));
    let put = to(RAW, Case::closed(Op::Write, MIB, 8));
    let read = Case::closed(Op::Read, MIB, 8).info();
    let (get, read) = (cpu(report, &read.clone().keyed(), STORE), cpu(report, &read, KVRAIL));
    let files = to(FILES, keyed_case()).filter(|_| report.environment.read_percent == 70);
    let files_cpu = files.and_then(|one| middle(one.relation.cpu));
    let lookup = Case::closed(Op::Lookup, 4 * KIB, 1).info();
    let lookup = run(report, &lookup, STORE).map(|run| run.latency_ns.p50 / 1000.0);
    vec![
        Aim::new("get 4KiB d1: p50 / volume", AtMost, 1.03, p50),
        Aim::new("get 4KiB d32: IOPS / volume", AtLeast, 0.95, throughput(volume(4 * KIB, 32))),
        Aim::new(
            "get 256KiB d8: throughput / volume",
            AtLeast,
            0.98,
            throughput(volume(256 * KIB, 8)),
        ),
        Aim::new("get 1MiB d8: throughput / volume", AtLeast, 0.98, throughput(volume(MIB, 8))),
        Aim::new(
            "get 256KiB d8: throughput / checked read",
            AtLeast,
            0.98,
            throughput(checked(256 * KIB)),
        ),
        Aim::new("get 1MiB d8: throughput / checked read", AtLeast, 0.98, throughput(checked(MIB))),
        Aim::new(
            "get 1MiB d8: CPU s/GiB above volume",
            AtMost,
            0.09,
            get.zip(read).map(|(get, read)| get - read),
        ),
        Aim::new("put 1MiB d8: throughput / raw write", AtLeast, 0.97, throughput(put)),
        Aim::new("1MiB, 70 % gets, 8 clients: throughput / files", AtLeast, 1.0, throughput(files)),
        Aim::new("1MiB, 70 % gets, 8 clients: CPU per GiB / files", AtMost, 0.5, files_cpu),
        Aim::new("lookup of 1000 keys: p50, us", AtMost, 100.0, lookup),
    ]
}

/// An arm in a case of this shape.
fn run<'a>(report: &'a Report, case: &CaseInfo, arm: &str) -> Option<&'a Run> {
    let named = |run: &Run| CaseInfo { name: run.case.name.clone(), ..case.clone() } == run.case;
    report.runs.iter().find(|run| run.arm == arm && named(run))
}

fn cpu(report: &Report, case: &CaseInfo, arm: &str) -> Option<f64> {
    run(report, case, arm)?.cpu_seconds_per_gib
}

fn lanes(report: &Report) -> Vec<Option<Aim>> {
    use Bound::{AtLeast, AtMost};
    let Some(lanes) = &report.lanes else { return Vec::new() };
    let ratios = lanes.ratios.as_ref();
    let of = |ratio: fn(&crate::lanes::LaneRatios) -> f64| ratios.map(ratio);
    let wake = lanes.round_trips.iter().find(|trip| trip.name == "kvrail_wake_up");
    let wake_us = wake.map(|trip| trip.latency_ns.p50 / 1000.0);
    let millions = |what: KeyedOperation| {
        let burst = lanes.throughput.iter().find(|burst| burst.name == what.name());
        burst.map(|burst| burst.per_second / 1e6)
    };
    vec![
        Aim::new("lane round trip / cache line", AtMost, 1.5, of(|r| r.round_trip_per_cache_line)),
        Aim::new(
            "lane round trip / Unix socket",
            AtMost,
            0.06,
            of(|r| r.round_trip_per_unix_socket),
        ),
        Aim::new("lane throughput / bare rings", AtLeast, 0.7, of(|r| r.throughput_per_spsc_pair)),
        Aim::new("gets on a null device, M/s", AtLeast, 1.0, millions(KeyedOperation::Get)),
        Aim::new("puts on a null device, M/s", AtLeast, 0.5, millions(KeyedOperation::Put)),
        Aim::new(
            "lookups on a null device, M keys/s",
            AtLeast,
            10.0,
            millions(KeyedOperation::Lookup),
        ),
        Aim::new("wake-up of a sleeping sidecar: p50, us", AtMost, 50.0, wake_us),
    ]
}

fn sidecar(report: &Report) -> Vec<Option<Aim>> {
    use Bound::AtMost;
    let Some(cost) = report.sidecar else { return Vec::new() };
    let idle = cost.idle_cpu_percent;
    let mib = |bytes: u64| bytes as f64 / f64::from(MIB);
    let allocations = cost.poller_allocations as f64;
    vec![
        Aim::new("idle sidecar: percent of a core", AtMost, 1.0, Some(idle)),
        // The touched part of the tables is unknown: all of them may be resident.
        Aim::new(
            "resident memory, MiB (64 and the stores' tables)",
            AtMost,
            64.0 + mib(cost.stores_bytes),
            Some(mib(cost.resident_bytes)),
        ),
        Aim::new("heap allocations on pollers", AtMost, 0.0, Some(allocations)),
    ]
}

/// kvrail against raw in a case of this shape, whatever the rate of an open loop.
fn find<'a>(report: &'a Report, case: &Case) -> Option<&'a Comparison> {
    report.compared(&case.info(), (KVRAIL, RAW))
}

fn middle(spread: Option<Spread>) -> Option<f64> {
    spread.map(|spread| spread.median)
}
