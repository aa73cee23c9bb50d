//! Counters of one member of a store, and of its pools.

use serde::{Deserialize, Serialize};

use crate::{Definition, Figure};

counters! {
    /// Counters of a store since its start.
    StoreCounters {
        hits: Counter, "kvrail_store_hits",
            "Gets that found their block; those that a memory tier serves are not among them.";
        misses: Sum, "kvrail_store_misses",
            "Gets that did not find their block. absent: the block was never put, or is gone.";
        misses_absent: Part("absent"), "kvrail_store_misses",
            "Gets of blocks that were never put, or are gone.";
        misses_recovering: Part("recovering"), "kvrail_store_misses",
            "Gets before recovery had read everything: the block may yet turn up.";
        misses_pending: Part("pending"), "kvrail_store_misses",
            "Gets of blocks that were just being put, or were dropped during recovery.";
        misses_distrusted: Part("distrusted"), "kvrail_store_misses",
            "Gets of blocks in segments that are not trusted.";
        misses_other_length: Part("other_length"), "kvrail_store_misses",
            "Gets with less memory than the block is long.";
        lookup_hits: Counter, "kvrail_store_lookup_hits", "Keys that lookups found.";
        lookup_misses: Sum, "kvrail_store_lookup_misses",
            "Keys that lookups did not find, by reason as misses.";
        lookup_misses_absent: Part("absent"), "kvrail_store_lookup_misses",
            "Keys of blocks that were never put, or are gone.";
        lookup_misses_recovering: Part("recovering"), "kvrail_store_lookup_misses",
            "Keys before recovery had read everything: the block may yet turn up.";
        lookup_misses_pending: Part("pending"), "kvrail_store_lookup_misses",
            "Keys of blocks that were just being put, or were dropped during recovery.";
        lookup_misses_distrusted: Part("distrusted"), "kvrail_store_lookup_misses",
            "Keys of blocks in segments that are not trusted.";
        absent_estimated: Sum, "kvrail_store_absent_estimated",
            "Absent keys of gets and lookups, by why they are gone: an estimate from a sample.";
        absent_estimated_unknown: Part("unknown"), "kvrail_store_absent_estimated",
            "Keys never put since the start, cleared with their namespace, or forgotten.";
        absent_estimated_evicted: Part("evicted"), "kvrail_store_absent_estimated",
            "Keys of blocks that were evicted: more capacity would have kept some.";
        absent_estimated_expired: Part("expired"), "kvrail_store_absent_estimated",
            "Keys of blocks evicted after the end of their hint.";
        absent_estimated_dropped: Part("dropped"), "kvrail_store_absent_estimated",
            "Keys that a client dropped.";
        absent_estimated_damaged: Part("damaged"), "kvrail_store_absent_estimated",
            "Keys of blocks that were dropped because their bytes were wrong.";
        absent_estimated_lost: Part("lost"), "kvrail_store_absent_estimated",
            "Keys of blocks in segments that could not be trusted.";
        absent_estimated_budget: Part("budget"), "kvrail_store_absent_estimated",
            "Keys whose put was declined: little or none of the write budget was left.";
        absent_estimated_colder: Part("colder"), "kvrail_store_absent_estimated",
            "Keys whose put was declined: the blocks that are there are used too often.";
        absent_estimated_declined: Part("declined"), "kvrail_store_absent_estimated",
            "Keys whose put was declined for another reason.";
        puts: Counter, "kvrail_store_puts", "Blocks put.";
        put_bytes: Counter, "kvrail_store_put_bytes", "Bytes of blocks put.";
        present: Counter, "kvrail_store_puts_present",
            "Puts of keys that were there: nothing was written.";
        pending: Counter, "kvrail_store_puts_pending",
            "Puts of keys that another put was just writing.";
        abandoned: Counter, "kvrail_store_puts_abandoned",
            "Puts given up before they were complete.";
        declined: Sum, "kvrail_store_declines",
            "Puts and drops that were declined. colder: puts of new chains that found no room.";
        declined_colder: Part("colder"), "kvrail_store_declines",
            "Puts of new chains, while the blocks that are there are used too often to evict.";
        declined_first_sight: Part("first_sight"), "kvrail_store_declines",
            "Puts of blocks not seen before, while little of the write budget is left.";
        declined_budget: Part("budget"), "kvrail_store_declines",
            "Puts while none of the write budget is left.";
        declined_index_full: Part("index_full"), "kvrail_store_declines",
            "Puts that found no entry of the index free.";
        declined_broken: Part("broken"), "kvrail_store_declines",
            "Puts and drops after a write of the store's own had failed.";
        declined_refused: Part("refused"), "kvrail_store_declines",
            "Puts and drops while the drive refuses writes.";
        declined_busy: Part("busy"), "kvrail_store_declines",
            "Puts and drops that found no place in the store's tables.";
        drops: Counter, "kvrail_store_drops", "Keys dropped that were there.";
        evicted: Counter, "kvrail_store_evictions", "Blocks evicted.";
        holds_broken: Counter, "kvrail_store_holds_broken",
            "Blocks evicted although they were held.";
        holds_refused: Counter, "kvrail_store_holds_refused",
            "Holds not granted, because more of the store would be held than may be.";
        hints_refused: Counter, "kvrail_store_hints_refused",
            "Hints without room: ends above their number, worth above a quarter of the pool.";
        demoted: Counter, "kvrail_store_demotions",
            "Blocks that lookups made to go first, as of a session that has ended.";
        moved: Counter, "kvrail_store_moves",
            "Blocks moved out of segments that were reclaimed.";
        moved_bytes: Counter, "kvrail_store_moved_bytes", "Bytes of blocks moved.";
        reclaimed: Counter, "kvrail_store_segments_reclaimed", "Segments reclaimed.";
        pages: Counter, "kvrail_store_pages_written", "Pages of records written.";
        written_bytes: Counter, "kvrail_store_written_bytes",
            "Bytes given to the drive in all. Divided by the bytes put: write amplification.";
        failures: Counter, "kvrail_store_failures", "Reads, writes and flushes that failed.";
        refusals: Counter, "kvrail_store_write_refusals",
            "Times that the drive began to refuse writes.";
        recovered: Counter, "kvrail_store_records_recovered", "Records read back at start.";
        distrusted: Counter, "kvrail_store_segments_distrusted",
            "Segments dropped at start because records of drops were missing.";
        suspects: Counter, "kvrail_store_suspects", "Blocks that readers reported as wrong.";
    }
}

