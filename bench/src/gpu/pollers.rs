//! The sidecar's own pollers in this process: one for the file, one for the GPU, and a lane.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use kvrail_device::{
    BUFFERS_MAX, BufferIndex, Description, Mechanism, ModeChoice, ModeName, RemoteMemory,
    UringOptions,
};
use kvrail_gpu::{
    BatchPool, Bridge, Choice, Gpu, GpuPollerHandle, GpuSeat, GpuSetup, Health, MechanismChoice,
    Member, Port, PortOptions, Staging, StagingOptions, choose,
};
use kvrail_memory::{HeapBlock, Pinned, Region};
use kvrail_poller::{
    Budget, Command, LaneSeat, Mailbox, Notice, PollerHandle, Route, Seat, SessionSlot, Setup,
};
use kvrail_ring::{Bell, ClientLane, DeviceIndex, Geometry, Nudge, PollerIndex, RegionId, Segment};

use super::ground::Ground;

/// The one session.
const SESSION: SessionSlot = SessionSlot(0);
/// Requests its lane holds.
const DEPTH: u32 = 64;
/// As `pollers.spin` of the sidecar.
const SPIN: Duration = Duration::from_micros(20);
/// Its regions: host memory, and the GPU's.
pub(super) const HOST: RegionId = RegionId(0);
pub(super) const GPU: RegionId = RegionId(1);

/// Both pollers, running.
#[derive(Debug)]
pub(super) struct Pollers {
    device: PollerHandle,
    gpu: GpuPollerHandle,
    pub(super) lane: ClientLane,
    pub(super) doorbell: Arc<Bell>,
    pub(super) choice: Choice,
    pub(super) host: Arc<Region>,
}

impl Pollers {
    pub(super) fn start(gpu: &dyn Gpu, ground: &Ground, wanted: MechanismChoice) -> Result<Self> {
        let name = ground.path.display().to_string();
        let member = Member { name: name.clone(), file: ground.direct()? };
        let choice = choose(gpu, member, wanted)?;
        let batches = match (choice.path, gpu.direct()) {
            (Some(path), Some(direct)) => Some(BatchPool::new(direct, path)?),
            _ => None,
        };
        let staging = Arc::new(Staging::new(StagingOptions::default())?);
        let (health, to_gpu) = (Arc::new(Health::default()), Arc::new(Nudge::new()?));
        let mailbox = Arc::new(Mailbox::new(Arc::new(Bell::eventfd()?))?);
        let port = Port::new(PortOptions {
            gpu: gpu.identity().uuid,
            health: Arc::clone(&health),
            staging: Arc::clone(&staging),
            to_gpu: Arc::clone(&to_gpu),
            to_device: Arc::clone(mailbox.nudge()),
            route: choice.route,
            reason: choice.reason.clone(),
        });
        let setup = GpuSetup {
            ports: vec![Arc::clone(&port)],
            staging,
            batches,
            health,
            nudge: to_gpu,
            stop: Arc::new(AtomicBool::new(false)),
        };
        let gpu = kvrail_gpu::start(gpu, GpuSeat { cpu: None, spin: SPIN }, setup)?;
        let options = UringOptions::new(&name, ground.direct()?);
        let open = move || {
            let device = Mechanism::open(ModeChoice::Fixed(ModeName::Interrupt), options)?;
            Ok(vec![Bridge::new(device, vec![port])?])
        };
        let seat = Seat { index: PollerIndex(0), cpu: None };
        let device = kvrail_poller::start::<_, kvrail_device::DeviceError>(
            seat,
            poller_setup(ground.bytes),
            Arc::clone(&mailbox),
            open,
        )?;
        let (lane, doorbell) = add_lane(&mailbox)?;
        let (host, _) = Region::create_best("kvrail-bench-host", 64 << 20)?;
        let pollers =
            Self { device, gpu, lane, doorbell: Arc::new(doorbell), choice, host: Arc::new(host) };
        let memory = Arc::clone(&pollers.host) as Arc<dyn Pinned>;
        let (session, buffer) = (SESSION, BufferIndex(0));
        pollers.tell(Command::Attach { session, region: HOST, buffer, memory })?;
        Ok(pollers)
    }

    /// What the device says about itself.
    pub(super) fn description(&self) -> &Description {
        &self.device.devices[0].1
    }

    /// Attaches the GPU memory of a case.
    pub(super) fn attach(&self, memory: Arc<dyn RemoteMemory>) -> Result<()> {
        let buffer = BufferIndex(BUFFERS_MAX);
        self.tell(Command::AttachRemote { session: SESSION, region: GPU, buffer, memory })
    }

    /// Detaches it again; nothing holds it when this returns.
    pub(super) fn detach(&self) -> Result<()> {
        self.tell(Command::Detach(SESSION, GPU))
    }

    fn tell(&self, command: Command) -> Result<()> {
        let mailbox = &self.device.mailbox;
        mailbox.send(command).map_err(|_| anyhow!("the poller's mailbox is full"))?;
        match answer(mailbox) {
            Notice::Attached(_, _, outcome) => Ok(outcome?),
            _ => Ok(()),
        }
    }

    /// Ends both threads.
    pub(super) fn stop(self) -> Result<()> {
        let sent = self.device.mailbox.send(Command::Stop);
        ensure!(sent.is_ok(), "the poller's mailbox is full");
        ensure!(self.device.thread.join().is_ok(), "the poller panicked");
        self.gpu.stop();
        Ok(())
    }
}

fn poller_setup(file_bytes: u64) -> Setup {
    let geometry = Geometry {
        members: 1,
        stripe_bytes: file_bytes,
        member_bytes: file_bytes,
        data_offset: 0,
        logical_block: 4096,
        memory_alignment: 16,
    };
    Setup {
        routes: vec![Route { geometry, members: vec![DeviceIndex(0)] }],
        devices: vec![DeviceIndex(0)],
        budgets: vec![Budget { operations: 128, bytes: 64 << 20 }],
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

fn add_lane(mailbox: &Mailbox) -> Result<(ClientLane, Bell)> {
    let bytes = Segment::bytes_needed(1, DEPTH)?;
    let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(bytes));
    let lane = Segment::format(Arc::clone(&memory), 1, DEPTH)?.into_server().remove(0);
    let client = Segment::open(memory)?.into_client().0.remove(0);
    let (bell, _hears) = Bell::pipe()?;
    let doorbell = Bell::eventfd()?;
    let ours = Bell::from_fd(doorbell.as_fd().try_clone_to_owned()?);
    let seat = Box::new(LaneSeat { queue: 0, lane, bell, doorbell });
    mailbox.send(Command::AddLane(SESSION, seat)).ok().context("the mailbox is full")?;
    ensure!(matches!(answer(mailbox), Notice::LaneAdded(..)), "the lane was not added");
    Ok((client, ours))
}
