//! Sessions that are dear to wake: whose bells the ringer has, and for how long.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_poller::{SessionSlot, Waking, WokenBy};

use crate::kept::Kept;
use crate::server::Server;
use crate::session::Session;

/// How long a user's sessions are woken by the ringer. To attach again must not be a way back.
const REMEMBERED: Duration = Duration::from_secs(600);

/// How long the CPU time of a session's rings is looked at after one that took long.
const LOOKED_AT: Duration = Duration::from_secs(60);

/// Users of sessions that were dear to wake, and until when they are remembered.
#[derive(Debug)]
pub(crate) struct DearUsers {
    until: BTreeMap<u32, Instant>,
    /// When sessions under suspicion were trusted again.
    trusted: Instant,
}

impl DearUsers {
    pub(crate) fn new(now: Instant) -> Self {
        Self { until: BTreeMap::new(), trusted: now }
    }

    fn woken_by(&self, uid: u32) -> WokenBy {
        if self.until.contains_key(&uid) { WokenBy::Ringer } else { WokenBy::Poller }
    }
}

impl Server {
    /// How a session is to be woken, from its first queue on.
    pub(crate) fn waking(&mut self, id: u64) -> Arc<Waking> {
        let session = self.sessions.get_mut(&id).expect("an asking session lives");
        let by = self.dear_users.woken_by(session.peer.uid);
        let ringer = self.ringer.ringer();
        Arc::clone(session.waking.get_or_insert_with(|| Waking::new(ringer, by)))
    }

    /// A poller gave a session's bells to the ringer.
    pub(crate) fn dear_bell(&mut self, slot: SessionSlot) {
        let Some(session) = self.session_at(slot) else { return };
        let Session { id, name, peer, .. } = session;
        let (pid, uid) = (peer.pid, peer.uid);
        tracing::warn!(
            session = id,
            pid,
            uid,
            name,
            "too much watches this client's bells, and to wake it takes a poller too long: another \
             thread does that for the next {} minutes, later than a poller would",
            REMEMBERED.as_secs() / 60
        );
        self.dear_users.until.insert(uid, Instant::now() + REMEMBERED);
    }

    /// Lets pollers wake again whom they should, and closes what the ringer had last.
    pub(crate) fn look_after_bells(&mut self, now: Instant) {
        while let Some(bell) = self.ringer.left_over() {
            drop(Kept::new(bell, self.maker.strangers()));
        }
        let mut forgiven = Vec::new();
        self.dear_users.until.retain(|uid, until| {
            let keep = *until > now;
            forgiven.extend((!keep).then_some(*uid));
            keep
        });
        let trust = now.duration_since(self.dear_users.trusted) >= LOOKED_AT;
        if trust {
            self.dear_users.trusted = now;
        }
        for session in self.sessions.values() {
            let Some(waking) = &session.waking else { continue };
            if forgiven.contains(&session.peer.uid) {
                waking.forgive();
            } else if trust {
                waking.trust();
            }
        }
    }
}
