//! The last evictions of a store, for several readers, each with its own position.
//!
//! A position is a number that grows by one with each event. Lost events take positions too, so a
//! reader can compute the number of events that it misses.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use kvrail_poller::{GoneRow, GoneRows};
use kvrail_protocol::{EventInfo, EventKind, EventPage, Remembered};
use kvrail_store::Gone;

use super::sample::KeySample;
use crate::failure::{Failure, invalid};

/// Events that are kept.
const EVENTS_MAX: usize = 16_384;
/// Clears that are kept.
const CLEARS_MAX: usize = 1024;
/// Events and bytes of metadata of one answer.
const PAGE_EVENTS: usize = 256;
const PAGE_BYTES: usize = 16 << 10;

/// The last events of a store.
#[derive(Debug)]
pub(super) struct History {
    next: u64,
    kept: VecDeque<(EventInfo, Instant)>,
    /// Those of some keys, for longer.
    sample: KeySample,
    /// Uids that took the place of others when namespaces were cleared, with the position of the
    /// next event. Events of a clear have the uid that is gone.
    cleared: BTreeMap<u64, (u64, Instant)>,
    /// Losses that each member has reported.
    lost: Vec<u64>,
    /// Nothing was lost since.
    whole_since: Instant,
}

impl History {
    pub(super) fn new(members: usize) -> Self {
        Self {
            next: 0,
            kept: VecDeque::new(),
            sample: KeySample::default(),
            cleared: BTreeMap::new(),
            lost: vec![0; members],
            whole_since: Instant::now(),
        }
    }

    /// A namespace was cleared, and has this uid now. Uids ascend: the oldest clear is the first.
    pub(super) fn cleared(&mut self, uid: u64) {
        if self.cleared.len() == CLEARS_MAX {
            self.cleared.pop_first();
        }
        self.cleared.insert(uid, (self.next, Instant::now()));
    }

    /// The position of the next event.
    pub(super) fn position(&self) -> u64 {
        self.next
    }

    /// Enters a member's evictions.
    pub(super) fn add(&mut self, member: usize, batch: &GoneRows) {
        let now = Instant::now();
        for (row, metadata) in batch.iter() {
            self.keep(event(self.next, &row, metadata), now);
        }
        self.note_lost(member, batch.lost);
    }

    fn keep(&mut self, event: EventInfo, now: Instant) {
        if self.kept.len() == EVENTS_MAX {
            self.kept.pop_front();
        }
        debug_assert_eq!(event.position, self.next, "each event has the next position");
        debug_assert!(self.kept.len() < EVENTS_MAX, "there is room for one more");
        self.sample.keep(&event, now);
        self.kept.push_back((event, now));
        self.next += 1;
    }

    /// Enters a member's total of lost events.
    fn note_lost(&mut self, member: usize, in_all: u64) {
        debug_assert!(member < self.lost.len(), "a member of this store");
        let lost = in_all.saturating_sub(self.lost[member]);
        if lost > 0 {
            self.whole_since = Instant::now();
        }
        self.next += lost;
        self.lost[member] = in_all;
    }

    /// A member has restarted: the blocks that it left out are unknown.
    pub(super) fn began_anew(&mut self, member: usize) {
        self.lost[member] = 0;
        self.next += 1;
        self.whole_since = Instant::now();
    }

    /// Evictions since a position; `None`: since now.
    ///
    /// # Errors
    /// `Failure` when there is no such position yet.
    pub(super) fn since(&self, position: Option<u64>) -> Result<EventPage, Failure> {
        let since = position.unwrap_or(self.next);
        if since > self.next {
            return Err(invalid(format!(
                "since: position {since} is still to come, the next one is {}; use the one in the \
                 page before",
                self.next
            )));
        }
        let first = self.kept.partition_point(|(event, _)| event.position < since);
        let mut bytes = 0;
        let fits = |event: &&EventInfo| {
            bytes += event.metadata.len();
            bytes <= PAGE_BYTES
        };
        let rest = self.kept.range(first..).map(|(event, _)| event);
        let events: Vec<_> = rest.take(PAGE_EVENTS).take_while(fits).cloned().collect();
        let more = first + events.len() < self.kept.len();
        debug_assert!(events.len() <= PAGE_EVENTS, "an answer is bounded");
        let next = match events.last() {
            Some(last) if more => last.position + 1,
            _ => self.next,
        };
        debug_assert!(since <= next && next <= self.next, "a page leads on");
        Ok(EventPage { lost: next - since - events.len() as u64, events, next, more })
    }

