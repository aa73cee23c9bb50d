//! What clients ask, and the first words with them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use kvrail_memory::PageSize;
use kvrail_poller::SessionSlot;
use kvrail_protocol::{
    Answer, Ask, Channel, ChannelError, ClientMessage, FDS_MAX, Hello, LimitsInfo, Packet, Pages,
    PollerInfo, RefusalCode, SidecarMessage, Version, Welcome, unspill_ask,
};
use kvrail_ring::Status;
use kvrail_ring::limits::LANE_VERSION;
use rustix::io::Errno;

use crate::access::Peer;
use crate::config::PagePolicy;
use crate::events::Source;
use crate::gpus::ServedGpu;
use crate::leaving::Ending;
use crate::maker::Recipe;
use crate::server::Server;
use crate::session::{Phase, Session, printable};

/// Connections taken, or packets of one session read, before others have their turn.
const TURN: usize = 16;

/// Connections beyond the session slots: greetings, and clients that only look at the status.
const VISITORS: usize = 32;

/// Why an ask fails.
pub(crate) type Failure = (Status, String);

impl Server {
    /// Takes waiting connections.
    pub(crate) fn accept(&mut self) {
        for _ in 0..TURN {
            match self.listener.accept() {
                Ok(fd) => self.greet(fd),
                Err(Errno::AGAIN) => return,
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(errno) => {
                    self.events.forget(self.listener.as_fd());
                    return self.pause_accept(errno);
                }
            }
        }
    }

    fn greet(&mut self, fd: OwnedFd) {
        let Ok(peer) = Peer::of(fd.as_fd()) else { return };
        let channel = Channel::from_fd(fd);
        if !self.config.policy.access.admits(&peer) {
            let message = format!(
                "user {} (group {}) may not attach; add the user to sidecar.allow_uids or a group \
                 to sidecar.allow_gids in the configuration",
                peer.uid, peer.gid
            );
            return self.refuse(&channel, &peer, RefusalCode::NotAllowed, message);
        }
        if self.stage.is_leaving() {
            let message = "the sidecar is stopping; attach again when it is back".into();
            return self.refuse(&channel, &peer, RefusalCode::Draining, message);
        }
        let most = self.limits.sessions + VISITORS;
        if self.sessions.len() >= most && !self.make_room() {
            let message = format!(
                "all {most} places for clients are taken (limits.sessions = {}, and {VISITORS} \
                 visitors); end other clients or raise the limit",
                self.limits.sessions
            );
            return self.refuse(&channel, &peer, RefusalCode::Full, message);
        }
        let id = self.next_session;
        let watched = self.watch(id, &channel, &peer);
        if let Err(errno) = watched {
            let message = format!("the sidecar cannot watch the connection: {errno}");
            return self.refuse(&channel, &peer, RefusalCode::Full, message);
        }
        self.next_session += 1;
        let deadline = Instant::now() + self.limits.handshake_timeout;
        self.sessions.insert(id, Session::new(id, peer, channel, deadline));
    }

    /// Ends the visitor that has been silent for longest, if that was long: programs that attach
    /// and forget must not keep an operator from looking.
    fn make_room(&mut self) -> bool {
        let visitors = self.sessions.values().filter(|session| session.is_visitor());
        let silent = visitors.min_by_key(|session| session.heard);
        let patience = self.limits.handshake_timeout;
        let Some(id) = silent.filter(|it| it.heard.elapsed() >= patience).map(|it| it.id) else {
            return false;
        };
        self.end(id, Ending::MadeRoom);
        true
    }

    fn watch(&self, id: u64, channel: &Channel, peer: &Peer) -> Result<(), Errno> {
        self.events.watch(channel.as_fd(), Source::Socket(id))?;
        match &peer.pidfd {
            Some(pidfd) => self.events.watch(pidfd.as_fd(), Source::Process(id)),
            None => Ok(()),
        }
    }

