//! The kvrail arm against a sidecar in this process: the real server, pollers, rings and lanes.
#![forbid(unsafe_code)]

#[path = "../examples/count/local.rs"]
mod local;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Result;
use clap::Parser;
use kvrail_bench::drive::{Sweep, sweep};
use kvrail_bench::port::{
    Direction, Done, Fault, KeyedTarget, Operation, Port, PortShape, Target, TurnWait, Work,
};
use kvrail_bench::report::Ratio;
use kvrail_bench::sidecar::{ServingSidecar, attach};
use kvrail_bench::versions::VersionMap;
use kvrail_bench::{BenchOptions, Ground, Harness, run};
use kvrail_device::{DirectIo, Interrupt, NullDevice, NullOptions, Uring, UringOptions, open_path};
use kvrail_poller::{
    CpuBinding, DeviceBudget, InFlightBytes, Mailbox, PollerHandle, Route, Setup, StoreSetup, start,
};
use kvrail_protocol::VolumeInfo;
use kvrail_ring::{DeviceIndex, Doorbell, Geometry, PollerIndex};
use kvrail_session::{Server, ServerError, ServerHandle, Stopped, server_handle};
use tempfile::TempDir;
use uuid::Uuid;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    bench: BenchOptions,
}

fn options(line: &str) -> BenchOptions {
    let short = "--seconds 0.2 --warm-up 0.01 --rounds 2 --volume-size 16MiB";
    let line = format!("bench {short} {line}");
    Cli::try_parse_from(line.split_whitespace()).expect("options of a test").bench
}

/// Two members in files, a null device, and a store in a file, each with a poller of its own that
/// floats.
#[derive(Default)]
struct InProcess {
    running: Option<Running>,
}

struct Running {
    directory: TempDir,
    handle: ServerHandle,
    thread: JoinHandle<Result<Stopped, ServerError>>,
}

const STRIPE: u64 = 256 << 10;

fn striped(member_bytes: u64) -> Geometry {
    Geometry {
        members: 2,
        stripe_bytes: STRIPE,
        member_bytes,
        data_offset: 1 << 20,
        logical_block: 512,
        memory_alignment: 512,
    }
}

fn null_geometry() -> Geometry {
    let member_bytes = NullOptions::default().capacity_bytes;
    let stripe_bytes = member_bytes;
    Geometry { members: 1, stripe_bytes, member_bytes, data_offset: 0, ..striped(0) }
}

/// Bytes of the store.
const STORE_BYTES: u64 = 256 << 20;

fn store_geometry() -> Geometry {
    let (member_bytes, stripe_bytes) = (STORE_BYTES, STORE_BYTES);
    Geometry { members: 1, stripe_bytes, member_bytes, ..striped(0) }
}

fn setup(device: u16, routes: &[Route]) -> Setup {
    Setup {
        routes: routes.to_vec(),
        devices: vec![DeviceIndex(device)],
        budgets: vec![DeviceBudget { operations: 128, bytes: InFlightBytes::Fixed(64 << 20) }],
        stores: Vec::new(),
        spin_ns: 20_000,
        beat_ns: 200_000_000,
    }
}

fn pollers(
    (members, store): (&[String], StoreSetup),
    routes: &[Route],
    bell: &Arc<Doorbell>,
) -> Vec<PollerHandle> {
    let seat = |index| CpuBinding { index: PollerIndex(index), cpu: None };
    let mailbox = || Arc::new(Mailbox::new(Arc::clone(bell)).unwrap());
    let mut handles = Vec::new();
    let file = |path: String| {
        move || {
            let fd = open_path(&path, DirectIo::Required)?;
            let options = UringOptions::new(path, fd);
            Ok::<_, kvrail_device::DeviceError>(vec![Uring::<Interrupt>::open(options)?])
        }
    };
    for (path, index) in members[..2].iter().cloned().zip(0..) {
        let setup = setup(index, routes);
        handles.push(start(seat(index), setup, mailbox(), file(path)).unwrap());
    }
    let open =
        || Ok::<_, kvrail_device::DeviceError>(vec![NullDevice::new(NullOptions::default())]);
    handles.push(start(seat(2), setup(2, routes), mailbox(), open).unwrap());
    let setup = Setup { stores: vec![(0, store)], ..setup(3, routes) };
    handles.push(start(seat(3), setup, mailbox(), file(members[2].clone())).unwrap());
    handles
}

