//! What one process knows of its own keys: which bytes a get may return, and what must be there.

use std::collections::BTreeMap;
use std::time::Duration;

use super::content::{bytes_of, length_of};

/// How long after its answer a put is sure to survive the sidecar's end.
const SOON: Duration = Duration::from_millis(100);

/// What is known of a key.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Versions that may be there.
    possible: Vec<u32>,
    /// The one that must be, and when it was acknowledged, on the clock that all processes share.
    must: Option<(u32, Duration)>,
    /// The highest version that was ever put.
    last: u32,
}

/// When something must be found that was acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Grace {
    /// When the last sidecar was killed, if one was.
    pub killed: Option<Duration>,
}

impl Grace {
    fn has_passed(self, acknowledged: Duration) -> bool {
        self.killed.is_none_or(|killed| acknowledged > killed || acknowledged + SOON < killed)
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

    /// Whether a key may be put: nothing of it is known to be there.
    #[must_use]
    pub fn is_free(&self, key: u64) -> bool {
        self.keys.get(&key).is_none_or(|known| known.possible.is_empty())
    }

    /// A put begins: the version to put.
    pub fn put_begins(&mut self, key: u64) -> u32 {
        let known = self.keys.entry(key).or_default();
        known.last += 1;
        known.possible.push(known.last);
        known.last
    }

    /// A put was acknowledged.
    pub fn put(&mut self, key: u64, version: u32, now: Duration) {
        let known = self.keys.entry(key).or_default();
        (known.possible, known.must) = (vec![version], Some((version, now)));
    }

    /// A put was declined: nothing was written.
    pub fn declined(&mut self, key: u64, version: u32) {
        self.keys.entry(key).or_default().possible.retain(|it| *it != version);
    }

    /// A drop begins.
    pub fn drop_begins(&mut self, key: u64) {
        self.keys.entry(key).or_default().must = None;
    }

    /// A durable drop was acknowledged.
    pub fn dropped(&mut self, key: u64) {
        self.keys.entry(key).or_default().possible.clear();
    }

    /// A get was a miss. What is wrong with that, if anything; `false`: it was too young.
    ///
    /// # Errors
    /// The block must be there.
    pub fn missed(&mut self, key: u64, grace: Grace) -> Result<bool, String> {
        let Some(known) = self.keys.get_mut(&key) else { return Ok(true) };
        if let Some((version, at)) = known.must {
            if grace.has_passed(at) {
                let killed = grace.killed;
                return Err(format!("{key} v{version} is lost: acknowledged {at:?}, {killed:?}"));
            }
            // Once it was missed it stays missed: nothing brings it back.
            (known.must, known.possible) = (None, Vec::new());
            return Ok(false);
        }
        known.possible.clear();
        Ok(true)
    }

    /// A get returned these bytes, and their check was right.
    ///
    /// # Errors
    /// They are not what was put.
    pub fn got(&mut self, key: u64, bytes: &[u8], now: Duration) -> Result<(), String> {
        let known = self.keys.entry(key).or_default();
        let is_it = |version: &&u32| is_version(key, **version, bytes);
        let Some(&version) = known.possible.iter().find(is_it) else {
            let found = (1..=known.last).find(|version| is_version(key, *version, bytes));
            let (length, possible) = (bytes.len(), &known.possible);
            return Err(format!("{key}: {length} bytes of version {found:?}, not of {possible:?}"));
        };
        known.possible = vec![version];
        known.must.get_or_insert((version, now));
        Ok(())
    }
}

/// Whether bytes are those of a version.
pub(super) fn is_version(key: u64, version: u32, bytes: &[u8]) -> bool {
    let length = length_of(key, version);
    bytes.len() == length as usize && bytes == bytes_of(key, version, length)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Books, Grace};
    use crate::keyed::content::{bytes_of, length_of};

    #[test]
    fn what_was_acknowledged_long_before_must_be_found() {
        let second = Duration::from_secs(1);
        let mut books = Books::default();
        let version = books.put_begins(7);
        books.put(7, version, second);
        let near = Grace { killed: Some(second + Duration::from_millis(50)) };
        let far = Grace { killed: Some(2 * second) };
        assert!(books.clone().missed(7, far).is_err() && books.clone().missed(7, near).is_ok());
        assert!(books.clone().missed(7, Grace { killed: None }).is_err());
        let right = bytes_of(7, version, length_of(7, version));
        assert!(books.got(7, &right, 2 * second).is_ok());
        assert!(books.got(7, &right[1..], 2 * second).is_err());
        books.drop_begins(7);
        assert!(books.got(7, &right, 2 * second).is_ok(), "until the drop is acknowledged");
        books.dropped(7);
        assert!(books.got(7, &right, 2 * second).is_err() && books.is_free(7));
    }
}
