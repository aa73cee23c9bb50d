//! Slow requests of the past, kept in fixed memory: the last ones, and of older ones the slowest of
//! each minute, so that a storm of slow requests does not hide what was an hour before.

use std::collections::VecDeque;
use std::time::Instant;

use kvrail_protocol::TraceInfo;

/// The last ones. With the others below half a megabyte in all, with names of usual length.
const LAST_MAX: usize = 512;

/// Minutes with older ones, and those that are kept of each.
const MINUTES_MAX: usize = 60;
const OF_MINUTE_MAX: usize = 8;

/// The log.
#[derive(Debug)]
pub(crate) struct SlowLog {
    began: Instant,
    /// With the minute since the begin in which each was added.
    last: VecDeque<(u64, TraceInfo)>,
    /// Older ones, by minutes in order.
    minutes: VecDeque<(u64, Vec<TraceInfo>)>,
    forgotten: u64,
}

impl Default for SlowLog {
    fn default() -> Self {
        let began = Instant::now();
        let (last, minutes) = (VecDeque::new(), VecDeque::new());
        Self { began, last, minutes, forgotten: 0 }
    }
}

impl SlowLog {
    /// Adds one that has just ended. The wall clock may jump, so minutes are not its own.
    pub(crate) fn add(&mut self, event: TraceInfo) {
        self.add_at(self.began.elapsed().as_secs() / 60, event);
    }

    fn add_at(&mut self, minute: u64, event: TraceInfo) {
        if self.last.len() == LAST_MAX
            && let Some((minute, event)) = self.last.pop_front()
        {
            self.keep(minute, event);
        }
        self.last.push_back((minute, event));
    }

    /// Keeps an older one if it is among the slowest of its minute.
    fn keep(&mut self, minute: u64, event: TraceInfo) {
        if self.minutes.back().is_none_or(|(last, _)| *last != minute) {
            if self.minutes.len() == MINUTES_MAX
                && let Some((_, gone)) = self.minutes.pop_front()
            {
                self.forgotten += gone.len() as u64;
            }
            self.minutes.push_back((minute, Vec::with_capacity(OF_MINUTE_MAX)));
        }
        let (_, kept) = self.minutes.back_mut().expect("there is one");
        if kept.len() < OF_MINUTE_MAX {
            return kept.push(event);
        }
        self.forgotten += 1;
        let quickest = kept.iter_mut().min_by_key(|event| event.spent.total_ns);
        let quickest = quickest.expect("it is full");
        if event.spent.total_ns > quickest.spent.total_ns {
            *quickest = event;
        }
    }

    /// All that are kept, the oldest minute first.
    pub(crate) fn events(&self) -> Vec<TraceInfo> {
        let older = self.minutes.iter().flat_map(|(_, events)| events);
        older.chain(self.last.iter().map(|(_, event)| event)).cloned().collect()
    }

    /// Number of those that are not kept.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use kvrail_protocol::{TraceInfo, TraceKind, TraceSpent};

    use super::{LAST_MAX, MINUTES_MAX, OF_MINUTE_MAX, SlowLog};

    fn event(total_ns: u64) -> TraceInfo {
        let spent = TraceSpent { total_ns, ..TraceSpent::default() };
        TraceInfo { kind: TraceKind::Turn, poller: 0, ended_unix_ms: 0, work: None, spent }
    }

    fn times(log: &SlowLog) -> Vec<u64> {
        log.events().iter().map(|event| event.spent.total_ns).collect()
    }

    #[test]
    fn a_storm_leaves_the_slowest_of_the_minutes_before_it() {
        let mut log = SlowLog::default();
        (1..=20).for_each(|ns| log.add_at(0, event(ns)));
        assert_eq!(times(&log), (1..=20).collect::<Vec<_>>(), "all of them are kept");
        let storm = 10 * LAST_MAX as u64;
        (0..storm).for_each(|ns| log.add_at(30, event(1000 + ns)));
        let all = times(&log);
        let mut of_first: Vec<_> = all.iter().copied().filter(|ns| *ns <= 20).collect();
        of_first.sort_unstable();
        assert_eq!(of_first, (13..=20).collect::<Vec<_>>());
        assert_eq!(all.len(), LAST_MAX + 2 * OF_MINUTE_MAX);
        assert_eq!(log.forgotten() + all.len() as u64, 20 + storm);
        assert_eq!(all.last(), Some(&(1000 + storm - 1)), "the last one is the last");
    }

    #[test]
    fn it_is_of_fixed_size_and_keeps_an_hour() {
        let mut log = SlowLog::default();
        for minute in 0..200 {
            (0..600).for_each(|ns| log.add_at(minute, event(minute * 1000 + ns)));
        }
        let all = times(&log);
        assert!(all.len() <= LAST_MAX + MINUTES_MAX * OF_MINUTE_MAX, "{}", all.len());
        let oldest = all[0] / 1000;
        assert!((138..=141).contains(&oldest), "the oldest is of minute {oldest} of 200");
        assert_eq!(log.forgotten() + all.len() as u64, 200 * 600);
    }
}
