//! What one process knows of its own keys: the bytes a get may return, and the blocks that must be
//! there.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::content::{bytes_of, length_of};

/// A put that was acknowledged this long ago survives the sidecar's end.
const SOON: Duration = Duration::from_millis(100);

/// Events of a key that are kept.
const HISTORY: usize = 12;

/// State of one key.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Versions that may be there.
    possible: Vec<u32>,
    /// The version that must be there, and when it was acknowledged in the session that goes on or
    /// ended last; 0 in an earlier one. On the clock that all processes share.
    must: Option<(u32, Duration)>,
    /// Whether the last version that had to be there was too young when the sidecar was killed.
    young: bool,
    /// The highest version that was ever put.
    last: u32,
    /// The last events of the key, to find out why it is lost.
    history: VecDeque<(Duration, String)>,
}

impl Known {
    fn note(&mut self, now: Duration, what: String) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back((now, what));
    }
}

/// All keys of a process.
#[derive(Clone, Debug, Default)]
pub struct Books {
    keys: BTreeMap<u64, Known>,
}

impl Books {
    /// Keys that were ever put.
    #[must_use]
    pub fn keys(&self) -> Vec<u64> {
        self.keys.keys().copied().collect()
    }

    /// Whether a key may be put: no version of it can be there.
    #[must_use]
    pub fn is_free(&self, key: u64) -> bool {
        self.keys.get(&key).is_none_or(|known| known.possible.is_empty())
    }

    /// A put begins: the version to put.
    pub fn put_begins(&mut self, key: u64) -> u32 {
        let known = self.keys.entry(key).or_default();
        known.last += 1;
        known.possible.push(known.last);
        let last = known.last;
        known.note(now(), format!("put v{last} begins"));
        last
    }

    /// A put was acknowledged.
    pub fn put(&mut self, key: u64, version: u32, now: Duration) {
        let known = self.keys.entry(key).or_default();
        (known.possible, known.must) = (vec![version], Some((version, now)));
        known.note(now, format!("put v{version}"));
    }

    /// A put was declined: nothing was written.
    pub fn declined(&mut self, key: u64, version: u32) {
        self.keys.entry(key).or_default().possible.retain(|put| *put != version);
    }

    /// A drop begins.
    pub fn drop_begins(&mut self, key: u64) {
        let known = self.keys.entry(key).or_default();
        known.must = None;
        known.note(now(), "drop begins".into());
    }

    /// A durable drop was acknowledged.
    pub fn dropped(&mut self, key: u64) {
        let known = self.keys.entry(key).or_default();
        known.possible.clear();
        known.note(now(), "dropped".into());
    }

    /// The sidecar of the session that ended last was killed at this time: puts that it had
    /// acknowledged less than 100 ms before may be gone.
    pub fn killed(&mut self, when: Duration) {
        for known in self.keys.values_mut() {
            known.note(when, "killed".into());
            let Some((_, acknowledged)) = &mut known.must else { continue };
            // An answer may be read after the sidecar's end.
            if *acknowledged + SOON < when {
                *acknowledged = Duration::ZERO;
            } else {
                (known.must, known.young) = (None, true);
            }
        }
    }

    /// A get was a miss. `true`: the block had been put, but was too young.
    ///
    /// # Errors
    /// The block must be there.
    pub fn missed(&mut self, key: u64) -> Result<bool, String> {
        let Some(known) = self.keys.get_mut(&key) else { return Ok(false) };
        if let Some((version, at)) = known.must {
            let history = &known.history;
            return Err(format!("{key} v{version} is lost: acknowledged {at:?}: {history:?}"));
        }
        // A missed block stays missed until the next put.
        known.possible.clear();
        known.note(now(), "missed".into());
        Ok(std::mem::take(&mut known.young))
    }

    /// A get returned these bytes, and their check was right.
    ///
    /// # Errors
    /// They are not the bytes that were put.
    pub fn got(&mut self, key: u64, bytes: &[u8], now: Duration) -> Result<(), String> {
        let known = self.keys.entry(key).or_default();
        let is_it = |version: &&u32| is_version(key, **version, bytes);
        let Some(&version) = known.possible.iter().find(is_it) else {
            let found = (1..=known.last).find(|version| is_version(key, *version, bytes));
            let (length, possible) = (bytes.len(), &known.possible);
            return Err(format!("{key}: {length} bytes of version {found:?}, not of {possible:?}"));
        };
        (known.possible, known.young) = (vec![version], false);
        known.must.get_or_insert((version, now));
        known.note(now, format!("got v{version}"));
        Ok(())
    }
}

/// Now, on the clock that all processes share.
pub(super) fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::try_from(now).expect("after the machine's start")
}

/// Whether bytes are those of a version.
pub(super) fn is_version(key: u64, version: u32, bytes: &[u8]) -> bool {
    let length = length_of(key, version);
    bytes.len() == length as usize && bytes == bytes_of(key, version, length)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Books;
    use crate::keyed::content::{bytes_of, length_of};

    const SECOND: Duration = Duration::from_secs(1);

    /// The books of a process whose only put was acknowledged after a second.
    fn with_a_put() -> (Books, u32) {
        let mut books = Books::default();
        let version = books.put_begins(7);
        books.put(7, version, SECOND);
        (books, version)
    }

    #[test]
    fn what_was_acknowledged_long_before_must_be_found() {
        let (mut books, version) = with_a_put();
        assert!(books.clone().missed(7).is_err(), "no sidecar was killed");
        books.killed(2 * SECOND);
        assert!(books.clone().missed(7).is_err());
        books.killed(2 * SECOND + Duration::from_millis(50));
        assert!(books.clone().missed(7).is_err(), "it has survived once");
        let right = bytes_of(7, version, length_of(7, version));
        assert!(books.got(7, &right, 2 * SECOND).is_ok());
        assert!(books.got(7, &right[1..], 2 * SECOND).is_err());
        books.drop_begins(7);
        assert!(books.got(7, &right, 2 * SECOND).is_ok(), "until the drop is acknowledged");
        books.dropped(7);
        assert!(books.got(7, &right, 2 * SECOND).is_err() && books.is_free(7));
    }

    #[test]
    fn what_was_young_at_the_end_of_its_session_may_be_gone() {
        // The kill, 50 ms after the answer, and 10 ms before it was read.
        for killed in [1050, 990] {
            let (mut books, version) = with_a_put();
            books.killed(Duration::from_millis(killed));
            let right = bytes_of(7, version, length_of(7, version));
            assert!(books.clone().got(7, &right, 2 * SECOND).is_ok(), "or may be there");
            assert_eq!(books.missed(7), Ok(true), "{killed}");
            assert!(books.got(7, &right, 2 * SECOND).is_err(), "it does not come back");
            assert_eq!(books.missed(7), Ok(false));
        }
    }
}
