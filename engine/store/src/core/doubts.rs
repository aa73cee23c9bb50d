//! Entries that may not be what the records have: recovery goes on, or has given a segment up.

use super::Core;
use crate::entry::{Entry, Kind};
use crate::fates::Fate;
use crate::index::Position;
use crate::segments::SegmentState;

impl Core {
    /// Whether a record that recovery has not read yet may overrule the entry: a later record of
    /// the entry's segment, or a put in the segment of a drop's epoch or above.
    pub(crate) fn is_unsettled(&self, entry: &Entry) -> bool {
        let dropped = entry.kind() == Kind::Dropped;
        let found = entry.is_there() || dropped && entry.place() != 0;
        let segment = || self.geometry.segment_of(entry.place());
        let newest = self.recovery.unread.checked_sub(1).and_then(|at| self.segments.nth(at));
        let above = newest.is_some_and(|newest| self.segments.epoch(newest) >= entry.bound());
        found && self.segments.state(segment()) == SegmentState::Reading || dropped && above
    }

    /// Whether an entry's block is lost with the records of its segment.
    pub(crate) fn is_lost(&self, entry: &Entry) -> bool {
        let segment = || self.geometry.segment_of(entry.place());
        entry.is_there() && self.segments.state(segment()) == SegmentState::Dead
    }

    /// Removes an entry that has no valid record.
    pub(crate) fn remove_lost(&mut self, position: Position, entry: &Entry) {
        self.stats.evicted += u64::from(entry.is_there());
        // Keys of a namespace that was cleared have other hashes now.
        let is_known = entry.is_there() && self.spaces.is_open(entry.number());
        if is_known {
            self.feed_mut().lose();
        }
        self.remove(position);
        if is_known {
            self.enter_fate(entry.number(), entry.lo(), Fate::Lost);
        }
    }
}
