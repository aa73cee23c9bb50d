//! The waker of each session's clients: the pollers, or the ringer where wake-ups are expensive.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_poller::{QueueDoorbell, RingerThread, Waking, WokenBy};

/// How long a user's sessions are woken by the ringer. To attach again must not be a way back.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(600);

/// How long the CPU time of a session's rings is looked at after one that took long.
const LOOKED_AT: Duration = Duration::from_secs(60);

/// One session's, from its first queue on.
#[derive(Debug)]
struct WokenSession {
    uid: u32,
    waking: Arc<Waking>,
}

/// The ringer, and the sessions that it wakes.
#[derive(Debug)]
pub(crate) struct Wakers {
    ringer: RingerThread,
    sessions: BTreeMap<u64, WokenSession>,
    /// Users of sessions that were expensive to wake, and until when they are remembered.
    until: BTreeMap<u32, Instant>,
    /// When sessions under suspicion were trusted again.
    trusted: Instant,
}

impl Wakers {
    /// Starts the ringer.
    pub(crate) fn start() -> io::Result<Self> {
        let ringer = RingerThread::start()?;
        let (sessions, until) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { ringer, sessions, until, trusted: Instant::now() })
    }

    /// How a session of this user is to be woken.
    pub(crate) fn waking(&mut self, session: u64, uid: u32) -> &Arc<Waking> {
        let remembered = self.until.contains_key(&uid);
        let by = if remembered { WokenBy::Ringer } else { WokenBy::Poller };
        let ringer = self.ringer.ringer();
        let woken = self.sessions.entry(session);
        &woken.or_insert_with(|| WokenSession { uid, waking: Waking::new(ringer, by) }).waking
    }

    /// The current waker of a session.
    pub(crate) fn woken_by(&self, session: u64) -> WokenBy {
        self.sessions.get(&session).map_or(WokenBy::Poller, |woken| woken.waking.by())
    }

    /// The session is no more.
    pub(crate) fn forget(&mut self, session: u64) {
        self.sessions.remove(&session);
    }

    /// A poller found a session of this user too expensive to wake.
    pub(crate) fn remember(&mut self, uid: u32) {
        self.until.insert(uid, Instant::now() + REMEMBERED);
    }

    /// A bell that the ringer had last.
    pub(crate) fn left_over(&self) -> Option<QueueDoorbell> {
        self.ringer.left_over()
    }

    /// Returns sessions to the pollers when their wake-ups are cheap again.
    pub(crate) fn look_after(&mut self, now: Instant) {
        let mut forgiven = Vec::new();
        self.until.retain(|uid, until| {
            let keep = *until > now;
            forgiven.extend((!keep).then_some(*uid));
            keep
        });
        let trust = now.duration_since(self.trusted) >= LOOKED_AT;
        if trust {
            self.trusted = now;
        }
        for WokenSession { uid, waking } in self.sessions.values() {
            if forgiven.contains(uid) {
                waking.forgive();
            } else if trust {
                waking.trust();
            }
        }
    }
}
