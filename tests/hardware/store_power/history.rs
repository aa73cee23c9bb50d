//! The history of a store's keys, in order, as lines of text: the content that may be found after
//! the end of power, and the content that must be.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;
use kvrail_tests::{bytes_of, length_of};

/// Keys from here on have blocks of a third of a segment at most, and not much less.
pub(super) const BULKY: u64 = 1 << 20;

/// The block of a key.
pub(super) fn block(key: u64, version: u32) -> Vec<u8> {
    let bulky = || Rng::with_seed(key ^ u64::from(version) << 32).u32(100 << 10..=300 << 10);
    let length = if key < BULKY { length_of(key, version) } else { bulky() };
    bytes_of(key, version, length)
}

/// An event of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A put of a version begins.
    Putting(u32),
    /// The put was acknowledged.
    Put(u32),
    /// The put was acknowledged as durable; or the version was found after a start.
    Kept(u32),
    /// A drop begins.
    Dropping,
    /// A durable drop was acknowledged; or the key was not found after a start.
    Gone,
}

/// An event of a key at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) at: Duration,
    pub(super) key: u64,
    pub(super) what: What,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, version) = match self.what {
            What::Putting(version) => ("putting", version),
            What::Put(version) => ("put", version),
            What::Kept(version) => ("kept", version),
            What::Dropping => ("dropping", 0),
            What::Gone => ("gone", 0),
        };
        write!(f, "{} {} {word} {version}", self.at.as_nanos(), self.key)
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let wrong = || format!("no event: {line:?}");
        let words: Vec<&str> = line.split(' ').collect();
        let [at, key, word, version] = words[..] else { return Err(wrong()) };
        let version = version.parse().map_err(|_| wrong())?;
        let what = match word {
            "putting" => What::Putting(version),
            "put" => What::Put(version),
            "kept" => What::Kept(version),
            "dropping" => What::Dropping,
            "gone" => What::Gone,
            _ => return Err(wrong()),
        };
        let at = Duration::from_nanos(at.parse().map_err(|_| wrong())?);
        Ok(Self { at, key: key.parse().map_err(|_| wrong())?, what })
    }
}

/// The parts of a history that a medium has for sure, and those it may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Horizon {
    /// Drops that were acknowledged until then have happened.
    pub(super) dropped: Duration,
    /// Blocks that were acknowledged as durable until then are there; `None`: or evicted.
    pub(super) kept: Option<Duration>,
    /// Other puts that were acknowledged until then are there, too.
    pub(super) flushed: Option<Duration>,
    /// No later event is there.
    pub(super) last: Duration,
}

/// All events, key by key.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    keys: BTreeMap<u64, Vec<Event>>,
}

impl History {
    pub(super) fn add(&mut self, event: Event) {
        self.keys.entry(event.key).or_default().push(event);
    }

    pub(super) fn keys(&self) -> Vec<u64> {
        self.keys.keys().copied().collect()
    }

    /// The highest version of a key.
    pub(super) fn last_version(&self, key: u64) -> u32 {
        let versions = self.keys.get(&key).into_iter().flatten().map(|event| match event.what {
            What::Putting(version) | What::Put(version) | What::Kept(version) => version,
            What::Dropping | What::Gone => 0,
        });
        versions.max().unwrap_or(0)
    }

    /// The version that must be found, if one must, and all that may be.
    pub(super) fn expected(&self, key: u64, horizon: &Horizon) -> (Option<u32>, Vec<u32>) {
        let (mut must, mut may) = (None, Vec::new());
        for event in self.keys.get(&key).into_iter().flatten() {
            let is_before = |until: Option<Duration>| until.is_some_and(|until| event.at <= until);
            match event.what {
                What::Putting(version) if event.at <= horizon.last => may.push(version),
                What::Put(version) if is_before(horizon.flushed) => must = Some(version),
                What::Kept(version) if is_before(horizon.kept) => must = Some(version),
                What::Dropping if event.at <= horizon.last => must = None,
                What::Gone if event.at <= horizon.dropped => (must, may) = (None, Vec::new()),
                _ => {}
            }
        }
        (must, may)
    }

    /// Checks the content that was found of a key: the version, if there was one.
    ///
    /// # Errors
    /// The key must be there, or not with these bytes.
    pub(super) fn judge(
        &self,
        key: u64,
        found: Option<&[u8]>,
        horizon: &Horizon,
    ) -> Result<Option<u32>, String> {
        let (must, may) = self.expected(key, horizon);
        let history = || format!("{:?} until {horizon:?}", self.keys.get(&key));
        let Some(bytes) = found else {
            return match must {
                None => Ok(None),
                Some(version) => Err(format!("{key} v{version} is lost: {}", history())),
            };
        };
        let is_it = |version: &u32| bytes == block(key, *version);
        match may.iter().copied().find(is_it) {
            Some(version) => Ok(Some(version)),
            None => {
                let other = (1..=self.last_version(key)).find(is_it);
                Err(format!("{key} has the bytes of {other:?}, not of {may:?}: {}", history()))
            }
        }
    }
}

/// Checks these books themselves, on any machine.
#[test]
fn a_history_has_required_and_possible_versions() {
    let s = Duration::from_secs;
    let mut history = History::default();
    let lines = ["1 7 putting 1", "2 7 put 1", "5 7 dropping 0", "6 7 gone 0", "7 7 putting 2"];
    for line in lines.iter().chain(&["8 7 kept 2"]) {
        let (at, rest) = line.split_once(' ').expect("a time");
        let nanoseconds = s(at.parse().expect("seconds")).as_nanos();
        let event: Event = format!("{nanoseconds} {rest}").parse().expect("an event");
        assert_eq!(event.to_string().parse(), Ok(event));
        history.add(event);
    }
    let horizon = |durable, flushed, last| {
        let (dropped, kept) = (s(durable), Some(s(durable)));
        Horizon { dropped, kept, flushed: Some(s(flushed)), last: s(last) }
    };
    let at = |durable, flushed, last| history.expected(7, &horizon(durable, flushed, last));
    assert_eq!(at(2, 1, 2), (None, vec![1]), "it is too young");
    assert_eq!(at(4, 2, 4), (Some(1), vec![1]));
    assert_eq!(at(4, 2, 5), (None, vec![1]), "its drop has begun");
    assert_eq!(at(6, 2, 6), (None, vec![]), "it is dropped");
    assert_eq!(at(6, 2, 9), (None, vec![2]));
    assert_eq!(at(8, 2, 9), (Some(2), vec![2]), "it is durable");
    let evicting = Horizon { kept: None, ..horizon(8, 0, 9) };
    assert_eq!(history.expected(7, &evicting), (None, vec![2]), "it may be evicted");
    let horizon = horizon(8, 2, 9);
    let [old, new] = [1, 2].map(|version| block(7, version));
    assert_eq!(history.judge(7, Some(&new), &horizon), Ok(Some(2)));
    assert!(history.judge(7, None, &horizon).is_err() && "1 2 3".parse::<Event>().is_err());
    let returned = history.judge(7, Some(&old), &horizon).expect_err("it was dropped");
    assert!(returned.contains("bytes of Some(1), not of [2]"), "{returned}");
}
