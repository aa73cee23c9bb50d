//! The rates between two reports, and the user's choice of view.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use kvrail_counters::{PoolCounters, StoreCounters};
use kvrail_protocol::{CallLatencyReport, DeviceReport, SessionReport, StatusReport};

use super::terminal::TerminalKey;
use crate::command::status::StatusDetail;

/// Lines that a Page key moves by.
const PAGE: usize = 20;

/// The order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SortOrder {
    /// Number.
    #[default]
    Number,
    /// Bytes a second.
    Rate,
    /// Latency; of sessions, requests a second.
    Latency,
    /// Requests that wait; of sessions, memory.
    Waiting,
}

impl SortOrder {
    const ALL: [Self; 4] = [Self::Number, Self::Rate, Self::Latency, Self::Waiting];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Rate => "rate",
            Self::Latency => "latency",
            Self::Waiting => "waiting",
        }
    }

    fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }
}

/// The user's choice of view.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) order: SortOrder,
    reverse: bool,
    pub(super) detail: StatusDetail,
    /// Whether reasons and notes are shown.
    pub(super) why: bool,
    paused: bool,
    /// Lines that are above the frame.
    pub(super) scroll: usize,
}

impl Default for View {
    fn default() -> Self {
        Self {
            order: SortOrder::Number,
            reverse: false,
            detail: StatusDetail::Screen,
            why: false,
            paused: false,
            scroll: 0,
        }
    }
}

impl View {
    /// Executes a key's command; false for the command to end.
    pub(super) fn take(&mut self, key: TerminalKey) -> bool {
        match key {
            TerminalKey::Char('q') | TerminalKey::End => return false,
            TerminalKey::Char('s') => self.order = self.order.next(),
            TerminalKey::Char('r') => self.reverse = !self.reverse,
            TerminalKey::Char('w') => self.why = !self.why,
            TerminalKey::Char('p') => self.paused = !self.paused,
            TerminalKey::Char('e') => {
                self.detail = match self.detail {
                    StatusDetail::Screen => StatusDetail::Verbose,
                    StatusDetail::Verbose => StatusDetail::Screen,
                }
            }
            TerminalKey::Down => self.scroll = self.scroll.saturating_add(1),
            TerminalKey::Up => self.scroll = self.scroll.saturating_sub(1),
            TerminalKey::PageDown => self.scroll = self.scroll.saturating_add(PAGE),
            TerminalKey::PageUp => self.scroll = self.scroll.saturating_sub(PAGE),
            TerminalKey::Home => self.scroll = 0,
            TerminalKey::Char(_) => {}
        }
        true
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// The rows in this order: the most first, but numbers from the least.
    pub(super) fn sort<T>(&self, rows: &mut [T], key: impl Fn(&T, SortOrder) -> u64) {
        rows.sort_by(|one, other| {
            let by = key(one, self.order).cmp(&key(other, self.order));
            let falls = (self.order == SortOrder::Number) == self.reverse;
            if falls { by.reverse() } else { by }.then(Ordering::Equal)
        });
    }
}

/// A device, and what it did a second.
#[derive(Clone, Debug)]
pub(super) struct DeviceRate {
    pub(super) it: DeviceReport,
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    pub(super) writes: u64,
    pub(super) written_bytes: u64,
}

/// A session, and what it did a second, where the sidecar counts that.
#[derive(Clone, Debug)]
pub(super) struct SessionRate {
    pub(super) it: SessionReport,
    pub(super) requests: Option<u64>,
    pub(super) bytes: Option<u64>,
}

/// A pool of a store on all members: what happened in a second, and what it has in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PoolRate {
    pub(super) store: String,
    pub(super) pool: String,
    pub(super) memory_hits: u64,
    /// Gets are rates.
    pub(super) counters: PoolCounters<Option<u64>>,
}

impl PoolRate {
    /// All pools with what was counted since the start.
    fn counted(report: &StatusReport) -> BTreeMap<(&str, &str), Self> {
        let mut all: BTreeMap<(&str, &str), Self> = BTreeMap::new();
        for shard in &report.shards {
            for pool in &shard.pools {
                let sum = all.entry((&shard.store, &pool.name)).or_default();
                sum.counters.add(&pool.counters);
            }
        }
        for of in report.memory_hits.iter().flatten() {
            all.entry((&of.store, &of.pool)).or_default().memory_hits = of.hits;
        }
        all
    }

    /// How long its blocks have been in memory, in the mean.
    pub(super) fn mean_age_s(&self) -> Option<u64> {
        self.counters.tier_ages_s?.checked_div(self.counters.tier_blocks?)
    }
}

/// The rates between two reports of one sidecar, a second.
#[derive(Clone, Debug)]
pub(super) struct Happened {
    pub(super) devices: Vec<DeviceRate>,
    pub(super) sessions: Vec<SessionRate>,
    pub(super) pools: Vec<PoolRate>,
    /// Calls that have ended between the two.
    pub(super) calls: Vec<CallLatencyReport>,
    /// Gets of all stores that found their block, those in memory too.
    pub(super) hits: u64,
    /// Of them, those that memory tiers served.
    pub(super) memory_hits: u64,
    /// Gets that did not, and keys that lookups did not find.
    pub(super) misses: u64,
}

