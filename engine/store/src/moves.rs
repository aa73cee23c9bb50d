//! Blocks on their way from a victim to the open segment, through cells of the store's buffers.
//!
//! A copied block gets its record when a flush has covered the copy. Otherwise power could fail
//! with the record on stable media and the block only at its old place, where recovery does not
//! look. Moves request a flush when no more moves can begin, so that one flush covers as many as
//! possible.

use kvrail_units::METADATA_BYTES_MAX;

use crate::config::{StoreConfig, StoreGeometry};
use crate::core::Core;
use crate::entry::Entry;
use crate::format::Record;
use crate::log::Log;
use crate::placed::Placed;
use crate::refusal::Try;
use crate::task::{Outcome, Verb};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MoveStage {
    Reading,
    Writing,
    /// The drive has refused the write: it waits for another try.
    Refused,
    /// The record waits for the flush that covers the copy, and for a page.
    Recording {
        ticket: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct BlockMove {
    record: Record,
    number: u16,
    metadata: usize,
    from: u64,
    placed: Placed,
    padded: u32,
    done: u32,
    stage: MoveStage,
    /// The drive has refused the write of a piece that is not done.
    refused: bool,
}

/// Moves in flight: one for each cell of the buffers but the first one.
#[derive(Debug)]
pub(crate) struct Moves {
    slots: Box<[Option<BlockMove>]>,
    metadata: Box<[u8]>,
    /// Slots of the first buffer, which no move has.
    first: usize,
    used: usize,
    /// Moves whose data is in flight.
    copying: usize,
    last_serial: u64,
}

/// Bytes of RAM of a slot.
pub(crate) const MOVE_BYTES: u64 = (size_of::<Option<BlockMove>>() + METADATA_BYTES_MAX) as u64;

impl Moves {
    pub(crate) fn new(config: &StoreConfig) -> Self {
        let count = config.transfers_max() as usize;
        Self {
            first: config.cells() as usize,
            slots: vec![None; count].into_boxed_slice(),
            metadata: vec![0; count * METADATA_BYTES_MAX].into_boxed_slice(),
            used: 0,
            copying: 0,
            last_serial: 0,
        }
    }

    /// Whether one more move may begin. While no put waits for space, the limit is the number of
    /// buffers: a move ahead of time takes no session's turn when puts begin to wait for it.
    pub(crate) fn has_room(&self, core: &Core) -> bool {
        let all = self.slots.len() - self.first;
        let copies = if core.is_space_awaited() { all } else { all / self.first };
        self.used < all && self.copying < copies
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.used == 0
    }

    /// Serial of the last page that got a moved block's record.
    pub(crate) fn last_serial(&self) -> u64 {
        self.last_serial
    }

    /// Begins to move a block; `has_room` must hold.
    pub(crate) fn begin(
        &mut self,
        core: &mut Core,
        record: &Record,
        entry: &Entry,
        metadata: &[u8],
        placed: Placed,
    ) {
        let free = (self.first..self.slots.len()).find(|&slot| self.slots[slot].is_none());
        let slot = free.expect("has_room");
        debug_assert!(metadata.len() <= METADATA_BYTES_MAX, "metadata of the next move");
        let at = slot * METADATA_BYTES_MAX;
        self.metadata[at..at + metadata.len()].copy_from_slice(metadata);
        self.slots[slot] = Some(BlockMove {
            record: *record,
            number: entry.number(),
            metadata: metadata.len(),
            from: entry.place(),
            placed,
            padded: core.geometry().padded(entry.length()),
            done: 0,
            stage: MoveStage::Reading,
            refused: false,
        });
        self.used += 1;
        self.copying += 1;
        self.transfer(core, slot, Verb::Read);
    }

    /// The next piece of a move, in or out.
    fn transfer(&self, core: &mut Core, slot: usize, verb: Verb) {
        let copy = self.slots[slot].expect("a move has a slot");
        debug_assert!(copy.done < copy.padded, "a move is copied beyond its block");
        let length = core.config().cell_bytes().min(copy.padded - copy.done);
        let place = if verb == Verb::Read { copy.from } else { copy.placed.place };
        let offset = StoreGeometry::place_at(place) + u64::from(copy.done);
        if verb == Verb::Write && !copy.refused {
            core.spend(copy.placed.pool(), length.into());
        }
        let cell = u32::try_from(slot).expect("at most 1024 buffers");
        core.space_task(cell, verb, offset, length.into());
    }

    pub(crate) fn ended(&mut self, core: &mut Core, log: &mut Log, cell: u32, end: Outcome) {
        let slot = cell as usize;
        let copy = self.slots[slot].as_mut().expect("a move has a slot");
        if copy.stage == MoveStage::Reading {
            if end == Outcome::Done {
                copy.stage = MoveStage::Writing;
                return self.transfer(core, slot, Verb::Write);
            }
            core.stats.failures += 1;
            self.copying -= 1;
            return self.give_up(core, log, slot);
        }
        core.flush.wrote(core.now().ns);
        if let Outcome::Failed(code) = end {
            copy.stage = MoveStage::Refused;
            let before = std::mem::replace(&mut copy.refused, true);
            return core.refused(if before { Try::Later } else { Try::First }, code);
        }
        if std::mem::take(&mut copy.refused) {
            core.taken();
        }
        copy.done += core.config().cell_bytes().min(copy.padded - copy.done);
        if copy.done < copy.padded {
            copy.stage = MoveStage::Reading;
            return self.transfer(core, slot, Verb::Read);
        }
        copy.stage = MoveStage::Recording { ticket: core.flush.ticket() };
        self.copying -= 1;
    }

    /// A block that cannot be read is evicted.
    fn give_up(&mut self, core: &mut Core, log: &mut Log, slot: usize) {
        let copy = self.take(slot);
        log.forgo(copy.placed);
        let (_, found) = core.find(copy.number, copy.record.key);
        let same = found.filter(|(_, entry)| entry.is_there() && entry.place() == copy.from);
        if let Some((position, _)) = same {
            let at = slot * METADATA_BYTES_MAX;
            core.evict(position, &copy.record, &self.metadata[at..at + copy.metadata]);
        }
    }

    fn take(&mut self, slot: usize) -> BlockMove {
        self.used -= 1;
        debug_assert!(self.copying <= self.used, "a move ends while its bytes are in flight");
        self.slots[slot].take().expect("a move has a slot")
    }

    /// The copy is on stable media: its record, and the entry points to it.
    fn record(&mut self, core: &mut Core, log: &mut Log, slot: usize) {
        let copy = self.slots[slot].expect("a move has a slot");
        let (_, found) = core.find(copy.number, copy.record.key);
        let same = found.filter(|(_, entry)| entry.is_there() && entry.place() == copy.from);
        let Some((_, entry)) = same.filter(|_| core.spaces.is_open(copy.number)) else {
            // Dropped or cleared meanwhile.
            log.forgo(copy.placed);
            self.take(slot);
            return;
        };
        let at = slot * METADATA_BYTES_MAX;
        let metadata = &self.metadata[at..at + copy.metadata];
        let Some(serial) = log.append(core, copy.placed, &copy.record, metadata, false) else {
            return;
        };
        self.last_serial = self.last_serial.max(serial);
        let (_, found) = core.find(copy.number, copy.record.key);
        let (position, _) = found.expect("appending changes no entry");
        core.replace(position, &entry, entry.with_place(copy.placed.place));
        core.stats.moved += 1;
        core.pool_stats(copy.placed.pool()).moved += 1;
        core.stats.moved_bytes += u64::from(copy.padded);
        self.take(slot);
    }

    /// Goes on with those that are copied.
    pub(crate) fn step(&mut self, core: &mut Core, log: &mut Log) {
        if self.used == 0 {
            return;
        }
        let full = self.used == self.slots.len() - self.first;
        let again = core.refusal().is_due(core.now().ns);
        for slot in self.first..self.slots.len() {
            let Some(copy) = &mut self.slots[slot] else { continue };
            if copy.stage == MoveStage::Refused && again {
                copy.stage = MoveStage::Writing;
                self.transfer(core, slot, Verb::Write);
                continue;
            }
            let MoveStage::Recording { ticket } = copy.stage else { continue };
            if core.flush.is_durable(ticket) {
                self.record(core, log, slot);
            } else if full || self.copying == 0 {
                core.flush.want(ticket);
            }
        }
    }
}