fn info(id: u16, name: &str, geometry: Geometry, members: Vec<String>) -> VolumeInfo {
    let uuid = Uuid::from_u128(u128::from(id) + 1);
    let pollers = [vec![0, 1], vec![2], vec![3]][usize::from(id)].clone();
    let raw = kvrail_protocol::VolumeContent::Raw;
    let content = if id == 2 { local::content() } else { raw };
    VolumeInfo { id, name: name.into(), uuid, geometry: geometry.into(), pollers, members, content }
}

impl Harness for InProcess {
    fn open(&mut self, options: &BenchOptions, volume_bytes: u64) -> Result<Ground> {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let geometry = striped((volume_bytes / 2).next_multiple_of(STRIPE));
        let names = ["member-0", "member-1", "store"].map(|name| directory.path().join(name));
        let bytes = [geometry, geometry, store_geometry()]
            .map(|geometry| geometry.data_offset + geometry.member_bytes);
        for (name, bytes) in names.iter().zip(bytes) {
            File::create(name)?.set_len(bytes)?;
        }
        let members = names.map(|name| name.display().to_string()).to_vec();
        let routes = [
            Route { geometry, members: vec![DeviceIndex(0), DeviceIndex(1)] },
            Route { geometry: null_geometry(), members: vec![DeviceIndex(2)] },
            Route { geometry: store_geometry(), members: vec![DeviceIndex(3)] },
        ];
        let bell = Arc::new(Doorbell::eventfd()?);
        let store = local::setup(&store_geometry());
        let mut config = local::config(directory.path(), 20_000);
        config.stores = vec![local::served(2, DeviceIndex(3), &store)];
        let handles = pollers((&members, store), &routes, &bell);
        let volumes = vec![
            info(0, "bench", geometry, members[..2].to_vec()),
            info(1, "null", null_geometry(), vec!["null".into()]),
            info(2, "store", store_geometry(), members[2..].to_vec()),
        ];
        let socket = config.socket.clone();
        let mut server = Server::new(config, handles, bell, volumes)?;
        let (handle, received) = server_handle()?;
        let thread = std::thread::spawn(move || server.run(&received));
        self.running = Some(Running { directory, handle, thread });
        let (store, null_volume) = (Some("store".to_owned()), Some("null".to_owned()));
        let volume = "bench".to_owned();
        attach(&ServingSidecar { socket, volume, store, null_volume, null_store: None }, options)
    }

    fn close(&mut self) -> Result<()> {
        if let Some(Running { handle, thread, .. }) = self.running.take() {
            handle.stop();
            thread.join().expect("the server does not panic")?;
        }
        Ok(())
    }
}

fn measured(line: &str) -> kvrail_bench::report::Report {
    let report = clean(&options(line));
    assert!(report.runs.iter().all(|run| run.operations > 0), "{:?}", report.runs);
    report
}

fn clean(options: &BenchOptions) -> kvrail_bench::report::Report {
    let report = run(options, &mut InProcess::default()).unwrap().report;
    assert_eq!((report.errors(), report.verify_failures()), (0, 0), "{:?}", report.verification);
    report
}

#[test]
fn both_arms_verify_each_others_bytes_and_are_compared() {
    let line = "--arms kvrail,raw --op mixed --block 4KiB,1MiB --depth 4 --clients 1,2";
    let report = measured(line);
    assert_eq!((report.runs.len(), report.ratios.len(), report.comparisons.len()), (8, 4, 4));
    for ratio in &report.ratios {
        for value in [ratio.p50, ratio.p99, ratio.throughput] {
            assert!(value.is_some_and(|value| value > 0.0), "{ratio:?}");
        }
    }
    let modes: Vec<&str> = report.environment.modes.iter().map(|mode| mode.mode.as_str()).collect();
    assert_eq!(modes, ["interrupt", "interrupt"]);
    let cost = report.sidecar.expect("there is a sidecar");
    assert!(cost.resident_bytes > 0);
}

#[test]
fn open_loops_of_both_arms_follow_one_plan() {
    let report = measured("--arms kvrail,raw --block 4KiB --depth 8 --open 10% --client-wait spin");
    let planned = report.comparisons[0].planned_per_second.expect("an open loop has a plan");
    assert!(planned > 0.0);
    assert!(report.comparisons[0].relation.p999.is_some());
}