counters! {
    /// Counters that the poller of a store keeps for it.
    ServingCounters {
        misses_drive_gone: Part("drive_gone"), "kvrail_store_misses",
            "Gets of a member whose drive is gone: they did not reach the store.";
        lookup_misses_drive_gone: Part("drive_gone"), "kvrail_store_lookup_misses",
            "Keys of a member whose drive is gone: their lookups did not reach the store.";
        verified_good: Counter, "kvrail_store_suspects_verified_good",
            "Reported blocks that the sidecar read again and found right.";
        ignored: Counter, "kvrail_store_suspects_ignored",
            "Reports of clients that may not write: counted, and not looked at.";
        corrupt: Counter, "kvrail_store_blocks_corrupt",
            "Reported blocks that were wrong on the drive and were dropped.";
        tier_blocks: Gauge, "kvrail_store_tier_blocks", "Blocks in the memory tier.";
        tier_bytes: Gauge, "kvrail_store_tier_used_bytes",
            "Bytes of the memory tier that blocks take, in whole pages.";
        tier_bytes_max: Gauge, "kvrail_store_tier_size_bytes",
            "Bytes of the memory tier; 0: there is none.";
        tier_fills: Counter, "kvrail_store_tier_fills",
            "Blocks that came into the memory tier, each by a further read of the drive.";
        tier_evictions: Counter, "kvrail_store_tier_evictions",
            "Blocks that left the memory tier for others.";
        tier_refused: Counter, "kvrail_store_tier_refused",
            "Blocks that found no room in the memory tier.";
        tier_wrong: Counter, "kvrail_store_tier_wrong",
            "Blocks that left the memory tier because a reader found them wrong there.";
        late_blocks: Gauge, "kvrail_store_late_blocks",
            "Blocks in the memory tier that are not on the drive.";
        late_bytes: Gauge, "kvrail_store_late_bytes",
            "Their bytes, in whole pages: a kill loses them, and a stop writes them first.";
        late_puts: Counter, "kvrail_store_late_puts",
            "Puts that were acknowledged from the memory tier.";
        late_written: Counter, "kvrail_store_late_written",
            "Blocks that were put into the memory tier and written later.";
        late_dropped: Counter, "kvrail_store_late_dropped",
            "Blocks that were put into the memory tier and left it without being written.";
        late_dropped_bytes: Counter, "kvrail_store_late_dropped_bytes",
            "Their bytes, in whole pages: never written.";
        budget_bytes_per_day: Gauge, "kvrail_store_write_budget_bytes_per_day",
            "Bytes that may be written in 24 hours; 0: no limit.";
        write_tokens: Gauge, "kvrail_store_write_tokens_bytes",
            "Bytes that may be written at once, of the write budget.";
        requests: Gauge, "kvrail_store_requests",
            "Requests of clients that are not answered yet.";
        parked: Gauge, "kvrail_store_requests_parked",
            "Requests that wait for room in the store's tables.";
    }
}

