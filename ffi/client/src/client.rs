//! One attached client.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvrail_memory::{LeasePool, Region, Sealing};
use kvrail_protocol::{
    Answer, Ask, Channel, ChannelError, GpuInfo, LimitsInfo, Pages, StatusReport, Version, Welcome,
};
use kvrail_ring::limits::{LANE_DEPTH_MAX, LANE_DEPTH_MIN};
use kvrail_ring::{Epoch, RegionId, Segment, SessionId};

use crate::arena::{Arena, ArenaFacts, Lease};
use crate::attach::{HELLO_SEQ, attach};
use crate::control::Control;
use crate::error::ClientError;
use crate::plan::Plan;
use crate::queue::{Parts, Queue};
use crate::spin::SpinLimits;
use crate::volume::Volume;

/// Distinguishes the clients of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientTag(u32);

static NEXT_TAG: AtomicU32 = AtomicU32::new(0);

/// Unit of leases in bytes, unless a volume wants a larger one: a base page, so that no two
/// leases share one.
const LEASE_ALIGNMENT: u32 = 4096;

/// How to attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    /// How this client calls itself in `kvrail status` and in logs.
    pub name: String,
    /// Longest wait for the sidecar's answers, those aside that wait for devices.
    pub timeout: Duration,
}

impl Default for AttachOptions {
    /// The program's name and 30 seconds: making a large arena takes long.
    fn default() -> Self {
        let program = std::env::args_os().next().unwrap_or_default();
        let name = Path::new(&program).file_name().unwrap_or_default();
        Self { name: name.to_string_lossy().into_owned(), timeout: Duration::from_secs(30) }
    }
}

/// What all handles of one client share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) control: Control,
    pub(crate) tag: ClientTag,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) gpus: Vec<GpuInfo>,
    /// What both sides speak.
    pub(crate) protocol: Version,
    pub(crate) pollers: usize,
    pub(crate) spin: SpinLimits,
    epoch: Epoch,
    session: SessionId,
    sidecar: String,
    limits: LimitsInfo,
    /// Memory that hardware may still write although its request has ended. Given back with the
    /// client: by then no arena is left to lease it from.
    fenced: Mutex<Vec<Lease>>,
}

impl Shared {
    /// Keeps leases out of reach.
    pub(crate) fn fence(&self, leases: Vec<Lease>) {
        if !leases.is_empty() {
            self.fenced.lock().unwrap_or_else(PoisonError::into_inner).extend(leases);
        }
    }
}

/// A session with a sidecar. Cheap to clone, usable from any thread; the session ends with the
/// last clone, queue and arena.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

impl Client {
    /// Attaches to the sidecar behind this socket.
    ///
    /// # Errors
    /// `NoSidecar`, `NotAdmitted` (versions, users, limits), `Timeout`.
    pub fn attach(socket: impl AsRef<Path>) -> Result<Self, ClientError> {
        Self::attach_with(socket, &AttachOptions::default())
    }

    /// As `attach`, with a name and a time limit.
    ///
    /// # Errors
    /// As `attach`.
    pub fn attach_with(
        socket: impl AsRef<Path>,
        options: &AttachOptions,
    ) -> Result<Self, ClientError> {
        let (channel, welcome) = attach(socket.as_ref(), options)?;
        Self::assemble(channel, &welcome, options.timeout)
    }

