//! Which writes are on stable media.

use crate::format::POOLS_MAX;

/// Counts finished writes; a flush covers those that were finished before it began.
#[derive(Debug, Default)]
pub(crate) struct Flush {
    finished: u64,
    durable: u64,
    wanted: u64,
    dirty_since: Option<u64>,
    running: Option<Running>,
    /// The last one has failed.
    refused: bool,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    covers: u64,
    drops: [u64; POOLS_MAX],
}

impl Flush {
    /// A write has finished.
    pub(crate) fn wrote(&mut self, now: u64) {
        self.finished += 1;
        self.dirty_since.get_or_insert(now);
    }

    /// A point in time: durable once every write finished by now is.
    pub(crate) fn ticket(&self) -> u64 {
        self.finished
    }

    /// Requests a flush up to `ticket` without waiting for the timer.
    pub(crate) fn want(&mut self, ticket: u64) {
        debug_assert!(ticket <= self.finished, "a ticket of writes that have not finished");
        self.wanted = self.wanted.max(ticket);
    }

    pub(crate) fn is_durable(&self, ticket: u64) -> bool {
        self.durable >= ticket
    }

    /// Whether a flush should begin now. One that has failed is due again: its pauses are those of
    /// all refused writes, so that puts are declined in time where it is the first that fails.
    pub(crate) fn is_due(&self, now: u64, after: u64) -> bool {
        let old = self.dirty_since.is_some_and(|since| now.saturating_sub(since) >= after);
        self.running.is_none() && (self.refused || self.wanted > self.durable || old)
    }

    /// A flush begins; `drops` is what its end makes durable.
    pub(crate) fn begin(&mut self, drops: [u64; POOLS_MAX]) {
        debug_assert!(self.running.is_none(), "one flush at a time");
        self.running = Some(Running { covers: self.finished, drops });
        self.dirty_since = None;
    }

    /// The flush has ended well: how many drops of each pool are durable.
    pub(crate) fn succeed(&mut self) -> [u64; POOLS_MAX] {
        let run = self.running.take().expect("a flush was running");
        self.refused = false;
        self.durable = self.durable.max(run.covers);
        run.drops
    }

    /// The flush has failed; it will be tried again.
    pub(crate) fn fail(&mut self) {
        (self.running, self.refused) = (None, true);
    }

    /// Whether the last flush has failed, and none has ended well since.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::Flush;

    #[test]
    fn a_flush_covers_what_was_finished_before_it_began() {
        let mut flush = Flush::default();
        assert!(flush.is_durable(flush.ticket()) && !flush.is_due(9, 0));
        flush.wrote(1);
        let first = flush.ticket();
        assert!(!flush.is_due(5, 10) && flush.is_due(11, 10));
        flush.want(first);
        assert!(flush.is_due(2, 10));
        flush.begin([3; 16]);
        flush.wrote(4);
        let second = flush.ticket();
        assert!(!flush.is_due(100, 0));
        assert_eq!(flush.succeed(), [3; 16]);
        assert!(flush.is_durable(first) && !flush.is_durable(second));
        flush.begin([4; 16]);
        flush.fail();
        assert!(!flush.is_durable(second) && flush.is_due(7, 10));
    }
}
