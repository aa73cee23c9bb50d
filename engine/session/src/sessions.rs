//! All sessions: admission, places in the pollers' tables, and the end of a session.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use kvrail_memory::descriptor_remedy;
use kvrail_poller::{SESSIONS_MAX, SessionSlot, TenantSlot};
use kvrail_protocol::{Channel, ControlReply, Hello, RefusalCode, SidecarMessage};
use rustix::io::Errno;

use crate::access::Peer;
use crate::events::EventLoop;
use crate::failure::{Failure, quota};
use crate::kept::Kept;
use crate::memory_workers::MemoryWorkers;
use crate::policy::Policy;
use crate::pollers::{PollerSet, StatusCounts};
use crate::rate::RateLimit;
use crate::session::{EndReason, Holdings, Session};
use crate::users::Users;
use crate::watch::Watch;

/// Connections beyond the session slots: greetings, and clients that only look at the status.
const VISITORS: usize = 32;

/// Those of them that one user may have.
const VISITORS_OF_ONE: usize = VISITORS / 2;

/// Connections beyond all those, for operators.
const OPERATORS: usize = 8;

/// Code and message of a refusal.
type Refusal = (RefusalCode, String);

/// The table of sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    events: Arc<EventLoop>,
    /// All connections by number; a number is never given twice.
    sessions: BTreeMap<u64, Session>,
    next: u64,
    /// The session at each place in the pollers' tables.
    slots: [Option<u64>; SESSIONS_MAX],
    users: Users,
    refused: u64,
    refusal_log: RateLimit,
}