    /// Says no, counts it, and logs it now and then.
    fn refuse(&mut self, channel: &Channel, peer: &Peer, code: RefusalCode, message: String) {
        self.refused += 1;
        if let Some(suppressed) = self.refusal_log.admit(Instant::now()) {
            let (pid, uid, gid) = (peer.pid, peer.uid, peer.gid);
            tracing::warn!(pid, uid, gid, suppressed, "client refused: {message}");
        }
        let answer = Answer::Refused { code, message };
        // A client that is gone already needs no answer.
        let _told = channel.send(&SidecarMessage::Reply { seq: 0, answer }, &[]);
    }

    /// The hello did not come in time.
    pub(crate) fn too_late(&mut self, id: u64) {
        let patience = self.limits.handshake_timeout;
        let message = format!("no hello within {patience:?} (limits.handshake_timeout)");
        self.turn_away(id, RefusalCode::TooLate, message);
    }

    /// Refuses a connection that has a place already.
    fn turn_away(&mut self, id: u64, code: RefusalCode, message: String) {
        let Some(session) = self.sessions.remove(&id) else { return };
        let Some(channel) = &session.channel else { return };
        self.unwatch(&session);
        self.refuse(channel, &session.peer, code, message);
    }

    /// Reads what a session has to say.
    pub(crate) fn serve(&mut self, id: u64) {
        for _ in 0..TURN {
            let Some(session) = self.sessions.get(&id) else { return };
            let Some(channel) = &session.channel else { return };
            let greeting = matches!(session.phase, Phase::Greeting { .. });
            // More than one come with GPU memory only.
            let fds_max = if greeting || self.config.gpus.is_empty() { 1 } else { FDS_MAX };
            match channel.receive(&mut self.buffer, fds_max).and_then(unspill_ask) {
                Ok(packet) => self.hear(id, packet),
                Err(ChannelError::WouldBlock) => return,
                Err(ChannelError::Closed) => return self.end(id, Ending::HungUp),
                Err(error) if greeting => {
                    let current = Version::CURRENT;
                    let message = format!("{error}; this sidecar speaks protocol {current}");
                    return self.turn_away(id, RefusalCode::Malformed, message);
                }
                Err(error) => return self.end(id, Ending::Expelled(error.to_string())),
            }
        }
    }

    fn hear(&mut self, id: u64, packet: Packet<ClientMessage>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.heard = Instant::now();
        let seq = packet.message.seq;
        let greeting = matches!(session.phase, Phase::Greeting { .. });
        let (present, needed) = (packet.fds.len(), packet.message.ask.fds());
        // Of GPU memory the answer says what is missing.
        if present != needed && !matches!(packet.message.ask, Ask::AttachGpu(_)) {
            let reason = format!("a message came with {present} descriptors instead of {needed}");
            return self.end(id, Ending::Expelled(reason));
        }
        match packet.message.ask {
            Ask::Hello(hello) if greeting => self.hello(id, seq, &hello),
            _ if greeting => {
                let message = "the first message must be a hello".into();
                self.turn_away(id, RefusalCode::Malformed, message);
            }
            Ask::Hello(_) => self.end(id, Ending::Expelled("a second hello".into())),
            Ask::Bye => self.end(id, Ending::Left),
            ask => {
                if let Err(failure) = self.obey(id, seq, ask, packet.fds) {
                    self.fail(id, seq, failure);
                }
            }
        }
    }

