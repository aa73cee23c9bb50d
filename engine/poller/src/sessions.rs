//! What a poller keeps of each session: how much it has in flight, and whether it is leaving.
//!
//! Every session may always have `SESSION_SHARE` requests in flight; beyond that, sessions share
//! the other half of the task table. So no session can take the last slot of another.

use crate::limits::{COMMON_SHARE, SESSION_SHARE, SESSIONS_MAX, SessionSlot};

/// All sessions by slot.
#[derive(Debug)]
pub(crate) struct SessionSlots {
    in_flight: [u32; SESSIONS_MAX],
    /// Slots of the common half in use.
    common: u32,
    /// Sessions being closed, one bit each.
    leaving: u64,
    /// Sessions of which nothing is taken now, one bit each.
    held_back: u64,
}

/// Whether a session is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldBack {
    Yes,
    No,
}

impl SessionSlots {
    pub(crate) fn new() -> Self {
        Self { in_flight: [0; SESSIONS_MAX], common: 0, leaving: 0, held_back: 0 }
    }

    /// Requests this session may take now, of `wanted`.
    #[inline]
    pub(crate) fn allowance(&self, session: SessionSlot, wanted: u32) -> u32 {
        if self.held_back >> session.0 & 1 != 0 {
            return 0;
        }
        let own = SESSION_SHARE.saturating_sub(self.in_flight[usize::from(session.0)]);
        wanted.min(own + (COMMON_SHARE - self.common))
    }

    /// Counts requests in, no more than `allowance` said.
    #[inline]
    pub(crate) fn enter(&mut self, session: SessionSlot, count: u32) {
        let in_flight = &mut self.in_flight[usize::from(session.0)];
        let before = in_flight.saturating_sub(SESSION_SHARE);
        *in_flight += count;
        self.common += in_flight.saturating_sub(SESSION_SHARE) - before;
    }

    /// Counts requests out.
    #[inline]
    pub(crate) fn leave(&mut self, session: SessionSlot, count: u32) {
        let in_flight = &mut self.in_flight[usize::from(session.0)];
        assert!(*in_flight >= count, "invariant 1: a session completes more than it asked");
        let before = in_flight.saturating_sub(SESSION_SHARE);
        *in_flight -= count;
        self.common -= before - in_flight.saturating_sub(SESSION_SHARE);
    }

    /// Takes nothing of a session, or goes on.
    pub(crate) fn hold_back(&mut self, session: SessionSlot, held: HeldBack) {
        match held {
            HeldBack::Yes => self.held_back |= 1 << session.0,
            HeldBack::No => self.held_back &= !(1 << session.0),
        }
    }

    pub(crate) fn close(&mut self, session: SessionSlot) {
        self.leaving |= 1 << session.0;
    }

    /// Sessions being closed.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = SessionSlot> + use<> {
        let leaving = self.leaving;
        (0..64).filter(move |slot| leaving & (1 << slot) != 0).map(SessionSlot)
    }

    /// The session is gone; its slot may be given out anew.
    pub(crate) fn forget(&mut self, session: SessionSlot) {
        let in_flight = self.in_flight[usize::from(session.0)];
        assert!(in_flight == 0, "invariant 1: a session left with requests in flight");
        self.leaving &= !(1 << session.0);
    }
}

#[cfg(test)]
mod tests {
    use super::SessionSlots;
    use crate::limits::{COMMON_SHARE, SESSION_SHARE, SessionSlot};

    #[test]
    fn a_hog_leaves_every_other_session_its_share() {
        let mut sessions = SessionSlots::new();
        let hog = SessionSlot(3);
        while sessions.allowance(hog, 1) > 0 {
            sessions.enter(hog, 1);
        }
        assert_eq!(sessions.in_flight[3], SESSION_SHARE + COMMON_SHARE);
        for other in (0..64).filter(|other| *other != 3) {
            assert_eq!(sessions.allowance(SessionSlot(other), u32::MAX), SESSION_SHARE);
        }
        sessions.leave(hog, 3);
        assert_eq!(sessions.allowance(hog, 9), 3);
        sessions.leave(hog, COMMON_SHARE - 1);
        assert_eq!((sessions.common, sessions.in_flight[3]), (0, SESSION_SHARE - 2));
        sessions.enter(hog, 5);
        assert_eq!(sessions.common, 3);
        sessions.leave(hog, SESSION_SHARE + 3);
        assert_eq!(sessions.common, 0);
        sessions.forget(hog);
    }
}
