//! One attached client.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvrail_memory::{LeasePool, Region, Sealing};
use kvrail_protocol::{
    Channel, ConfigEntry, ControlReply, ControlRequest, GpuInfo, LimitsInfo, MemberChange,
    MembersChanged, Pages, Reloaded, StatusReport, TracePage, Welcome,
};
use kvrail_ring::limits::{LANE_DEPTH_MAX, LANE_DEPTH_MIN};
use kvrail_ring::{Epoch, PollerIndex, QueueSegment, RegionId, SessionId, Status};

use crate::arena::{Arena, ArenaFacts};
use crate::attach::{AttachOptions, attach};
use crate::block_op::TAIL_BYTES;
use crate::error::ClientError;
use crate::gpu::{self, GpuCache, GpuRegion};
use crate::latencies::QueueLatencies;
use crate::lease::Lease;
use crate::mapping::ProcessMapping;
use crate::queue::{Parts, Queue};
use crate::request::Request;
use crate::route::VolumeRoute;
use crate::session::Session;
use crate::store::Store;
use crate::volume::Volume;

/// Unit of leases in bytes, unless a volume needs a larger one: a base page, so that no two leases
/// share one.
const LEASE_ALIGNMENT: u32 = 4096;

/// A session with a sidecar. Cheap to clone, usable from any thread; the session ends with the
/// last clone, queue and arena.
#[derive(Clone, Debug)]
pub struct Client {
    session: Arc<Session>,
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
        Self::assemble(channel, welcome, options.timeout)
    }

    /// A client from a connection that was let in.
    pub(crate) fn assemble(
        channel: Channel,
        welcome: Welcome,
        timeout: Duration,
    ) -> Result<Self, ClientError> {
        Ok(Self { session: Arc::new(Session::new(channel, welcome, timeout)?) })
    }

    /// What all its handles share.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<Session> {
        Arc::clone(&self.session)
    }

    /// Number of the sidecar's run.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.session.epoch()
    }

    /// Number of this session within the epoch, as `kvrail status` shows it.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session.id()
    }

    /// The sidecar's release.
    #[must_use]
    pub fn sidecar(&self) -> &str {
        self.session.sidecar()
    }

    /// What this session may have.
    #[must_use]
    pub fn limits(&self) -> &LimitsInfo {
        self.session.limits()
    }

    /// Pollers of the sidecar.
    #[must_use]
    pub fn pollers(&self) -> usize {
        self.session.pollers()
    }

    /// All volumes.
    #[must_use]
    pub fn volumes(&self) -> &[Volume] {
        self.session.volumes()
    }

    /// The volume of this name.
    ///
    /// # Errors
    /// `UnknownVolume` names those there are.
    pub fn volume(&self, name: &str) -> Result<Volume, ClientError> {
        let volumes = self.session.volumes();
        let found = volumes.iter().find(|volume| volume.name() == name).cloned();
        found.ok_or_else(|| ClientError::UnknownVolume {
            name: name.to_owned(),
            known: volumes.iter().map(|volume| volume.name().to_owned()).collect(),
        })
    }

    /// The store of this name.
    ///
    /// # Errors
    /// `UnknownVolume` names those there are; `NoStore` when requests to it name offsets.
    pub fn store(&self, name: &str) -> Result<Store, ClientError> {
        Store::new(&self.session, self.volume(name)?)
    }

    /// The sidecar's state: devices, modes in force, latencies, sessions.
    ///
    /// # Errors
    /// `SidecarGone`, `Timeout`.
    pub fn status(&self) -> Result<StatusReport, ClientError> {
        match self
            .session
            .control()
            .call("asking for the status", ControlRequest::Status, &[])?
            .message
        {
            ControlReply::Status(report) => Ok(*report),
            other => Err(ClientError::protocol(format!("answer to status: {other:?}"))),
        }
    }

    /// A descriptor that hangs up once the sidecar's process has ended, and no device reads or
    /// writes host memory for it any more: some milliseconds behind a kill, where drives answer.
    /// `None` of a sidecar of an earlier release, and where its kernel does not show the end of all
    /// rings. Only to be waited on, never to be read.
    ///
    /// # Errors
    /// `SidecarGone`, `Timeout`.
    pub fn watch_transfers(&self) -> Result<Option<OwnedFd>, ClientError> {
        let control = self.session.control();
        if !control.protocol().shows_transfers() {
            return Ok(None);
        }
        let ask = ControlRequest::WatchTransfers;
        let answer = match control.call("asking to watch transfers", ask, &[]) {
            Err(ClientError::Denied { status: Status::Invalid, .. }) => return Ok(None),
            answer => answer?,
        };
        match answer.exactly()? {
            (ControlReply::Transfers, [pipe]) => Ok(Some(pipe)),
            (other, _) => Err(ClientError::protocol(format!("answer about transfers: {other:?}"))),
        }
    }

    /// Requests that took this long since this client's last call, and their times by stage. The
    /// first call begins a trace of all sessions' requests; it ends 5 s after the last one, or with
    /// this client.
    ///
    /// # Errors
    /// `Denied` when another client traces already, or this one began with another `slow`.
    pub fn trace(&self, slow: Duration) -> Result<TracePage, ClientError> {
        let slow_ns = u64::try_from(slow.as_nanos()).unwrap_or(u64::MAX);
        let ask = ControlRequest::Trace { slow_ns };
        match self.session.control().call("asking for slow requests", ask, &[])?.message {
            ControlReply::Trace(page) => Ok(page),
            other => Err(ClientError::protocol(format!("answer to a trace: {other:?}"))),
        }
    }

    /// Requests of all sessions that were slow since the sidecar's start, as far as it keeps them.
    ///
    /// # Errors
    /// `Denied` for users other than root and the sidecar's own.
    pub fn slow_log(&self) -> Result<TracePage, ClientError> {
        let ask = ControlRequest::SlowLog;
        match self.session.control().call("asking for the slow log", ask, &[])?.message {
            ControlReply::Trace(page) => Ok(page),
            other => Err(ClientError::protocol(format!("answer to the slow log: {other:?}"))),
        }
    }

    /// The sidecar's configuration in force, with the origin of each value.
    ///
    /// # Errors
    /// `Denied` for users other than root and the sidecar's own.
    pub fn running_config(&self) -> Result<Vec<ConfigEntry>, ClientError> {
        let ask = ControlRequest::ShowConfig;
        match self.session.control().call("asking for the configuration", ask, &[])?.message {
            ControlReply::Config(entries) => Ok(entries),
            other => Err(ClientError::protocol(format!("answer on the configuration: {other:?}"))),
        }
    }

    /// Has the sidecar read its configuration again; what can change while it serves does.
    ///
    /// # Errors
    /// `Denied` has the reason why the configuration in force stays, or that only root and the
    /// sidecar's own user may reload.
    pub fn reload(&self) -> Result<Reloaded, ClientError> {
        let ask = ControlRequest::Reload;
        match self.session.control().call("reading the configuration again", ask, &[])?.message {
            ControlReply::Reloaded(reloaded) => Ok(reloaded),
            other => Err(ClientError::protocol(format!("answer to a reload: {other:?}"))),
        }
    }

    /// Has the sidecar change the members of a store.
    ///
    /// # Errors
    /// `Denied` has the reason why the members stay, or that only root and the sidecar's own user
    /// may do this.
    pub fn change_members(
        &self,
        store: &str,
        change: MemberChange,
    ) -> Result<MembersChanged, ClientError> {
        let ask = ControlRequest::ChangeMembers { store: store.to_owned(), change };
        match self.session.control().call("changing the members of a store", ask, &[])?.message {
            ControlReply::MembersChanged(changed) => Ok(changed),
            other => Err(ClientError::protocol(format!("answer to other members: {other:?}"))),
        }
    }

    /// Has the sidecar make an arena of at least `bytes` bytes and registers it with all devices.
    ///
    /// # Errors
    /// `Denied` names the limit, its value, its key in the configuration, or why there are no
    /// such pages.
    pub fn create_arena(&self, bytes: usize, pages: Pages) -> Result<Arena, ClientError> {
        let ask = ControlRequest::CreateArena { bytes: bytes as u64, pages };
        let packet = self.session.control().call("making an arena", ask, &[])?;
        let (answer, [memory]) = packet.exactly()?;
        let ControlReply::Arena { region, bytes, page_bytes, note } = answer else {
            return Err(ClientError::protocol(format!("answer to an arena: {answer:?}")));
        };
        let memory = Region::import(memory, bytes).inspect_err(|_| self.forget(region))?;
        let facts = ArenaFacts { region: RegionId(region), page_bytes, note };
        Ok(self.arena(memory, facts))
    }

    /// Registers memory of the program's own with all devices: a memfd of exactly `bytes` bytes,
    /// fully allocated, sealed with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL. It is mapped once
    /// more here; bytes that are leased from the arena must not be touched through any other
    /// mapping, and the same memory must not be imported twice. A sidecar with that setting
    /// (`memory.unsealed_imports`) takes memory without seals, too; a program that shrinks it gets
    /// SIGBUS.
    ///
    /// # Errors
    /// `Denied` has the fault of the memory or names the limit.
    pub fn import_arena(&self, memory: OwnedFd, bytes: u64) -> Result<Arena, ClientError> {
        let ask = ControlRequest::ImportArena { bytes };
        let packet = self.session.control().call("importing an arena", ask, &[memory.as_fd()])?;
        let (answer, []) = packet.exactly()?;
        let ControlReply::Arena { region, page_bytes, note, .. } = answer else {
            return Err(ClientError::protocol(format!("answer to an arena: {answer:?}")));
        };
        // The sidecar decided whether seals are needed; the memory is this program's.
        let memory = Region::import_with(memory, bytes, Sealing::Optional);
        let memory = memory.inspect_err(|_| self.forget(region))?;
        Ok(self.arena(memory, ArenaFacts { region: RegionId(region), page_bytes, note }))
    }

    /// Makes an arena of the whole file behind an address of this process, and returns the
    /// address's offset in it: for memory of an engine. The file must not be one of this client's
    /// arenas yet: try [`Arena::position_of`] first.
    ///
    /// # Errors
    /// `NotShared` when others cannot map that memory; otherwise as `import_arena`.
    pub fn import_mapping(&self, address: usize) -> Result<(Arena, usize), ClientError> {
        let not = |why| ClientError::NotShared { address, why };
        let mapping = ProcessMapping::of(address).ok_or_else(|| not("is not mapped"))?;
        if !mapping.is_shared_file() {
            return Err(not("is private to this process"));
        }
        let file = mapping.open().ok_or_else(|| not("is of a file that cannot be opened"))?;
        let about = rustix::fs::fstat(&file);
        let about = about.map_err(|errno| ClientError::System { what: "fstat", errno })?;
        let arena = self.import_arena(file, about.st_size.unsigned_abs())?;
        let position = usize::try_from(mapping.in_file(address)).unwrap_or(usize::MAX);
        Ok((arena, position))
    }

    /// Has the sidecar detach memory that is of no use here.
    fn forget(&self, region: u32) {
        self.session.control().call_and_forget(ControlRequest::DetachArena { region });
    }

    fn arena(&self, memory: Region, facts: ArenaFacts) -> Arena {
        let wanted = self.session.volumes().iter().map(|volume| volume.geometry.memory_alignment);
        let alignment = wanted.fold(LEASE_ALIGNMENT, u32::max);
        Arena::new(
            Arc::clone(&self.session),
            LeasePool::new(Arc::new(memory), alignment as usize),
            facts,
        )
    }

    /// The GPUs that the sidecar serves.
    #[must_use]
    pub fn gpus(&self) -> &[GpuInfo] {
        self.session.gpus()
    }

    /// Has the sidecar use GPU memory of this program. It opens the memory, so descriptors may be
    /// closed afterwards; memory behind legacy handles must live until the detach.
    ///
    /// # Errors
    /// `Layout` names the fragment and the limit; `NoGpu` those that are served; `Denied` has the
    /// fault of a handle, or names the limit and its key.
    pub fn attach_gpu(&self, cache: GpuCache) -> Result<GpuRegion, ClientError> {
        gpu::attach(&self.session, cache)
    }

    /// A round trip to one poller, without a device.
    pub fn nop_to(&self, poller: PollerIndex) -> Request {
        Request::nop_to(self.session.tag(), poller)
    }

    /// Opens a queue for one thread. At most `depth` pieces of requests can be in flight in it;
    /// `depth` is rounded up to a power of two, from 2 to 4,096.
    ///
    /// # Errors
    /// `Denied` names the limit, its value and its key in the configuration.
    pub fn open_queue(&self, depth: usize) -> Result<Queue, ClientError> {
        let depth = u32::try_from(depth).unwrap_or(u32::MAX).clamp(LANE_DEPTH_MIN, LANE_DEPTH_MAX);
        let depth = depth.next_power_of_two();
        let tails = self.tails(depth)?;
        let region = tails.1.as_ref().map(|arena| arena.region().0);
        // Dropping an arena does not detach it.
        let opened = self.open_with(depth, tails);
        opened.inspect_err(|_| region.into_iter().for_each(|region| self.forget(region)))
    }

    /// As `open_queue`, with this memory for the tails of blocks.
    fn open_with(
        &self,
        depth: u32,
        tails: (Vec<Lease>, Option<Arena>),
    ) -> Result<Queue, ClientError> {
        let region = tails.1.as_ref().map(|arena| arena.region().0);
        let ask = ControlRequest::OpenQueue { depth, tails: region };
        let packet = self.session.control().call("opening a queue", ask, &[])?;
        let ControlReply::Queue { queue, segment_bytes } = packet.message else {
            let what = format!("answer to a queue: {:?}", packet.message);
            return Err(ClientError::protocol(what));
        };
        let mut fds = packet.fds.into_iter();
        let (Some(segment), Some(wake_fd)) = (fds.next(), fds.next()) else {
            return Err(ClientError::protocol("a queue without segment and bell"));
        };
        let doorbells: Vec<OwnedFd> = fds.collect();
        let segment = Region::import_with(segment, segment_bytes, Sealing::Size);
        // What cannot be mapped or served is forgotten on both sides.
        let forget =
            || self.session.control().call_and_forget(ControlRequest::CloseQueue { queue });
        let segment = segment.inspect_err(|_| forget())?;
        let mapped = ControlRequest::QueueMapped { queue };
        let served = self.session.control().call("opening a queue", mapped, &[]);
        match served.inspect_err(|_| forget())?.message {
            ControlReply::QueueServed { queue: other } if other == queue => {}
            other => return Err(ClientError::protocol(format!("answer to a mapping: {other:?}"))),
        }
        let segment = QueueSegment::open(Arc::new(segment))?;
        let routes = self.session.volumes().iter().map(VolumeRoute::new).collect();
        // Calls of stores are counted.
        let has_store = tails.1.is_some();
        let latencies = if has_store { self.session.latencies() } else { QueueLatencies::none() };
        let parts = Parts { number: queue, segment, wake_fd, doorbells, routes, tails, latencies };
        Queue::assemble(Arc::clone(&self.session), parts)
    }

    /// Pages for the tails of blocks, one for each request of a queue, where there is a store.
    fn tails(&self, depth: u32) -> Result<(Vec<Lease>, Option<Arena>), ClientError> {
        if !self.session.volumes().iter().any(Volume::is_store) {
            return Ok((Vec::new(), None));
        }
        let arena = self.create_arena(depth as usize * TAIL_BYTES, Pages::Base)?;
        let pages = (0..depth).map(|_| arena.lease(TAIL_BYTES)).collect::<Result<_, _>>()?;
        Ok((pages, Some(arena)))
    }

    /// Worths, times to live and demotions that were left out, because the sidecar is of a release
    /// without them: the puts and lookups themselves were sent.
    #[must_use]
    pub fn dropped_hints(&self) -> u64 {
        self.session.control().dropped_hints()
    }

    /// Bytes of leases that are kept out of reach, because hardware may still write them although
    /// their request has completed.
    #[must_use]
    pub fn quarantined_bytes(&self) -> u64 {
        self.session.quarantined_bytes()
    }

    /// Why the session has ended, if anybody noticed that it has.
    #[must_use]
    pub fn ended(&self) -> Option<&str> {
        self.session.control().ended().map(|ended| ended.reason.as_str())
    }

    /// Reports a hang-up when the session ends: for event loops that wait on [`Queue::wait_fd`] and
    /// must notice it even if no queue rings. Only to be waited on (with an empty event mask),
    /// never to be read.
    #[must_use]
    pub fn hangup_fd(&self) -> BorrowedFd<'_> {
        self.session.control().as_fd()
    }
}
