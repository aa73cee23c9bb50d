//! The control thread: its loop, and what it does with each event, request and notice.
//!
//! It owns the parts (sessions, regions, queues, workers, pollers, the stop) and is the only one
//! with access to more than one of them: a part changes its own table, sends commands, and returns
//! the answer that is due.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvrail_counters::SidecarCounters;
use kvrail_device::DeviceError;
use kvrail_gpu::STAGING_ENTRIES;
use kvrail_memory::PageSize;
use kvrail_poller::{
    DeviceFailure, LaneSeat, Notice, PollerCommand, PollerHandle, SessionSlot, WokenBy,
};
use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ClientWaker, ConfigEntry, ConfigReport, ControlReply,
    ControlRequest, Hardware, Hello, Incoming, LimitsInfo, MemberChange, Packet, PacketBuffer,
    Pages, PollerInfo, RefusalCode, SandboxReport, SessionReport, SidecarReport, StatusReport,
    Version, VolumeContent, VolumeInfo, Welcome, troubles, unspill_ask,
};
use kvrail_ring::limits::{LANE_VERSION, POLLERS_MAX};
use kvrail_ring::{Doorbell, RegionId, Status, drain_doorbell};
use rustix::fd::AsFd;
use rustix::io::Errno;

use crate::acceptor::{Acceptor, TakenConnection};
use crate::config::ServerConfig;
use crate::error::ServerError;
use crate::events::{EventLoop, EventSource};
use crate::failure::Failure;
use crate::gpus::{self, ServedGpu};
use crate::kept::Kept;
use crate::latencies::ClientLatencies;
use crate::member_change::{MemberAsk, MemberHook};
use crate::memory_worker::{FetchError, FetchedMessage, WorkerEvent};
use crate::memory_workers::MemoryWorkers;
use crate::policy::{PagePolicy, Policy};
use crate::pollers::Pollers;
use crate::queues::{Queues, segment_bytes};
use crate::recent::Recent;
use crate::regions::{AttachedRegions, Granted};
use crate::reload::{ConfigReader, ReloadAsk};
use crate::reply::Reply;
use crate::report::{self, BusyShares, narrow};
use crate::server_handle::HandleReceiver;
use crate::session::{EndReason, Holdings, Session, own_words};
use crate::sessions::Sessions;
use crate::shutdown::{Shutdown, StopStep, Stopped};
use crate::socket::Listener;
use crate::stores::Stores;
use crate::tenants::Rights;
use crate::trace::RequestTraces;
use crate::wakers::{REMEMBERED, Wakers};
use crate::watch::Watch;

/// How often the loop looks after itself when nothing happens.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// Connections taken, or packets of one session read, before others have their turn.
const TURN: usize = 16;

/// The sidecar's session server. Made before clients may come; `run` serves them.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    events: Arc<EventLoop>,
    acceptor: Acceptor,
    sessions: Sessions,
    regions: AttachedRegions,
    queues: Queues,
    stores: Stores,
    /// Dropped after the sessions: they close what is theirs.
    workers: MemoryWorkers,
    pollers: Pollers,
    wakers: Wakers,
    watch: Watch,
    latencies: ClientLatencies,
    busy: BusyShares,
    recent: Recent,
    /// Latest reason for memory that is not registered with the rings, if any.
    unregistered: Option<String>,
    trace: RequestTraces,
    shutdown: Shutdown,
    volumes: Vec<VolumeInfo>,
    to_control: Arc<Doorbell>,
    buffer: PacketBuffer,
    started: Instant,
    started_unix_s: u64,
    report_hook: ReportHook,
    reader: Option<ConfigReader>,
    member_hook: Option<MemberHook>,
}

/// Adds to a report what others know.
struct ReportHook(Box<dyn Fn(&mut StatusReport) + Send>);

impl fmt::Debug for ReportHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReportHook")
    }
}

