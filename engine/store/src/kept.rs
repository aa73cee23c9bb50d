//! Records of drops in a reclaimed segment that recovery still needs.

use crate::core::Core;
use crate::format::{Record, RecordKind};
use crate::log::Log;

/// The account of one victim's drops.
#[derive(Debug, Default)]
pub(crate) struct VictimDrops {
    victim: u32,
    /// Drops seen so far.
    drops: u64,
    /// Gaps for which the ledger had no room, and drops without space for their records.
    lost: u64,
    /// Serial of the last page with a drop that was written again.
    serial: u64,
}

impl VictimDrops {
    /// Another victim; its serial goes on.
    pub(crate) fn begin(&mut self, victim: u32) {
        *self = Self { victim, serial: self.serial, ..Self::default() };
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Preserves the effect of a record on drops. `false`: no space or page is available now.
    pub(crate) fn keep(&mut self, core: &mut Core, log: &mut Log, record: &Record) -> bool {
        let pool = core.segments.pool(self.victim);
        match record.kind {
            RecordKind::Put => {}
            RecordKind::Drop => {
                if core.needs_drop(self.victim, record.check) {
                    let serial = log.append_plain(core, pool, record, false);
                    let Some(serial) = serial else { return false };
                    self.serial = self.serial.max(serial);
                }
                self.drops += 1;
            }
            RecordKind::Gap => {
                let ledger = core.ledger_mut(pool);
                self.lost += u64::from(!ledger.add(record.key.lo(), record.key.hi()));
            }
        }
        true
    }

    /// The record that could not be preserved never will be: the pool gets no segment. The victim
    /// stays until no older segment needs its drops.
    pub(crate) fn lose(&mut self) {
        self.lost += 1;
    }

    /// Enters the victim's drops into the ledger, if all of them were seen: those of a page that
    /// cannot be read may be needed.
    pub(crate) fn account(&self, core: &mut Core) {
        let (from, to) = core.segments.drops(self.victim);
        let all = self.lost == 0 && self.drops == to - from;
        let pool = core.segments.pool(self.victim);
        if all && core.ledger_mut(pool).add(from, to) {
            core.segments.set_drops(self.victim, (to, to));
        }
    }
}
