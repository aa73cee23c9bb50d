//! Which segment goes next, and for which pool.
//!
//! The coldest one of a pool, whichever it is. Segments of a pool go in the order of epochs while
//! recovery goes on, while its ledger is nearly full, and while drops take much of it.

use crate::core::{Core, Knowledge};
use crate::holds::Holds;
use crate::segments::{SegmentState, bits};

/// Sixteenths of a segment that drops may take to be written again.
const DROPS_SIXTEENTHS: u64 = 1;
/// Bytes that a drop takes when it is written again.
const DROP_BYTES: u64 = 64;
/// A pool with more drops than one in this number of its bytes is reclaimed in order.
const DROPS_SHARE: u64 = 64;
/// Ranges that one victim adds to its pool's ledger at most: its drops, and gaps.
const RANGES: usize = 16;

/// Whether another segment could go instead of the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VictimChoice {
    Coldest,
    /// None: all others were passed over.
    LastOfAll,
    /// None: it must go before others do, however much of it is held.
    Ordered,
}

/// Whether a pool's segments go in the order of their epochs.
fn is_in_order(core: &Core, pool: u8) -> bool {
    let drops = core.segments.drops_of(pool) * DROP_BYTES * DROPS_SHARE;
    let bytes = u64::from(core.segments.held(pool)) * core.geometry().segment_bytes;
    core.recovery.knowledge == Knowledge::Partial
        || !core.ledger(pool).has_room(RANGES)
        || core.segments.has_dead()
        || drops > bytes
}

/// Whether a segment is the one of its pool that may go at any time: nothing is older.
pub(crate) fn is_oldest(core: &Core, segment: u32) -> bool {
    core.segments.oldest(core.segments.pool(segment)) == Some(segment)
}

/// Whether a segment of a pool can be reclaimed now.
fn can_go(core: &Core, pool: u8) -> bool {
    if !is_in_order(core, pool) {
        return core.segments.sealed(pool) > 0;
    }
    let Some(oldest) = core.segments.oldest(pool) else { return false };
    match core.segments.state(oldest) {
        // After a restart nothing is known of its hits: nothing of it would move.
        SegmentState::Unread => core.recovery.may_evict_unread,
        SegmentState::Sealed => {
            let whole = core.recovery.knowledge == Knowledge::Whole;
            core.segments.live(oldest) == 0 || whole
        }
        _ => false,
    }
}

/// The next victim of a pool; `None`: not known before the next survey.
pub(crate) fn next(core: &mut Core, pool: u8) -> Option<(u32, VictimChoice)> {
    let ordered = |segment| (segment, VictimChoice::Ordered);
    if is_in_order(core, pool) {
        return core.segments.oldest(pool).map(ordered);
    }
    if let Some(stale) = core.segments.stale(pool) {
        return Some(ordered(stale));
    }
    let coldest = core.worth.coldest(pool, &core.segments, core.now().ns)?;
    let (from, to) = core.segments.drops(coldest);
    let most = core.geometry().segment_bytes / 16 * DROPS_SIXTEENTHS;
    let few = is_oldest(core, coldest) || (to - from) * DROP_BYTES <= most;
    let oldest = core.segments.oldest(pool);
    let sealed = oldest.filter(|segment| core.segments.state(*segment) == SegmentState::Sealed);
    let spared = core.segments.spared(coldest, core.now().ns);
    let choice = if spared.is_some() { VictimChoice::LastOfAll } else { VictimChoice::Coldest };
    if few { Some((coldest, choice)) } else { sealed.map(ordered) }
}

/// Whether a pool can do with a segment less: what is held in it is below the limit then, too.
fn can_give(core: &Core, holds: &Holds, pool: u8) -> bool {
    can_go(core, pool) && holds.bytes(pool) <= core.holdable(pool, 1)
}

/// The pool that a segment is taken from, and the pool that it is taken for.
pub(crate) fn victim(core: &Core, holds: &Holds, last: u8) -> Option<(u8, u8)> {
    let can_go = |pool: u8| can_go(core, pool);
    let wanted = core.segments.wanted();
    // Those behind the last one first, so that each has its turn.
    let behind = wanted.rotate_right(u32::from(last) + 1);
    let takers = bits(behind).map(|bit| (bit + last + 1) % 16);
    for taker in takers {
        let can_give = |pool: u8| {
            if pool == taker { can_go(pool) } else { can_give(core, holds, pool) }
        };
        if core.segments.is_short(taker)
            && let Some(pool) = core.segments.donor(taker, can_give)
        {
            return Some((pool, taker));
        }
    }
    let mut over = bits(core.segments.holding()).filter(|pool| core.segments.is_over(*pool));
    let over = over.find(|pool| can_give(core, holds, *pool)).map(|pool| (pool, pool));
    over.or_else(|| {
        let capacity = core.index.capacity();
        let dense = |pool: u8| can_go(pool) && core.segments.is_dense(pool, capacity);
        let find = || core.segments.densest(dense).or_else(|| core.segments.densest(can_go));
        let found = core.index.is_crowded().then(find);
        found.flatten().map(|pool| (pool, pool))
    })
}

/// A segment of a pool that cannot be trusted and that no entry points to. A segment with
/// unreadable drops stays until no older segment is left.
pub(crate) fn dead(core: &Core, pool: u8) -> Option<u32> {
    core.segments.find(pool, |segment| {
        let (from, to) = core.segments.drops(segment);
        core.segments.state(segment) == SegmentState::Dead
            && core.segments.live(segment) == 0
            && (from == to || is_oldest(core, segment))
    })
}
