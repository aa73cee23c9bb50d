//! What a store counts.

use crate::format::POOLS_MAX;
use crate::pools::PoolStats;
use crate::request::DeclineReason;

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks put.
    pub puts: u64,
    /// Bytes of them.
    pub put_bytes: u64,
    /// Puts of keys that were there.
    pub present: u64,
    /// Puts of keys that were being put.
    pub pending: u64,
    /// Puts that were declined, for whatever reason.
    pub declined: u64,
    /// Those of them declined as `DeclineReason::Colder`.
    pub declined_colder: u64,
    /// Those of them declined as `DeclineReason::FirstSight`.
    pub declined_first_sight: u64,
    /// As `DeclineReason::Budget`.
    pub declined_budget: u64,
    /// As `DeclineReason::IndexFull`.
    pub declined_index_full: u64,
    /// As `DeclineReason::Broken`.
    pub declined_broken: u64,
    /// As `DeclineReason::Refused`.
    pub declined_refused: u64,
    /// As `DeclineReason::Busy`.
    pub declined_busy: u64,
    /// Puts given up before they were complete.
    pub abandoned: u64,
    /// Gets that found their block.
    pub hits: u64,
    /// Gets that did not.
    pub misses: u64,
    /// Those of them while recovery had not read everything: the block may yet turn up.
    pub misses_recovering: u64,
    /// Those of them of a key that was just being put, or dropped.
    pub misses_pending: u64,
    /// Those of them that had less room than the block is long.
    pub misses_other_length: u64,
    /// Keys that lookups found.
    pub lookup_hits: u64,
    /// Keys that lookups did not find.
    pub lookup_misses: u64,
    /// Keys dropped that were there.
    pub drops: u64,
    /// Blocks evicted.
    pub evicted: u64,
    /// Blocks evicted although they were held.
    pub holds_broken: u64,
    /// Holds that were asked for of blocks that were there, and not granted.
    pub holds_refused: u64,
    /// Hints with an end for which there was no room: their blocks are worth no more than others.
    pub hints_refused: u64,
    /// Blocks moved.
    pub moved: u64,
    /// Bytes of them.
    pub moved_bytes: u64,
    /// Segments reclaimed.
    pub reclaimed: u64,
    /// Pages written.
    pub pages: u64,
    /// Bytes written to the medium in all.
    pub written_bytes: u64,
    /// Reads, writes and flushes that failed.
    pub failures: u64,
    /// Times that the drive began to refuse writes.
    pub refusals: u64,
    /// Records read back at the start.
    pub recovered: u64,
    /// Segments whose content was distrusted because records of drops were missing.
    pub distrusted: u64,
    /// Blocks that readers reported.
    pub suspects: u64,
    /// Of each pool, by its number.
    pub pools: [PoolStats; POOLS_MAX],
}

impl Stats {
    /// A put was declined.
    pub(crate) fn decline(&mut self, why: DeclineReason) {
        self.declined += 1;
        let counter = match why {
            DeclineReason::FirstSight => &mut self.declined_first_sight,
            DeclineReason::Colder => &mut self.declined_colder,
            DeclineReason::Budget => &mut self.declined_budget,
            DeclineReason::IndexFull => &mut self.declined_index_full,
            DeclineReason::Broken => &mut self.declined_broken,
            DeclineReason::Refused => &mut self.declined_refused,
            // A store that is starting counts nothing yet.
            DeclineReason::Busy | DeclineReason::Starting => &mut self.declined_busy,
        };
        *counter += 1;
    }
}
