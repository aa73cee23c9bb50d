//! The control thread's loop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_gpu::STAGING_ENTRIES;
use kvrail_poller::{PollerHandle, RingerThread, SESSIONS_MAX, SessionSlot};
use kvrail_protocol::{Channel, PacketBuffer, VolumeInfo};
use kvrail_ring::Bell;
use kvrail_ring::limits::POLLERS_MAX;
use rustix::fd::AsFd;
use rustix::io::Errno;

use crate::config::{Limits, Policy, ServerConfig};
use crate::dear::DearUsers;
use crate::error::ServerError;
use crate::events::{EventLoop, Source};
use crate::hand::Tools;
use crate::kept::Kept;
use crate::maker::Maker;
use crate::orders::OrderReceiver;
use crate::pollers::Pollers;
use crate::rate::RateLimit;
use crate::regions::RegionTable;
use crate::report::BusyShares;
use crate::session::{Phase, Session};
use crate::socket::Listener;
use crate::stopping::{Stage, Stopped};
use crate::users::Users;
use crate::watch::Watch;

/// How often the loop looks after itself when nothing happens.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// The sidecar's session server. Made before clients may come; `run` serves them.
#[derive(Debug)]
pub struct Server {
    pub(crate) config: ServerConfig,
    pub(crate) limits: Limits,
    pub(crate) events: EventLoop,
    pub(crate) listener: Listener,
    /// No connections are taken before this moment.
    pub(crate) accept_after: Option<Instant>,
    pub(crate) pollers: Pollers,
    pub(crate) ringer: RingerThread,
    pub(crate) dear_users: DearUsers,
    pub(crate) to_control: Arc<Bell>,
    pub(crate) volumes: Vec<VolumeInfo>,
    /// All connections by number; a number is never given twice.
    pub(crate) sessions: BTreeMap<u64, Session>,
    /// Dropped after the sessions: it closes what is theirs.
    pub(crate) maker: Maker,
    pub(crate) users: Users,
    /// Who sits where in the pollers' tables.
    pub(crate) slots: [Option<u64>; SESSIONS_MAX],
    pub(crate) next_session: u64,
    pub(crate) regions: RegionTable,
    pub(crate) buffer: PacketBuffer,
    pub(crate) started: Instant,
    pub(crate) refused: u64,
    pub(crate) refusal_log: RateLimit,
    pub(crate) accept_log: RateLimit,
    pub(crate) memory_notes: BTreeMap<&'static str, String>,
    pub(crate) stage: Stage,
    pub(crate) busy: BusyShares,
    pub(crate) watch: Watch,
}

impl Server {
    /// Takes the socket and prepares to serve. Clients may connect from now on and are answered
    /// once `run` is called. `to_control` is the bell that the pollers' mailboxes ring.
    ///
    /// # Errors
    /// `ServerError` when a sidecar already serves the socket, the path cannot be used, or
    /// volumes name pollers that do not exist.
    pub fn new(
        config: ServerConfig,
        pollers: Vec<PollerHandle>,
        to_control: Arc<Bell>,
        volumes: Vec<VolumeInfo>,
    ) -> Result<Self, ServerError> {
        check(&pollers, &volumes)?;
        let listener = Listener::bind(&config.socket, config.socket_mode)?;
        let failed = |errno| ServerError::Loop { step: "epoll", errno };
        let events = EventLoop::new().map_err(failed)?;
        events.watch(listener.as_fd(), Source::Listener).map_err(failed)?;
        events.watch(to_control.as_fd(), Source::Notices).map_err(failed)?;
        let limits = config.policy.limits.clone().clamped();
        let no_ringer = |error: std::io::Error| ServerError::Loop {
            step: "starting the ringer",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        };
        let ringer = RingerThread::start().map_err(no_ringer)?;
        let tools = |answers, living| Tools {
            home: config.home.clone(),
            porter: config.porter.clone(),
            to_control: Arc::clone(&to_control),
            answers,
            _living: living,
        };
        let maker = Maker::start(tools, config.gpus.len())?;
        let gpus = u16::try_from(config.gpus.len()).expect("GPUs are few");
        Ok(Self {
            regions: RegionTable::new(limits.arena_bytes_total, gpus * STAGING_ENTRIES),
            busy: BusyShares::new(pollers.len()),
            watch: Watch::new(&pollers),
            pollers: Pollers::new(pollers),
            config,
            limits,
            events,
            listener,
            accept_after: None,
            maker,
            ringer,
            dear_users: DearUsers::new(Instant::now()),
            to_control,
            volumes,
            sessions: BTreeMap::new(),
            users: Users::default(),
            slots: [None; SESSIONS_MAX],
            next_session: 1,
            buffer: PacketBuffer::default(),
            started: Instant::now(),
            refused: 0,
            refusal_log: RateLimit::default(),
            accept_log: RateLimit::default(),
            memory_notes: BTreeMap::new(),
            stage: Stage::Serving,
        })
    }

