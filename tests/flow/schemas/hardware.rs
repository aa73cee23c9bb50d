//! Outputs that describe hardware or a measurement: of this host as it is, and of what it lacks as
//! the product's own types write it.

use std::fs;
use std::process::Command;

use kvrail_bench::lanes::LaneReport;
use kvrail_bench::report::{GpuFound, Report};
use kvrail_bench::statistics::Relation;
use kvrail_target::{Outcome, Serving, Step};
use kvrail_topology::Detail;
use serde_json::{Value, json};

use super::{Outputs, command, machine};
use crate::rig::{Place, kvrail};

/// A port and a subsystem whose drive is not there.
const WISH: &str = include_str!("../../../engine/kvrail/tests/target-wish.toml");

pub(super) fn of_hardware(outputs: &mut Outputs, place: &Place) {
    let calibrate = &mut command(&["devices", "--calibrate"], place);
    outputs.take("devices-calibrate", calibrate.arg(&place.members[0]));
    of_the_map(outputs, place);
    of_a_target(outputs, place);
    of_a_benchmark(outputs);
    of_a_played_trace(outputs, place);
    // Engines are asked in a Python, 3.11 or later.
    let asked = Command::new("python3").args(["-P", "-c", ""]).status();
    if asked.is_ok_and(|status| status.success()) {
        outputs.take("engines", &mut command(&["engines"], place));
        of_a_try(outputs, place);
    } else {
        println!("skipped: no python3 from 3.11 on in PATH, for the schema of kvrail engines");
        outputs.0.entry("engines").or_default();
        outputs.0.entry("engines-try").or_default();
    }
}

/// A try that ends before the engine, whose modules this Python lacks or whose store is nowhere.
fn of_a_try(outputs: &mut Outputs, place: &Place) {
    let mut attempt = command(&["engines", "try", "sglang"], place);
    outputs.take("engines-try", attempt.arg("--socket").arg(place.path("nowhere")));
}

/// This host's map, and one of a host with drives, a NIC and a GPU.
fn of_the_map(outputs: &mut Outputs, place: &Place) {
    outputs.take("topology", &mut command(&["topology"], place));
    let full = machine::one_socket().map();
    // A remote drive, a software NIC, a GPU with its driver, and places that are not known.
    let mut other = full.clone();
    for device in &mut other.devices {
        let place = &mut device.place;
        (place.pci, place.node, place.socket, place.link) = (None, None, None, None);
        match &mut device.detail {
            Detail::Drive { via, .. } => *via = Some("mlx5_0".into()),
            Detail::Nic { software_on, .. } => *software_on = Some("eth0".into()),
            Detail::Gpu { driver, .. } => *driver = Some("nvidia".into()),
        }
    }
    other.nodes[0].socket = None;
    for map in [full, other] {
        let mut document = json!(map);
        (document["pairs"], document["warnings"]) = (json!(map.pairs()), json!(map.warnings()));
        outputs.0.entry("topology").or_default().push(document);
    }
}

/// What a target shows without and with a wish, over a tree of plain files; then with steps.
fn of_a_target(outputs: &mut Outputs, place: &Place) {
    for folder in ["tree/hosts", "tree/subsystems", "tree/ports"] {
        fs::create_dir_all(place.path(folder)).expect("our own folder");
    }
    let (tree, state) = (place.path("tree"), place.path("state"));
    let own = format!("[target]\nconfigfs = {tree:?}\nstate_dir = {state:?}\n");
    let file = place.path("target.toml");
    let mut target = |name, verb, wish: &str| {
        fs::write(&file, format!("{own}{wish}")).expect("our own folder");
        outputs.take(name, kvrail().args(["target", verb, "--config"]).arg(&file));
    };
    target("target-status", "status", "");
    target("target-status", "status", WISH);
    target("target-steps", "teardown", "");
    let subsystem = |serving| Outcome {
        subsystem: "nqn.2026-01.org.example:kv0".into(),
        asked: kvrail_target::Offload::Preferred,
        serving,
        p2p_memory: vec![1],
    };
    let kernel = Serving::Kernel { why: "no card".into() };
    let subsystems = [Serving::Offloaded, kernel, Serving::Unknown].map(subsystem);
    let steps = [
        Step::Load { module: "nvmet".into() },
        Step::MakeDir { path: "ports/1".into(), attributes: vec!["addr_trtype".into()] },
        Step::Link { path: "ports/1/subsystems/a".into(), target: "subsystems/a".into() },
        Step::RemoveDir { path: "ports/1".into() },
    ];
    for (name, list) in [("target-status", "missing"), ("target-steps", "steps")] {
        let documents = outputs.0.get_mut(name).expect("just taken");
        let mut whole = documents[0].clone();
        whole["subsystems"] = json!(subsystems);
        whole[list] = json!(steps);
        documents.push(whole);
    }
}

