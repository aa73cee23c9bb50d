//! Events of some keys of a store, for an hour: they answer why a key is not there when the events
//! of all keys are long gone.
//!
//! A key is in the sample by its bits, always or never, so that the absence of an event means
//! something. When the sample is full of events of the last hour, half of the keys leave it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use kvrail_protocol::{EventInfo, EventKind};

/// How long an event stays.
const REACH: Duration = Duration::from_secs(3600);
/// Events at most: 7 MB.
const EVENTS_MAX: usize = 1 << 16;
/// One key in this number at least.
const ONE_IN_MAX: u32 = 1 << 20;

/// The events.
#[derive(Debug)]
pub(super) struct KeySample {
    kept: VecDeque<(EventInfo, Instant)>,
    /// One key in this number is in it: a power of two.
    one_in: u32,
}

impl Default for KeySample {
    fn default() -> Self {
        Self { kept: VecDeque::new(), one_in: 1 }
    }
}

/// Whether a key is in a sample of this size. The bits are mixed: keys may be small numbers.
fn is_one_in(one_in: u32, key: u128) -> bool {
    // Of the golden ratio: the upper half of the product depends on all bits.
    let mixed = (key ^ key >> 64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) & u128::from(one_in - 1) == 0
}

impl KeySample {
    /// Whether a key is in it.
    pub(super) fn has(&self, key: u128) -> bool {
        is_one_in(self.one_in, key)
    }

    /// Of how many keys one is in it.
    pub(super) fn one_in(&self) -> u32 {
        self.one_in
    }

    /// How far it reaches back, where nothing was lost for `whole`.
    pub(super) fn reach(&self, whole: Duration) -> Duration {
        // One key that goes again and again can fill it.
        let full = self.one_in == ONE_IN_MAX && self.kept.len() == EVENTS_MAX;
        let oldest = self.kept.front().filter(|_| full).map_or(REACH, |(_, at)| at.elapsed());
        whole.min(oldest)
    }

    /// Enters an event of a key, if the key is in it.
    pub(super) fn keep(&mut self, event: &EventInfo, now: Instant) {
        if event.kind == EventKind::Cleared || !self.has(event.key) {
            return;
        }
        let stays = |at: Instant| now.saturating_duration_since(at) < REACH;
        while self.kept.front().is_some_and(|(_, at)| !stays(*at)) {
            self.kept.pop_front();
        }
        while self.kept.len() == EVENTS_MAX && self.one_in < ONE_IN_MAX {
            self.halve();
        }
        if self.kept.len() == EVENTS_MAX {
            self.kept.pop_front();
        }
        debug_assert!(self.kept.len() < EVENTS_MAX, "there is room for one more");
        let &EventInfo { position, uid, key, length, kind, .. } = event;
        let metadata = Vec::new(); // that of the feed is up to 1 KiB
        self.kept.push_back((EventInfo { position, uid, key, length, kind, metadata }, now));
    }

    /// Half of the keys leave it.
    fn halve(&mut self) {
        self.one_in *= 2;
        let one_in = self.one_in;
        self.kept.retain(|(event, _)| is_one_in(one_in, event.key));
    }

    /// The latest event that something holds for.
    pub(super) fn latest(
        &self,
        about: impl Fn(&EventInfo) -> bool,
    ) -> Option<&(EventInfo, Instant)> {
        self.kept.iter().rev().find(|(event, _)| about(event))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use kvrail_protocol::{EventInfo, EventKind};

    use super::{EVENTS_MAX, KeySample, ONE_IN_MAX, REACH};

    fn gone(key: u128, kind: EventKind) -> EventInfo {
        EventInfo { position: 0, uid: 7, key, length: 9, kind, metadata: vec![1; 100] }
    }

    #[test]
    fn half_of_the_keys_leave_a_full_one_whatever_their_bits() {
        let now = Instant::now();
        let ways: [fn(u128) -> u128; 3] = [|at| at, |at| at << 64, |at| at * 0x1234_5678_9abc_def1];
        for keys in ways {
            let mut sample = KeySample::default();
            let events = 5 * EVENTS_MAX as u128;
            (0..events).for_each(|at| sample.keep(&gone(keys(at), EventKind::Evicted), now));
            assert_eq!(sample.one_in(), 8, "5 / 8 of the room");
            let own: Vec<u128> = (0..events).map(keys).filter(|key| sample.has(*key)).collect();
            let share = own.len() as f64 / events as f64;
            assert!((0.11..0.14).contains(&share), "{share} of the keys are in it");
            let there = |key: &u128| sample.latest(|event| event.key == *key).is_some();
            assert!(own.iter().step_by(500).all(there), "each of them is remembered");
            assert_eq!(sample.reach(Duration::MAX), REACH);
        }
    }

    #[test]
    fn an_hour_is_remembered_and_no_more() {
        let (mut sample, begin) = (KeySample::default(), Instant::now());
        sample.keep(&gone(1, EventKind::Dropped), begin);
        sample.keep(&gone(2, EventKind::Dropped), begin + REACH - Duration::from_secs(1));
        assert!(sample.latest(|event| event.key == 1).is_some());
        sample.keep(&gone(3, EventKind::Dropped), begin + REACH);
        assert!(sample.latest(|event| event.key == 1).is_none());
        assert!(sample.latest(|event| event.key == 2).is_some());
        assert!(sample.kept.iter().all(|(event, _)| event.metadata.is_empty()));
    }

    /// The room is bounded, and the report says how far it reaches.
    #[test]
    fn one_key_that_goes_again_and_again_fills_it_and_is_no_loop() {
        let (mut sample, now) = (KeySample::default(), Instant::now());
        for _ in 0..3 * EVENTS_MAX {
            sample.keep(&gone(0, EventKind::Dropped), now);
        }
        assert_eq!((sample.kept.len(), sample.one_in()), (EVENTS_MAX, ONE_IN_MAX));
        assert!(sample.reach(Duration::MAX) < REACH);
    }
}
