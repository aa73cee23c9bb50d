//! Counters of a store.

use kvrail_counters::{PoolCounters, StoreCounters};

use crate::request::DeclineReason;

/// Counters since the start.
pub type Stats = StoreCounters<u64>;

/// Counters of a pool since the start.
pub type PoolStats = PoolCounters<u64>;

/// Counts a put or drop that is declined.
pub(crate) fn count_decline(stats: &mut Stats, why: DeclineReason) {
    stats.declined += 1;
    let counter = match why {
        DeclineReason::FirstSight => &mut stats.declined_first_sight,
        DeclineReason::Colder => &mut stats.declined_colder,
        DeclineReason::Budget => &mut stats.declined_budget,
        DeclineReason::IndexFull => &mut stats.declined_index_full,
        DeclineReason::Broken => &mut stats.declined_broken,
        DeclineReason::Refused => &mut stats.declined_refused,
        // A store that is starting counts nothing yet.
        DeclineReason::Busy | DeclineReason::Starting => &mut stats.declined_busy,
    };
    *counter += 1;
}
