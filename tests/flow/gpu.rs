//! Blocks between GPU memory of client processes and a volume. The GPU is a stand-in: host memory
//! that is exported, gathered and scattered as a GPU's is.

use std::fs;
use std::time::Instant;

use kvrail_tests::{Device, Export, GPU_BLOCK_BYTES, GpuPlan, Tally};
use serde_json::Value;

use crate::rig::{Actor, Place, Sidecar, hostile, kill_at_random, kvrail, run, soak_seconds};

/// Blocks of the volume that one process has.
const BLOCKS: u32 = 24;

/// Threads with host memory: their blocks lie before those of the GPUs.
const HOST_THREADS: u32 = 4;

fn gpu_offset(process: u64) -> u64 {
    // Not on a stripe's border: each block of the cache lies in two stripes at times.
    let first = kvrail_tests::span_bytes(HOST_THREADS).next_multiple_of(1 << 20) + 33 * 1024;
    first + process * u64::from(BLOCKS) * GPU_BLOCK_BYTES
}

fn place(mechanism: &str) -> Place {
    let mut place = Place::with_volume(2, gpu_offset(4) + (1 << 20));
    place.configure("gpu.devices = [\"stand-in:0\"]");
    place.configure("gpu.staging_bytes = \"4MiB\"\ngpu.staging_slot_bytes = \"64KiB\"");
    place.configure(&format!("gpu.mechanism = {mechanism:?}"));
    place
}

fn plan(sidecar: &Sidecar, process: u64, seconds: f64) -> GpuPlan {
    GpuPlan {
        socket: sidecar.socket().to_owned(),
        volume: "kv".into(),
        offset: gpu_offset(process),
        blocks: BLOCKS,
        least_version: 0,
        device: Device::EmulatedGpu,
        export: if process.is_multiple_of(2) { Export::Descriptor } else { Export::Legacy },
        seconds,
        seed: process,
    }
}

fn assert_all_right(tally: &Tally) {
    tally.assert_right();
    assert_eq!(tally.count("OK"), tally.ended, "{:?}", tally.statuses);
    assert!(tally.verified > u64::from(BLOCKS), "only {} reads compared", tally.verified);
}

/// Whether a sidecar can open the stand-in's memory of another process by its handle: that is a
/// path below /proc, which needs the other one's capabilities (root in a container has some that a
/// sidecar drops) or `CAP_SYS_PTRACE`. A GPU's own handles need none.
fn opens_handles() -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    let held = u64::from_str_radix(held, 16).unwrap();
    let opens = held == 0 || held >> CAP_SYS_PTRACE & 1 == 1;
    if !opens {
        println!("skipped: root without CAP_SYS_PTRACE; give it, or run as an ordinary user");
    }
    opens
}

/// Two processes with caches, by descriptor and by handle, together with one with host memory.
fn every_byte_comes_back(mechanism: &str) {
    if !opens_handles() {
        return;
    }
    let place = place(mechanism);
    let sidecar = Sidecar::start(&place);
    let before = sidecar.belongings();
    let seconds = soak_seconds() / 2.0;
    let host = Actor::traffic(&sidecar, 0, HOST_THREADS, seconds);
    let actors = [0, 1].map(|process| Actor::gpu(&plan(&sidecar, process, seconds)));
    let client = sidecar.attach();
    for actor in actors {
        let tally = actor.tally();
        assert_all_right(&tally);
        println!("{mechanism}: {} requests, {} verified", tally.ended, tally.verified);
        // Reads to host memory see the bytes that were written from the GPU.
        kvrail_tests::verify(&client, "kv", &tally.acknowledged).unwrap().assert_right();
    }
    host.tally().assert_right();
    let report = sidecar.status();
    assert!(
        report.pollers.iter().all(|poller| poller.counters.allocations == Some(0)),
        "{:?}",
        report.pollers
    );
    assert_eq!((report.gpus[0].counters.failed, report.gpus[0].staging.taken), (Some(0), 0));
    let direct = report.gpus[0].counters.direct_bytes > Some(0);
    assert_eq!(direct, mechanism == "allow-compat", "{:?}", report.gpus[0]);
    drop(client);
    sidecar.wait_for_belongings(&before);
    sidecar.stop();
}

#[test]
fn every_byte_of_a_paged_cache_comes_back_staged() {
    every_byte_comes_back("auto");
}

#[test]
fn every_byte_of_a_paged_cache_comes_back_by_the_gpus_own_calls() {
    every_byte_comes_back("allow-compat");
}

#[test]
fn what_a_dead_writer_wrote_is_read_by_its_heir() {
    let place = place("auto");
    let sidecar = Sidecar::start(&place);
    let before = sidecar.belongings();
    let mut writer = Actor::gpu(&plan(&sidecar, 0, 60.0));
    assert!(writer.wait_until_running(), "each block is written once");
    writer.kill();
    let heir = GpuPlan { least_version: 1, seed: 9, ..plan(&sidecar, 0, 0.2) };
    assert_all_right(&Actor::gpu(&heir).tally());
    sidecar.wait_for_belongings(&before);
    sidecar.stop();
}

