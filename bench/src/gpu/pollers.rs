//! The sidecar's own pollers in this process: one for the devices, one for the GPU, and a lane.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use kvrail_device::{
    AnyDevice, BUFFERS_MAX, BufferIndex, Device, DeviceError, DirectIo, ModeChoice, ModeName,
    NullDevice, NullOptions, RemoteMemory, UringOptions,
};
use kvrail_gpu::{
    BatchPool, Bridge, Choice, Gpu, GpuPollerHandle, GpuSeat, GpuSetup, Health, MechanismChoice,
    MemberFile, Port, PortOptions, Staging, StagingOptions, choose,
};
use kvrail_memory::{AllowedCpu, HeapBlock, Pinned, Region, Topology};
use kvrail_poller::{
    CpuBinding, DeviceBudget, InFlightBytes, LaneSeat, Mailbox, Notice, PollerCommand,
    PollerHandle, QueueDoorbell, Route, SessionSlot, Setup, TenantSlot,
};
use kvrail_ring::wake::settle;
use kvrail_ring::{
    ClientLane, ClientSleep, DeviceIndex, Doorbell, Geometry, PollerIndex, QueueSegment, RegionId,
    ThreadWaker, drain_doorbell_set,
};
use rustix::event::{PollFd, PollFlags, poll};

use super::volume::Volume;

/// The one session.
const SESSION: SessionSlot = SessionSlot(0);
/// Requests its lane holds.
const DEPTH: u32 = 64;
/// Bytes of host memory: blocks of 2 MiB, 16 of them in flight.
const HOST_BYTES: usize = 64 << 20;
/// The least number of cores at which pollers are pinned.
const CORES_MIN: usize = 8;
/// As `pollers.busy_poll_max` of the sidecar.
const SPIN: Duration = Duration::from_micros(20);
/// Its regions: host memory, and the GPU's.
pub(super) const HOST: RegionId = RegionId(0);
pub(super) const GPU: RegionId = RegionId(1);

/// Cores of the two pollers of every set, where there are enough for all threads of any arm: apart,
/// so that they share no core's two threads, and last, where the kernel starts nothing by itself.
/// The sets run in turns.
fn seats() -> Result<(Option<AllowedCpu>, Option<AllowedCpu>)> {
    let topology = Topology::host()?;
    let cores: Vec<u32> = topology.allowed().iter().collect();
    let seat = |core| AllowedCpu::of(core, &topology).map(Some);
    Ok(match cores[..] {
        [.., gpu, _, device] if cores.len() >= CORES_MIN => (seat(device)?, seat(gpu)?),
        _ => (None, None),
    })
}

/// Both pollers, running.
#[derive(Debug)]
pub(super) struct GpuPollers {
    device: PollerHandle,
    gpu: GpuPollerHandle,
    pub(super) lane: ClientLane,
    pub(super) doorbell: Doorbell,
    sleep: ClientSleep,
    hear: OwnedFd,
    /// How bytes travel, for each file of the volume.
    pub(super) choices: Vec<Choice>,
    pub(super) host: Arc<Region>,
    pub(super) volume_bytes: u64,
}

/// Inputs of the GPU's poller.
struct GpuSide {
    ports: Vec<Arc<Port>>,
    setup: GpuSetup,
    mailbox: Arc<Mailbox>,
}

fn gpu_side(gpu: &dyn Gpu, choices: &[Choice]) -> Result<GpuSide> {
    let batches = match (choices.iter().find_map(|choice| choice.path), gpu.direct()) {
        (Some(path), Some(direct)) => Some(BatchPool::new(direct, path)?),
        _ => None,
    };
    let staging = Arc::new(Staging::new(StagingOptions::default())?);
    let (health, to_gpu) = (Arc::new(Health::default()), Arc::new(ThreadWaker::new()?));
    let mailbox = Arc::new(Mailbox::new(Arc::new(Doorbell::eventfd()?))?);
    let port = |choice: &Choice| {
        Port::new(PortOptions {
            gpu: gpu.identity().uuid,
            health: Arc::clone(&health),
            staging: Arc::clone(&staging),
            to_gpu: Arc::clone(&to_gpu),
            to_device: Arc::clone(mailbox.nudge()),
            route: choice.route,
            reason: choice.reason.clone(),
        })
    };
    let ports: Vec<_> = choices.iter().map(port).collect();
    let setup = GpuSetup {
        ports: ports.clone(),
        staging,
        batches,
        health,
        nudge: to_gpu,
        stop: Arc::new(AtomicBool::new(false)),
    };
    Ok(GpuSide { ports, setup, mailbox })
}

