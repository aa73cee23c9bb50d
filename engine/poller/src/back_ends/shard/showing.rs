//! What a shard shows of itself: its phase and its counters.

use kvrail_counters::ServingCounters;
use kvrail_store::{Budget, Phase};

use super::Shard;
use crate::stats::{StoreStats, show_all};

impl Shard {
    /// Shows its counters, now and then.
    pub(crate) fn show(&mut self, stats: &StoreStats, now_ns: u64) {
        if !self.pulse.take_show(now_ns) {
            return;
        }
        let phase = match self.phase() {
            _ if self.is_gone() => 5,
            Phase::Starting => 1,
            Phase::Warming => 2,
            Phase::Serving => 3,
            Phase::Failed(_) => 4,
        };
        stats.phase.set(phase);
        stats.show(self.store.stats());
        stats.refused.set(self.store.refusal().map_or(0, u64::from));
        let budget = match self.store.budget() {
            Budget::Unlimited => 0,
            // A budget of nothing is one.
            Budget::BytesPerDay(bytes) => bytes.max(1),
        };
        let tier = self.tier.as_ref().map(|tier| tier.usage()).unwrap_or_default();
        let counters = ServingCounters {
            tier_blocks: tier.blocks,
            tier_bytes: tier.bytes,
            tier_bytes_max: tier.bytes_max,
            tier_fills: tier.counts.filled,
            tier_evictions: tier.counts.evicted,
            tier_refused: tier.counts.refused,
            tier_wrong: tier.counts.wrong,
            late_blocks: tier.unwritten.0,
            late_bytes: tier.unwritten.1,
            late_puts: tier.counts.late,
            late_written: tier.counts.late_written,
            late_dropped: tier.counts.late_dropped,
            late_dropped_bytes: tier.late_dropped_bytes,
            misses_drive_gone: self.gone_gets,
            lookup_misses_drive_gone: self.gone_keys,
            budget_bytes_per_day: budget,
            write_tokens: u64::try_from(self.store.write_tokens()).unwrap_or(0),
            requests: self.requests().into(),
            parked: self.lines.count() as u64,
            ..self.suspects.counts()
        };
        show_all(stats.counters.serving.each(), counters.each());
        let pools = self.tier.as_mut().map(|tier| *tier.by_pool(&self.store, now_ns));
        stats.show_pools(&self.store, &pools.unwrap_or_default());
        stats.entries.set(self.store.entries());
        stats.bytes.set(self.store.bytes());
        stats.holds.set(self.store.holds().into());
        let (namespaces, namespaces_max) = self.store.namespaces();
        stats.namespaces[0].set(namespaces.into());
        stats.namespaces[1].set(namespaces_max.into());
        stats.oldest.set(self.store.oldest().unwrap_or(0).into());
        self.map.step(&self.store, &stats.map);
    }
}
