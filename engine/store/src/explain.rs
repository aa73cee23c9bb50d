//! The explanation of a key.

use crate::config::StoreGeometry;
use crate::core::{Core, Knowledge};
use crate::entry::{Entry, Kind};
use crate::hint::WorthClass;
use crate::holds::Holds;
use crate::key::Key;
use crate::reclaim::Reclaim;
use crate::worth::TICKS_OF_STORE;
use crate::writes::Writes;

/// The explanation of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Explained {
    /// The store is not serving: it has not read its heads, or did not start.
    Starting,
    /// No such namespace, or it was cleared since.
    UnknownSpace,
    /// Its block can be got.
    There(ExplainedBlock),
    /// A put of it is in flight.
    Putting {
        /// Bytes of the block.
        length: u32,
        /// Bytes of it that are written.
        written: u32,
    },
    /// Not present: never put, dropped, or evicted. The index does not distinguish these; a
    /// complete copy of the feed of evictions does.
    Absent,
    /// It was dropped, or a put of it was given up, while recovery goes on.
    Dropped,
    /// It may yet turn up: recovery has not seen everything.
    Warming,
    /// Its segment is not trusted: durable drops are missing in or behind it.
    Distrusted,
}

/// A block's entry in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExplainedBlock {
    /// Which segment of the ring it is in.
    pub segment: u32,
    /// The segment's epoch.
    pub epoch: u64,
    /// Seconds since 1970 when the segment was made ready.
    pub opened: u32,
    /// The block's first byte on the area.
    pub offset: u64,
    /// Its bytes.
    pub length: u32,
    /// Its check.
    pub check: u64,
    /// How much it is worth beside others.
    pub class: WorthClass,
    /// Seconds since 1970 when it is worth nothing any more, as far as the table of ends has it.
    pub worth_until: Option<u32>,
    /// How long ago it counts as used: the percentage of the store's bytes used since.
    pub age_percent: u32,
    /// The same for the coldest blocks of its pool, of which some go next; nothing is known before
    /// all segments were looked at.
    pub coldest_percent: Option<u32>,
    /// When its last hold ends, in `Now::ns`.
    pub held_until: Option<u64>,
    /// A reader reported the block as corrupt, and it is not verified yet.
    pub suspect: bool,
    /// Segments of its pool that are reclaimed before its own; 0: its own is the next one, or at
    /// work.
    pub ahead: u32,
    /// Whether reclaim would move it: it was hit or is held. Where more was hit than may move,
    /// those with fewer hits and deeper in their chains are evicted nevertheless.
    pub would_move: bool,
}

impl Explained {
    pub(crate) fn of(core: &Core, writes: &Writes, holds: &Holds, number: u16, key: Key) -> Self {
        let (_, found) = core.find(number, key);
        let Some((_, entry)) = found else {
            return match core.recovery.knowledge {
                Knowledge::Partial => Self::Warming,
                Knowledge::Whole => Self::Absent,
            };
        };
        match entry.kind() {
            Kind::Writing => {
                let written = writes.written(entry.put());
                Self::Putting { length: entry.length(), written }
            }
            _ if core.readable(&entry).is_some() => {
                Self::There(ExplainedBlock::of(core, holds, &entry))
            }
            _ if core.is_unsettled(&entry) => Self::Warming,
            Kind::Dropped => Self::Dropped,
            Kind::Live | Kind::Suspect => Self::Distrusted,
        }
    }
}

/// Ticks of the clock of uses, in percent of the store's bytes.
fn percent(ticks: u64) -> u32 {
    u32::try_from(ticks * 100 / TICKS_OF_STORE).unwrap_or(u32::MAX)
}

impl ExplainedBlock {
    fn of(core: &Core, holds: &Holds, entry: &Entry) -> Self {
        let segment = core.geometry().segment_of(entry.place());
        let pool = core.segments.pool(segment);
        let most = core.admission.age_to_move(pool, core.worth.age_to_move(pool));
        Self {
            segment,
            epoch: core.segments.epoch(segment),
            opened: core.segments.time(segment),
            offset: StoreGeometry::place_at(entry.place()),
            length: entry.length(),
            check: entry.check(),
            class: entry.class(),
            worth_until: core.hint_end(entry),
            age_percent: percent(core.worth.clock.age(entry.stamp())),
            coldest_percent: core.worth.life(pool).map(percent),
            held_until: holds.held_until(entry.number(), entry.lo(), core.now().ns),
            suspect: entry.kind() == Kind::Suspect,
            ahead: core.segments.before(segment),
            would_move: Reclaim::rank(core, holds, entry, entry.lo(), most).is_some(),
        }
    }
}
