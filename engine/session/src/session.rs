//! One client: its socket, its identity, its phase of life.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use kvrail_poller::{SessionSlot, TenantSlot};
use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ClientWaker, Hardware, Hello, Incoming, PacketBuffer,
    SessionReport, SidecarMessage, printable,
};
use probe::probe_lazy;
use rustix::io::Errno;

use crate::access::Peer;
use crate::events::{EventLoop, EventSource};
use crate::kept::Kept;
use crate::memory_worker::MemoryWorker;
use crate::pollers::{PollerSet, StatusCounts};
use crate::regions::RegionUse;
use crate::reply::Reply;

/// Characters of a client's names that are kept.
const NAME_CHARS: usize = 64;

/// Why a session ends.
#[derive(Debug)]
pub(crate) enum EndReason {
    /// It sent a bye.
    Detached,
    /// Its socket was closed.
    HungUp,
    /// Its process ended.
    Died,
    /// It broke the rules: the violation.
    Violation(String),
    /// It had nothing and was silent, and others came.
    Evicted,
    /// The sidecar stops, or cannot keep what it has given.
    Dismissed(String, Hardware),
}

impl EndReason {
    fn words(&self) -> &str {
        match self {
            Self::Detached => "the client detached",
            Self::HungUp => "the client closed its socket",
            Self::Died => "the client's process ended",
            Self::Evicted => {
                "all places were taken, and this client was silent, without arenas and queues; \
                 attach again"
            }
            Self::Violation(reason) | Self::Dismissed(reason, _) => reason,
        }
    }

    /// The closing message, unless the client is gone.
    fn closing(&self) -> Option<SidecarMessage> {
        let hardware = match self {
            Self::Detached | Self::HungUp | Self::Died => return None,
            Self::Violation(_) | Self::Evicted => Hardware::MayBeActive,
            Self::Dismissed(_, hardware) => *hardware,
        };
        Some(SidecarMessage::Closing { reason: self.words().into(), hardware })
    }
}

/// Life of a session.
#[derive(Debug)]
enum SessionPhase {
    /// Connected, without a hello. Its place is lost at `deadline`.
    Greeting { deadline: Instant },
    /// May send any request.
    Attached,
    /// The client is gone; pollers still give back what is theirs.
    Reclaiming {
        reason: String,
        /// Pollers that still have resources of the session.
        waiting: PollerSet,
    },
}

/// Resources of a session in other tables.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holdings {
    pub(crate) regions: RegionUse,
    pub(crate) queues: usize,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Session {
    id: u64,
    peer: Peer,
    name: String,
    library: String,
    /// None once the session has ended.
    channel: Option<Kept<Channel>>,
    /// Its user's, for what may take long.
    worker: MemoryWorker,
    /// A message with descriptors is being taken in. Until then its socket is not watched.
    fetching: bool,
    phase: SessionPhase,
    /// When this phase began.
    since: Instant,
    /// Time of the client's last message.
    last_message: Instant,
    /// Its place in the pollers' tables, from the first arena or queue on.
    slot: Option<SessionSlot>,
    /// The share of devices' time that it belongs to.
    tenant: Option<TenantSlot>,
    /// Counts of earlier sessions in that place.
    counted_before: StatusCounts,
}