impl Happened {
    /// By the sidecar's monotonic clock, so that a changed system clock does not show here.
    pub(super) fn between(before: &StatusReport, now: &StatusReport) -> Self {
        // A restarted sidecar counts from 0.
        let same = before.sidecar.epoch == now.sidecar.epoch;
        let passed_ms = now.sidecar.uptime_ms.saturating_sub(before.sidecar.uptime_ms);
        let per = |now: u64, before: Option<u64>| match before.filter(|_| same && passed_ms > 0) {
            Some(before) => now.saturating_sub(before) * 1000 / passed_ms,
            None => 0,
        };
        let device = |it: &DeviceReport| {
            let was = before.devices.iter().find(|was| was.index == it.index);
            let rate = |of: fn(&DeviceReport) -> u64| per(of(it), was.map(of));
            DeviceRate {
                reads: rate(|device| device.reads.operations),
                read_bytes: rate(|device| device.reads.bytes),
                writes: rate(|device| device.writes.operations),
                written_bytes: rate(|device| device.writes.bytes),
                it: it.clone(),
            }
        };
        let session = |it: &SessionReport| {
            let was = before.sessions.iter().find(|was| was.id == it.id);
            let rate = |of: fn(&SessionReport) -> Option<u64>| Some(per(of(it)?, was.and_then(of)));
            SessionRate {
                requests: rate(|session| session.counters.completed),
                bytes: rate(|session| session.counters.bytes),
                it: it.clone(),
            }
        };
        let call = |it: &CallLatencyReport| {
            let mut was = before.calls.iter().filter(|_| same);
            let was = was.find(|was| (&was.operation, &was.size) == (&it.operation, &it.size));
            let latency = was.map_or(it.latency.clone(), |was| it.latency.since(&was.latency));
            CallLatencyReport { latency, ..it.clone() }
        };
        let were = PoolRate::counted(before);
        let pools = PoolRate::counted(now).into_iter().map(|((store, pool), counted)| {
            let was = were.get(&(store, pool));
            let rate = |of: fn(&PoolRate) -> u64| per(of(&counted), was.map(of));
            let gets =
                |of: fn(&PoolRate) -> Option<u64>| Some(per(of(&counted)?, was.and_then(of)));
            let counters = PoolCounters {
                hits: gets(|pool| pool.counters.hits),
                misses: gets(|pool| pool.counters.misses),
                ..counted.counters
            };
            let memory_hits = rate(|pool| pool.memory_hits);
            PoolRate { store: store.to_owned(), pool: pool.to_owned(), memory_hits, counters }
        });
        let pools = pools.collect();
        let memory_hits = per(now.memory_hits(), Some(before.memory_hits()));
        let gets = |of: Of| per(counted(now, of), Some(counted(before, of)));
        Self {
            devices: now.devices.iter().map(device).collect(),
            sessions: now.sessions.iter().map(session).collect(),
            pools,
            calls: now.calls.iter().map(call).collect(),
            hits: gets(|counters| counters.hits) + memory_hits,
            memory_hits,
            misses: gets(|counters| counters.misses) + gets(|counters| counters.lookup_misses),
        }
    }
}

/// A counter of a store.
type Of = fn(&StoreCounters<Option<u64>>) -> Option<u64>;

/// A counter of all members together.
fn counted(report: &StatusReport, of: Of) -> u64 {
    report.shards.iter().filter_map(|shard| of(&shard.counters.store)).sum()
}

#[cfg(test)]
mod tests {
    use kvrail_protocol::{CallLatencyReport, HistogramReport};

    use super::Happened;
    use crate::command::status::report;

    /// What clients copy from memory reaches no store, and is a hit all the same.
    #[test]
    fn a_get_from_memory_is_a_hit() {
        let mut before = report();
        before.sidecar.uptime_ms = 1000;
        before.calls = vec![call("get_from_memory", 10), call("get", 500)];
        let mut now = before.clone();
        now.sidecar.uptime_ms = 3000;
        now.calls = vec![call("get_from_memory", 16), call("get", 900)];
        let rates = Happened::between(&before, &now);
        assert_eq!((rates.hits, rates.memory_hits, rates.misses), (3, 3, 0));
    }

    fn call(operation: &str, count: u64) -> CallLatencyReport {
        let latency = HistogramReport { sum_ns: 1, buckets: vec![(1000, count)] };
        CallLatencyReport { operation: operation.into(), size: "any".into(), latency }
    }

    #[test]
    fn a_counter_that_is_missing_has_no_rate() {
        let mut before = report();
        before.sidecar.uptime_ms = 1000;
        let mut now = before.clone();
        now.sidecar.uptime_ms = 2000;
        now.sessions[0].counters.completed = Some(123_456_789 + 5);
        now.sessions[1].counters.completed = None;
        let rates: Vec<_> = Happened::between(&before, &now).sessions;
        assert_eq!((rates[0].requests, rates[1].requests), (Some(5), None));
        assert_eq!((rates[0].bytes, rates[1].bytes), (Some(0), Some(0)));
    }
}
