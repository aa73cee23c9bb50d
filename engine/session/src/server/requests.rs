//! What the control thread does with each message of a session.

use std::os::fd::OwnedFd;

use kvrail_memory::PageSize;
use kvrail_poller::SessionSlot;
use kvrail_protocol::{
    ClientMessage, ControlReply, ControlRequest, Hello, LimitsInfo, MemberChange, Pages,
    PollerInfo, RefusalCode, Version, VolumeContent, VolumeInfo, Welcome,
};
use kvrail_ring::limits::LANE_VERSION;
use kvrail_ring::{RegionId, Status};

use super::Server;
use crate::failure::{Failure, invalid, quota};
use crate::gpus::{self, ServedGpu};
use crate::kept::Kept;
use crate::member_change::MemberAsk;
use crate::policy::PagePolicy;
use crate::queues::segment_bytes;
use crate::regions::Granted;
use crate::reload::{ConfigReader, ReloadAsk};
use crate::reply::Reply;
use crate::report::narrow;
use crate::session::{EndReason, own_words};
use crate::tenants::Rights;

impl Server {
    pub(super) fn handle_message(
        &mut self,
        id: u64,
        message: ClientMessage,
        fds: Kept<Vec<OwnedFd>>,
    ) {
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
            ControlRequest::OpenQueue { depth, tails } => self.open_queue((id, seq), depth, tails),
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
            ControlRequest::WatchTransfers => self.show_transfers((id, seq)).map(Some),
            ControlRequest::ShowPresence { volume } => {
                self.stores.show_presence((id, seq), volume).map(Some)
            }
            ControlRequest::ShowTier { volume } => {
                self.stores.show_tier((id, seq), volume, &self.rights(id, volume)).map(Some)
            }
            ControlRequest::HoldBlocks { volume } => {
                self.stores.hold_blocks((id, seq), volume, &self.rights(id, volume)).map(Some)
            }
            ControlRequest::HoldsMapped => self.stores.serve_holds((id, seq)).map(Some),
            ControlRequest::OpenNamespace { .. } => {
                let slot = self.seat(id)?;
                self.ask_store((id, Some(slot)), seq, ask)
            }
            ControlRequest::ClearNamespace { .. }
            | ControlRequest::RemoveNamespace { .. }
            | ControlRequest::ListNamespaces { .. } => {
                // What clients have counted is not to count in a namespace's next life.
                self.take_counts();
                self.ask_store((id, None), seq, ask)
            }
            ControlRequest::ListBlocks { .. }
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

    fn show_transfers(&self, (id, seq): (u64, u64)) -> Result<Reply, Failure> {
        let none = || invalid("nothing shows when transfers have ended".into());
        let pipe = self.config.transfers.as_ref().ok_or_else(none)?;
        let own = pipe.try_clone().map_err(|error| quota(format!("a descriptor: {error}")))?;
        Ok(Reply::new(id, seq, ControlReply::Transfers).with_fds(vec![own]))
    }

    fn open_queue(
        &mut self,
        (id, seq): (u64, u64),
        depth: u32,
        tails: Option<u32>,
    ) -> Result<Option<Reply>, Failure> {
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

    /// What a session may do with a store.
    fn rights(&self, id: u64, volume: u16) -> Rights {
        let peer = self.sessions.get(id).expect("an asking session lives").peer();
        let policy = &self.config.policy;
        Rights::new(peer, &policy.access, policy.tenants_of(volume))
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
}

/// Why nothing new is begun.
fn stopping() -> Failure {
    (Status::Draining, "the sidecar is stopping; attach again when it is back".into())
}
