//! The end of a session: by its own will, by death, or because it broke the rules.

use std::os::fd::AsFd;
use std::time::Instant;

use kvrail_poller::{Command, SessionSlot};
use kvrail_protocol::{Hardware, SidecarMessage};

use crate::arenas::Arena;
use crate::server::Server;
use crate::session::{Phase, Session};

/// Why a session ends.
#[derive(Debug)]
pub(crate) enum Ending {
    /// It said bye.
    Left,
    /// Its socket was closed.
    HungUp,
    /// Its process ended.
    Died,
    /// It broke the rules; this says how.
    Expelled(String),
    /// It had nothing and was silent, and others came.
    MadeRoom,
    /// The sidecar stops, or cannot keep what it has given.
    Dismissed(String, Hardware),
}

impl Ending {
    fn reason(&self) -> &str {
        match self {
            Self::Left => "the client said bye",
            Self::HungUp => "the client closed its socket",
            Self::Died => "the client's process ended",
            Self::MadeRoom => {
                "all places were taken, and this client was silent, without arenas and queues; \
                 attach again"
            }
            Self::Expelled(reason) | Self::Dismissed(reason, _) => reason,
        }
    }

    /// What the client is told, if it can still hear.
    fn closing(&self) -> Option<SidecarMessage> {
        let hardware = match self {
            Self::Left | Self::HungUp | Self::Died => return None,
            Self::Expelled(_) | Self::MadeRoom => Hardware::MayBeActive,
            Self::Dismissed(_, hardware) => *hardware,
        };
        Some(SidecarMessage::Closing { reason: self.reason().into(), hardware })
    }
}

impl Server {
    /// A session's process has ended, whoever holds its socket.
    pub(crate) fn died(&mut self, id: u64) {
        self.end(id, Ending::Died);
    }

    /// Ends a session: tells the client, cuts the connection, has the pollers give back what is
    /// theirs. Memory is kept until they have.
    pub(crate) fn end(&mut self, id: u64, ending: Ending) {
        let Some(session) = self.sessions.get(&id) else { return };
        let Some(channel) = &session.channel else { return };
        if let Some(closing) = ending.closing() {
            // A client that cannot hear is cut off all the same.
            let _told = channel.send(&closing, &[]);
        }
        self.unwatch(session);
        log_end(session, &ending);
        if matches!(ending, Ending::Expelled(_)) {
            self.users.blame(session.peer.uid, Instant::now());
        }
        let session = self.sessions.get_mut(&id).expect("just seen");
        session.channel = None;
        session.peer.pidfd = None;
        let Some(slot) = session.slot else {
            self.sessions.remove(&id);
            return;
        };
        let waiting = self.pollers.all();
        session.phase = Phase::Reclaiming { reason: ending.reason().to_owned(), waiting };
        session.since = Instant::now();
        self.pollers.send_each(waiting, || Command::CloseSession(slot));
    }

    /// Takes a session's descriptors out of the set, before they are closed.
    pub(crate) fn unwatch(&self, session: &Session) {
        if let Some(channel) = session.channel.as_ref().filter(|_| !session.fetching) {
            self.events.forget(channel.as_fd());
        }
        if let Some(pidfd) = &session.peer.pidfd {
            self.events.forget(pidfd.as_fd());
        }
    }

    /// Nothing of the session is left in this poller.
    pub(crate) fn session_closed(&mut self, poller: usize, slot: SessionSlot) {
        let Some(session) = self.session_at(slot) else { return };
        let id = session.id;
        if let Phase::Reclaiming { waiting, .. } = &mut session.phase {
            waiting.remove(poller);
        }
        self.reclaimed(id);
    }

    /// Gives everything back once no poller and no other thread has any of it.
    pub(crate) fn reclaimed(&mut self, id: u64) {
        let Some(session) = self.sessions.get(&id) else { return };
        let Phase::Reclaiming { waiting, .. } = &session.phase else { return };
        let making = session.arenas.values().any(|arena| arena.is_with_maker());
        if !waiting.is_empty() || making {
            return;
        }
        let (arenas, queues) = (session.arenas.len(), session.queues.len());
        let pid = session.peer.pid;
        let bytes: u64 = session.arenas.values().map(Arena::bytes).sum();
        let took_ms = session.since.elapsed().as_millis();
        tracing::info!(session = id, pid, arenas, bytes, queues, took_ms, "session reclaimed");
        let numbers: Vec<_> = session.arenas.keys().copied().collect();
        for number in numbers {
            self.drop_arena(id, number);
        }
        let session = self.sessions.remove(&id).expect("just seen");
        if let Some(slot) = session.slot {
            self.slots[usize::from(slot.0)] = None;
        }
        session.queues.into_values().for_each(|queue| queue.retire(&session.hand));
    }

    /// Ends every session because the sidecar cannot go on.
    pub(crate) fn dismiss_all(&mut self, reason: &str) {
        self.dismiss(reason, Hardware::MayBeActive);
    }

    /// Ends every session.
    pub(crate) fn dismiss(&mut self, reason: &str, hardware: Hardware) {
        let ids: Vec<u64> = self.sessions.keys().copied().collect();
        for id in ids {
            self.end(id, Ending::Dismissed(reason.to_owned(), hardware));
        }
    }
}

fn log_end(session: &Session, ending: &Ending) {
    let (pid, name) = (session.peer.pid, &session.name);
    let arenas = session.arenas.len();
    let bytes: u64 = session.arenas.values().map(Arena::bytes).sum();
    let queues = session.queues.len();
    let (id, reason) = (session.id, ending.reason());
    match ending {
        Ending::Expelled(_) => {
            tracing::warn!(session = id, pid, name, arenas, bytes, queues, "expelled: {reason}");
        }
        _ => tracing::info!(session = id, pid, name, arenas, bytes, queues, "ended: {reason}"),
    }
}
