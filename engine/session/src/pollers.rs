//! All pollers, as the control thread talks to them.

use std::collections::VecDeque;
use std::time::Duration;

use kvrail_counters::SessionCounters;
use kvrail_poller::{Notice, PollerCommand, PollerHandle, SessionSlot};

/// A set of pollers, one bit each; there are at most `POLLERS_MAX` = 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PollerSet(u64);

impl PollerSet {
    pub(crate) fn all(count: usize) -> Self {
        debug_assert!(count <= 64, "a bit for each poller");
        (0..count).fold(Self::default(), |set, poller| set.with(poller))
    }

    pub(crate) fn with(self, poller: usize) -> Self {
        debug_assert!(poller < 64, "a bit for each poller");
        Self(self.0 | 1 << poller)
    }

    pub(crate) fn contains(self, poller: usize) -> bool {
        debug_assert!(poller < 64, "a bit for each poller");
        self.0 & 1 << poller != 0
    }

    pub(crate) fn remove(&mut self, poller: usize) {
        debug_assert!(poller < 64, "a bit for each poller");
        self.0 &= !(1 << poller);
    }

    pub(crate) fn insert(&mut self, poller: usize) {
        *self = self.with(poller);
    }

    pub(crate) fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether there are some, and all of them are of the other set.
    pub(crate) fn is_some_of(self, other: Self) -> bool {
        !self.is_empty() && self.common(other) == self
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |poller| self.0 & (1 << poller) != 0)
    }
}

/// Results of the requests of a session slot.
pub(crate) type StatusCounts = SessionCounters<u64>;

/// The pollers and what they could not take yet.
#[derive(Debug)]
pub(crate) struct Pollers {
    handles: Vec<PollerHandle>,
    /// Commands for a full mailbox, by poller. Bounded: every region, lane and session has at most
    /// one command on its way.
    backlog: Vec<VecDeque<PollerCommand>>,
}

impl Pollers {
    pub(crate) fn new(handles: Vec<PollerHandle>) -> Self {
        let backlog = handles.iter().map(|_| VecDeque::new()).collect();
        Self { handles, backlog }
    }

    pub(crate) fn count(&self) -> usize {
        self.handles.len()
    }

    pub(crate) fn all(&self) -> PollerSet {
        PollerSet::all(self.count())
    }

    pub(crate) fn handles(&self) -> &[PollerHandle] {
        &self.handles
    }

    /// Sends to one poller, in order, now or as soon as it has room.
    pub(crate) fn send(&mut self, poller: usize, command: PollerCommand) {
        debug_assert_eq!(self.backlog.len(), self.handles.len(), "a backlog for each poller");
        self.backlog[poller].push_back(command);
        self.flush_one(poller);
    }

    /// Sends to every poller of a set.
    pub(crate) fn send_each(&mut self, to: PollerSet, mut command: impl FnMut() -> PollerCommand) {
        for poller in to.iter() {
            self.send(poller, command());
        }
    }

    /// Tries again what a mailbox had no room for.
    pub(crate) fn flush(&mut self) {
        for poller in 0..self.count() {
            self.flush_one(poller);
        }
    }

    fn flush_one(&mut self, poller: usize) {
        let (mailbox, backlog) = (&self.handles[poller].mailbox, &mut self.backlog[poller]);
        while let Some(command) = backlog.pop_front() {
            if let Err(command) = mailbox.send(command) {
                backlog.push_front(command);
                return;
            }
        }
    }

    /// The next notice of any poller.
    pub(crate) fn receive(&self) -> Option<(usize, Notice)> {
        let from = |(poller, handle): (usize, &PollerHandle)| {
            handle.mailbox.receive().map(|notice| (poller, notice))
        };
        self.handles.iter().enumerate().find_map(from)
    }

    /// Has pollers count requests that are older than this.
    pub(crate) fn set_overdue(&self, age: Duration) {
        let age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        self.handles.iter().for_each(|handle| handle.mailbox.set_overdue(age_ns));
    }

    /// Sum of all counts in a slot since the pollers' start.
    pub(crate) fn counted(&self, slot: SessionSlot) -> StatusCounts {
        let handles = self.handles.iter();
        let slots = handles.filter_map(|handle| handle.stats.sessions.get(usize::from(slot.0)));
        slots.fold(StatusCounts::default(), |sum, stats| {
            sum.with(&stats.counters, |sum, counter| sum + counter.get())
        })
    }

    /// A poller whose thread is gone.
    pub(crate) fn ended(&self) -> Option<usize> {
        self.handles.iter().position(|handle| handle.thread.is_finished())
    }

    /// Pollers whose thread still runs.
    pub(crate) fn running(&self) -> usize {
        self.handles.iter().filter(|handle| !handle.thread.is_finished()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::PollerSet;

    #[test]
    fn sets_count_to_sixty_four() {
        let mut all = PollerSet::all(64);
        assert_eq!(all.iter().count(), 64);
        for poller in 0..64 {
            assert!(!all.is_empty());
            all.remove(poller);
        }
        assert!(all.is_empty());
        all.insert(63);
        assert_eq!(all.iter().collect::<Vec<_>>(), [63]);
    }
}