impl Server {
    /// Takes the socket and prepares to serve. Clients may connect from now on and are answered
    /// once `run` is called. `to_control` is the bell that the pollers' mailboxes ring.
    ///
    /// # Errors
    /// `ServerError` when a sidecar already serves the socket, the path cannot be used, or
    /// volumes name pollers that do not exist.
    pub fn new(
        mut config: ServerConfig,
        pollers: Vec<PollerHandle>,
        to_control: Arc<Doorbell>,
        volumes: Vec<VolumeInfo>,
    ) -> Result<Self, ServerError> {
        check(&pollers, &volumes)?;
        config.policy.limits = config.policy.limits.clamped();
        let listener = Listener::bind(&config.socket, config.socket_mode)?;
        let failed = |errno| ServerError::Loop { step: "epoll", errno };
        let events = Arc::new(EventLoop::new().map_err(failed)?);
        let acceptor = Acceptor::new(listener, Arc::clone(&events)).map_err(failed)?;
        events.watch(to_control.as_fd(), EventSource::Notices).map_err(failed)?;
        let no_ringer = |error: std::io::Error| ServerError::Thread {
            thread: "the ringer",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        };
        let wakers = Wakers::start().map_err(no_ringer)?;
        let (numa, porter, gpus) = (config.numa.clone(), config.porter.clone(), config.gpus.len());
        let workers = MemoryWorkers::start(numa, porter, Arc::clone(&to_control), gpus)?;
        let staging = u16::try_from(gpus).expect("GPUs are few") * STAGING_ENTRIES;
        // One more entry behind them, for the pools of stores.
        let reserved = staging + u16::from(!config.stores.is_empty());
        let bytes_max = config.policy.limits.arena_bytes_total;
        let name = |volume: u16| volumes[usize::from(volume)].name.clone();
        let stores = Stores::new(config.stores.clone(), &pollers, name);
        let mut stores = stores.map_err(ServerError::Volumes)?;
        let watch = Watch::new(&pollers);
        let busy = BusyShares::new(pollers.len());
        let unregistered = report::unregistered(&pollers); // the start report has it
        let mut pollers = Pollers::new(pollers);
        stores.set_budgets(&config.policy.write_budgets, &mut pollers);
        stores.set_pools(&config.policy.pools, &mut pollers);
        let trace = RequestTraces::start(config.policy.patience.slow_ns(), &mut pollers);
        Ok(Self {
            sessions: Sessions::new(Arc::clone(&events)),
            regions: AttachedRegions::new(bytes_max, reserved, config.gpus.clone()),
            stores,
            queues: Queues::default(),
            latencies: ClientLatencies::default(),
            busy,
            recent: Recent::default(),
            unregistered,
            trace,
            watch,
            pollers,
            config,
            events,
            acceptor,
            workers,
            wakers,
            shutdown: Shutdown::new(),
            volumes,
            to_control,
            buffer: PacketBuffer::default(),
            report_hook: ReportHook(Box::new(|_| {})),
            reader: None,
            member_hook: None,
            started: Instant::now(),
            started_unix_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.as_secs()),
        })
    }

    /// Has every report completed by what others than this server know. It is called on the
    /// control thread, so it must be quick.
    pub fn annotate(&mut self, report_hook: impl Fn(&mut StatusReport) + Send + 'static) {
        self.report_hook = ReportHook(Box::new(report_hook));
    }

    /// Sets the owner of the configuration: `read` passes on clients' reload requests, `show` has
    /// what is in force. Both run on the control thread, so they must be quick.
    pub fn configure_by(
        &mut self,
        read: impl Fn(ReloadAsk) + Send + 'static,
        show: impl Fn() -> Vec<ConfigEntry> + Send + 'static,
    ) {
        self.reader = Some(ConfigReader { read: Box::new(read), show: Box::new(show) });
    }

    /// Sets the owner of the stores' members: operators' requests to change them are passed on
    /// there. It is called on the control thread, so it must be quick.
    pub fn change_members_by(&mut self, change: impl Fn(MemberAsk) + Send + 'static) {
        self.member_hook = Some(MemberHook(Box::new(change)));
    }

    /// Serves until a requested stop is complete. The socket goes away when the server is dropped.
    ///
    /// # Errors
    /// `ServerError` when the kernel refuses to wait or a poller thread ended by itself; clients
    /// have their closing message by then.
    pub fn run(&mut self, handle: &HandleReceiver) -> Result<Stopped, ServerError> {
        let failed = |errno| ServerError::Loop { step: "epoll", errno };
        self.events.watch(handle.fd(), EventSource::Handle).map_err(failed)?;
        self.pollers.set_overdue(self.config.policy.patience.overdue_after);
        let mut stops = 0;
        loop {
            let timeout = self.timeout();
            for source in self.events.wait(timeout).map_err(failed)? {
                match source {
                    EventSource::Listener => self.accept(),
                    EventSource::Notices | EventSource::Handle => {}
                    EventSource::Socket(id) => self.serve(id),
                    EventSource::Process(id) => self.end(id, EndReason::Died),
                }
            }
            self.read_notices();
            self.pollers.flush();
            self.housekeep();
            self.answer_past_stalled();
            self.check_pollers()?;
            let asked = handle.stops();
            if asked > stops {
                stops = asked;
                let drain = self.config.policy.drain_timeout;
                self.shutdown.ask(self.pollers.all(), drain, Instant::now());
            }
            if let Some(policy) = handle.policy() {
                self.renew(policy);
            }
            handle.replies().into_iter().for_each(|reply| self.reply(reply));
            handle.answer(|| self.report());
            if let Some(stopped) = self.advance_stop() {
                return Ok(stopped);
            }
        }
    }

    /// Applies a policy from now on. Clients keep what they have.
    fn renew(&mut self, mut policy: Policy) {
        policy.limits = policy.limits.clamped();
        self.regions.limit(policy.limits.arena_bytes_total);
        self.pollers.set_overdue(policy.patience.overdue_after);
        self.stores.set_budgets(&policy.write_budgets, &mut self.pollers);
        self.stores.set_pools(&policy.pools, &mut self.pollers);
        self.trace.set_log(policy.patience.slow_ns());
        self.config.policy = policy;
        tracing::info!("a new policy holds for clients that ask from now on");
    }

    /// Until when there is nothing to do but wait for events.
    fn timeout(&self) -> Duration {
        let now = Instant::now();
        let next = self.sessions.deadline().into_iter().chain(self.acceptor.resumes()).min();
        let soon = next.map_or(HOUSEKEEPING, |next| next.saturating_duration_since(now));
        let look = self.watch.timeout(&self.config.policy.patience, now);
        soon.min(HOUSEKEEPING).min(look).min(self.shutdown.timeout(now))
    }

    /// Work that is due by the clock.
    fn housekeep(&mut self) {
        let now = Instant::now();
        self.sessions.turn_away_late(&self.config.policy, now);
        self.acceptor.resume(now);
        self.acceptor.look(now);
        let sessions = &self.sessions;
        self.workers.retain(|uid| sessions.iter().any(|session| session.peer().uid == uid));
        while let Some(bell) = self.wakers.left_over() {
            drop(Kept::new(bell, self.workers.unattached()));
        }
        self.wakers.look_after(now);
        self.trace.housekeep(&mut self.pollers, &self.sessions, now);
        self.busy.sample(self.pollers.handles(), now);
        self.recent.sample(self.pollers.handles(), now);
        self.latencies.look(now);
        self.watch.look(self.pollers.handles(), &self.config.policy.patience, now);
        self.stores.look_at_sizes(self.pollers.handles());
        self.stores.look_at_refusals(self.pollers.handles(), now);
    }

    fn check_pollers(&mut self) -> Result<(), ServerError> {
        if self.shutdown.pollers_may_end() {
            return Ok(());
        }
        let Some(poller) = self.pollers.ended() else { return Ok(()) };
        let reason = "a poller of the sidecar failed, which is a bug in kvrail";
        self.dismiss_all(reason, Hardware::MayBeActive);
        Err(ServerError::PollerDied { poller })
    }

    /// Goes on with a stop as far as it can now.
    fn advance_stop(&mut self) -> Option<Stopped> {
        loop {
            let all = self.pollers.all();
            let (sessions, pollers) = (self.sessions.len(), self.pollers.running());
            match self.shutdown.advance(sessions, pollers, Instant::now())? {
                StopStep::Drain => {
                    let timeout = self.config.policy.drain_timeout;
                    tracing::info!(sessions = self.sessions.len(), ?timeout, "draining");
                    self.pollers.send_each(all, || PollerCommand::Drain);
                }
                StopStep::Dismiss(reason, hardware) => self.dismiss_all(reason, hardware),
                StopStep::StopPollers => {
                    // After an orderly end no session is left.
                    let reason = "the sidecar stops at once by request";
                    self.dismiss_all(reason, Hardware::MayBeActive);
                    self.pollers.send_each(all, || PollerCommand::Stop);
                }
                StopStep::Done(stopped) => return Some(stopped),
            }
        }
    }

    /// Takes waiting connections.
    fn accept(&mut self) {
        for _ in 0..TURN {
            let refused = self.workers.unattached().discarded();
            let is_leaving = self.shutdown.is_leaving();
            match self.acceptor.next(refused) {
                Some(TakenConnection::Open(fd)) => {
                    self.sessions.greet(fd, &self.config.policy, is_leaving, &mut self.workers);
                }
                Some(TakenConnection::Last(fd, errno)) => {
                    return self.sessions.refuse_last(fd, errno, &self.workers);
                }
                None => return,
            }
        }
    }

    /// Reads a session's messages.
    fn serve(&mut self, id: u64) {
        for _ in 0..TURN {
            let Some(session) = self.sessions.get(id) else { return };
            let Some(packet) = session.next(&mut self.buffer) else { return };
            let nothing = Kept::new(Vec::new(), session.worker());
            let message = match packet {
                Ok(Incoming::Laden(message)) => return self.fetch(id, message),
                Ok(Incoming::Bare(message)) => unspill_ask(Packet { message, fds: Vec::new() }),
                Err(error) => Err(error),
            };
            match message {
                Ok(packet) => self.handle_message(id, packet.message, nothing),
                Err(ChannelError::WouldBlock) => return,
                Err(ChannelError::Closed) => return self.end(id, EndReason::HungUp),
                Err(error) => return self.protocol_error(id, &error.to_string()),
            }
        }
    }

    /// Has the next message taken in with its descriptors, if it may have some.
    fn fetch(&mut self, id: u64, message: ClientMessage) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.is_greeting() || !message.ask.takes_fds() {
            return self.protocol_error(id, "a message that has no descriptors came with some");
        }
        match session.suspend(&self.events) {
            Ok(Some(socket)) => session.worker().fetch(id, socket, message),
            Ok(None) => {}
            Err(error) => {
                let reason = format!(
                    "the sidecar has no descriptor left ({error}); raise its limit of open files \
                     (ulimit -n, LimitNOFILE=)"
                );
                self.end(id, EndReason::Dismissed(reason, Hardware::MayBeActive));
            }
        }
    }

    /// A message was taken in with its descriptors, or not. The session may have ended meanwhile.
    fn fetched(&mut self, id: u64, fetched: FetchedMessage) {
        if let Err(FetchError::Delayed(seq, failure)) = fetched {
            return self.reply(Reply::failure(id, seq, failure));
        }
        let worker = self.sessions.get(id).map_or(self.workers.unattached(), Session::worker);
        let fetched = fetched.map(|Packet { message, fds }| (message, Kept::new(fds, worker)));
        let Some(session) = self.sessions.get_mut(id) else { return };
        match (session.resume(&self.events), fetched) {
            (Ok(false), _) => {}
            (Err(errno), _) => {
                let reason = format!("the sidecar cannot watch the connection: {errno}");
                self.end(id, EndReason::Dismissed(reason, Hardware::MayBeActive));
            }
            (_, Ok((message, fds))) => self.handle_message(id, message, fds),
            (_, Err(FetchError::Discarded | FetchError::Delayed(..))) => {}
            (_, Err(FetchError::Broken(reason))) => self.end(id, EndReason::Violation(reason)),
            (_, Err(FetchError::Failed(seq, failure))) => {
                if self.sessions.blame_descriptor(id, &self.config.policy) {
                    let why = failure.1;
                    let reason =
                        format!("too many descriptors were of no use; the last one: {why}");
                    return self.end(id, EndReason::Violation(reason));
                }
                self.reply(Reply::failure(id, seq, failure));
            }
        }
    }

    /// Ends a session after a message that cannot be decoded.
    fn protocol_error(&mut self, id: u64, error: &str) {
        if self.sessions.get(id).is_some_and(Session::is_greeting) {
            let current = Version::CURRENT;
            let message = format!("{error}; this sidecar speaks protocol {current}");
            return self.sessions.turn_away(id, RefusalCode::Malformed, message);
        }
        self.end(id, EndReason::Violation(error.to_owned()));
    }

    fn handle_message(&mut self, id: u64, message: ClientMessage, fds: Kept<Vec<OwnedFd>>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.touch();
        let (seq, greeting) = (message.seq, session.is_greeting());
        let (present, needed) = (fds.len(), message.ask.fds());
        // For GPU memory, the answer names the missing ones.
        if present != needed && !matches!(message.ask, ControlRequest::AttachGpu(_)) {
            let reason = format!("a message came with {present} descriptors instead of {needed}");
            return self.end(id, EndReason::Violation(reason));
        }
        match message.ask {
            ControlRequest::Hello(hello) if greeting => self.hello(id, seq, &hello),
            _ if greeting => {
                let message = "the first message must be a hello".into();
                self.sessions.turn_away(id, RefusalCode::Malformed, message);
            }
            ControlRequest::Hello(_) => self.end(id, EndReason::Violation("a second hello".into())),
            ControlRequest::Bye => self.end(id, EndReason::Detached),
            ask => match self.handle(id, seq, ask, fds) {
                Ok(reply) => self.reply_if(reply),
                Err(failure) => self.reply(Reply::failure(id, seq, failure)),
            },
        }
    }

    fn hello(&mut self, id: u64, seq: u64, hello: &Hello) {
        let (ours, theirs) = (Version::CURRENT, hello.protocol);
        if theirs.major != ours.major || hello.lane_version != LANE_VERSION {
            let message = format!(
                "the sidecar ({}) speaks protocol {ours} and lanes of version {LANE_VERSION}, the \
                 client ({}) speaks protocol {theirs} and lanes of version {}; install both from \
                 the same release",
                self.config.identity.version,
                own_words(&hello.library),
                hello.lane_version
            );
            return self.sessions.turn_away(id, RefusalCode::Version, message);
        }
        let too_new = |volume: &&VolumeInfo| match volume.content {
            VolumeContent::Store(store) => store.minor() > theirs.minor,
            VolumeContent::Raw => false,
        };
        if let Some(store) = self.volumes.iter().find(too_new) {
            let message = format!(
                "the client ({}) speaks protocol {theirs} and cannot name the drive of store {} \
                 has a key since one was retired; install the client of the sidecar's release ({})",
                own_words(&hello.library),
                store.name,
                self.config.identity.version,
            );
            return self.sessions.turn_away(id, RefusalCode::Version, message);
        }
        self.sessions.attach(id, hello);
        let welcome = Box::new(self.welcome(id, theirs));
        self.reply(Reply::new(id, seq, ControlReply::Welcome(welcome)));
    }

    fn welcome(&self, id: u64, theirs: Version) -> Welcome {
        let pollers = self.pollers.handles().iter();
        let limits = &self.config.policy.limits;
        Welcome {
            protocol: Version::CURRENT.lower_minor(theirs),
            sidecar: self.config.identity.version.clone(),
            epoch: self.config.identity.epoch.0,
            session: id,
            pollers: pollers.map(|poller| PollerInfo { cpu: poller.cpu }).collect(),
            spin: self.config.spin,
            volumes: self.volumes.clone(),
            gpus: self.config.gpus.iter().map(ServedGpu::info).collect(),
            limits: LimitsInfo {
                arenas: narrow(limits.arenas_per_session),
                arena_bytes: limits.arena_bytes_per_session,
                queues: narrow(limits.queues_per_session),
                queue_depth: limits.queue_depth,
                gpu_regions: narrow(limits.gpu_regions_per_session),
                gpu_bytes: limits.gpu_bytes_per_session,
            },
        }
    }

    /// Handles a client's request; returns the answer, or none while other threads have to do their
    /// part.
    fn handle(
        &mut self,
        id: u64,
        seq: u64,
        ask: ControlRequest,
        fds: Kept<Vec<OwnedFd>>,
    ) -> Result<Option<Reply>, Failure> {
        let policy = &self.config.policy;
        self.regions.note_queues(self.queues.bytes());
        let granted = match ask {
            ControlRequest::CreateArena { bytes, pages } => {
                let pages = match pages {
                    Pages::Auto => policy.pages,
                    Pages::Base => PagePolicy::Exactly(PageSize::Base),
                    Pages::Huge2MiB => PagePolicy::Exactly(PageSize::Huge2MiB),
                    Pages::Huge1GiB => PagePolicy::Exactly(PageSize::Huge1GiB),
                };
                self.regions.grant_new(id, bytes, pages, &policy.limits)?
            }
            ControlRequest::ImportArena { bytes } => {
                self.regions.grant_import(id, (fds, bytes), policy.sealing, &policy.limits)?
            }
            ControlRequest::AttachGpu(info) => {
                let at = gpus::find(&self.config.gpus, &info.gpu)?;
                self.regions.grant_gpu(id, at, (info, fds), &policy.limits)?
            }
            ask => return self.handle_small(id, seq, ask),
        };
        self.build(id, seq, granted).map(|()| None)
    }

    /// As `handle`, for what brings no memory.
    fn handle_small(
        &mut self,
        id: u64,
        seq: u64,
        ask: ControlRequest,
    ) -> Result<Option<Reply>, Failure> {
        match ask {
            ControlRequest::DetachArena { region } => {
                let key = (id, RegionId(region));
                self.queues.check_tails(key)?;
                self.regions.detach(key, seq, &mut self.pollers).map(|()| None)
            }
            ControlRequest::OpenQueue { depth, tails } => {
                self.queues.check(id, depth, &self.config.policy.limits)?;
                let tails = tails.map(RegionId);
                tails.map_or(Ok(()), |tails| self.regions.check_tails((id, tails), depth))?;
                let bytes = segment_bytes(self.pollers.count(), depth);
                self.regions.check_queue(id, bytes, &self.config.policy.limits)?;
                let slot = self.seat(id)?;
                let session = self.sessions.get(id).expect("an asking session lives");
                let waking = self.wakers.waking(id, session.peer().uid);
                let (lanes, tenant) = (self.pollers.count(), session.tenant().expect("seated"));
                let (shape, worker) = (((lanes, depth), tails, tenant), session.worker());
                self.queues.open((id, slot), seq, shape, worker, waking).map(Some)
            }
            ControlRequest::QueueMapped { queue } => {
                self.queues.mapped((id, queue), seq, &mut self.pollers).map(|()| None)
            }
            ControlRequest::CloseQueue { queue } => {
                self.queues.close((id, queue), seq, &mut self.pollers)
            }
            ControlRequest::ShareLatencies => {
                let memory = self.latencies.share(id)?;
                let bytes = memory.bytes() as u64;
                let reply = Reply::new(id, seq, ControlReply::Latencies { bytes });
                Ok(Some(reply.with(memory, Vec::new())))
            }
            ControlRequest::ShowPresence { volume } => {
                self.stores.show_presence((id, seq), volume).map(Some)
            }
            ControlRequest::OpenNamespace { .. } => {
                let slot = self.seat(id)?;
                self.ask_store((id, Some(slot)), seq, ask)
            }
            ControlRequest::ClearNamespace { .. }
            | ControlRequest::RemoveNamespace { .. }
            | ControlRequest::ListNamespaces { .. }
            | ControlRequest::ListBlocks { .. }
            | ControlRequest::Events { .. }
            | ControlRequest::ExplainKey { .. } => self.ask_store((id, None), seq, ask),
            ControlRequest::Trace { slow_ns } => {
                let why = "trace: it shows what all sessions ask, and costs pollers time";
                self.check_operator(id, why)?;
                let page = self.trace.ask(id, slow_ns, (&mut self.pollers, &self.sessions))?;
                Ok(Some(Reply::new(id, seq, ControlReply::Trace(page))))
            }
            ControlRequest::SlowLog => {
                self.check_operator(id, "read the slow log: it shows what all sessions ask")?;
                let page = self.trace.past(self.pollers.handles(), &self.sessions);
                Ok(Some(Reply::new(id, seq, ControlReply::Trace(page))))
            }
            ControlRequest::ShowConfig => {
                self.check_operator(id, "see the configuration: it names users and files")?;
                let entries = (self.reader()?.show)();
                Ok(Some(Reply::new(id, seq, ControlReply::Config(entries))))
            }
            ControlRequest::Reload => self.read_again(id, seq).map(|()| None),
            ControlRequest::ChangeMembers { store, change } => {
                self.change_members((id, seq), store, change).map(|()| None)
            }
            ControlRequest::Status => {
                Ok(Some(Reply::new(id, seq, ControlReply::Status(Box::new(self.report())))))
            }
            _ => Err((Status::Internal, "handled before".into())),
        }
    }

    /// Root and the sidecar's own user may do what others may not.
    fn check_operator(&self, id: u64, what: &str) -> Result<(), Failure> {
        let uid = self.sessions.get(id).map(|session| session.peer().uid);
        if uid.is_some_and(|uid| self.config.policy.access.operates(uid)) {
            return Ok(());
        }
        let message = format!("only root and the sidecar's own user may {what}");
        Err((Status::Unsupported, message))
    }

    /// Passes the request on; the answer comes through the handle.
    fn read_again(&self, id: u64, seq: u64) -> Result<(), Failure> {
        self.check_operator(id, "have the configuration read again: it holds for all sessions")?;
        let peer = self.sessions.get(id).expect("an asking session lives").peer();
        (self.reader()?.read)(ReloadAsk::new((id, seq), (peer.pid, peer.uid)));
        Ok(())
    }

    /// Passes the request on; the answer comes through the handle.
    fn change_members(
        &self,
        asker: (u64, u64),
        store: String,
        change: MemberChange,
    ) -> Result<(), Failure> {
        self.check_operator(asker.0, "change the members of a store: all sessions use it")?;
        if !self.shutdown.is_serving() {
            return Err(stopping());
        }
        let none = || (Status::Unsupported, "this sidecar has no members to change".into());
        let hook = self.member_hook.as_ref().ok_or_else(none)?;
        let peer = self.sessions.get(asker.0).expect("an asking session lives").peer();
        (hook.0)(MemberAsk::new(asker, (peer.pid, peer.uid), (store, change)));
        Ok(())
    }

    fn reader(&self) -> Result<&ConfigReader, Failure> {
        let none = || (Status::Unsupported, "this sidecar has no configuration to read".into());
        self.reader.as_ref().ok_or_else(none)
    }

    fn ask_store(
        &mut self,
        asker: (u64, Option<SessionSlot>),
        seq: u64,
        ask: ControlRequest,
    ) -> Result<Option<Reply>, Failure> {
        if !self.shutdown.is_serving() {
            return Err(stopping());
        }
        let session = self.sessions.get(asker.0).expect("an asking session lives");
        let (peer, policy) = (session.peer(), &self.config.policy);
        let rights = |volume| Rights::new(peer, &policy.access, policy.tenants_of(volume));
        let asker = (session, asker.1);
        let replies = self.stores.ask(asker, seq, ask, rights, &mut self.pollers)?;
        replies.into_iter().for_each(|reply| self.reply(reply));
        Ok(None)
    }

    /// The session's place in the pollers' tables; takes one on first use.
    fn seat(&mut self, id: u64) -> Result<SessionSlot, Failure> {
        if !self.shutdown.is_serving() {
            return Err(stopping());
        }
        let counted = |slot| self.pollers.counted(slot);
        self.sessions.seat(id, &self.config.policy, &self.watch, counted)
    }

    /// Starts the creation of granted memory. Takes the seat last, so that a refused request takes
    /// none.
    fn build(&mut self, id: u64, seq: u64, granted: Granted) -> Result<(), Failure> {
        let slot = match self.seat(id) {
            Ok(slot) => slot,
            Err(failure) => {
                self.regions.revoke(granted);
                return Err(failure);
            }
        };
        let session = self.sessions.get(id).expect("an asking session lives");
        let gpu = granted.gpu().map(|at| self.workers.of_gpu(at));
        self.regions.build((id, slot), seq, granted, gpu.unwrap_or(session.worker()));
        Ok(())
    }

    fn reply(&mut self, reply: Reply) {
        let id = reply.session();
        let sent = self.sessions.get(id).map_or(Ok(()), |session| session.send(&reply));
        if let Err(reason) = sent {
            self.end(id, reason);
        }
    }

    fn reply_if(&mut self, reply: Option<Reply>) {
        reply.into_iter().for_each(|reply| self.reply(reply));
    }

    /// Reads what pollers and workers report. The bell is silenced first, so that what comes
    /// meanwhile rings again.
    fn read_notices(&mut self) {
        drain_doorbell(self.to_control.as_fd());
        while let Some(event) = self.workers.receive() {
            match event {
                WorkerEvent::Built(key, built) => {
                    let has_ended = !self.sessions.lives(key.0);
                    let reply = self.regions.built(key, built, has_ended, &mut self.pollers);
                    self.reply_if(reply);
                    self.reclaim(key.0);
                }
                WorkerEvent::Closed(key) => {
                    let reply = self.regions.closed(key);
                    self.reply_if(reply);
                    self.reclaim(key.0);
                }
                WorkerEvent::Fetched(id, fetched) => self.fetched(id, fetched),
            }
        }
        while let Some((poller, notice)) = self.pollers.receive() {
            self.notice(poller, notice);
        }
        self.pollers.handles().iter().for_each(log_failures);
        self.say_unregistered();
        self.stores.hear_all_gone(self.pollers.handles());
        self.stores.log_corrupt(self.pollers.handles());
    }

    /// Logs once that memory is not registered with the rings.
    fn say_unregistered(&mut self) {
        if self.unregistered.is_none() {
            self.unregistered = report::unregistered(self.pollers.handles());
            self.unregistered.iter().for_each(|why| tracing::warn!("{why}"));
        }
    }

    /// The session in a slot, if it has not ended.
    fn living(&self, slot: SessionSlot) -> Option<u64> {
        self.sessions.at(slot).filter(|session| !session.is_reclaiming()).map(Session::id)
    }

    fn notice(&mut self, poller: usize, notice: Notice) {
        match notice {
            Notice::Store(_, call) => {
                let replies = self.stores.called(poller, call, &mut self.pollers);
                replies.into_iter().for_each(|reply| self.reply(reply));
            }
            Notice::LaneAdded(slot, queue) => {
                let Some(id) = self.living(slot) else { return };
                let reply = self.queues.lane_added(poller, (id, queue));
                self.reply_if(reply);
            }
            Notice::LaneClosed(slot, seat) => self.lane_closed(poller, slot, seat),
            Notice::Attached(slot, region, outcome) => {
                let Some(id) = self.living(slot) else { return };
                let outcome = outcome.map_err(|error| attach_failure(&error));
                let pollers = &mut self.pollers;
                match self.regions.attached(poller, (id, region), outcome, pollers) {
                    Ok(reply) => self.reply_if(reply),
                    Err(what) => {
                        let reason =
                            format!("poller {poller} turns again after it was stalled, and {what}");
                        self.end(id, EndReason::Dismissed(reason, Hardware::MayBeActive));
                    }
                }
            }
            Notice::Detached(slot, region) => {
                let Some(id) = self.living(slot) else { return };
                let reply = self.regions.detached(poller, (id, region));
                self.reply_if(reply);
            }
            Notice::SessionClosed(slot) => {
                let Some(id) = self.sessions.at(slot).map(Session::id) else { return };
                self.sessions.closed_in(id, poller);
                self.reclaim(id);
            }
            Notice::LaneFault(slot, queue, fault) => {
                let Some(id) = self.sessions.at(slot).map(Session::id) else { return };
                let reason = format!("the indices of queue {queue} are impossible: {fault}");
                self.end(id, EndReason::Violation(reason));
            }
            Notice::Replaced(device, _closed_here, outcome) => {
                let name = &self.pollers.handles()[poller].devices[device].1.name;
                match outcome {
                    Ok(()) => {
                        tracing::warn!("{name} is back and served again");
                        self.stores.replaced(poller, device, &mut self.pollers);
                    }
                    Err(error) => tracing::warn!("{name} is not served again yet: {error}"),
                }
            }
            Notice::Released(device, _closed_here, outcome) => {
                let name = &self.pollers.handles()[poller].devices[device].1.name;
                match outcome {
                    Ok(()) => tracing::info!("{name} is retired, and closed"),
                    Err(error) => tracing::debug!("{name} is not closed yet: {error}"),
                }
            }
            Notice::Traced(tracer) => self.trace.returned(poller, &tracer),
            Notice::DearBell(slot) => self.expensive_bell(slot),
            Notice::Drained => self.shutdown.drained(poller),
        }
    }

    /// A poller gave a lane back.
    fn lane_closed(&mut self, poller: usize, slot: SessionSlot, seat: Box<LaneSeat>) {
        let queue = seat.queue;
        let session = self.sessions.at(slot);
        let worker = session.map_or(self.workers.unattached(), Session::worker);
        drop(Kept::new(seat, worker));
        let Some(id) = self.living(slot) else { return };
        match self.queues.lane_closed(poller, (id, queue)) {
            Ok(reply) => self.reply_if(reply),
            Err(reason) => self.end(id, EndReason::Dismissed(reason, Hardware::MayBeActive)),
        }
    }

    /// A poller gave a session's bells to the ringer.
    fn expensive_bell(&mut self, slot: SessionSlot) {
        let Some(session) = self.sessions.at(slot) else { return };
        let (pid, uid) = (session.peer().pid, session.peer().uid);
        tracing::warn!(
            session = session.id(),
            pid,
            uid,
            name = session.name(),
            "too much watches this client's bells, and to wake it takes a poller too long: another \
             thread does that for the next {} minutes, later than a poller would",
            REMEMBERED.as_secs() / 60
        );
        self.wakers.remember(uid);
    }

    /// Answers whatever only stalled pollers keep from being answered.
    fn answer_past_stalled(&mut self) {
        if self.watch.stalled().is_empty() {
            return;
        }
        let sessions = &self.sessions;
        let lives = |id| sessions.lives(id);
        let mut replies = self.queues.answer_past(&self.watch, lives);
        replies.extend(self.regions.answer_past(&self.watch, lives, &mut self.pollers));
        replies.extend(self.stores.answer_past(&self.watch));
        replies.into_iter().for_each(|reply| self.reply(reply));
    }

    fn holdings(&self, id: u64) -> Holdings {
        Holdings { regions: self.regions.used_by(id), queues: self.queues.of(id) }
    }

    /// Ends a session: cuts the connection, has the pollers give back what is theirs. Memory is
    /// kept until they have.
    fn end(&mut self, id: u64, reason: EndReason) {
        let (held, all) = (self.holdings(id), self.pollers.all());
        let slot = self.sessions.end(id, &reason, held, all);
        if let Some(slot) = slot {
            self.pollers.send_each(all, || PollerCommand::CloseSession(slot));
        }
        self.stores.session_ended(id, slot);
        self.latencies.end(id);
    }

    /// Ends every session.
    fn dismiss_all(&mut self, reason: &str, hardware: Hardware) {
        for id in self.sessions.ids() {
            self.end(id, EndReason::Dismissed(reason.to_owned(), hardware));
        }
    }

    /// Gives back all that an ended session had, once no poller and no worker has any of it.
    fn reclaim(&mut self, id: u64) {
        let Some(session) = self.sessions.get(id).filter(|session| session.is_reclaiming()) else {
            return;
        };
        if !session.waits_for().is_empty() || self.regions.is_with_worker(id) {
            return;
        }
        session.log_reclaimed(self.holdings(id));
        self.regions.forget_all(id);
        self.queues.forget_all(id);
        self.wakers.forget(id);
        self.sessions.remove(id);
    }

    /// How everything is now.
    #[must_use]
    pub fn report(&self) -> StatusReport {
        let handles = self.pollers.handles();
        let lanes = self.queues.total();
        let poller = |(at, handle)| report::poller(handle, (at, lanes), &self.busy, &self.watch);
        let sessions = self.sessions.iter().filter(|session| !session.is_greeting());
        let gpus = self.config.gpus.iter().enumerate();
        let limit_bytes = self.config.policy.limits.arena_bytes_total;
        let mut report = StatusReport {
            sidecar: self.report_sidecar(),
            paths: Vec::new(),
            target: None,
            sandbox: SandboxReport::default(),
            config: ConfigReport::default(),
            endpoint_problem: None,
            pollers: handles.iter().enumerate().map(poller).collect(),
            devices: report::devices(handles),
            volumes: self.volumes.iter().map(report::volume).collect(),
            shards: self.stores.report(handles),
            gpus: gpus.map(|(at, gpu)| gpu.report(self.regions.on_gpu(at))).collect(),
            calls: self.latencies.report(),
            sessions: sessions.map(|session| self.report_session(session)).collect(),
            regions: report::regions(&self.sessions, &self.regions, limit_bytes),
            notes: self.notes().collect(),
            troubles: Vec::new(),
        };
        self.recent.add_to(&mut report.devices);
        (self.report_hook.0)(&mut report);
        report.troubles = troubles(&report);
        report
    }

    fn notes(&self) -> impl Iterator<Item = String> {
        let configured = self.config.notes.iter().cloned();
        let unregistered = report::unregistered(self.pollers.handles());
        configured.chain(self.regions.notes()).chain(unregistered)
    }

    fn report_sidecar(&self) -> SidecarReport {
        let limits = &self.config.policy.limits;
        SidecarReport {
            pid: std::process::id(),
            epoch: self.config.identity.epoch.0,
            version: self.config.identity.version.clone(),
            uptime_s: self.started.elapsed().as_secs(),
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            started_unix_s: self.started_unix_s,
            socket: self.config.socket.display().to_string(),
            state: self.shutdown.shown(),
            counters: SidecarCounters {
                refused: Some(self.sessions.refused()),
                closing: Some(self.workers.waiting() as u64),
                // The log belongs to the process: the count is added where the report is shown.
                log_lines_lost: None,
            },
            sessions_max: narrow(limits.sessions),
            sessions_per_uid: narrow(limits.sessions_per_uid),
        }
    }

    fn report_session(&self, session: &Session) -> SessionReport {
        let counted = session.slot().map(|slot| self.pollers.counted(slot)).unwrap_or_default();
        let waits = self.watch.words(session.waits_for());
        let woken_by = match self.wakers.woken_by(session.id()) {
            WokenBy::Ringer => ClientWaker::Ringer,
            WokenBy::Poller => ClientWaker::Poller,
        };
        let report = session.report(self.holdings(session.id()), counted, &waits, woken_by);
        SessionReport { latencies: self.latencies.of(session.id()), ..report }
    }
}

