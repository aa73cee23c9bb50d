//! What sessions call their namespaces in requests.

use std::collections::BTreeMap;

use kvrail_poller::HANDLES_MAX;

use crate::failure::{Failure, quota};

/// The handles of all sessions. One is never used for another namespace of its session: a request
/// on its way must not change its meaning.
#[derive(Debug, Default)]
pub(super) struct Handles {
    /// By session, then by volume and name.
    sessions: BTreeMap<u64, BTreeMap<(u16, String), u16>>,
}

impl Handles {
    /// What a session calls a namespace, if it ever opened it.
    pub(super) fn known(&self, session: u64, (volume, name): (u16, &str)) -> Option<u16> {
        self.sessions.get(&session)?.get(&(volume, name.to_owned())).copied()
    }

    /// What a session calls a namespace: the same each time.
    ///
    /// # Errors
    /// `Failure` when it has as many as it may.
    pub(super) fn of(&mut self, session: u64, (volume, name): (u16, &str)) -> Result<u16, Failure> {
        let own = self.sessions.entry(session).or_default();
        let next = own.len();
        let handle = u16::try_from(next).ok().filter(|_| next < HANDLES_MAX);
        match (own.get(&(volume, name.to_owned())), handle) {
            (Some(known), _) => Ok(*known),
            (None, Some(handle)) => {
                own.insert((volume, name.to_owned()), handle);
                Ok(handle)
            }
            (None, None) => Err(quota(format!(
                "this client has opened {HANDLES_MAX} namespaces, the most one session may; attach \
                 again for others"
            ))),
        }
    }

    /// A session has ended.
    pub(super) fn forget(&mut self, session: u64) {
        self.sessions.remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::Handles;

    #[test]
    fn a_session_calls_a_namespace_the_same_each_time() {
        let mut handles = Handles::default();
        assert_eq!(handles.known(1, (0, "a")), None);
        assert_eq!(handles.of(1, (0, "a")).unwrap(), 0);
        assert_eq!(handles.of(1, (1, "a")).unwrap(), 1, "another store's");
        assert_eq!(handles.of(1, (0, "a")).unwrap(), 0);
        assert_eq!(handles.of(2, (1, "a")).unwrap(), 0, "another session's");
        for at in 2..256 {
            assert_eq!(handles.of(1, (0, &at.to_string())).unwrap(), at);
        }
        assert!(handles.of(1, (0, "more")).unwrap_err().1.contains("256 namespaces"));
        handles.forget(1);
        assert_eq!(handles.of(1, (0, "more")).unwrap(), 0);
    }
}