/// A benchmark of this host, closed and open; and with a GPU.
fn of_a_benchmark(outputs: &mut Outputs) {
    let bench = |arms: &str, more: &[&str]| {
        let mut bench = kvrail();
        bench.args(["bench", "--volume-size", "32MiB", "--seconds", "0.05", "--warm-up", "0"]);
        bench.args(["--rounds", "1", "--op", "read", "--block", "64KiB", "--depth", "4"]);
        bench.args(["--clients", "1", "--arms", arms]).args(more);
        bench
    };
    outputs.take("bench", &mut bench("kvrail,raw,lanes,store,memory", &[]));
    outputs.take("bench", &mut bench("kvrail,raw", &["--open", "50%"]));
    let documents = outputs.0.get_mut("bench").expect("just taken");
    let mut report: Report = serde_json::from_value(documents[0].clone()).expect("its own type");
    let mut bare = report.clone();
    report.gpu = Some(GpuFound {
        name: "a GPU".into(),
        uuid: "GPU-0".into(),
        pci_address: "0000:01:00.0".into(),
        memory_bytes: 1 << 36,
        cuda: Some(13_000),
        cufile: Some(1_160),
    });
    report.runs[0].case.layout = Some("paged".into());
    report.runs[0].case.fragments = Some(61);
    report.runs[0].case.keys = Some(1000);
    report.comparisons[0].case = report.runs[0].case.clone();
    report.comparisons[0].planned_per_second = Some(7.5);
    (report.notes, report.verification.first) = (vec!["a note".into()], vec!["a place".into()]);
    // Where nothing was measured.
    bare.gpu = report.gpu.clone().map(|gpu| GpuFound { cuda: None, cufile: None, ..gpu });
    (bare.sidecar, bare.runs[0].cpu_seconds_per_gib) = (None, None);
    bare.lanes = report.lanes.clone().map(|lanes| LaneReport { ratios: None, ..lanes });
    let ratio = &mut bare.ratios[0];
    (ratio.p50, ratio.p99, ratio.throughput, ratio.cpu) = (None, None, None, None);
    bare.comparisons[0].relation = Relation {
        p50: None,
        p99: None,
        p999: None,
        throughput: None,
        cpu: None,
        process_cpu: None,
        p50_above_ns: None,
    };
    documents.extend([report, bare].map(|report| json!(report)));
}

/// A trace that is played, and a report of refusals and of what is not known.
fn of_a_played_trace(outputs: &mut Outputs, place: &Place) {
    let trace = place.path("requests.jsonl");
    let lines = (0..20).map(|at| json!({"timestamp": at, "hash_ids": [at % 7, at]}).to_string());
    fs::write(&trace, lines.collect::<Vec<_>>().join("\n")).expect("our own folder");
    let mut bench = kvrail();
    bench.args(["bench", "--volume-size", "256MiB", "--block", "64KiB", "--speed", "1e6"]);
    outputs.take("bench-trace", bench.args(["--requests", "20", "--trace"]).arg(&trace));
    let documents = outputs.0.get_mut("bench-trace").expect("just taken");
    let mut other = documents[0].clone();
    for unknown in ["requests_max", "replay_hit_ratio", "cpu_seconds_per_gib"] {
        other[unknown] = Value::Null;
    }
    (other["declined"], other["errors"]) = (json!({"full": 1}), json!({"DEVICE_ERROR": 1}));
    other["words"] = json!(["a place"]);
    documents.push(other);
}
