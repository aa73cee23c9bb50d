//! A sidecar in this process: the real server, and pollers that keep volumes in memory.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvrail_device::{
    Description, Device, FaultPlan, MonotonicClock, SimControl, SimDevice, SimOptions,
};
use kvrail_poller::{
    CpuBinding, DeviceBudget, InFlightBytes, Mailbox, PollerHandle, PollerStats, Route, Setup,
};
use kvrail_protocol::{SpinHints, StoreInfo, VolumeContent, VolumeInfo};
use kvrail_ring::{DeviceIndex, Doorbell, Epoch, Geometry, PollerIndex, VolumeId};
use kvrail_session::{
    Access, Limits, NumaPolicy, PagePolicy, Patience, Policy, Porter, ServedShard, ServedStore,
    Server, ServerConfig, ServerError, ServerHandle, SidecarIdentity, Stopped, server_handle,
};
use tempfile::TempDir;

use crate::poller::{Bytes, FakePoller, Switches};
use crate::shards::{self, Medium, Shard};

pub(crate) const STRIPE: u64 = 64 << 10;
pub(crate) const MEMBER: u64 = 64 * STRIPE;

fn description() -> Description {
    Description {
        name: "fake".into(),
        kind: "sim".into(),
        mode: "sim".into(),
        reason: "test".into(),
        features: vec![],
        io: "direct".into(),
        capacity_bytes: MEMBER,
        logical_block: 512,
        memory_alignment: 4,
        transfer_bytes_max: 1 << 20,
        depth: 64,
        bytes_per_second: None,
    }
}

pub(crate) fn geometry() -> Geometry {
    Geometry {
        members: 3,
        stripe_bytes: STRIPE,
        member_bytes: MEMBER,
        data_offset: 1 << 20,
        logical_block: 512,
        memory_alignment: 4,
    }
}

/// A device that keeps its bytes in memory.
pub(crate) type Sim = SimDevice<MonotonicClock>;

/// A running sidecar.
pub(crate) struct Sidecar {
    pub(crate) directory: TempDir,
    pub(crate) switches: Arc<Switches>,
    /// The pollers' part of a store.
    pub(crate) shards: Vec<Arc<Mutex<Shard>>>,
    pub(crate) handle: ServerHandle,
    thread: Option<JoinHandle<Result<Stopped, ServerError>>>,
}

pub(crate) fn config(directory: &Path) -> ServerConfig {
    ServerConfig {
        socket: directory.join("run/kvrail.sock"),
        socket_mode: 0o600,
        policy: Policy {
            access: Access {
                operators: vec![rustix::process::geteuid().as_raw()],
                ..Access::default()
            },
            limits: Limits {
                arenas_per_session: 4,
                arena_bytes_per_session: 64 << 20,
                arena_bytes_total: 100 << 20,
                queues_per_session: 4,
                queue_depth: 256,
                handshake_timeout: Duration::from_millis(300),
                ..Limits::default()
            },
            pools: Vec::new(),
            write_budgets: vec![],
            tenants: vec![],
            pages: PagePolicy::Best,
            sealing: kvrail_memory::Sealing::Required,
            drain_timeout: Duration::from_secs(2),
            patience: Patience::default(),
        },
        numa: NumaPolicy::Anywhere,
        identity: SidecarIdentity { epoch: Epoch(7), version: "kvrail-test 1".into() },
        spin: SpinHints { spin_ns: 20_000, cores: 2, spinning_pollers: 0 },
        notes: vec![],
        transfers: None,
        gpus: vec![],
        stores: vec![],
        porter: Porter::new(std::env::current_exe().unwrap(), &PORTER),
    }
}

/// Arguments that make this program a porter.
pub(crate) const PORTER: [&str; 3] = ["--exact", "sidecar::it_is_a_porter", "--nocapture"];

/// Started by a sidecar, with its job as the last argument, this program takes descriptors in.
#[test]
fn it_is_a_porter() {
    let words: Vec<String> = std::env::args().collect();
    if let [.., last, job] = &words[..]
        && last == PORTER[2]
    {
        let _code = kvrail_session::porter(job);
        std::process::exit(0);
    }
}

fn pollers(
    switches: &Arc<Switches>,
    to_control: &Arc<Doorbell>,
    shards: &[Arc<Mutex<Shard>>],
) -> Vec<PollerHandle> {
    let geometry = geometry();
    let bytes = usize::try_from(geometry.capacity()).unwrap();
    let volume: Bytes = Arc::new(Mutex::new(vec![0; bytes]));
    let start = |index: usize| {
        let mailbox = Arc::new(Mailbox::new(Arc::clone(to_control)).unwrap());
        let stats = Arc::new(PollerStats::new(1));
        let poller = FakePoller {
            index,
            mailbox: Arc::clone(&mailbox),
            stats: Arc::clone(&stats),
            switches: Arc::clone(switches),
            geometry,
            volume: Arc::clone(&volume),
            lanes: Vec::new(),
            regions: HashMap::new(),
            held: Vec::new(),
            owed: Vec::new(),
            tracer: None,
            draining: false,
            shard: shards.get(index).cloned(),
        };
        let number = u16::try_from(index).unwrap();
        PollerHandle {
            index: PollerIndex(number),
            cpu: None,
            devices: vec![(DeviceIndex(number), description())],
            mailbox,
            stats,
            thread: std::thread::spawn(move || poller.run()),
        }
    };
    (0..2).map(start).collect()
}