impl Session {
    /// A connection that is watched from now on.
    pub(crate) fn new(
        id: u64,
        peer: Peer,
        channel: Kept<Channel>,
        deadline: Instant,
        events: &EventLoop,
    ) -> Result<Self, (Errno, Kept<Channel>, Peer)> {
        if let Err(errno) = watch(events, id, &channel, &peer) {
            return Err((errno, channel, peer));
        }
        let now = Instant::now();
        Ok(Self {
            worker: channel.worker().clone(),
            fetching: false,
            id,
            peer,
            name: String::new(),
            library: String::new(),
            channel: Some(channel),
            phase: SessionPhase::Greeting { deadline },
            since: now,
            last_message: now,
            slot: None,
            tenant: None,
            counted_before: StatusCounts::default(),
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn slot(&self) -> Option<SessionSlot> {
        self.slot
    }

    /// The share of devices' time that it belongs to; none before it has a slot.
    pub(crate) fn tenant(&self) -> Option<TenantSlot> {
        self.tenant
    }

    pub(crate) fn worker(&self) -> &MemoryWorker {
        &self.worker
    }

    /// Time of the client's last message.
    pub(crate) fn last_message(&self) -> Instant {
        self.last_message
    }

    /// How long it has been in its phase.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Deadline of its hello.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            SessionPhase::Greeting { deadline } => Some(deadline),
            _ => None,
        }
    }

    pub(crate) fn is_greeting(&self) -> bool {
        matches!(self.phase, SessionPhase::Greeting { .. })
    }

    pub(crate) fn is_reclaiming(&self) -> bool {
        matches!(self.phase, SessionPhase::Reclaiming { .. })
    }

    /// Whether it is attached and has nothing.
    pub(crate) fn is_idle_connection(&self) -> bool {
        matches!(self.phase, SessionPhase::Attached) && self.slot.is_none()
    }

    /// Pollers that still have its resources, if it has ended.
    pub(crate) fn waits_for(&self) -> PollerSet {
        match self.phase {
            SessionPhase::Reclaiming { waiting, .. } => waiting,
            SessionPhase::Greeting { .. } | SessionPhase::Attached => PollerSet::default(),
        }
    }

    /// The next packet, if its socket is read here now.
    pub(crate) fn next(
        &self,
        buffer: &mut PacketBuffer,
    ) -> Option<Result<Incoming<ClientMessage>, ChannelError>> {
        let channel = self.channel.as_ref().filter(|_| !self.fetching)?;
        Some(channel.next(buffer))
    }

    /// Enters the time of a message.
    pub(crate) fn touch(&mut self) {
        self.last_message = Instant::now();
    }

    /// Duplicates its socket for the thread that receives the next packet. The socket is not
    /// watched until `resume`.
    pub(crate) fn suspend(&mut self, events: &EventLoop) -> std::io::Result<Option<OwnedFd>> {
        let Some(channel) = &self.channel else { return Ok(None) };
        debug_assert!(!self.fetching, "one packet at a time is taken in");
        let socket = channel.as_fd().try_clone_to_owned()?;
        events.forget(channel.as_fd());
        self.fetching = true;
        Ok(Some(socket))
    }

    /// Watches its socket again; whether it still has one.
    pub(crate) fn resume(&mut self, events: &EventLoop) -> Result<bool, Errno> {
        let Some(channel) = &self.channel else { return Ok(false) };
        debug_assert!(self.fetching, "the socket is watched otherwise");
        events.watch(channel.as_fd(), EventSource::Socket(self.id))?;
        self.fetching = false;
        Ok(true)
    }

    /// Enters its hello.
    pub(crate) fn attach(&mut self, hello: &Hello) {
        debug_assert!(self.is_greeting(), "a session attaches once");
        self.name = own_words(&hello.name);
        self.library = own_words(&hello.library);
        self.phase = SessionPhase::Attached;
        self.since = Instant::now();
        probe_lazy!(kvrail, session_attached, self.id, self.peer.pid, self.peer.uid);
    }

    /// Its identity, for the log.
    pub(crate) fn describe(&self) -> String {
        let (session, pid, uid) = (self.id, self.peer.pid, self.peer.uid);
        format!("session {session} ({:?}, pid {pid}, uid {uid})", self.name)
    }

    /// Logs its attachment, and the number of lines that were held back.
    pub(crate) fn log_attached(&self, suppressed: u64) {
        let (session, pid, uid) = (self.id, self.peer.pid, self.peer.uid);
        let (name, library) = (&self.name, &self.library);
        match &self.peer.pod {
            None => tracing::info!(session, pid, uid, name, %library, suppressed, "attached"),
            Some(pod) => {
                tracing::info!(session, pid, uid, %pod, name, %library, suppressed, "attached");
            }
        }
    }

    /// Its place in the pollers' tables from now on.
    pub(crate) fn seat(
        &mut self,
        (slot, tenant): (SessionSlot, TenantSlot),
        counted: StatusCounts,
    ) {
        debug_assert!(self.slot.is_none(), "a session keeps its place");
        debug_assert!(
            matches!(self.phase, SessionPhase::Attached),
            "only attached clients have one"
        );
        (self.slot, self.tenant, self.counted_before) = (Some(slot), Some(tenant), counted);
        probe_lazy!(kvrail, session_seated, self.id, slot.0);
    }

    /// Answers a control request. An error is why the session has to end.
    pub(crate) fn send(&self, reply: &Reply) -> Result<(), EndReason> {
        let Some(channel) = &self.channel else { return Ok(()) };
        let fds = reply.fds();
        let sent = match fds[..] {
            [] => channel.send_any_length(reply.message()),
            _ => channel.send(reply.message(), &fds),
        };
        match sent {
            Ok(()) => Ok(()),
            Err(ChannelError::Closed) => Err(EndReason::HungUp),
            Err(ChannelError::WouldBlock) => {
                let reason = "the client does not read the answers to its requests".into();
                Err(EndReason::Violation(reason))
            }
            Err(error) => Err(EndReason::Violation(format!("no answer possible: {error}"))),
        }
    }

    /// Whether its connection is still there.
    pub(crate) fn is_connected(&self) -> bool {
        self.channel.is_some()
    }

    /// Sends the client the reason, and cuts the connection. If it had a place, the pollers in
    /// `waiting` have resources to give back.
    pub(crate) fn end(&mut self, reason: &EndReason, waiting: PollerSet, events: &EventLoop) {
        let Some(channel) = &self.channel else { return };
        debug_assert!(!self.is_reclaiming(), "a session with a connection has not ended");
        if let Some(closing) = reason.closing() {
            // An unreachable client is cut off all the same.
            let _told = channel.send(&closing, &[]);
        }
        self.disconnect(events);
        probe_lazy!(kvrail, session_ended, self.id, self.peer.pid);
        self.phase = SessionPhase::Reclaiming { reason: reason.words().to_owned(), waiting };
        self.since = Instant::now();
    }

    /// Takes its descriptors out of the set, before they are closed; returns the connection.
    pub(crate) fn disconnect(&mut self, events: &EventLoop) -> Option<Kept<Channel>> {
        if let Some(channel) = self.channel.as_ref().filter(|_| !self.fetching) {
            events.forget(channel.as_fd());
        }
        if let Some(pidfd) = self.peer.pidfd.take() {
            events.forget(pidfd.as_fd());
        }
        self.channel.take()
    }

    /// Logs its end, and the number of lines that were held back.
    pub(crate) fn log_end(&self, reason: &EndReason, held: Holdings, suppressed: u64) {
        let (session, pid, name) = (self.id, self.peer.pid, &self.name);
        let RegionUse { arenas, arena_bytes, gpu_regions, gpu_bytes } = held.regions;
        let (arenas, bytes, queues) = (arenas + gpu_regions, arena_bytes + gpu_bytes, held.queues);
        let why = reason.words();
        if matches!(reason, EndReason::Violation(_)) {
            tracing::warn!(
                session,
                pid,
                name,
                arenas,
                bytes,
                queues,
                suppressed,
                "expelled: {why}"
            );
        } else {
            tracing::info!(session, pid, name, arenas, bytes, queues, suppressed, "ended: {why}");
        }
    }

    /// Logs that nothing of it is left.
    pub(crate) fn log_reclaimed(&self, held: Holdings) {
        let (session, pid, took_ms) = (self.id, self.peer.pid, self.since.elapsed().as_millis());
        let RegionUse { arenas, arena_bytes, gpu_regions, gpu_bytes } = held.regions;
        let (arenas, bytes, queues) = (arenas + gpu_regions, arena_bytes + gpu_bytes, held.queues);
        tracing::info!(session, pid, arenas, bytes, queues, took_ms, "session reclaimed");
    }

    /// Nothing of it is left in this poller.
    pub(crate) fn closed_in(&mut self, poller: usize) {
        if let SessionPhase::Reclaiming { waiting, .. } = &mut self.phase {
            debug_assert!(waiting.contains(poller), "a poller closes a session once");
            waiting.remove(poller);
        }
    }

    /// How it is. `counted` is what its slot counted, `waits` the pollers that it waits for.
    pub(crate) fn report(
        &self,
        held: Holdings,
        counted: StatusCounts,
        waits: &str,
        woken_by: ClientWaker,
    ) -> SessionReport {
        let counters = counted.with(&self.counted_before, |now, before| {
            debug_assert!(now >= before, "counters only grow");
            Some(now.saturating_sub(*before))
        });
        let state = match &self.phase {
            SessionPhase::Greeting { .. } => "greeting".into(),
            SessionPhase::Attached => "attached".into(),
            SessionPhase::Reclaiming { reason, .. } if waits.is_empty() => {
                format!("reclaiming: {reason}")
            }
            SessionPhase::Reclaiming { reason, .. } => {
                format!("reclaiming: {reason}; waiting for {waits}")
            }
        };
        let narrow = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let RegionUse { arenas, arena_bytes, gpu_regions, gpu_bytes } = held.regions;
        SessionReport {
            id: self.id,
            pid: self.peer.pid,
            pod: self.peer.pod.clone(),
            uid: self.peer.uid,
            gid: self.peer.gid,
            name: self.name.clone(),
            library: self.library.clone(),
            arenas: narrow(arenas),
            arena_bytes,
            gpu_regions: narrow(gpu_regions),
            gpu_bytes,
            queues: narrow(held.queues),
            woken_by,
            counters,
            latencies: Vec::new(),
            state,
            since_s: self.since.elapsed().as_secs(),
        }
    }
}

fn watch(events: &EventLoop, id: u64, channel: &Channel, peer: &Peer) -> Result<(), Errno> {
    events.watch(channel.as_fd(), EventSource::Socket(id))?;
    let Some(pidfd) = &peer.pidfd else { return Ok(()) };
    events
        .watch(pidfd.as_fd(), EventSource::Process(id))
        .inspect_err(|_| events.forget(channel.as_fd()))
}

/// A client's own words about itself, cut, and fit for logs and terminals.
pub(crate) fn own_words(text: &str) -> String {
    printable(&text.chars().take(NAME_CHARS).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::own_words;

    #[test]
    fn names_are_cut_and_cleaned() {
        assert_eq!(own_words("vllm\n\u{1b}[31m\u{202e}"), "vllm\\n\\u{1b}[31m\\u{202e}");
        assert_eq!(own_words(&"é".repeat(1000)).chars().count(), 64);
    }
}
