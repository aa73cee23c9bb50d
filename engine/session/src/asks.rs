//! What clients ask, and the first words with them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use kvrail_memory::PageSize;
use kvrail_poller::SessionSlot;
use kvrail_protocol::{
    Answer, Ask, ChannelError, ClientMessage, Hardware, Hello, Incoming, LimitsInfo, Packet, Pages,
    PollerInfo, RefusalCode, SidecarMessage, Version, Welcome, unspill_ask,
};
use kvrail_ring::Status;
use kvrail_ring::limits::LANE_VERSION;

use crate::config::PagePolicy;
use crate::events::Source;
use crate::gpus::ServedGpu;
use crate::kept::Kept;
use crate::leaving::Ending;
use crate::maker::{Fetched, Recipe, Unfetched};
use crate::server::Server;
use crate::session::{Phase, printable};

/// Packets of one session read before others have their turn.
const TURN: usize = 16;

/// Why an ask fails.
pub(crate) type Failure = (Status, String);

impl Server {
    /// Reads what a session has to say.
    pub(crate) fn serve(&mut self, id: u64) {
        for _ in 0..TURN {
            let Some(session) = self.sessions.get(&id).filter(|it| !it.fetching) else { return };
            let Some(channel) = &session.channel else { return };
            let nothing = session.hand.clone();
            let fds = || Kept::new(Vec::new(), &nothing);
            let heard = match channel.next(&mut self.buffer) {
                Ok(Incoming::Laden(message)) => return self.fetch(id, message),
                Ok(Incoming::Bare(message)) => unspill_ask(Packet { message, fds: Vec::new() }),
                Err(error) => Err(error),
            };
            match heard {
                Ok(packet) => self.hear(id, packet.message, fds()),
                Err(ChannelError::WouldBlock) => return,
                Err(ChannelError::Closed) => return self.end(id, Ending::HungUp),
                Err(error) => return self.misunderstood(id, &error.to_string()),
            }
        }
    }

    /// Has the next message taken in with its descriptors, if it may have some.
    fn fetch(&mut self, id: u64, message: ClientMessage) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(channel) = &session.channel else { return };
        let greeting = matches!(session.phase, Phase::Greeting { .. });
        if greeting || !message.ask.takes_fds() {
            return self.misunderstood(id, "a message that has no descriptors came with some");
        }
        match channel.as_fd().try_clone_to_owned() {
            Ok(socket) => {
                self.events.forget(channel.as_fd());
                session.fetching = true;
                session.hand.fetch(id, socket, message);
            }
            Err(error) => {
                let reason = format!(
                    "the sidecar has no descriptor left ({error}); raise its limit of open files \
                     (ulimit -n, LimitNOFILE=)"
                );
                self.end(id, Ending::Dismissed(reason, Hardware::MayBeActive));
            }
        }
    }

    /// A message was taken in with its descriptors, or not. The session may have ended meanwhile.
    pub(crate) fn fetched(&mut self, id: u64, fetched: Fetched) {
        let hand = self.sessions.get(&id).map_or(self.maker.strangers(), |session| &session.hand);
        let fetched = fetched.map(|Packet { message, fds }| (message, Kept::new(fds, hand)));
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(channel) = &session.channel else { return };
        let watched = self.events.watch(channel.as_fd(), Source::Socket(id));
        session.fetching = watched.is_err();
        match (watched, fetched) {
            (Err(errno), _) => {
                let reason = format!("the sidecar cannot watch the connection: {errno}");
                self.end(id, Ending::Dismissed(reason, Hardware::MayBeActive));
            }
            (_, Ok((message, fds))) => self.hear(id, message, fds),
            (_, Err(Unfetched::Broken(reason))) => self.end(id, Ending::Expelled(reason)),
            (_, Err(Unfetched::Failed(seq, failure))) => self.unfit(id, seq, failure),
        }
    }

    /// A descriptor was of no use. Each costs a process, so not too many of them.
    fn unfit(&mut self, id: u64, seq: u64, failure: Failure) {
        let uid = self.sessions[&id].peer.uid;
        let now = Instant::now();
        self.users.blame(uid, now);
        if self.users.banned(uid, now).is_some() && !self.config.policy.access.operates(uid) {
            let reason =
                format!("too many descriptors were of no use; the last one: {}", failure.1);
            return self.end(id, Ending::Expelled(reason));
        }
        self.fail(id, seq, failure);
    }

    /// What it said was none of our messages.
    fn misunderstood(&mut self, id: u64, error: &str) {
        let greeting = matches!(self.sessions[&id].phase, Phase::Greeting { .. });
        if greeting {
            let current = Version::CURRENT;
            let message = format!("{error}; this sidecar speaks protocol {current}");
            return self.turn_away(id, RefusalCode::Malformed, message);
        }
        self.end(id, Ending::Expelled(error.to_owned()));
    }

    fn hear(&mut self, id: u64, message: ClientMessage, fds: Kept<Vec<OwnedFd>>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.heard = Instant::now();
        let seq = message.seq;
        let greeting = matches!(session.phase, Phase::Greeting { .. });
        let (present, needed) = (fds.len(), message.ask.fds());
        // Of GPU memory the answer says what is missing.
        if present != needed && !matches!(message.ask, Ask::AttachGpu(_)) {
            let reason = format!("a message came with {present} descriptors instead of {needed}");
            return self.end(id, Ending::Expelled(reason));
        }
        match message.ask {
            Ask::Hello(hello) if greeting => self.hello(id, seq, &hello),
            _ if greeting => {
                let message = "the first message must be a hello".into();
                self.turn_away(id, RefusalCode::Malformed, message);
            }
            Ask::Hello(_) => self.end(id, Ending::Expelled("a second hello".into())),
            Ask::Bye => self.end(id, Ending::Left),
            ask => {
                if let Err(failure) = self.obey(id, seq, ask, fds) {
                    self.fail(id, seq, failure);
                }
            }
        }
    }

    fn obey(
        &mut self,
        id: u64,
        seq: u64,
        ask: Ask,
        fds: Kept<Vec<OwnedFd>>,
    ) -> Result<(), Failure> {
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
                let sealing = self.config.policy.sealing;
                self.add_arena(id, seq, bytes, Recipe::Import(fds, bytes, sealing))
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
        let uid = session.peer.uid;
        let (most, of_one) = (self.limits.sessions, self.limits.sessions_per_uid);
        let has = self.sessions.values().filter(|it| it.peer.uid == uid && it.slot.is_some());
        if has.count() >= of_one && !self.config.policy.access.operates(uid) {
            let message = format!(
                "user {uid} has {of_one} session slots, the most a user may have \
                 (limits.sessions_per_uid); end other clients or raise the limit"
            );
            return Err((Status::Quota, message));
        }
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
