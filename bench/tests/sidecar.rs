//! The kvrail arm against a sidecar in this process: the real server, pollers, rings and lanes.
#![forbid(unsafe_code)]

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use kvrail_bench::sidecar::{Serving, attach};
use kvrail_bench::{BenchOptions, Ground, Harness, run};
use kvrail_device::{DirectIo, Interrupt, NullDevice, NullOptions, Uring, UringOptions, open_path};
use kvrail_poller::{Budget, InFlightBytes, Mailbox, PollerHandle, Route, Seat, Setup, start};
use kvrail_protocol::{SpinHints, VolumeInfo};
use kvrail_ring::{DeviceIndex, Doorbell, Epoch, Geometry, PollerIndex};
use kvrail_session::{
    Access, Identity, Limits, NumaPolicy, PagePolicy, Patience, Policy, Porter, Server,
    ServerConfig, ServerError, ServerHandle, Stopped, server_handle,
};
use tempfile::TempDir;
use uuid::Uuid;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    bench: BenchOptions,
}

fn options(line: &str) -> BenchOptions {
    let short = "--seconds 0.05 --warm-up 0.01 --rounds 2 --volume-size 16MiB";
    let line = format!("bench {short} {line}");
    Cli::try_parse_from(line.split_whitespace()).expect("options of a test").bench
}

/// Two members in files, and a null device, each with a poller of its own that floats.
#[derive(Default)]
struct InProcess {
    running: Option<Running>,
}

struct Running {
    _directory: TempDir,
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

fn setup(device: u16, routes: &[Route]) -> Setup {
    Setup {
        routes: routes.to_vec(),
        devices: vec![DeviceIndex(device)],
        budgets: vec![Budget { operations: 128, bytes: InFlightBytes::Fixed(64 << 20) }],
        stores: Vec::new(),
        spin_ns: 20_000,
        beat_ns: 200_000_000,
    }
}

fn pollers(members: &[String], routes: &[Route], bell: &Arc<Doorbell>) -> Vec<PollerHandle> {
    let seat = |index| Seat { index: PollerIndex(index), cpu: None };
    let mailbox = || Arc::new(Mailbox::new(Arc::clone(bell)).unwrap());
    let mut handles = Vec::new();
    for (path, index) in members.iter().cloned().zip(0..) {
        let open = move || {
            let fd = open_path(&path, DirectIo::Required)?;
            Ok::<_, kvrail_device::DeviceError>(vec![Uring::<Interrupt>::open(UringOptions::new(
                path, fd,
            ))?])
        };
        handles.push(start(seat(index), setup(index, routes), mailbox(), open).unwrap());
    }
    let open =
        || Ok::<_, kvrail_device::DeviceError>(vec![NullDevice::new(NullOptions::default())]);
    handles.push(start(seat(2), setup(2, routes), mailbox(), open).unwrap());
    handles
}

fn info(id: u16, name: &str, geometry: Geometry, members: Vec<String>) -> VolumeInfo {
    let uuid = Uuid::from_u128(u128::from(id) + 1);
    let pollers = if id == 0 { vec![0, 1] } else { vec![2] };
    let content = kvrail_protocol::VolumeContent::Raw;
    VolumeInfo { id, name: name.into(), uuid, geometry: geometry.into(), pollers, members, content }
}

fn config(directory: &Path) -> ServerConfig {
    ServerConfig {
        socket: directory.join("kvrail.sock"),
        socket_mode: 0o600,
        policy: Policy {
            access: Access {
                uids: vec![rustix::process::geteuid().as_raw()],
                gids: vec![],
                operators: vec![rustix::process::geteuid().as_raw()],
            },
            limits: Limits::default(),
            pages: PagePolicy::Best,
            sealing: kvrail_memory::Sealing::Required,
            drain_timeout: Duration::from_secs(2),
            patience: Patience::default(),
        },
        numa: NumaPolicy::Anywhere,
        identity: Identity { epoch: Epoch(1), version: "kvrail-test".into() },
        spin: SpinHints { spin_ns: 20_000, cores: 2, spinning_pollers: 0 },
        notes: vec![],
        gpus: vec![],
        stores: vec![],
        // No client here sends a descriptor.
        porter: Porter::new("/bin/false", &[]),
    }
}

impl Harness for InProcess {
    fn open(&mut self, options: &BenchOptions, volume_bytes: u64) -> Result<Ground> {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let geometry = striped((volume_bytes / 2).next_multiple_of(STRIPE));
        let names = ["member-0", "member-1"].map(|name| directory.path().join(name));
        for name in &names {
            File::create(name)?.set_len(geometry.data_offset + geometry.member_bytes)?;
        }
        let members = names.map(|name| name.display().to_string()).to_vec();
        let routes = [
            Route { geometry, members: vec![DeviceIndex(0), DeviceIndex(1)] },
            Route { geometry: null_geometry(), members: vec![DeviceIndex(2)] },
        ];
        let bell = Arc::new(Doorbell::eventfd()?);
        let handles = pollers(&members, &routes, &bell);
        let volumes = vec![
            info(0, "bench", geometry, members),
            info(1, "null", null_geometry(), vec!["null".into()]),
        ];
        let config = config(directory.path());
        let socket = config.socket.clone();
        let mut server = Server::new(config, handles, bell, volumes)?;
        let (handle, received) = server_handle()?;
        let thread = std::thread::spawn(move || server.run(&received));
        self.running = Some(Running { _directory: directory, handle, thread });
        let null_volume = Some("null".to_owned());
        attach(&Serving { socket, volume: "bench".to_owned(), null_volume }, options)
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
    let report = run(&options(line), &mut InProcess::default()).expect(line).report;
    assert_eq!((report.errors(), report.verify_failures()), (0, 0), "{:?}", report.verification);
    assert!(report.runs.iter().all(|run| run.operations > 0), "{:?}", report.runs);
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
fn a_trace_is_replayed_over_lanes() {
    let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sidecar-trace");
    let lines: String = (0..200_u64)
        .map(|line| {
            format!(
                "0.{line:04} {} {} 4096\n",
                ["r", "w"][usize::from(line % 2 == 0)],
                line / 4 * 512
            )
        })
        .collect();
    std::fs::write(&trace, lines).unwrap();
    let report = measured(&format!("--arms kvrail,raw --replay {} --speed 2", trace.display()));
    assert_eq!(report.runs.iter().map(|run| run.operations).collect::<Vec<_>>(), [400, 400]);
}