impl GpuPollers {
    /// Between the files and the GPU, by the mechanism wanted.
    pub(super) fn on_files(
        gpu: &dyn Gpu,
        volume: &Volume,
        wanted: MechanismChoice,
    ) -> Result<Self> {
        let (mut choices, mut options) = (Vec::new(), Vec::new());
        let open = || volume.open(DirectIo::Required);
        for (path, (file, again)) in volume.members.iter().zip(open()?.into_iter().zip(open()?)) {
            let name = path.display().to_string();
            options.push(UringOptions::new(&name, file));
            choices.push(choose(gpu, MemberFile { name, file: again }, wanted)?);
        }
        let mode = ModeChoice::Fixed(ModeName::Interrupt);
        let open =
            move || options.into_iter().map(|options| AnyDevice::open(mode, options)).collect();
        Self::start(gpu, choices, volume.geometry, open)
    }

    /// Without a device: what staging alone does.
    pub(super) fn on_nothing(gpu: &dyn Gpu, volume: &Volume) -> Result<Self> {
        let reason = "no device".to_owned();
        let choice = Choice { route: kvrail_gpu::CopyRoute::Staged, path: None, reason };
        let bytes = volume.bytes();
        let options = NullOptions { capacity_bytes: bytes, ..NullOptions::default() };
        let open = move || Ok(vec![NullDevice::new(options)]);
        let one =
            Geometry { members: 1, stripe_bytes: bytes, member_bytes: bytes, ..volume.geometry };
        Self::start(gpu, vec![choice], one, open)
    }