impl Drop for Server {
    /// Connections in the backlog are closed with a message, as other clients are, rather than by
    /// the kernel.
    fn drop(&mut self) {
        for fd in self.acceptor.shut() {
            drop(Kept::new(Channel::from_fd(fd), self.workers.unattached()));
        }
    }
}

/// Why nothing new is begun.
fn stopping() -> Failure {
    (Status::Draining, "the sidecar is stopping; attach again when it is back".into())
}

fn check(pollers: &[PollerHandle], volumes: &[VolumeInfo]) -> Result<(), ServerError> {
    let count = pollers.len();
    if count == 0 || count > POLLERS_MAX as usize {
        return Err(ServerError::Volumes(format!("{count} pollers; 1 to {POLLERS_MAX} can be")));
    }
    for (place, volume) in volumes.iter().enumerate() {
        volume.check(count).map_err(|error| ServerError::Volumes(error.to_string()))?;
        if usize::from(volume.id) != place {
            let name = &volume.name;
            return Err(ServerError::Volumes(format!("volume {name:?} is not at its id's place")));
        }
    }
    Ok(())
}

/// The failure of a request whose memory a device does not take. The limit of pinned memory is the
/// user's, and no fault of the device.
fn attach_failure(error: &DeviceError) -> Failure {
    let status = match error {
        DeviceError::Register { errno: Errno::NOMEM, .. } => Status::Quota,
        _ => Status::IoError,
    };
    (status, error.to_string())
}

/// Logs what a poller's devices failed.
fn log_failures(poller: &PollerHandle) {
    while let Some(DeviceFailure { device, failure, errors }) = poller.mailbox.next_failure() {
        let name = poller.devices.get(device).map_or("unknown", |(_, device)| device.name.as_str());
        tracing::error!(device = name, errors, "{failure}");
    }
}