#[test]
fn clients_killed_at_random_leave_whole_blocks_and_nothing_else() {
    if !opens_handles() {
        return;
    }
    let place = place("auto");
    let mut sidecar = Sidecar::start(&place);
    let before = sidecar.belongings();
    let seconds = soak_seconds();
    let steady = Actor::gpu(&plan(&sidecar, 0, seconds));
    let host = Actor::traffic(&sidecar, 0, HOST_THREADS, seconds);
    let watcher = sidecar.attach();
    let (start, mut killed) = (Instant::now(), 0);
    let mut dice = fastrand::Rng::with_seed(41);
    while start.elapsed().as_secs_f64() < seconds {
        let victims = [1, 2].map(|process| Actor::gpu(&plan(&sidecar, process, 60.0)));
        killed += victims.len();
        kill_at_random(victims, &mut dice, &watcher);
    }
    assert_all_right(&steady.tally());
    host.tally().assert_right();
    println!("{killed} clients killed");
    for process in [1, 2] {
        Actor::gpu(&plan(&sidecar, process, 0.2)).tally().assert_right();
    }
    let gpu = watcher.status().unwrap().gpus.remove(0);
    assert_eq!((gpu.regions, gpu.staging.taken, gpu.counters.failed), (0, 0, Some(0)), "{gpu:?}");
    drop(watcher);
    sidecar.assert_alive();
    sidecar.wait_for_belongings(&before);
    sidecar.stop();
}

/// Attackers together with verified traffic of either kind.
fn beside_good_traffic(kind: &str) {
    let place = place("auto");
    let mut sidecar = Sidecar::start(&place);
    let before = sidecar.belongings();
    let good = Actor::gpu(&plan(&sidecar, 0, 2.0));
    let host = Actor::traffic(&sidecar, 0, HOST_THREADS, 2.0);
    for attacker in [hostile(&sidecar, kind, 1.5), hostile(&sidecar, kind, 1.5)] {
        println!("{kind}: {}", attacker.finish().trim());
    }
    sidecar.assert_alive();
    assert_all_right(&good.tally());
    host.tally().assert_right();
    sidecar.wait_for_belongings(&before);
    let stderr = sidecar.stop();
    assert!(!stderr.contains("panicked"), "{stderr}");
}

#[test]
fn naming_blocks_that_are_not_there() {
    beside_good_traffic("blocks");
}

#[test]
fn hanging_up_with_blocks_under_way() {
    beside_good_traffic("caches");
}

#[test]
fn start_report_and_status_show_the_route_and_its_reason() {
    let place = place("auto");
    let sidecar = Sidecar::start(&place);
    let stderr = sidecar.stderr();
    let uuid = "GPU-5d5d5d5d-5d5d-5d5d-5d5d-5d5d00000000";
    for word in [uuid, "64 staging slots of 64.00 KiB", "volume kv: staged (auto: "] {
        assert!(stderr.contains(word), "no {word:?} in {stderr}");
    }
    let words = run(kvrail().args(["status", "-v", "--socket"]).arg(place.socket()));
    for word in [uuid, "serving", "0 of 64", "volume kv is staged: auto: "] {
        assert!(words.stdout.contains(word), "no {word:?} in {}", words.stdout);
    }
    let json = run(kvrail().args(["status", "--format", "json", "--socket"]).arg(place.socket()));
    let report: Value = serde_json::from_str(&json.stdout).unwrap();
    let gpu = &report["gpus"][0];
    assert_eq!((&gpu["gpu"]["uuid"], &gpu["state"]), (&uuid.into(), &"serving".into()));
    assert_eq!(gpu["routes"][0]["mechanism"], "staged");
    assert_eq!((&gpu["configured"], &gpu["failure"]), (&"auto".into(), &Value::Null));
    sidecar.stop();
}

#[test]
fn a_sidecar_that_cannot_serve_its_gpus_does_not_start() {
    let place = place("require-direct");
    run(&mut place.serve()).expect(3, &["is required and not possible", "mechanism = \"auto\""]);
    let refused = |set: &[&str], words: &[&str]| {
        let mut command = place.serve();
        command.args(["--set", "gpu.mechanism=auto"]);
        for set in set {
            command.args(["--set", set]);
        }
        run(&mut command).expect(if words[0] == "gpu.cpus" { 2 } else { 3 }, words);
    };
    refused(&["gpu.devices=[\"stand-in:0\", \"stand-in:1\"]", "gpu.cpus=[0]"], &["gpu.cpus"]);
    refused(&["gpu.devices=[\"99\"]"], &["GPU 99"]);
    let uuid = "gpu.devices=[\"GPU-00000000-0000-0000-0000-000000000001\"]";
    refused(&[uuid], &["GPU-00000000-0000-0000-0000-000000000001"]);
    // No block was left claimed.
    let mut command = place.serve();
    command.args(["--set", "gpu.mechanism=staged"]);
    Sidecar::start_as(&place, command).stop();
}
