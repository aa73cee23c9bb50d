//! A sidecar in this process: the real server, and pollers that keep volumes in memory.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvrail_device::{Description, DeviceError};
use kvrail_memory::{Pinned, load, store};
use kvrail_poller::{Command, LaneSeat, Mailbox, Notice, PollerHandle, PollerStats, SessionSlot};
use kvrail_protocol::{SpinHints, VolumeInfo};
use kvrail_ring::{
    Bell, Completion, DeviceIndex, Epoch, Geometry, Opcode, PollerIndex, RegionId, Request, Ring,
    Status, VolumeId,
};
use kvrail_session::{
    Access, Identity, Limits, PagePolicy, Server, ServerConfig, ServerError, StopSender, Stopped,
    stop_channel,
};
use tempfile::TempDir;

pub(crate) const STRIPE: u64 = 64 << 10;
pub(crate) const MEMBER: u64 = 64 * STRIPE;

/// What a test tells the pollers.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    /// Requests are taken but not completed.
    pub(crate) hold_requests: AtomicBool,
    /// Regions and sessions are not given back: hardware hangs.
    pub(crate) hold_detach: AtomicBool,
    /// Poller 1 cannot register regions.
    pub(crate) refuse_attach: AtomicBool,
    /// Drain is not answered.
    pub(crate) hold_drain: AtomicBool,
    /// Commands are read, nothing is answered; then the thread ends.
    pub(crate) die: AtomicBool,
    pub(crate) attached: AtomicU64,
    pub(crate) detached: AtomicU64,
    pub(crate) taken: AtomicU64,
    pub(crate) completed: AtomicU64,
}

impl Switches {
    fn is(switch: &AtomicBool) -> bool {
        switch.load(Ordering::SeqCst)
    }
}

type Bytes = Arc<Mutex<Vec<u8>>>;

struct FakePoller {
    index: usize,
    mailbox: Arc<Mailbox>,
    switches: Arc<Switches>,
    geometry: Geometry,
    volume: Bytes,
    lanes: Vec<(SessionSlot, Box<LaneSeat>)>,
    regions: HashMap<(SessionSlot, RegionId), Arc<dyn Pinned>>,
    held: Vec<(SessionSlot, u32, Request)>,
    owed: Vec<Command>,
    draining: bool,
}