    fn start<D: Device + 'static>(
        gpu: &dyn Gpu,
        choices: Vec<Choice>,
        geometry: Geometry,
        devices: impl FnOnce() -> Result<Vec<D>, DeviceError> + Send + 'static,
    ) -> Result<Self> {
        let GpuSide { ports, setup, mailbox } = gpu_side(gpu, &choices)?;
        let (core, gpu_core) = seats()?;
        let gpu = kvrail_gpu::start(gpu, GpuSeat { cpu: gpu_core, spin: SPIN }, setup)?;
        let open = move || {
            let bridges = devices()?.into_iter().zip(ports);
            bridges.map(|(device, port)| Bridge::new(device, vec![port])).collect()
        };
        let seat = CpuBinding { index: PollerIndex(0), cpu: core };
        let setup = poller_setup(geometry);
        let device =
            kvrail_poller::start::<_, DeviceError>(seat, setup, Arc::clone(&mailbox), open)?;
        let LaneClient { lane, doorbell, sleep, hear } = add_lane(&mailbox)?;
        let (host, _) = Region::create_best("kvrail-bench-host", HOST_BYTES)?;
        let (host, volume_bytes) = (Arc::new(host), geometry.capacity());
        let pollers =
            Self { device, gpu, lane, doorbell, sleep, hear, choices, host, volume_bytes };
        let memory = Arc::clone(&pollers.host) as Arc<dyn Pinned>;
        let (session, buffer) = (SESSION, BufferIndex(0));
        pollers.tell(PollerCommand::Attach { session, region: HOST, buffer, memory })?;
        Ok(pollers)
    }

    /// How its bytes travel, and why.
    pub(super) fn words(&self) -> String {
        let device = &self.device.devices[0].1;
        let choice = &self.choices[0];
        let route = match choice.path {
            Some(path) => format!("direct, {path:?}").to_lowercase(),
            None => format!("staged, {}", self.gpu.description),
        };
        format!("{} {} {}; {route}; {}", device.kind, device.mode, device.io, choice.reason)
    }

    /// Attaches the GPU memory of a case.
    pub(super) fn attach(&self, memory: Arc<dyn RemoteMemory>) -> Result<()> {
        let buffer = BufferIndex(BUFFERS_MAX);
        self.tell(PollerCommand::AttachRemote { session: SESSION, region: GPU, buffer, memory })
    }

    /// Detaches it again; nothing holds it when this returns.
    pub(super) fn detach(&self) -> Result<()> {
        self.tell(PollerCommand::Detach(SESSION, GPU))
    }

    /// Sleeps until there is a completion, as a client of a sidecar does.
    pub(super) fn sleep(&mut self) -> Result<()> {
        self.sleep.announce();
        settle();
        if !self.lane.is_ready()? {
            poll(&mut [PollFd::new(&self.hear, PollFlags::IN)], None)?;
            drain_doorbell_set(self.hear.as_fd());
        }
        self.sleep.retract();
        Ok(())
    }

    fn tell(&self, command: PollerCommand) -> Result<()> {
        let mailbox = &self.device.mailbox;
        mailbox.send(command).map_err(|_| anyhow!("the poller's mailbox is full"))?;
        match answer(mailbox) {
            Notice::Attached(_, _, outcome) => Ok(outcome?),
            _ => Ok(()),
        }
    }

    /// Ends both threads.
    pub(super) fn stop(self) -> Result<()> {
        let sent = self.device.mailbox.send(PollerCommand::Stop);
        ensure!(sent.is_ok(), "the poller's mailbox is full");
        ensure!(self.device.thread.join().is_ok(), "the poller panicked");
        self.gpu.stop();
        Ok(())
    }
}

fn poller_setup(geometry: Geometry) -> Setup {
    let members: Vec<_> = (0..geometry.members).map(DeviceIndex).collect();
    Setup {
        budgets: vec![
            DeviceBudget { operations: 128, bytes: InFlightBytes::Fixed(64 << 20) };
            members.len()
        ],
        devices: members.clone(),
        routes: vec![Route { geometry, members }],
        stores: Vec::new(),
        spin_ns: u64::try_from(SPIN.as_nanos()).expect("20 us"),
        beat_ns: 100_000_000,
    }
}

/// Waits for the next notice.
fn answer(mailbox: &Mailbox) -> Notice {
    loop {
        if let Some(notice) = mailbox.receive() {
            return notice;
        }
        std::thread::yield_now();
    }
}

/// The client's end of the lane.
struct LaneClient {
    lane: ClientLane,
    doorbell: Doorbell,
    sleep: ClientSleep,
    hear: OwnedFd,
}

fn add_lane(mailbox: &Mailbox) -> Result<LaneClient> {
    let bytes = QueueSegment::bytes_needed(1, DEPTH)?;
    let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(bytes));
    let lane = QueueSegment::format(Arc::clone(&memory), 1, DEPTH)?.into_server().remove(0);
    let (mut lanes, sleep) = QueueSegment::open(memory)?.into_client();
    let (bell, hear) = Doorbell::heard()?;
    let bell = QueueDoorbell::trusted(bell);
    let doorbell = Doorbell::eventfd()?;
    let ours = Doorbell::from_fd(doorbell.as_fd().try_clone_to_owned()?);
    let (queue, tails, tenant) = (0, None, TenantSlot(SESSION.0));
    let seat = Box::new(LaneSeat { queue, lane, bell, doorbell, tails, tenant });
    mailbox.send(PollerCommand::AddLane(SESSION, seat)).ok().context("the mailbox is full")?;
    ensure!(matches!(answer(mailbox), Notice::LaneAdded(..)), "the lane was not added");
    Ok(LaneClient { lane: lanes.remove(0), doorbell: ours, sleep, hear })
}