counters! {
    /// Counters of a pool of one member.
    PoolCounters {
        puts: Counter, "kvrail_store_pool_puts", "Blocks put into the pool.";
        put_bytes: Counter, "kvrail_store_pool_put_bytes", "Bytes of blocks put into the pool.";
        declined: Counter, "kvrail_store_pool_declines", "Puts into the pool that were declined.";
        hits: Counter, "kvrail_store_pool_hits",
            "Gets from the pool that found their block on the drive.";
        misses: Counter, "kvrail_store_pool_misses",
            "Gets from the pool that reached the store and found no block.";
        evicted: Counter, "kvrail_store_pool_evictions", "Blocks of the pool evicted.";
        moved: Counter, "kvrail_store_pool_moves",
            "Blocks of the pool moved out of segments that were reclaimed.";
        reclaimed: Counter, "kvrail_store_pool_segments_reclaimed",
            "Segments of the pool reclaimed.";
        given: Counter, "kvrail_store_pool_segments_given",
            "Segments reclaimed that went to another pool.";
        write_tokens: Gauge, "kvrail_store_pool_write_tokens_bytes",
            "Bytes that may be written into the pool at once, of the write budget.";
        retained_bytes: Gauge, "kvrail_store_pool_retained_bytes",
            "Bytes of the pool's blocks that are worth more than others; a quarter of it at most.";
        ends: Gauge, "kvrail_store_pool_ends",
            "Blocks of the pool with a noted end of their time to live.";
        tier_blocks: Gauge, "kvrail_store_pool_tier_blocks",
            "Blocks of the pool's namespaces in the memory tier.";
        tier_bytes: Gauge, "kvrail_store_pool_tier_used_bytes",
            "Bytes of the memory tier that they take, in whole pages.";
        tier_ages_s: Gauge, "kvrail_store_pool_tier_ages_seconds",
            "How long they have been there, added up. Divided by their number: the mean age.";
        late_blocks: Gauge, "kvrail_store_pool_late_blocks",
            "Those of them that are not on the drive.";
        late_dropped_bytes: Counter, "kvrail_store_pool_late_dropped_bytes",
            "Bytes of the pool's late blocks that left the memory tier unwritten, in whole pages.";
    }
}

/// All counters of one member of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "T: Figure"))]
pub struct MemberCounters<T> {
    /// Those of the store.
    #[serde(flatten)]
    pub store: StoreCounters<T>,
    /// Those of the poller that serves it.
    #[serde(flatten)]
    pub serving: ServingCounters<T>,
}

impl<T> MemberCounters<T> {
    /// Each counter with its definition.
    pub fn each(&self) -> impl Iterator<Item = (&'static Definition, &T)> {
        self.store.each().chain(self.serving.each())
    }

    /// The same counters, each made of this one.
    pub fn map<U>(&self, of: impl Fn(&T) -> U) -> MemberCounters<U> {
        MemberCounters { store: self.store.map(&of), serving: self.serving.map(&of) }
    }
}

impl MemberCounters<Option<u64>> {
    /// Adds the counters that the other has.
    pub fn add(&mut self, other: &Self) {
        self.store.add(&other.store);
        self.serving.add(&other.serving);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{MemberCounters, PoolCounters, ServingCounters, StoreCounters};
    use crate::{
        Definition, DeviceCounters, GpuCounters, MetricKind, PollerCounters, SessionCounters,
        SidecarCounters,
    };

    #[test]
    fn names_and_metrics_are_one_counter_s() {
        let member = [&StoreCounters::TABLE[..], &ServingCounters::TABLE].concat();
        let tables: [&[Definition]; 7] = [
            &member,
            &PoolCounters::TABLE,
            &PollerCounters::TABLE,
            &DeviceCounters::TABLE,
            &SessionCounters::TABLE,
            &GpuCounters::TABLE,
            &SidecarCounters::TABLE,
        ];
        for table in tables {
            let names: BTreeSet<_> = table.iter().map(|counter| counter.name).collect();
            assert_eq!(names.len(), table.len());
            let is_part = |counter: &&Definition| matches!(counter.kind, MetricKind::Part(_));
            let metrics =
                table.iter().filter(|counter| !is_part(counter)).map(|counter| counter.metric);
            let metrics: BTreeSet<_> = metrics.collect();
            assert_eq!(metrics.len(), table.iter().filter(|counter| !is_part(counter)).count());
            for part in table.iter().filter(is_part) {
                let of = |counter: &&Definition| {
                    counter.kind == MetricKind::Sum && counter.metric == part.metric
                };
                let sum = table.iter().find(of).expect("a part has a sum");
                let MetricKind::Part(reason) = part.kind else { unreachable!("parts only") };
                assert_eq!(part.name, format!("{}_{reason}", sum.name));
            }
        }
    }

    #[test]
    fn a_counter_that_was_not_sent_is_missing_and_stays_so() {
        let sent = r#"{"hits": 7, "corrupt": 0, "of_a_later_release": 1}"#;
        let mut read: MemberCounters<Option<u64>> = serde_json::from_str(sent).unwrap();
        assert_eq!((read.store.hits, read.store.puts), (Some(7), None));
        assert_eq!((read.serving.corrupt, read.serving.ignored), (Some(0), None));
        let text = serde_json::to_string(&read).unwrap();
        assert_eq!(text, r#"{"hits":7,"corrupt":0}"#);
        read.add(&read.clone());
        assert_eq!((read.store.hits, read.serving.ignored), (Some(14), None));
    }
}