impl FakePoller {
    fn run(mut self) {
        loop {
            if Switches::is(&self.switches.die) {
                return;
            }
            let mut stop = false;
            for command in std::mem::take(&mut self.owed) {
                stop |= self.obey(command);
            }
            while let Some(command) = self.mailbox.next_command() {
                stop |= self.obey(command);
            }
            if stop {
                return;
            }
            self.serve();
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Returns whether to stop.
    fn obey(&mut self, command: Command) -> bool {
        let hold = Switches::is(&self.switches.hold_detach);
        match command {
            Command::AddLane(slot, seat) => {
                let queue = seat.queue;
                self.lanes.push((slot, seat));
                self.mailbox.post(Notice::LaneAdded(slot, queue));
            }
            Command::CloseLane(slot, queue) => {
                if self.held.iter().any(|held| held.0 == slot && held.1 == queue) {
                    self.owed.push(Command::CloseLane(slot, queue));
                } else {
                    self.give_back(slot, Some(queue));
                }
            }
            Command::Attach { session, region, memory, .. } => {
                let refuse = self.index == 1 && Switches::is(&self.switches.refuse_attach);
                let outcome = if refuse {
                    Err(DeviceError::Register {
                        device: "fake".into(),
                        bytes: memory.bytes() as u64,
                        errno: rustix::io::Errno::NOMEM,
                        remedy: "raise memlock".into(),
                    })
                } else {
                    self.switches.attached.fetch_add(1, Ordering::SeqCst);
                    self.regions.insert((session, region), memory);
                    Ok(())
                };
                self.mailbox.post(Notice::Attached(session, region, outcome));
            }
            Command::Detach(slot, region) if hold => self.owed.push(Command::Detach(slot, region)),
            Command::Detach(slot, region) => self.forget(slot, region),
            Command::CloseSession(slot) if hold => self.owed.push(Command::CloseSession(slot)),
            Command::CloseSession(slot) => self.close(slot),
            Command::Drain => {
                self.draining = true;
                if Switches::is(&self.switches.hold_drain) || !self.held.is_empty() {
                    self.owed.push(Command::Drain);
                } else {
                    self.mailbox.post(Notice::Drained);
                }
            }
            Command::Stop => return true,
        }
        false
    }

    fn forget(&mut self, slot: SessionSlot, region: RegionId) {
        if self.regions.remove(&(slot, region)).is_some() {
            self.switches.detached.fetch_add(1, Ordering::SeqCst);
        }
        self.mailbox.post(Notice::Detached(slot, region));
    }

    fn give_back(&mut self, slot: SessionSlot, queue: Option<u32>) {
        let (back, keep) = std::mem::take(&mut self.lanes)
            .into_iter()
            .partition(|lane| lane.0 == slot && queue.is_none_or(|queue| lane.1.queue == queue));
        self.lanes = keep;
        for (slot, seat) in back {
            self.mailbox.post(Notice::LaneClosed(slot, seat));
        }
    }

    fn close(&mut self, slot: SessionSlot) {
        self.held.retain(|held| held.0 != slot);
        self.give_back(slot, None);
        let regions: Vec<RegionId> =
            self.regions.keys().filter(|key| key.0 == slot).map(|key| key.1).collect();
        for region in regions {
            self.forget(slot, region);
        }
        self.mailbox.post(Notice::SessionClosed(slot));
    }

    fn serve(&mut self) {
        let hold = Switches::is(&self.switches.hold_requests);
        let mut work = Vec::new();
        if !hold {
            work.append(&mut self.held);
        }
        let mut faults = Vec::new();
        for (slot, seat) in &mut self.lanes {
            match seat.lane.ready() {
                Ok(ready) => {
                    for _ in 0..ready {
                        let request = seat.lane.take().unwrap();
                        self.switches.taken.fetch_add(1, Ordering::SeqCst);
                        work.push((*slot, seat.queue, request));
                    }
                    seat.lane.release();
                }
                Err(fault) => faults.push((*slot, seat.queue, fault)),
            }
        }
        for (slot, queue, fault) in faults {
            self.lanes.retain(|lane| lane.0 != slot || lane.1.queue != queue);
            self.mailbox.post(Notice::LaneFault(slot, queue, fault));
        }
        if hold {
            self.held.append(&mut work);
            return;
        }
        for (slot, queue, request) in work {
            let completion = self.perform(slot, &request);
            let lane = self.lanes.iter_mut().find(|lane| lane.0 == slot && lane.1.queue == queue);
            let Some((_, seat)) = lane else { continue };
            seat.lane.complete(completion);
            self.switches.completed.fetch_add(1, Ordering::SeqCst);
            if seat.lane.publish() == Ring::Now {
                seat.bell.ring();
            }
        }
    }

    fn perform(&self, slot: SessionSlot, request: &Request) -> Completion {
        let user_data = request.user_data;
        if self.draining {
            return Completion::refused(user_data, Status::Draining);
        }
        let moved = match Opcode::from_number(request.opcode) {
            Some(Opcode::Nop | Opcode::Flush) => Some(0),
            Some(Opcode::Read | Opcode::Write) => self.copy(slot, request),
            _ => None,
        };
        match moved {
            Some(bytes) => Completion {
                user_data,
                status: Status::Ok.number(),
                bytes,
                ..Completion::default()
            },
            None => Completion::refused(user_data, Status::Invalid),
        }
    }

    /// Moves the bytes; the volume is addressed by volume offset, members aside.
    fn copy(&self, slot: SessionSlot, request: &Request) -> Option<u32> {
        let length = request.length as usize;
        let extent = self.geometry.locate(request.volume_offset, u64::from(request.length)).ok()?;
        if usize::from(extent.member) % 2 != self.index {
            return None;
        }
        let memory = self.regions.get(&(slot, request.region_id()))?;
        let at = usize::try_from(request.region_offset).ok()?;
        if at.checked_add(length)? > memory.bytes() {
            return None;
        }
        let from = usize::try_from(request.volume_offset).ok()?;
        let mut volume = self.volume.lock().unwrap();
        let range = &mut volume[from..from + length];
        match Opcode::from_number(request.opcode)? {
            Opcode::Read => store(memory.as_ref(), at, range),
            _ => load(memory.as_ref(), at, range),
        }
        Some(request.length)
    }
}

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

/// A running sidecar.
pub(crate) struct Sidecar {
    pub(crate) directory: TempDir,
    pub(crate) switches: Arc<Switches>,
    pub(crate) stop: StopSender,
    thread: Option<JoinHandle<Result<Stopped, ServerError>>>,
}

pub(crate) fn config(directory: &Path) -> ServerConfig {
    ServerConfig {
        socket: directory.join("run/kvrail.sock"),
        socket_mode: 0o600,
        access: Access { uids: vec![rustix::process::geteuid().as_raw()], gids: vec![] },
        limits: Limits {
            arenas_per_session: 4,
            arena_bytes_per_session: 64 << 20,
            arena_bytes_total: 100 << 20,
            queues_per_session: 4,
            queue_depth: 256,
            handshake_timeout: Duration::from_millis(300),
            ..Limits::default()
        },
        pages: PagePolicy::Best,
        drain_timeout: Duration::from_secs(2),
        identity: Identity { epoch: Epoch(7), version: "kvrail-test 1".into() },
        spin: SpinHints { spin_ns: 20_000, cores: 2, spinning_pollers: 0 },
        notes: vec![],
    }
}

fn pollers(switches: &Arc<Switches>, to_control: &Arc<Bell>) -> Vec<PollerHandle> {
    let geometry = geometry();
    let bytes = usize::try_from(geometry.capacity()).unwrap();
    let volume: Bytes = Arc::new(Mutex::new(vec![0; bytes]));
    let start = |index: usize| {
        let mailbox = Arc::new(Mailbox::new(Arc::clone(to_control)).unwrap());
        let poller = FakePoller {
            index,
            mailbox: Arc::clone(&mailbox),
            switches: Arc::clone(switches),
            geometry,
            volume: Arc::clone(&volume),
            lanes: Vec::new(),
            regions: HashMap::new(),
            held: Vec::new(),
            owed: Vec::new(),
            draining: false,
        };
        let number = u16::try_from(index).unwrap();
        PollerHandle {
            index: PollerIndex(number),
            cpu: None,
            devices: vec![(DeviceIndex(number), description())],
            mailbox,
            stats: Arc::new(PollerStats::new(1)),
            thread: std::thread::spawn(move || poller.run()),
        }
    };
    (0..2).map(start).collect()
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
        let to_control = Arc::new(Bell::eventfd().unwrap());
        let handles = pollers(&switches, &to_control);
        let volumes = vec![VolumeInfo {
            id: VolumeId(0).0,
            name: "kv".into(),
            uuid: uuid::Uuid::from_u128(42),
            geometry: geometry().into(),
            pollers: vec![0, 1, 0],
            members: vec!["/a".into(), "/b".into(), "/c".into()],
        }];
        let mut server = Server::new(config, handles, to_control, volumes).unwrap();
        let (stop, stopped) = stop_channel().unwrap();
        let thread = std::thread::spawn(move || server.run(&stopped));
        Self { directory, switches, stop, thread: Some(thread) }
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
            self.stop.request();
            self.stop.request();
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

/// Descriptors this process has open.
pub(crate) fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