    /// The latest event about a key, and the seconds since; without one, that its namespace was
    /// cleared.
    pub(super) fn latest(&self, uid: u64, key: u128) -> Option<(EventInfo, u64)> {
        let about = |event: &EventInfo| (event.uid, event.key) == (uid, key);
        let latest = self.kept.iter().rev().find(|(event, _)| about(event));
        if let Some((event, at)) = latest.or_else(|| self.sample.latest(about)) {
            return Some((event.clone(), at.elapsed().as_secs()));
        }
        let &(position, at) = self.cleared.get(&uid)?;
        let (length, kind, metadata) = (0, EventKind::Cleared, Vec::new());
        let event = EventInfo { position, uid, key, length, kind, metadata };
        Some((event, at.elapsed().as_secs()))
    }

    /// How long keys that went are remembered, and this key.
    pub(super) fn remembered(&self, key: u128) -> Remembered {
        let whole = self.whole_since.elapsed();
        let full = self.kept.len() == EVENTS_MAX;
        let oldest = self.kept.front().filter(|_| full);
        let all = oldest.map_or(whole, |(_, at)| at.elapsed().min(whole));
        let this = if self.sample.has(key) { self.sample.reach(whole).max(all) } else { all };
        let one_in = self.sample.one_in();
        Remembered { all_s: all.as_secs(), this_s: this.as_secs(), one_in }
    }
}

fn event(position: u64, row: &GoneRow, metadata: &[u8]) -> EventInfo {
    let kind = match row.why {
        Gone::Evicted => EventKind::Evicted,
        Gone::Dropped => EventKind::Dropped,
        Gone::Cleared => EventKind::Cleared,
    };
    let (uid, key, length) = (row.uid, row.key.bits(), row.length);
    EventInfo { position, uid, key, length, kind, metadata: metadata.to_vec() }
}

#[cfg(test)]
mod tests {
    use kvrail_protocol::{EventInfo, EventKind};

    use super::{CLEARS_MAX, EVENTS_MAX, History, Instant, PAGE_EVENTS};

    fn history(events: u64) -> History {
        let mut history = History::new(2);
        (0..events).for_each(|_| happen(&mut history));
        history
    }

    fn happen(history: &mut History) {
        let position = history.next;
        let (uid, key, length) = (7, u128::from(position), 1);
        let (kind, metadata) = (EventKind::Evicted, vec![1; 100]);
        let event = EventInfo { position, uid, key, length, kind, metadata };
        history.keep(event, Instant::now());
    }

    #[test]
    fn each_asker_gets_what_is_behind_its_position() {
        let history = history(1000);
        assert_eq!(history.since(None).unwrap().next, 1000);
        let mut position = 300;
        let mut got = 0;
        loop {
            let page = history.since(Some(position)).unwrap();
            assert!(page.events.len() <= PAGE_EVENTS && page.lost == 0);
            assert_eq!(page.events[0].position, position);
            got += page.events.len();
            position = page.next;
            if !page.more {
                break;
            }
        }
        assert_eq!((position, got), (1000, 700));
        assert!(history.since(Some(1000)).unwrap().events.is_empty());
        assert!(history.since(Some(1001)).unwrap_err().1.contains("1001 is still to come"));
    }

    #[test]
    fn what_is_not_kept_and_what_was_lost_is_counted() {
        let mut history = history(EVENTS_MAX as u64 + 10);
        let page = history.since(Some(4)).unwrap();
        assert_eq!((page.lost, page.events[0].position), (6, 10));
        let end = history.position();
        history.note_lost(1, 5);
        happen(&mut history);
        history.note_lost(1, 5);
        history.began_anew(1);
        history.note_lost(1, 2);
        let page = history.since(Some(end)).unwrap();
        assert_eq!((page.events.len(), page.lost, page.more), (1, 8, false));
        assert_eq!(page.next, end + 9);
        assert!(history.since(Some(page.next)).unwrap().lost == 0);
    }

    #[test]
    fn the_latest_word_about_a_key_counts() {
        let mut history = history(3);
        assert_eq!(history.latest(7, 1).unwrap().0.position, 1);
        assert_eq!(history.latest(8, 1), None);
        assert_eq!(history.latest(7, 9), None);
        (8..9 + CLEARS_MAX as u64).for_each(|uid| history.cleared(uid));
        assert_eq!(history.latest(9, 9).unwrap().0.kind, EventKind::Cleared);
        assert_eq!(history.latest(8, 9), None, "the oldest clear went");
    }

    #[test]
    fn keys_of_the_sample_are_remembered_for_longer() {
        let mut history = history(EVENTS_MAX as u64 * 3);
        let old = history.latest(7, 1).expect("the sample has all keys yet").0;
        assert_eq!((old.position, old.metadata.len()), (1, 0));
        let remembered = history.remembered(1);
        assert_eq!(remembered.one_in, 1);
        assert!(remembered.this_s >= remembered.all_s);
        // What was lost may have been this key.
        history.whole_since -= std::time::Duration::from_secs(100);
        assert!(history.remembered(1).this_s >= 100);
        history.note_lost(0, 1);
        assert_eq!(history.remembered(1).this_s, 0);
    }
}