    /// A client from a connection that was let in.
    pub(crate) fn assemble(
        channel: Channel,
        welcome: &Welcome,
        timeout: Duration,
    ) -> Result<Self, ClientError> {
        // A name only; nothing is ordered by it.
        let tag = ClientTag(NEXT_TAG.fetch_add(1, Ordering::Relaxed));
        let volumes = welcome.volumes.iter().map(|info| {
            let geometry = info.check(welcome.pollers.len())?;
            Ok(Volume { tag, id: info.volume_id(), geometry, info: Arc::new(info.clone()) })
        });
        let shared = Shared {
            control: Control::new(channel, HELLO_SEQ, timeout),
            tag,
            volumes: volumes.collect::<Result<_, ChannelError>>()?,
            gpus: welcome.gpus.clone(),
            protocol: welcome.protocol,
            pollers: welcome.pollers.len(),
            spin: SpinLimits::new(&welcome.spin),
            epoch: Epoch(welcome.epoch),
            session: SessionId(welcome.session),
            sidecar: welcome.sidecar.clone(),
            limits: welcome.limits,
            fenced: Mutex::new(Vec::new()),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn tag(&self) -> ClientTag {
        self.shared.tag
    }

    /// Number of the sidecar's run.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.shared.epoch
    }

    /// Number of this session within the epoch, as `kvrail status` shows it.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.shared.session
    }

    /// The sidecar's release.
    #[must_use]
    pub fn sidecar(&self) -> &str {
        &self.shared.sidecar
    }

    /// What this session may have.
    #[must_use]
    pub fn limits(&self) -> &LimitsInfo {
        &self.shared.limits
    }

    /// Pollers of the sidecar.
    #[must_use]
    pub fn pollers(&self) -> usize {
        self.shared.pollers
    }

    /// All volumes.
    #[must_use]
    pub fn volumes(&self) -> &[Volume] {
        &self.shared.volumes
    }

    /// The volume of this name.
    ///
    /// # Errors
    /// `UnknownVolume` names those there are.
    pub fn volume(&self, name: &str) -> Result<Volume, ClientError> {
        let volumes = &self.shared.volumes;
        let found = volumes.iter().find(|volume| volume.name() == name).cloned();
        found.ok_or_else(|| ClientError::UnknownVolume {
            name: name.to_owned(),
            known: volumes.iter().map(|volume| volume.name().to_owned()).collect(),
        })
    }

    /// The sidecar's state: devices, modes in force, latencies, sessions.
    ///
    /// # Errors
    /// `SidecarGone`, `Timeout`.
    pub fn status(&self) -> Result<StatusReport, ClientError> {
        match self.shared.control.call("asking for the status", Ask::Status, &[])?.message {
            Answer::Status(report) => Ok(*report),
            other => Err(ClientError::protocol(format!("answer to status: {other:?}"))),
        }
    }

    /// Has the sidecar make an arena of at least `bytes` bytes and registers it with all devices.
    ///
    /// # Errors
    /// `Denied` names the limit, its value, its key in the configuration, or why there are no
    /// such pages.
    pub fn create_arena(&self, bytes: usize, pages: Pages) -> Result<Arena, ClientError> {
        let ask = Ask::CreateArena { bytes: bytes as u64, pages };
        let packet = self.shared.control.call("making an arena", ask, &[])?;
        let (answer, [memory]) = packet.exactly()?;
        let Answer::Arena { region, bytes, page_bytes, note } = answer else {
            return Err(ClientError::protocol(format!("answer to an arena: {answer:?}")));
        };
        let memory = Region::import(memory, bytes)?;
        let facts = ArenaFacts { region: RegionId(region), page_bytes, note };
        Ok(self.arena(memory, facts))
    }

    /// Registers memory of the program's own with all devices: a memfd of exactly `bytes` bytes,
    /// fully allocated, sealed with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL. It is mapped once
    /// more here; bytes that are leased from the arena must not be touched through any other
    /// mapping, and the same memory must not be brought twice. A sidecar that is configured so
    /// (`memory.unsealed_imports`) takes memory without seals, too; whoever shrinks that gets
    /// SIGBUS.
    ///
    /// # Errors
    /// `Denied` says what is wrong with the memory or names the limit.
    pub fn bring_arena(&self, memory: OwnedFd, bytes: u64) -> Result<Arena, ClientError> {
        let ask = Ask::BringArena { bytes };
        let packet = self.shared.control.call("bringing an arena", ask, &[memory.as_fd()])?;
        let (answer, []) = packet.exactly()?;
        let Answer::Arena { region, page_bytes, note, .. } = answer else {
            return Err(ClientError::protocol(format!("answer to an arena: {answer:?}")));
        };
        // Whether seals are needed was the sidecar's to say; the memory is this program's.
        let memory = Region::import_with(memory, bytes, Sealing::Optional)?;
        Ok(self.arena(memory, ArenaFacts { region: RegionId(region), page_bytes, note }))
    }

