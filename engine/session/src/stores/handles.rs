//! Handles: the numbers of namespaces in sessions' requests.

use std::collections::BTreeMap;

use kvrail_poller::HANDLES_MAX;

use crate::failure::{Failure, quota};

/// The handles of all sessions. One is never used for another namespace of its session: a request
/// on its way must not change its meaning.
#[derive(Debug, Default)]
pub(super) struct Handles {
    sessions: BTreeMap<u64, Own>,
}

/// The handles of one session.
#[derive(Debug, Default)]
struct Own {
    /// By volume and name.
    handles: BTreeMap<(u16, String), Handle>,
    /// The volume and name of each number.
    names: Vec<(u16, String)>,
}

/// A pool as one member of its store numbers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PoolPlace {
    /// The member's place in the store.
    pub(super) member: usize,
    pub(super) number: u8,
}

/// A handle, and the last uids that its namespace had when it was opened.
#[derive(Clone, Copy, Debug)]
struct Handle {
    number: u16,
    uids: [u64; 2],
    pool: PoolPlace,
}

impl Handles {
    /// A session's handle of a namespace that it has opened before.
    pub(super) fn known(&self, session: u64, (volume, name): (u16, &str)) -> Option<u16> {
        let own = &self.sessions.get(&session)?.handles;
        own.get(&(volume, name.to_owned())).map(|handle| handle.number)
    }

    /// The volume and name of the namespace that a session's handle means, and its pool.
    pub(super) fn space(&self, session: u64, number: u16) -> Option<((u16, &str), PoolPlace)> {
        let own = self.sessions.get(&session)?;
        let of = own.names.get(usize::from(number))?;
        Some(((of.0, of.1.as_str()), own.handles.get(of)?.pool))
    }

    /// Whether a session has opened a namespace of this store.
    pub(super) fn has_any(&self, session: u64, volume: u16) -> bool {
        let own = self.sessions.get(&session);
        own.is_some_and(|own| own.handles.keys().any(|(of, _)| *of == volume))
    }

    /// Whether a session has opened the namespace with this uid, now or before it was cleared.
    pub(super) fn has_opened(&self, session: u64, uid: u64) -> bool {
        let own = self.sessions.get(&session);
        own.is_some_and(|own| own.handles.values().any(|handle| handle.uids.contains(&uid)))
    }

    /// A session's handle for a namespace that it opens with this uid: the same each time.
    ///
    /// # Errors
    /// `Failure` when it has as many as it may.
    pub(super) fn of(
        &mut self,
        session: u64,
        (volume, name): (u16, &str),
        (uid, pool): (u64, PoolPlace),
    ) -> Result<u16, Failure> {
        let Own { handles: own, names } = self.sessions.entry(session).or_default();
        let next = names.len();
        let number = u16::try_from(next).ok().filter(|_| next < HANDLES_MAX);
        match (own.get_mut(&(volume, name.to_owned())), number) {
            (Some(known), _) => {
                if known.uids[0] != uid {
                    known.uids = [uid, known.uids[0]];
                }
                known.pool = pool;
                Ok(known.number)
            }
            (None, Some(number)) => {
                debug_assert!(
                    own.values().all(|handle| handle.number != number),
                    "a handle means one namespace for as long as the session lives"
                );
                names.push((volume, name.to_owned()));
                own.insert((volume, name.to_owned()), Handle { number, uids: [uid; 2], pool });
                Ok(number)
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
    use super::{Handles, PoolPlace};

    const POOL: PoolPlace = PoolPlace { member: 0, number: 0 };

    #[test]
    fn a_session_calls_a_namespace_the_same_each_time() {
        let mut handles = Handles::default();
        assert_eq!(handles.known(1, (0, "a")), None);
        assert_eq!(handles.of(1, (0, "a"), (5, POOL)).unwrap(), 0);
        assert_eq!(handles.of(1, (1, "a"), (6, POOL)).unwrap(), 1, "another store's");
        assert_eq!(handles.of(1, (0, "a"), (5, POOL)).unwrap(), 0);
        assert_eq!(handles.of(2, (1, "a"), (6, POOL)).unwrap(), 0, "another session's");
        for at in 2..256 {
            assert_eq!(handles.of(1, (0, &at.to_string()), (6 + u64::from(at), POOL)).unwrap(), at);
        }
        let other = PoolPlace { member: 1, number: 2 };
        assert_eq!(handles.of(1, (0, "7"), (99, other)).unwrap(), 7);
        for at in 2..256_u16 {
            let pool = if at == 7 { other } else { POOL };
            assert_eq!(handles.space(1, at), Some(((0, at.to_string().as_str()), pool)));
        }
        assert_eq!(handles.space(1, 1), Some(((1, "a"), POOL)));
        assert!(handles.space(1, 256).is_none() && handles.space(3, 0).is_none());
        assert!(handles.of(1, (0, "more"), (1, POOL)).unwrap_err().1.contains("256 namespaces"));
        assert!(handles.has_any(1, 0) && handles.has_any(2, 1) && !handles.has_any(2, 0));
        handles.forget(1);
        assert!(!handles.has_any(1, 0));
        assert_eq!(handles.of(1, (0, "more"), (1, POOL)).unwrap(), 0);
    }

    #[test]
    fn a_session_has_opened_what_it_has_open_and_what_that_was_before_a_clear() {
        let mut handles = Handles::default();
        for uid in [3, 3, 4] {
            handles.of(1, (0, "a"), (uid, POOL)).unwrap();
        }
        assert!(handles.has_opened(1, 3) && handles.has_opened(1, 4));
        assert!(!handles.has_opened(1, 5) && !handles.has_opened(2, 3));
        handles.of(1, (0, "a"), (9, POOL)).unwrap();
        assert!(handles.has_opened(1, 4) && handles.has_opened(1, 9));
    }
}