/// Two pollers; the first drives members 0 and 2, the second member 1. Each device is made into
/// what its poller drives.
pub(crate) fn real_pollers<D: Device + Send + 'static>(
    to_control: &Arc<Doorbell>,
    plan: impl Fn(usize) -> FaultPlan,
    mut make: impl FnMut(Sim, &Arc<Mailbox>) -> D,
) -> (Vec<PollerHandle>, Vec<SimControl>) {
    let members = (0..3).map(DeviceIndex).collect();
    let route = Route { geometry: geometry(), members };
    let mut controls = Vec::new();
    let mut start = |(index, members): (u16, &[u16])| {
        let budget = DeviceBudget { operations: 32, bytes: InFlightBytes::Fixed(8 << 20) };
        let setup = Setup {
            routes: vec![route.clone()],
            devices: members.iter().copied().map(DeviceIndex).collect(),
            budgets: vec![budget; members.len()],
            stores: Vec::new(),
            spin_ns: 20_000,
            beat_ns: 200_000_000,
        };
        let device = |member: &u16| {
            let options = SimOptions {
                capacity_bytes: MEMBER + (1 << 20),
                plan: plan(usize::from(*member)),
                ..SimOptions::default()
            };
            SimDevice::new(options, MonotonicClock)
        };
        let devices: Vec<_> = members.iter().map(device).collect();
        controls.extend(devices.iter().map(SimDevice::control));
        let mailbox = Arc::new(Mailbox::new(Arc::clone(to_control)).unwrap());
        let devices: Vec<D> = devices.into_iter().map(|device| make(device, &mailbox)).collect();
        let seat = CpuBinding { index: PollerIndex(index), cpu: None };
        kvrail_poller::start::<_, Infallible>(seat, setup, mailbox, || Ok(devices)).unwrap()
    };
    let handles = [(0, &[0, 2][..]), (1, &[1][..])].map(&mut start).into();
    (handles, controls)
}

impl Sidecar {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub(crate) fn start_with(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path());
        change(&mut config);
        let switches = Arc::new(Switches::default());
        let to_control = Arc::new(Doorbell::eventfd().unwrap());
        let handles = pollers(&switches, &to_control, &[]);
        Self::serve(directory, config, (handles, to_control), switches)
    }

    /// A sidecar with a store, `shelf`, volume 1, of which each poller has a member.
    pub(crate) fn start_stores(
        media: &[Medium; 2],
        change: impl FnOnce(&mut ServerConfig),
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path());
        change(&mut config);
        let served = |member| ServedShard {
            presence: None,
            tier: None,
            rated: None,
            device: DeviceIndex(member),
            config: shards::config(),
            pools: Vec::new(),
            restart: shards::open(member),
        };
        config.stores = vec![ServedStore { volume: 1, shards: vec![served(0), served(1)] }];
        let members = (0..).zip(media).map(|(member, medium)| Shard::start(medium, member));
        let shards: Vec<_> = members.map(|member| Arc::new(Mutex::new(member))).collect();
        let switches = Arc::new(Switches::default());
        let to_control = Arc::new(Doorbell::eventfd().unwrap());
        let handles = pollers(&switches, &to_control, &shards);
        let mut sidecar = Self::serve(directory, config, (handles, to_control), switches);
        sidecar.shards = shards;
        sidecar
    }

    /// A sidecar with real pollers over simulated devices.
    pub(crate) fn start_real(
        change: impl FnOnce(&mut ServerConfig),
        plan: impl Fn(usize) -> FaultPlan,
    ) -> (Self, Vec<SimControl>) {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path());
        change(&mut config);
        let to_control = Arc::new(Doorbell::eventfd().unwrap());
        let (handles, controls) = real_pollers(&to_control, plan, |device, _| device);
        let switches = Arc::default();
        (Self::serve(directory, config, (handles, to_control), switches), controls)
    }

    pub(crate) fn serve(
        directory: TempDir,
        config: ServerConfig,
        (handles, to_control): (Vec<PollerHandle>, Arc<Doorbell>),
        switches: Arc<Switches>,
    ) -> Self {
        let kv = VolumeInfo {
            id: VolumeId(0).0,
            name: "kv".into(),
            uuid: uuid::Uuid::from_u128(42),
            geometry: geometry().into(),
            pollers: vec![0, 1, 0],
            members: vec!["/a".into(), "/b".into(), "/c".into()],
            content: VolumeContent::Raw,
        };
        let mut volumes = vec![kv];
        if !config.stores.is_empty() {
            let info =
                StoreInfo { block_bytes_max: 32 << 10, segment_bytes: 64 << 10, members: None };
            volumes.push(VolumeInfo {
                id: 1,
                name: "shelf".into(),
                uuid: uuid::Uuid::from_u128(77),
                geometry: Geometry { members: 2, ..geometry() }.into(),
                pollers: vec![0, 1],
                members: vec!["/d".into(), "/e".into()],
                content: VolumeContent::Store(info),
            });
        }
        let mut server = Server::new(config, handles, to_control, volumes).unwrap();
        let (handle, received) = server_handle().unwrap();
        let thread = std::thread::spawn(move || server.run(&received));
        Self { directory, switches, shards: Vec::new(), handle, thread: Some(thread) }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("run/kvrail.sock")
    }

    /// Waits for the end of `run`.
    pub(crate) fn join(&mut self) -> Result<Stopped, ServerError> {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.handle.stop();
            let _ended = thread.join();
        }
    }
}

/// Waits until something is so; fails after ten seconds.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