    fn arena(&self, memory: Region, facts: ArenaFacts) -> Arena {
        let wanted = self.shared.volumes.iter().map(|volume| volume.geometry.memory_alignment);
        let alignment = wanted.fold(LEASE_ALIGNMENT, u32::max);
        Arena::new(self.clone(), LeasePool::new(Arc::new(memory), alignment as usize), facts)
    }

    /// Takes a region away from the sidecar, and waits until nothing can touch it any more.
    pub(crate) fn detach(&self, what: &'static str, region: RegionId) -> Result<(), ClientError> {
        let ask = Ask::DetachArena { region: region.0 };
        match self.shared.control.call_patiently(what, ask)?.message {
            Answer::Detached { region: other } if other == region.0 => Ok(()),
            other => Err(ClientError::protocol(format!("answer to detach: {other:?}"))),
        }
    }

    /// Opens a queue for one thread. At most `depth` pieces of requests can be under way in it;
    /// `depth` is rounded up to a power of two, from 2 to 4,096.
    ///
    /// # Errors
    /// `Denied` names the limit, its value and its key in the configuration.
    pub fn open_queue(&self, depth: usize) -> Result<Queue, ClientError> {
        let depth = u32::try_from(depth).unwrap_or(u32::MAX).clamp(LANE_DEPTH_MIN, LANE_DEPTH_MAX);
        let ask = Ask::OpenQueue { depth: depth.next_power_of_two() };
        let packet = self.shared.control.call("opening a queue", ask, &[])?;
        let Answer::Queue { queue, segment_bytes } = packet.message else {
            let what = format!("answer to a queue: {:?}", packet.message);
            return Err(ClientError::protocol(what));
        };
        let mut fds = packet.fds.into_iter();
        let (Some(segment), Some(hear)) = (fds.next(), fds.next()) else {
            return Err(ClientError::protocol("a queue without segment and bell"));
        };
        let doorbells: Vec<OwnedFd> = fds.collect();
        let segment = Region::import_with(segment, segment_bytes, Sealing::Size);
        // What cannot be mapped or served is forgotten on both sides.
        let forget = || self.shared.control.call_and_forget(Ask::CloseQueue { queue });
        let segment = segment.inspect_err(|_| forget())?;
        let mapped = Ask::QueueMapped { queue };
        let served = self.shared.control.call("opening a queue", mapped, &[]);
        match served.inspect_err(|_| forget())?.message {
            Answer::QueueServed { queue: other } if other == queue => {}
            other => return Err(ClientError::protocol(format!("answer to a mapping: {other:?}"))),
        }
        let segment = Segment::open(Arc::new(segment))?;
        let plans = self.shared.volumes.iter().map(Plan::new).collect();
        let parts = Parts { number: queue, segment, hear, doorbells, plans };
        Queue::assemble(self.clone(), parts)
    }

    /// Bytes of leases that are kept out of reach, because hardware may still write them although
    /// their request has ended.
    #[must_use]
    pub fn fenced_bytes(&self) -> u64 {
        let fenced = self.shared.fenced.lock().unwrap_or_else(PoisonError::into_inner);
        fenced.iter().map(Lease::bytes).sum()
    }

    /// Why the session has ended, if anybody noticed that it has.
    #[must_use]
    pub fn ended(&self) -> Option<&str> {
        self.shared.control.ended().map(|ended| ended.reason.as_str())
    }

    /// Reports a hang-up when the session ends: for event loops that wait on
    /// [`Queue::event_fd`] and want to hear of it even if no queue rings. Only to be waited on
    /// (with no events asked for), never to be read.
    #[must_use]
    pub fn hangup_fd(&self) -> BorrowedFd<'_> {
        self.shared.control.as_fd()
    }
}