#[test]
fn lanes_reach_the_null_device() {
    let report = measured("--arms kvrail,lanes --op read --block 4KiB --depth 1");
    let Some(lanes) = report.lanes else {
        println!("skipped: lanes need two cores; {:?}", report.notes);
        return;
    };
    let names: Vec<&str> = lanes.round_trips.iter().map(|trip| trip.name.as_str()).collect();
    for name in ["kvrail_null", "kvrail_nop", "kvrail_wake_up"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let named = |what: &str| report.aims.iter().any(|aim| aim.what.contains(what));
    assert!(named("lane throughput") && named("idle sidecar"), "{:?}", report.aims);
    assert!(lanes.ratios.is_some_and(|ratios| ratios.throughput_per_spsc_pair > 0.0));
}

#[test]
fn a_store_gets_what_it_was_put_and_is_compared_with_the_volume() {
    let line = "--arms kvrail,raw,store --op read,write,mixed,lookup --block 4KiB,1MiB --depth 4";
    // Long enough for a lookup of an unoptimised build on a busy machine.
    let report = clean(&BenchOptions { rounds: 1, seconds: 0.2, ..options(line) });
    let of_store = |op: &str| {
        let runs = report.runs.iter().filter(|run| run.arm == "store" && run.case.op == op);
        runs.collect::<Vec<_>>()
    };
    for op in ["get", "put", "mixed"] {
        let runs = of_store(op);
        assert_eq!(runs.len(), 2, "{op}");
        assert!(runs.iter().any(|run| run.operations > 0), "{runs:?}");
    }
    let lookups = of_store("lookup");
    let [lookup] = lookups[..] else { panic!("{lookups:?}") };
    assert!(lookup.case.keys == Some(1000) && lookup.operations > 0, "{lookup:?}");
    let beside = |arm: &str, against: &str| {
        let same = |it: &&Ratio| (it.arm.as_str(), it.against.as_str()) == (arm, against);
        report.ratios.iter().filter(same).count()
    };
    let counts =
        [("kvrail", "raw"), ("store", "raw"), ("store", "volume")].map(|(a, b)| beside(a, b));
    assert_eq!(counts, [6, 6, 6], "{:?}", report.ratios);
    assert!(report.verification.verified_bytes > 0 && report.verification.evicted == 0);
}

/// 16 tokens of fp8 MLA: no multiple of 512, so no volume takes it.
#[test]
fn odd_blocks_are_the_stores_alone() {
    let report = measured("--arms kvrail,store --op read,write --block 640256B,64KiB --depth 2");
    let odd: Vec<_> = report.runs.iter().filter(|run| run.case.block_bytes == 640_256).collect();
    assert!(odd.len() == 2 && odd.iter().all(|run| run.arm == "store"), "{odd:?}");
    assert!(report.runs.iter().any(|run| run.arm == "kvrail"), "beside blocks that both take");
    let refused = run(&options("--arms raw --block 640256B --depth 1"), &mut InProcess::default());
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("no arm takes") && said.contains("`store`"), "{said}");
}

/// More is put than the store holds: what the ring came round over is gone, and that is no error.
#[test]
fn a_ring_that_comes_round_is_no_failure() {
    let mut harness = InProcess::default();
    let mut ground = harness.open(&options("--arms store"), 16 << 20).unwrap();
    let store = ground.sidecar.as_mut().unwrap().store.take().unwrap();
    let mut map = VersionMap::new(STORE_BYTES / 2 * 3, 1 << 20);
    store.begin(1 << 20, map.span_bytes()).unwrap();
    sweep(&store, ground.uuid, &mut map, Sweep::Fill, &|_| ()).unwrap();
    let tally = sweep(&store, ground.uuid, &mut map, Sweep::Verify, &|_| ()).unwrap();
    assert_eq!((tally.errors, tally.verify_failures), (0, 0), "{:?}", tally.failures);
    let gone = tally.evicted << 20;
    assert!(gone >= STORE_BYTES / 2, "{gone} bytes gone of {} put", map.span_bytes());
    assert!(tally.verified_bytes >= store.kept_bytes(), "{}", tally.verified_bytes);
    drop((store, ground));
    harness.close().unwrap();
}

