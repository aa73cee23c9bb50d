//! State of users beyond their sessions: recent violations of the rules, and the rate of log lines
//! about them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::rate::RateLimit;

/// Faults that are forgiven at once.
const FAULTS: u32 = 16;

/// One more is forgiven each time this has passed.
const FORGIVEN: Duration = Duration::from_millis(500);

/// Lines of one kind about a user's sessions that are logged at once.
const LINES: u32 = 64;

/// Log lines about a user's sessions.
#[derive(Debug)]
struct Logs {
    attached: RateLimit,
    ended: RateLimit,
}

/// All users that broke the rules of late, by uid.
#[derive(Debug, Default)]
pub(crate) struct Users {
    /// When all faults of a user will be forgiven.
    clean: BTreeMap<u32, Instant>,
    logs: BTreeMap<u32, Logs>,
}

impl Users {
    /// A user broke the rules at this moment.
    pub(crate) fn blame(&mut self, uid: u32, now: Instant) {
        self.clean.retain(|_, clean| *clean > now);
        let clean = self.clean.entry(uid).or_insert(now);
        // At most one beyond the bound, so that no user is locked out for ever.
        *clean = (*clean + FORGIVEN).min(now + FORGIVEN * (FAULTS + 1));
    }

    /// How many lines on a session that attached were held back, if one may be written now.
    pub(crate) fn log_attached(&mut self, uid: u32, now: Instant) -> Option<u64> {
        self.logs(uid, now).attached.admit(now)
    }

    /// The same for lines on the end of a session.
    pub(crate) fn log_ended(&mut self, uid: u32, now: Instant) -> Option<u64> {
        self.logs(uid, now).ended.admit(now)
    }

    fn logs(&mut self, uid: u32, now: Instant) -> &mut Logs {
        self.logs.retain(|_, it| !(it.attached.is_clean(now) && it.ended.is_clean(now)));
        let limit = || RateLimit::with_burst(LINES);
        self.logs.entry(uid).or_insert_with(|| Logs { attached: limit(), ended: limit() })
    }

    /// How long until this user may come back; nothing when it may now.
    pub(crate) fn banned(&self, uid: u32, now: Instant) -> Option<Duration> {
        let debt = self.clean.get(&uid)?.saturating_duration_since(now);
        let left = debt.checked_sub(FORGIVEN * FAULTS).filter(|left| !left.is_zero());
        debug_assert!(left.is_none_or(|left| left <= FORGIVEN), "a ban has an end");
        left
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{FAULTS, FORGIVEN, Users};

    #[test]
    fn faults_are_forgiven_one_by_one() {
        let (mut users, start) = (Users::default(), Instant::now());
        for _ in 0..FAULTS {
            users.blame(7, start);
            assert_eq!(users.banned(7, start), None);
        }
        users.blame(7, start);
        assert_eq!(users.banned(7, start), Some(FORGIVEN));
        assert_eq!(users.banned(8, start), None, "another user");
        users.blame(7, start);
        assert_eq!(users.banned(7, start), Some(FORGIVEN), "never longer");
        assert_eq!(users.banned(7, start + FORGIVEN), None);
        users.blame(7, start + FORGIVEN);
        assert!(users.banned(7, start + FORGIVEN).is_some(), "one each time");
        let later = start + FORGIVEN * (FAULTS + 2);
        users.blame(8, later);
        assert_eq!(users.clean.len(), 1, "a user without faults is forgotten");
    }
}