    /// Serves until a stop is asked for and done. The socket goes away when the server is dropped.
    ///
    /// # Errors
    /// `ServerError` when the kernel refuses to wait or a poller thread ended by itself; clients
    /// have been told by then.
    pub fn run(&mut self, orders: &OrderReceiver) -> Result<Stopped, ServerError> {
        let failed = |errno| ServerError::Loop { step: "epoll", errno };
        self.events.watch(orders.fd(), Source::Orders).map_err(failed)?;
        self.pollers.set_overdue(self.config.policy.patience.overdue_after);
        let mut stops = 0;
        loop {
            let timeout = self.timeout();
            for source in self.events.wait(timeout).map_err(failed)? {
                match source {
                    Source::Listener => self.accept(),
                    Source::Notices | Source::Orders => {}
                    Source::Socket(id) => self.serve(id),
                    Source::Process(id) => self.died(id),
                }
            }
            self.read_notices();
            self.pollers.flush();
            self.look_after();
            self.answer_past_stalled();
            self.check_pollers()?;
            let asked = orders.stops();
            if asked > stops {
                stops = asked;
                self.stop_asked();
            }
            if let Some(policy) = orders.policy() {
                self.renew(policy);
            }
            if let Some(stopped) = self.advance_stop() {
                return Ok(stopped);
            }
        }
    }

    /// Holds from now on. What clients have already stays theirs.
    fn renew(&mut self, policy: Policy) {
        self.limits = policy.limits.clone().clamped();
        self.regions.limit(self.limits.arena_bytes_total);
        self.pollers.set_overdue(policy.patience.overdue_after);
        self.config.policy = policy;
        tracing::info!("a new policy holds for clients that ask from now on");
    }

    /// Until when there is nothing to do but wait for events.
    fn timeout(&self) -> Duration {
        let greetings = self.sessions.values().filter_map(|session| match session.phase {
            Phase::Greeting { deadline } => Some(deadline),
            _ => None,
        });
        let next = greetings.chain(self.accept_after).min();
        let now = Instant::now();
        let soon = next.map_or(HOUSEKEEPING, |next| next.saturating_duration_since(now));
        let look = self.watch.timeout(&self.config.policy.patience, now);
        soon.min(HOUSEKEEPING).min(look).min(self.stage.timeout(now))
    }

    /// What is due by the clock.
    fn look_after(&mut self) {
        let now = Instant::now();
        let late: Vec<u64> = self
            .sessions
            .values()
            .filter(
                |session| matches!(session.phase, Phase::Greeting { deadline } if deadline <= now),
            )
            .map(|session| session.id)
            .collect();
        for id in late {
            self.too_late(id);
        }
        self.resume_accept(now);
        let sessions = &self.sessions;
        self.maker.retain(|uid| sessions.values().any(|session| session.peer.uid == uid));
        self.look_after_bells(now);
        self.busy.sample(self.pollers.handles(), now);
        self.watch.look(self.pollers.handles(), &self.config.policy.patience, now);
    }

    fn check_pollers(&mut self) -> Result<(), ServerError> {
        if self.stage.pollers_may_end() {
            return Ok(());
        }
        let Some(poller) = self.pollers.ended() else { return Ok(()) };
        self.dismiss_all("a poller of the sidecar failed, which is a bug in kvrail");
        Err(ServerError::PollerDied { poller })
    }

    /// The session in a place of the pollers' tables.
    pub(crate) fn session_at(&mut self, slot: SessionSlot) -> Option<&mut Session> {
        let id = (*self.slots.get(usize::from(slot.0))?)?;
        self.sessions.get_mut(&id)
    }
}

impl Drop for Server {
    /// Whoever waits at the door is sent away as any other client, and not by the kernel.
    fn drop(&mut self) {
        self.listener.shut();
        while let Ok(fd) = self.listener.accept() {
            drop(Kept::new(Channel::from_fd(fd), self.maker.strangers()));
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