/// Blocks that a get used are moved when the ring comes round to them: reading back is no use.
#[test]
fn what_was_read_back_goes_when_its_turn_comes() {
    let mut harness = InProcess::default();
    let mut ground = harness.open(&options("--arms store"), 16 << 20).unwrap();
    let store = ground.sidecar.as_mut().unwrap().store.take().unwrap();
    let (bytes, first, all) = (1 << 20, 16, (STORE_BYTES / 2 * 3) >> 20);
    store.begin(bytes, all << 20).unwrap();
    let mut gone = 0;
    let one = |port: &mut dyn Port, direction, block: u64| -> Result<Result<(), Fault>> {
        let mut done = Vec::new();
        port.stage(0, Operation { direction, offset: block << 20, bytes })?;
        while done.is_empty() {
            port.turn(TurnWait::ForOne, &mut done)?;
        }
        Ok(done[0].outcome)
    };
    let mut work = |port: &mut dyn Port| {
        port.begin_read_back();
        for block in 0..all {
            one(port, Direction::Write, block)?.unwrap();
            if block < first {
                one(port, Direction::Read, block)?.unwrap();
            }
        }
        for block in 0..first {
            let found = one(port, Direction::Read, block)?;
            gone += u64::from(matches!(found, Err(Fault::Evicted)));
        }
        Ok(())
    };
    store.with_port(PortShape { slots: 1, buffer_bytes: bytes }, &mut work).unwrap();
    assert_eq!(gone, first);
    drop((store, ground));
    harness.close().unwrap();
}

/// Turns one byte of each block round behind the check: what the client library cannot see.
#[derive(Debug)]
struct Turned(Box<dyn Target>);

struct TurnedPort<'a>(&'a mut dyn Port);

impl Target for Turned {
    fn mode(&self) -> String {
        self.0.mode()
    }

    fn sweep_bytes(&self, unit_bytes: u32) -> u32 {
        self.0.sweep_bytes(unit_bytes)
    }

    fn with_port(&self, shape: PortShape, work: Work<'_>) -> Result<()> {
        self.0.with_port(shape, &mut |port| work(&mut TurnedPort(port)))
    }
}

impl Port for TurnedPort<'_> {
    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.0.buffer(slot)
    }

    fn stage(&mut self, slot: u32, operation: Operation) -> Result<()> {
        self.0.stage(slot, operation)
    }

    fn turn(&mut self, wait: TurnWait, done: &mut Vec<Done>) -> Result<()> {
        let before = done.len();
        self.0.turn(wait, done)?;
        for ended in &done[before..] {
            let bytes = self.0.buffer(ended.slot);
            bytes[bytes.len() / 2] ^= 1;
        }
        Ok(())
    }
}

#[test]
fn a_wrong_byte_is_found_by_content_and_on_the_medium_by_the_check() {
    let mut harness = InProcess::default();
    let mut ground = harness.open(&options("--arms store"), 16 << 20).unwrap();
    let store = ground.sidecar.as_mut().unwrap().store.take().unwrap();
    let (bytes, block) = (4 << 20, 100_000);
    let mut map = VersionMap::new(bytes, block);
    store.begin(block, map.span_bytes()).unwrap();
    let all = |target: &dyn Target, map: &mut VersionMap, what| {
        sweep(target, ground.uuid, map, what, &|_| ()).unwrap()
    };
    all(&store, &mut map, Sweep::Fill);
    let whole = all(&store, &mut map, Sweep::Verify);
    let right = (whole.errors, whole.verify_failures, whole.verified_bytes);
    assert_eq!(right, (0, 0, map.span_bytes()));

    let blocks = map.span_bytes() / u64::from(block);
    let turned = Turned(Box::new(Arc::clone(&store)));
    let wrong = all(&turned, &mut map, Sweep::Verify);
    assert_eq!((wrong.errors, wrong.verify_failures), (0, blocks), "one sector of each block");

    let file = harness.running.as_ref().unwrap().directory.path().join("store");
    let medium = std::fs::read(&file).unwrap();
    let mut held = vec![0; block as usize];
    kvrail_bench::pattern::Pattern::new(ground.uuid).fill(&mut held, 7 * u64::from(block), 1);
    let at = medium.chunks(512).position(|sector| *sector == held[..512]).expect("it is there");
    let file = File::options().write(true).open(file).unwrap();
    file.write_all_at(&[held[600] ^ 1], at as u64 * 512 + 600).unwrap();
    file.sync_all().unwrap();
    let rotten = all(&store, &mut map, Sweep::Verify);
    assert_eq!((rotten.errors, rotten.verify_failures), (1, 0), "{:?}", rotten.failures);
    assert!(rotten.failures[0].contains("read at 700000: status MISS"), "{:?}", rotten.failures);
    drop((store, turned, ground));
    harness.close().unwrap();
}
