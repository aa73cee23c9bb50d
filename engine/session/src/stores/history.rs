//! What is gone from one store: the last of it, for all who ask, each from its own position.
//!
//! A position is a number that grows by one with each event. Events that were lost take positions
//! too, so whoever asks sees from the positions alone how many it does not get.

use std::collections::VecDeque;
use std::time::Instant;

use kvrail_poller::{GoneRow, GoneRows};
use kvrail_protocol::{EventInfo, EventKind, EventPage};
use kvrail_store::Gone;

use crate::failure::{Failure, invalid};

/// Events that are kept.
const EVENTS_MAX: usize = 16_384;
/// Events and bytes of metadata of one answer.
const PAGE_EVENTS: usize = 256;
const PAGE_BYTES: usize = 16 << 10;

/// The last events of a store.
#[derive(Debug)]
pub(super) struct History {
    next: u64,
    kept: VecDeque<(EventInfo, Instant)>,
    /// Losses that each member has told of.
    lost: Vec<u64>,
}

impl History {
    pub(super) fn new(members: usize) -> Self {
        Self { next: 0, kept: VecDeque::new(), lost: vec![0; members] }
    }

    /// The position of what is told next.
    pub(super) fn position(&self) -> u64 {
        self.next
    }

    /// A member tells.
    pub(super) fn add(&mut self, member: usize, batch: &GoneRows) {
        let now = Instant::now();
        for (row, metadata) in batch.iter() {
            if self.kept.len() == EVENTS_MAX {
                self.kept.pop_front();
            }
            self.kept.push_back((event(self.next, &row, metadata), now));
            self.next += 1;
        }
        self.next += batch.lost.saturating_sub(self.lost[member]);
        self.lost[member] = batch.lost;
    }

    /// A member has begun anew: nobody knows what it has left out.
    pub(super) fn began_anew(&mut self, member: usize) {
        self.lost[member] = 0;
        self.next += 1;
    }

    /// What is gone since a position; nothing: since now.
    ///
    /// # Errors
    /// `Failure` when there is no such position yet.
    pub(super) fn since(&self, position: Option<u64>) -> Result<EventPage, Failure> {
        let since = position.unwrap_or(self.next);
        if since > self.next {
            return Err(invalid(format!(
                "since: position {since} is still to come, the next one is {}; ask for the one \
                 that the page before said",
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
        let next = match events.last() {
            Some(last) if more => last.position + 1,
            _ => self.next,
        };
        Ok(EventPage { lost: next - since - events.len() as u64, events, next, more })
    }

    /// The latest event about a key, or about its whole namespace, and the seconds since.
    pub(super) fn latest(&self, uid: u64, key: u128) -> Option<(EventInfo, u64)> {
        let about = |event: &EventInfo| {
            event.uid == uid && (event.key == key || event.kind == EventKind::Cleared)
        };
        let (event, at) = self.kept.iter().rev().find(|(event, _)| about(event))?;
        Some((event.clone(), at.elapsed().as_secs()))
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
