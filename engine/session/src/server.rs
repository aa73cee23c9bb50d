//! The control thread: its loop, and what it does with each event, request and notice.
//!
//! It owns the parts (sessions, regions, queues, workers, pollers, the stop) and is the only one
//! with access to more than one of them: a part changes its own table, sends commands, and returns
//! the answer that is due.

mod notices;
mod reports;
mod requests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvrail_gpu::STAGING_ENTRIES;
use kvrail_poller::{PollerCommand, PollerHandle};
use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ConfigEntry, Hardware, Incoming, Packet, PacketBuffer,
    RefusalCode, StatusReport, Version, VolumeInfo, unspill_ask,
};
use kvrail_ring::Doorbell;
use kvrail_ring::limits::POLLERS_MAX;
use rustix::fd::AsFd;
use rustix::io::Errno;

use crate::acceptor::{Acceptor, TakenConnection};
use crate::config::ServerConfig;
use crate::error::ServerError;
use crate::events::{EventLoop, EventSource};
use crate::kept::Kept;
use crate::latencies::ClientLatencies;
use crate::member_change::{MemberAsk, MemberHook};
use crate::memory_worker::{FetchError, FetchedMessage};
use crate::memory_workers::MemoryWorkers;
use crate::policy::Policy;
use crate::pollers::Pollers;
use crate::queues::Queues;
use crate::recent::Recent;
use crate::regions::AttachedRegions;
use crate::reload::{ConfigReader, ReloadAsk};
use crate::reply::Reply;
use crate::report::{self, BusyShares};
use crate::server_handle::HandleReceiver;
use crate::session::{EndReason, Holdings, Session};
use crate::sessions::Sessions;
use crate::shutdown::{Shutdown, StopStep, Stopped};
use crate::socket::Listener;
use crate::stores::Stores;
use crate::trace::RequestTraces;
use crate::wakers::Wakers;
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
        let bytes_max = config.policy.limits.arena_bytes_total;
        let name = |volume: u16| volumes[usize::from(volume)].name.clone();
        let stores = Stores::new(config.stores.clone(), &pollers, name);
        let mut stores = stores.map_err(ServerError::Volumes)?;
        // One more entry behind them, for the pools of stores, and memory tiers.
        let reserved = staging + u16::from(!config.stores.is_empty()) + stores.tier_entries();
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
        let (stores, handles) = (&mut self.stores, self.pollers.handles());
        let hits = |of: (u64, u16), new| stores.count_memory_hits(handles, of, new);
        self.latencies.look(now, |id| sessions.get(id).is_some(), hits);
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
                StopStep::Done(stopped) => {
                    let (late, lost) = self.stores.end_late(self.pollers.handles());
                    return Some(Stopped { late, lost, ..stopped });
                }
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
        let (stores, handles) = (&mut self.stores, self.pollers.handles());
        self.latencies.end(id, |of, new| stores.count_memory_hits(handles, of, new));
        self.stores.session_ended(id, slot);
    }

    /// Takes in what clients have counted until now.
    fn take_counts(&mut self) {
        let (stores, handles) = (&mut self.stores, self.pollers.handles());
        self.latencies.take_in(|of, new| stores.count_memory_hits(handles, of, new));
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
