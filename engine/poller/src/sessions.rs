//! What a poller keeps of each session: how much it has under way, and whether it is leaving.
//!
//! Every session may always have `SHARE` requests under way; beyond that, sessions share the
//! other half of the request table. So no session can take the last place of another.

use crate::mailbox::{SESSIONS_MAX, SessionSlot};

/// Requests each session may have under way whatever the others do.
pub(crate) const SHARE: u32 = 128;

/// Places of the request table that are shared.
const COMMON: u32 = SHARE * u64::BITS;
const _: () = assert!(SESSIONS_MAX == u64::BITS as usize);

/// Requests one poller has under way at most.
pub(crate) const REQUESTS_MAX: u32 = 2 * COMMON;

/// All sessions by slot.
#[derive(Debug)]
pub(crate) struct Sessions {
    under_way: [u32; SESSIONS_MAX],
    /// Places of the common half in use.
    common: u32,
    /// Sessions being closed, one bit each.
    leaving: u64,
}

impl Sessions {
    pub(crate) fn new() -> Self {
        Self { under_way: [0; SESSIONS_MAX], common: 0, leaving: 0 }
    }

    /// Requests this session may take now, of `wanted`.
    #[inline]
    pub(crate) fn allowance(&self, session: SessionSlot, wanted: u32) -> u32 {
        let own = SHARE.saturating_sub(self.under_way[usize::from(session.0)]);
        wanted.min(own + (COMMON - self.common))
    }

    /// Counts requests in, no more than `allowance` said.
    #[inline]
    pub(crate) fn enter(&mut self, session: SessionSlot, count: u32) {
        let under_way = &mut self.under_way[usize::from(session.0)];
        let before = under_way.saturating_sub(SHARE);
        *under_way += count;
        self.common += under_way.saturating_sub(SHARE) - before;
    }

    /// Counts requests out.
    #[inline]
    pub(crate) fn leave(&mut self, session: SessionSlot, count: u32) {
        let under_way = &mut self.under_way[usize::from(session.0)];
        assert!(*under_way >= count, "invariant 1: a session completes more than it asked");
        let before = under_way.saturating_sub(SHARE);
        *under_way -= count;
        self.common -= before - under_way.saturating_sub(SHARE);
    }

    pub(crate) fn close(&mut self, session: SessionSlot) {
        self.leaving |= 1 << session.0;
    }

    pub(crate) fn is_leaving(&self, session: SessionSlot) -> bool {
        self.leaving & (1 << session.0) != 0
    }

    /// The session is gone; its slot may be given out anew.
    pub(crate) fn forget(&mut self, session: SessionSlot) {
        let under_way = self.under_way[usize::from(session.0)];
        assert!(under_way == 0, "invariant 1: a session left with requests under way");
        self.leaving &= !(1 << session.0);
    }
}

#[cfg(test)]
mod tests {
    use super::{COMMON, SHARE, Sessions};
    use crate::mailbox::SessionSlot;

    #[test]
    fn a_hog_leaves_every_other_session_its_share() {
        let mut sessions = Sessions::new();
        let hog = SessionSlot(3);
        while sessions.allowance(hog, 1) > 0 {
            sessions.enter(hog, 1);
        }
        assert_eq!(sessions.under_way[3], SHARE + COMMON);
        for other in (0..64).filter(|other| *other != 3) {
            assert_eq!(sessions.allowance(SessionSlot(other), u32::MAX), SHARE);
        }
        sessions.leave(hog, 3);
        assert_eq!(sessions.allowance(hog, 9), 3);
        sessions.leave(hog, COMMON - 1);
        assert_eq!((sessions.common, sessions.under_way[3]), (0, SHARE - 2));
        sessions.enter(hog, 5);
        assert_eq!(sessions.common, 3);
        sessions.leave(hog, SHARE + 3);
        assert_eq!(sessions.common, 0);
        sessions.forget(hog);
    }
}
