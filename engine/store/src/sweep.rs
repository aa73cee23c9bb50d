//! The walk over the index that removes entries without a valid record: blocks of cleared
//! namespaces, blocks of segments whose pages cannot be read, and tombstones of recovery. It also
//! caps ages before they exceed the range of a stamp.

use crate::core::{Core, Knowledge};
use crate::entry::{Entry, Kind};
use crate::worth::AGE_MAX;
use crate::writes::Writes;

/// Ticks from one walk to the next: ages stay far below the range of a stamp.
const TICKS: u64 = AGE_MAX / 2;

/// A walk in steps. An insertion may displace an entry into a part that was walked already; then
/// what called for the walk is still there at its end, and it begins again.
#[derive(Debug, Default)]
pub(crate) struct IndexSweep {
    at: u64,
    remaining: u64,
    /// The tick in which the last walk began.
    tick: u64,
}

impl IndexSweep {
    fn is_needed(&self, core: &Core) -> bool {
        let old = core.worth.clock.tick() > self.tick + TICKS;
        let dead = core.segments.has_dead() && core.segments.has_dead_entries();
        let dropped = core.recovery.knowledge == Knowledge::Whole && core.recovery.dropped > 0;
        dead || dropped || old || core.spaces.has_retired()
    }

    fn is_dead(core: &Core, entry: &Entry) -> bool {
        match entry.kind() {
            Kind::Writing => false,
            Kind::Dropped => {
                core.recovery.knowledge == Knowledge::Whole || !core.spaces.is_open(entry.number())
            }
            Kind::Live | Kind::Suspect => {
                !core.spaces.is_open(entry.number()) || core.is_lost(entry)
            }
        }
    }

    /// Whether a walk goes on.
    pub(crate) fn is_walking(&self) -> bool {
        self.remaining > 0
    }

    /// Looks at that many buckets.
    pub(crate) fn step(&mut self, core: &mut Core, writes: &Writes, budget: u32) {
        if self.remaining == 0 {
            if !self.is_needed(core) {
                return;
            }
            self.tick = core.worth.clock.tick();
            self.remaining = core.index.len();
        }
        let count = self.remaining.min(budget.into());
        for _ in 0..count {
            for (position, entry) in core.index.bucket(self.at) {
                if Self::is_dead(core, &entry) {
                    core.remove_lost(position, &entry);
                } else if entry.is_there() && core.worth.clock.age(entry.stamp()) > AGE_MAX {
                    let segment = core.geometry().segment_of(entry.place());
                    core.set_age(position, &entry, segment, AGE_MAX);
                }
            }
            self.at = (self.at + 1) % core.index.len();
        }
        self.remaining -= count;
        if self.remaining == 0 && core.spaces.has_retired() {
            core.spaces.swept(|number| writes.uses(number));
        }
    }
}