impl Sessions {
    pub(crate) fn new(events: Arc<EventLoop>) -> Self {
        Self {
            events,
            sessions: BTreeMap::new(),
            next: 1,
            slots: [None; SESSIONS_MAX],
            users: Users::default(),
            refused: 0,
            refusal_log: RateLimit::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values()
    }

    pub(crate) fn ids(&self) -> Vec<u64> {
        self.sessions.keys().copied().collect()
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Session> {
        self.sessions.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Session> {
        self.sessions.get_mut(&id)
    }

    /// The session in a place of the pollers' tables.
    pub(crate) fn at(&self, slot: SessionSlot) -> Option<&Session> {
        self.sessions.get(&(*self.slots.get(usize::from(slot.0))?)?)
    }

    /// Whether it is there and has not ended.
    pub(crate) fn lives(&self, id: u64) -> bool {
        self.sessions.get(&id).is_some_and(|session| !session.is_reclaiming())
    }

    /// Connections that were refused so far.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// When the next greeting is too late.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.iter().filter_map(Session::deadline).min()
    }

    /// Closes connections whose hello is overdue.
    pub(crate) fn turn_away_late(&mut self, policy: &Policy, now: Instant) {
        let is_late =
            |session: &&Session| session.deadline().is_some_and(|deadline| deadline <= now);
        let late: Vec<u64> = self.iter().filter(is_late).map(Session::id).collect();
        for id in late {
            let patience = policy.limits.handshake_timeout;
            let message = format!("no hello within {patience:?} (limits.handshake_timeout)");
            self.turn_away(id, RefusalCode::TooLate, message);
        }
    }

    /// Takes a new connection, or refuses it.
    pub(crate) fn greet(
        &mut self,
        fd: OwnedFd,
        policy: &Policy,
        is_leaving: bool,
        workers: &mut MemoryWorkers,
    ) {
        let connection = Kept::new(Channel::from_fd(fd), workers.unattached());
        let Ok(mut peer) = Peer::of(connection.as_fd()) else { return };
        if let Err(refusal) = self.admit(&mut peer, policy, is_leaving, workers) {
            return self.refuse(&connection, &peer, refusal);
        }
        let worker = match workers.hire(peer.uid) {
            Ok(worker) => worker,
            Err(errno) => {
                let message = format!(
                    "the sidecar has no thread for user {} ({errno}); raise its limit of \
                     processes (ulimit -u, TasksMax=)",
                    peer.uid
                );
                return self.refuse(&connection, &peer, (RefusalCode::Full, message));
            }
        };
        let deadline = Instant::now() + policy.limits.handshake_timeout;
        let connection = Kept::new(connection.take(), &worker);
        let id = self.next;
        match Session::new(id, peer, connection, deadline, &self.events) {
            Ok(session) => {
                self.next += 1;
                let before = self.sessions.insert(id, session);
                debug_assert!(before.is_none(), "a number is never given twice");
            }
            Err((errno, connection, peer)) => {
                let message = format!("the sidecar cannot watch the connection: {errno}");
                self.refuse(&connection, &peer, (RefusalCode::Full, message));
            }
        }
    }

    /// Refuses a connection that has the sidecar's last descriptor.
    pub(crate) fn refuse_last(&mut self, fd: OwnedFd, errno: Errno, workers: &MemoryWorkers) {
        let connection = Kept::new(Channel::from_fd(fd), workers.unattached());
        let Ok(peer) = Peer::of(connection.as_fd()) else { return };
        let message = format!(
            "the sidecar has no descriptor for another client ({errno}); {}",
            descriptor_remedy(errno)
        );
        self.refuse(&connection, &peer, (RefusalCode::Full, message));
    }

    /// Whether there is a place for this peer. Cheap checks come first.
    fn admit(
        &mut self,
        peer: &mut Peer,
        policy: &Policy,
        is_leaving: bool,
        workers: &MemoryWorkers,
    ) -> Result<(), Refusal> {
        let operator = policy.access.operates(peer.uid);
        if !operator {
            self.admit_user(peer.uid, policy, workers.waiting_of(peer.uid))?;
        }
        peer.follow();
        if !policy.access.admits(peer) {
            let message = format!(
                "user {} (group {}) may not attach; add the user to sidecar.allow_uids or a group \
                 to sidecar.allow_gids in the configuration",
                peer.uid, peer.gid
            );
            return Err((RefusalCode::NotAllowed, message));
        }
        if is_leaving {
            let message = "the sidecar is stopping; attach again when it is back".into();
            return Err((RefusalCode::Draining, message));
        }
        let sessions = policy.limits.sessions;
        let most = sessions + VISITORS;
        let kept = if operator { OPERATORS } else { 0 };
        if self.len() < most || self.make_room(policy, |_| true) || self.len() < most + kept {
            return Ok(());
        }
        let message = format!(
            "all {most} places for clients are taken (limits.sessions = {sessions}, and {VISITORS} \
             visitors); end other clients or raise the limit"
        );
        Err((RefusalCode::Full, message))
    }

    /// Whether this user may have one more connection, and now. `waiting` of its connections have
    /// ended and are not closed.
    fn admit_user(&mut self, uid: u32, policy: &Policy, waiting: usize) -> Result<(), Refusal> {
        if let Some(left) = self.users.banned(uid, Instant::now()) {
            let left = left.as_millis();
            let message = format!(
                "clients of user {uid} broke the rules too often of late; attach again in {left} ms"
            );
            return Err((RefusalCode::Full, message));
        }
        let per_uid = policy.limits.sessions_per_uid;
        let most = per_uid + VISITORS_OF_ONE;
        let has = self.iter().filter(|session| session.peer().uid == uid).count();
        if has + waiting < most || self.make_room(policy, |of| of == uid) {
            return Ok(());
        }
        let message = format!(
            "user {uid} has {most} connections, the most a user may have (limits.sessions_per_uid \
             = {per_uid}, and {VISITORS_OF_ONE} visitors), {waiting} of them ended and waiting for \
             what it sent to be closed; end other clients or raise the limit"
        );
        Err((RefusalCode::Full, message))
    }

    /// Ends the idle connection that has been silent for longest, if that was long: programs that
    /// attach and forget must not keep an operator from looking.
    fn make_room(&mut self, policy: &Policy, of: impl Fn(u32) -> bool) -> bool {
        let idle =
            self.iter().filter(|session| session.is_idle_connection() && of(session.peer().uid));
        let silent = idle.min_by_key(|session| session.last_message());
        let patience = policy.limits.handshake_timeout;
        let Some(id) =
            silent.filter(|session| session.last_message().elapsed() >= patience).map(Session::id)
        else {
            return false;
        };
        self.end(id, &EndReason::Evicted, Holdings::default(), PollerSet::default());
        true
    }

    /// Sends a refusal, counts it, and logs it at a limited rate.
    fn refuse(&mut self, channel: &Channel, peer: &Peer, (code, message): Refusal) {
        self.refused += 1;
        if let Some(suppressed) = self.refusal_log.admit(Instant::now()) {
            let (pid, uid, gid) = (peer.pid, peer.uid, peer.gid);
            tracing::warn!(pid, uid, gid, suppressed, "client refused: {message}");
        }
        let answer = ControlReply::Refused { code, message };
        // A client that is gone already needs no answer.
        let _told = channel.send(&SidecarMessage::Reply { seq: 0, answer }, &[]);
    }

    /// Refuses a connection that has a place already.
    pub(crate) fn turn_away(&mut self, id: u64, code: RefusalCode, message: String) {
        let Some(mut session) = self.sessions.remove(&id) else { return };
        debug_assert!(session.slot().is_none(), "pollers know nothing of a session turned away");
        let Some(channel) = session.disconnect(&self.events) else { return };
        // A client of another release does not break rules.
        if code != RefusalCode::Version {
            self.users.blame(session.peer().uid, Instant::now());
        }
        self.refuse(&channel, session.peer(), (code, message));
    }

    /// Accepts a client's hello: it may send any request from now on.
    pub(crate) fn attach(&mut self, id: u64, hello: &Hello) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.attach(hello);
        if let Some(suppressed) = self.users.log_attached(session.peer().uid, Instant::now()) {
            session.log_attached(suppressed);
        }
    }

    /// A descriptor was of no use. Each costs a process, so not too many of them: whether this one
    /// was too many.
    pub(crate) fn blame_descriptor(&mut self, id: u64, policy: &Policy) -> bool {
        let Some(uid) = self.sessions.get(&id).map(|session| session.peer().uid) else {
            return false;
        };
        let now = Instant::now();
        self.users.blame(uid, now);
        self.users.banned(uid, now).is_some() && !policy.access.operates(uid)
    }

    /// The session's place in the pollers' tables; takes one on first use. `counted` is what the
    /// sessions before it counted there.
    pub(crate) fn seat(
        &mut self,
        id: u64,
        policy: &Policy,
        watch: &Watch,
        counted: impl Fn(SessionSlot) -> StatusCounts,
    ) -> Result<SessionSlot, Failure> {
        let session = &self.sessions[&id];
        if let Some(slot) = session.slot() {
            return Ok(slot);
        }
        let uid = session.peer().uid;
        let (most, of_one) = (policy.limits.sessions, policy.limits.sessions_per_uid);
        let has =
            self.iter().filter(|session| session.peer().uid == uid && session.slot().is_some());
        if has.count() >= of_one && !policy.access.operates(uid) {
            return Err(quota(format!(
                "user {uid} has {of_one} session slots, the most a user may have \
                 (limits.sessions_per_uid); end other clients or raise the limit"
            )));
        }
        let free = self.slots.iter().take(most).position(Option::is_none);
        let Some(place) = free else {
            return Err(quota(format!(
                "all {most} session slots are in use (limits.sessions){}; end other clients or \
                 raise the limit",
                self.kept_slots(watch)
            )));
        };
        let slot = SessionSlot(u8::try_from(place).expect("slots are few"));
        let tenant = self.tenant(uid);
        self.slots[place] = Some(id);
        let session = self.sessions.get_mut(&id).expect("just seen");
        session.seat((slot, tenant), counted(slot));
        debug_assert_eq!(self.at(slot).map(Session::id), Some(id), "the place is the session's");
        Ok(slot)
    }

    /// The place of a user's share: the place of its other sessions, or the first free one.
    fn tenant(&self, uid: u32) -> TenantSlot {
        let seated =
            || self.iter().filter_map(|session| Some((session.peer().uid, session.tenant()?)));
        let own = seated().find(|(user, _)| *user == uid).map(|(_, tenant)| tenant);
        let free = |place: &TenantSlot| seated().all(|(_, taken)| taken != *place);
        let places = || (0..u8::MAX).map(TenantSlot);
        own.or_else(|| places().find(free)).expect("there are fewer tenants than sessions")
    }

    /// Dead clients that keep their slots because a poller is stalled, in words; empty when there
    /// are none.
    fn kept_slots(&self, watch: &Watch) -> String {
        let stalled = watch.stalled();
        let kept = self.iter().filter(|session| !session.waits_for().common(stalled).is_empty());
        match kept.count() {
            0 => String::new(),
            count => format!("; {count} of ended clients wait for {}", watch.words(stalled)),
        }
    }

    /// Ends a session: sends the reason, cuts the connection. A returned slot must be closed in the
    /// returned pollers; its memory is kept until they have done so.
    pub(crate) fn end(
        &mut self,
        id: u64,
        reason: &EndReason,
        held: Holdings,
        pollers: PollerSet,
    ) -> Option<SessionSlot> {
        let session = self.sessions.get_mut(&id).filter(|session| session.is_connected())?;
        let (uid, now) = (session.peer().uid, Instant::now());
        session.end(reason, pollers, &self.events);
        if let Some(suppressed) = self.users.log_ended(uid, now) {
            session.log_end(reason, held, suppressed);
        }
        let slot = session.slot();
        if slot.is_none() {
            self.sessions.remove(&id);
        }
        if matches!(reason, EndReason::Violation(_)) {
            self.users.blame(uid, now);
        }
        slot
    }

    /// Nothing of a session is left in this poller.
    pub(crate) fn closed_in(&mut self, id: u64, poller: usize) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.closed_in(poller);
        }
    }

    /// Removes a session of which nothing is left.
    pub(crate) fn remove(&mut self, id: u64) {
        let Some(session) = self.sessions.remove(&id) else { return };
        debug_assert!(session.waits_for().is_empty(), "no poller has anything of the session");
        debug_assert!(!session.is_connected(), "the session has ended");
        if let Some(slot) = session.slot() {
            let before = self.slots[usize::from(slot.0)].take();
            debug_assert_eq!(before, Some(id), "the place was the session's");
        }
    }
}
