//! Connections: who is let in, and how many of one user at once.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use kvrail_protocol::{Answer, Channel, RefusalCode, SidecarMessage};
use rustix::io::Errno;

use crate::access::Peer;
use crate::events::Source;
use crate::kept::Kept;
use crate::leaving::Ending;
use crate::server::Server;
use crate::session::Session;

/// Connections taken before others have their turn.
const TURN: usize = 16;

/// Connections beyond the session slots: greetings, and clients that only look at the status.
const VISITORS: usize = 32;

/// Those of them that one user may have.
const VISITORS_OF_ONE: usize = VISITORS / 2;

/// Connections beyond all those, for operators.
const OPERATORS: usize = 8;

/// Refused connections that wait to be closed. Beyond this none are taken for a moment, because
/// each is an open file.
const REFUSED: usize = 128;

/// That moment.
const MOMENT: Duration = Duration::from_millis(1);

/// How long nothing is taken when descriptors ran out.
const EXHAUSTED: Duration = Duration::from_millis(200);

/// Why somebody is not let in.
type Refusal = (RefusalCode, String);

impl Server {
    /// Takes waiting connections.
    pub(crate) fn accept(&mut self) {
        for _ in 0..TURN {
            if self.maker.strangers().discarded() > REFUSED {
                return self.pause_accept(MOMENT);
            }
            match self.listener.accept() {
                Ok(fd) => self.greet(fd),
                Err(Errno::AGAIN) => return,
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(errno) => {
                    if let Some(suppressed) = self.accept_log.admit(Instant::now()) {
                        tracing::error!(
                            suppressed,
                            "no connection can be taken: {errno}; raise the limit of open files \
                             (ulimit -n, LimitNOFILE=)"
                        );
                    }
                    return self.pause_accept(EXHAUSTED);
                }
            }
        }
    }

    /// Stops taking connections for a moment instead of spinning on one that cannot be taken.
    fn pause_accept(&mut self, pause: Duration) {
        self.events.forget(self.listener.as_fd());
        self.accept_after = Some(Instant::now() + pause);
    }

    /// Takes connections again once the moment is over.
    pub(crate) fn resume_accept(&mut self, now: Instant) {
        if self.accept_after.is_none_or(|after| after > now) {
            return;
        }
        let watched = self.events.watch(self.listener.as_fd(), Source::Listener);
        self.accept_after = watched.err().map(|_| now + EXHAUSTED);
    }

    fn greet(&mut self, fd: OwnedFd) {
        let connection = Kept::new(Channel::from_fd(fd), self.maker.strangers());
        let Ok(mut peer) = Peer::of(connection.as_fd()) else { return };
        if let Err(refusal) = self.admit(&mut peer) {
            return self.refuse(&connection, &peer, refusal);
        }
        let id = self.next_session;
        let hand = match self.maker.hire(peer.uid) {
            Ok(hand) => hand,
            Err(errno) => {
                let message = format!(
                    "the sidecar has no thread for user {} ({errno}); raise its limit of \
                     processes (ulimit -u, TasksMax=)",
                    peer.uid
                );
                return self.refuse(&connection, &peer, (RefusalCode::Full, message));
            }
        };
        if let Err(errno) = self.watch(id, &connection, &peer) {
            let message = format!("the sidecar cannot watch the connection: {errno}");
            return self.refuse(&connection, &peer, (RefusalCode::Full, message));
        }
        self.next_session += 1;
        let deadline = Instant::now() + self.limits.handshake_timeout;
        let connection = Kept::new(connection.take(), &hand);
        self.sessions.insert(id, Session::new(id, peer, connection, deadline));
    }

    /// Whether there is a place for this peer. What is cheap to know is looked at first.
    fn admit(&mut self, peer: &mut Peer) -> Result<(), Refusal> {
        let operator = self.config.policy.access.operates(peer.uid);
        if !operator {
            self.admit_user(peer.uid)?;
        }
        peer.follow();
        if !self.config.policy.access.admits(peer) {
            let message = format!(
                "user {} (group {}) may not attach; add the user to sidecar.allow_uids or a group \
                 to sidecar.allow_gids in the configuration",
                peer.uid, peer.gid
            );
            return Err((RefusalCode::NotAllowed, message));
        }
        if self.stage.is_leaving() {
            let message = "the sidecar is stopping; attach again when it is back".into();
            return Err((RefusalCode::Draining, message));
        }
        let most = self.limits.sessions + VISITORS;
        let kept = if operator { OPERATORS } else { 0 };
        if self.sessions.len() >= most && !self.make_room(|_| true) {
            if self.sessions.len() < most + kept {
                return Ok(());
            }
            let message = format!(
                "all {most} places for clients are taken (limits.sessions = {}, and {VISITORS} \
                 visitors); end other clients or raise the limit",
                self.limits.sessions
            );
            return Err((RefusalCode::Full, message));
        }
        Ok(())
    }

    /// Whether this user may have one more connection, and now.
    fn admit_user(&mut self, uid: u32) -> Result<(), Refusal> {
        if let Some(left) = self.users.banned(uid, Instant::now()) {
            let left = left.as_millis();
            let message = format!(
                "clients of user {uid} broke the rules too often of late; attach again in {left} ms"
            );
            return Err((RefusalCode::Full, message));
        }
        let per_uid = self.limits.sessions_per_uid;
        let most = per_uid + VISITORS_OF_ONE;
        let waiting = self.maker.waiting_of(uid);
        let has = self.sessions.values().filter(|session| session.peer.uid == uid).count();
        if has + waiting < most || self.make_room(|of| of == uid) {
            return Ok(());
        }
        let message = format!(
            "user {uid} has {most} connections, the most a user may have (limits.sessions_per_uid \
             = {per_uid}, and {VISITORS_OF_ONE} visitors), {waiting} of them ended and waiting for \
             what it sent to be closed; end other clients or raise the limit"
        );
        Err((RefusalCode::Full, message))
    }

    /// Ends the visitor that has been silent for longest, if that was long: programs that attach
    /// and forget must not keep an operator from looking.
    fn make_room(&mut self, of: impl Fn(u32) -> bool) -> bool {
        let visitors = self.sessions.values().filter(|it| it.is_visitor() && of(it.peer.uid));
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
            Some(pidfd) => {
                self.events.watch(pidfd.as_fd(), Source::Process(id)).inspect_err(|_| {
                    self.events.forget(channel.as_fd());
                })
            }
            None => Ok(()),
        }
    }

    /// Says no, counts it, and logs it now and then.
    fn refuse(&mut self, channel: &Channel, peer: &Peer, (code, message): Refusal) {
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
    pub(crate) fn turn_away(&mut self, id: u64, code: RefusalCode, message: String) {
        let Some(session) = self.sessions.remove(&id) else { return };
        let Some(channel) = &session.channel else { return };
        self.unwatch(&session);
        // Who comes from another release does not break rules.
        if code != RefusalCode::Version {
            self.users.blame(session.peer.uid, Instant::now());
        }
        self.refuse(channel, &session.peer, (code, message));
    }
}