    fn obey(&mut self, id: u64, seq: u64, ask: Ask, fds: Vec<OwnedFd>) -> Result<(), Failure> {
        match ask {
            Ask::CreateArena { bytes, pages } => {
                let pages = match pages {
                    Pages::Auto => self.config.policy.pages,
                    Pages::Base => PagePolicy::Exactly(PageSize::Base),
                    Pages::Huge2MiB => PagePolicy::Exactly(PageSize::Huge2MiB),
                    Pages::Huge1GiB => PagePolicy::Exactly(PageSize::Huge1GiB),
                };
                self.create_arena(id, seq, bytes, pages)
            }
            Ask::BringArena { bytes } => {
                let fd = fds.into_iter().next().expect("as many descriptors as the ask has");
                let sealing = self.config.policy.sealing;
                self.add_arena(id, seq, bytes, Recipe::Import(fd, bytes, sealing))
            }
            Ask::DetachArena { region } => self.detach_arena(id, seq, region),
            Ask::OpenQueue { depth } => self.open_queue(id, seq, depth),
            Ask::QueueMapped { queue } => self.queue_mapped(id, seq, queue),
            Ask::CloseQueue { queue } => self.close_queue(id, seq, queue),
            Ask::Status => {
                let report = Box::new(self.report());
                self.reply(id, seq, Answer::Status(report), &[]);
                Ok(())
            }
            Ask::AttachGpu(region) => self.attach_gpu(id, seq, region, fds),
            Ask::Hello(_) | Ask::Bye | Ask::Spilled { .. } => {
                Err((Status::Internal, "heard before".into()))
            }
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
                printable(&hello.library),
                hello.lane_version
            );
            return self.turn_away(id, RefusalCode::Version, message);
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.name = printable(&hello.name);
        session.library = printable(&hello.library);
        session.phase = Phase::Attached;
        session.since = Instant::now();
        let (pid, uid, name) = (session.peer.pid, session.peer.uid, &session.name);
        tracing::info!(session = id, pid, uid, name, library = %session.library, "attached");
        let welcome = self.welcome(id, theirs);
        self.reply(id, seq, Answer::Welcome(Box::new(welcome)), &[]);
    }

    fn welcome(&self, id: u64, theirs: Version) -> Welcome {
        let pollers = self.pollers.handles().iter();
        let narrow = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
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
                arenas: narrow(self.limits.arenas_per_session),
                arena_bytes: self.limits.arena_bytes_per_session,
                queues: narrow(self.limits.queues_per_session),
                queue_depth: self.limits.queue_depth,
                gpu_regions: narrow(self.limits.gpu_regions_per_session),
                gpu_bytes: self.limits.gpu_bytes_per_session,
            },
        }
    }

    /// Answers an ask.
    pub(crate) fn reply(&mut self, id: u64, seq: u64, answer: Answer, fds: &[BorrowedFd<'_>]) {
        let Some(session) = self.sessions.get(&id) else { return };
        let Some(channel) = &session.channel else { return };
        let message = SidecarMessage::Reply { seq, answer };
        let sent = match fds {
            [] => channel.send_any_length(&message),
            fds => channel.send(&message, fds),
        };
        match sent {
            Ok(()) => {}
            Err(ChannelError::Closed) => self.end(id, Ending::HungUp),
            Err(ChannelError::WouldBlock) => {
                let reason = "the client does not read the answers to what it asks".into();
                self.end(id, Ending::Expelled(reason));
            }
            Err(error) => self.end(id, Ending::Expelled(format!("no answer possible: {error}"))),
        }
    }

    /// Answers that an ask failed.
    pub(crate) fn fail(&mut self, id: u64, seq: u64, (status, message): Failure) {
        tracing::debug!(session = id, %status, message, "ask failed");
        self.reply(id, seq, Answer::Error { status, message }, &[]);
    }

    /// The session's place in the pollers' tables; takes one on first use.
    pub(crate) fn seat(&mut self, id: u64) -> Result<SessionSlot, Failure> {
        if !self.stage.is_serving() {
            let message = "the sidecar is stopping; attach again when it is back".into();
            return Err((Status::Draining, message));
        }
        let session = self.sessions.get(&id).expect("an asking session lives");
        if let Some(slot) = session.slot {
            return Ok(slot);
        }
        let most = self.limits.sessions;
        let free = self.slots.iter().take(most).position(Option::is_none);
        let Some(place) = free else {
            let message = format!(
                "all {most} session slots are in use (limits.sessions){}; end other clients or \
                 raise the limit",
                self.kept_places()
            );
            return Err((Status::Quota, message));
        };
        let slot = SessionSlot(u8::try_from(place).expect("slots are few"));
        self.slots[place] = Some(id);
        let before = self.counted(slot);
        let session = self.sessions.get_mut(&id).expect("an asking session lives");
        (session.slot, session.counted_before) = (Some(slot), before);
        Ok(slot)
    }
}
