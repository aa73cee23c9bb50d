//! Late blocks: put into memory alone, and written to the store when the hand is near, or never.
//!
//! A block that was used in memory is written; of others a share is (`write_share`), the rest is
//! dropped when the hand comes by. What is to be written is chosen a part of the tier ahead of the
//! hand, so that it is a copy, and can go, once the hand is there. Where puts outrun the writes,
//! the hand waits at a block that is still to be written: then a put finds no room, and the caller
//! writes the block as it would without a tier.

use super::late::{LateBlocks, LateWrite, WriteStage};
use super::lists::NONE;
use super::places::small;
use super::write_share::BlockFate;
use super::{Entry, EntryState, MemoryTier, TierCounts, TierRoom, TierView};

/// What lies within this part of a tier ahead of the hand is written.
const AHEAD_PART: u32 = 16;

/// Entries that a step of saving all looks at, and spans that it looks at ahead of the hand.
const LOOKED_AT_ONCE: usize = 1024;
const AHEAD_AT_ONCE: usize = 64;

impl MemoryTier {
    /// A put of a block that is to be written late: a room for it. The caller has looked that
    /// neither the tier has the key unwritten nor the store has it; a copy that is here is
    /// forgotten. As what is fetched, such blocks take a part of the tier from others in a second.
    /// Blocks of one group are written together, or dropped. `None`: there is no room now, and the
    /// caller writes the block to the store itself.
    ///
    /// The caller's own tables learn of the block when it is shown (`fill`), and lose it at
    /// `TierView::gone`.
    pub fn put(
        &mut self,
        key: (u64, u64),
        (pages, group): (u32, u64),
        view: &mut impl TierView,
    ) -> Option<TierRoom> {
        self.offered(key);
        if self.late.is_none() || self.is_saving() {
            return None;
        }
        if let Some(entry) = self.find(key.0, key.1, view) {
            if self.entries[entry].stage != WriteStage::Stored {
                return None;
            }
            self.forget(key.0, key.1, view);
        }
        let room = self.make_room_in_share(key, pages, view)?;
        let one = &mut self.entries[room.entry];
        (one.stage, one.group) = (WriteStage::Unwritten, folded(group));
        self.late.as_mut()?.add(pages.into());
        self.shares.gain_late(key.0, one.came_s);
        Some(room)
    }

    /// A key is offered that is neither here nor in the store, and is written at its put: `put`
    /// knows by itself.
    pub fn offered(&mut self, key: (u64, u64)) {
        if let Some(late) = &mut self.late {
            late.share.offered(key);
        }
    }

    /// The entry of a late block that readers find, and that is not known to be in the store.
    #[must_use]
    pub fn unwritten(&self, uid: u64, lo: u64, view: &impl TierView) -> Option<usize> {
        let entry = self.find(uid, lo, view)?;
        let one = self.entries[entry];
        (one.state == EntryState::Shown && one.stage != WriteStage::Stored).then_some(entry)
    }

    /// Late blocks that the store has not got, those on their way into memory too.
    #[must_use]
    pub fn late_blocks(&self) -> u64 {
        self.late.as_ref().map_or(0, LateBlocks::blocks)
    }

    /// Pages of them.
    #[must_use]
    pub fn late_pages(&self) -> u64 {
        self.late.as_ref().map_or(0, LateBlocks::pages)
    }

    /// The entry of a block that is to be written to the store now, if there is one. Its memory
    /// stays as it is until `write_ended` or `write_again`, also if the block is forgotten.
    pub fn next_write(&mut self) -> Option<usize> {
        let entry = self.late.as_mut()?.begin()? as usize;
        self.entries[entry].stage = WriteStage::Writing;
        Some(entry)
    }

    /// The write of an entry's block has ended. Written, the block is a copy from now on; declined,
    /// it goes.
    pub fn write_ended(&mut self, entry: usize, how: LateWrite, view: &mut impl TierView) {
        let is_shown = self.end(entry, WriteStage::Unwritten);
        if !is_shown {
            if !view.is_held(entry) {
                self.release(entry);
            }
            return;
        }
        let (key, pages) = (self.key(entry), self.pages_of(entry));
        // Declined ones too: a key that comes again then shows that the store has no room for such
        // blocks, and the share falls. Counted as dropped it would rise, for more declined puts.
        if let Some(late) = &mut self.late {
            late.share.left(key, BlockFate::Written);
        }
        match how {
            LateWrite::Written => {
                self.counts.late_written += 1;
                self.counts.late_written_pages += pages;
                self.lose(entry);
                view.gone(entry, key);
            }
            LateWrite::Declined => {
                self.leave(entry, view);
            }
        }
    }

    /// The store was busy: the entry's block is written after those that are queued.
    pub fn write_again(&mut self, entry: usize) {
        // The memory of one that is hidden is free when the hand comes by.
        if self.end(entry, WriteStage::Queued)
            && let Some(late) = &mut self.late
        {
            late.push(small(entry));
        }
    }

    /// A write is in flight no more. Whether readers find the entry's block: it has this stage
    /// then.
    fn end(&mut self, entry: usize, next: WriteStage) -> bool {
        let one = &mut self.entries[entry];
        debug_assert_eq!(one.stage, WriteStage::Writing, "a write ends once");
        let is_shown = one.state == EntryState::Shown;
        one.stage = if is_shown { next } else { WriteStage::Stored };
        if let Some(late) = &mut self.late {
            late.end();
        }
        is_shown
    }

    /// The entry's block is to be written before others. False: as many as there can be are on
    /// their way to the store, and the caller asks again when one has ended.
    #[must_use]
    pub fn write_soon(&mut self, entry: usize) -> bool {
        let Some(late) = &mut self.late else { return true };
        match self.entries[entry].stage {
            WriteStage::Stored | WriteStage::Writing => return true,
            WriteStage::Queued => late.take_out(small(entry)),
            WriteStage::Unwritten if !late.has_room() => return false,
            WriteStage::Unwritten => {}
        }
        self.entries[entry].stage = WriteStage::Queued;
        late.push_first(small(entry));
        true
    }

    /// All late blocks are to be written, step by step (`renew`), until `late_blocks` is zero; none
    /// comes in until a clear.
    pub fn write_all(&mut self) {
        if let Some(late) = &mut self.late {
            late.save();
        }
    }

    /// Whether all late blocks are to be written, and none comes in.
    #[must_use]
    pub fn is_saving(&self) -> bool {
        self.late.as_ref().is_some_and(|late| late.saving().is_some())
    }

    /// Late blocks may come in again.
    pub(super) fn end_saving(&mut self) {
        if let Some(late) = &mut self.late {
            late.stop_saving();
        }
    }

    /// Queues blocks for the store: all, or those that the hand comes to soon.
    pub(super) fn choose_writes(&mut self) {
        if self.late_blocks() == 0 {
            return;
        }
        match self.late.as_ref().and_then(LateBlocks::saving) {
            Some(from) => self.save(from),
            None => self.write_ahead(),
        }
    }

    /// Queues blocks of entries from this one on.
    fn save(&mut self, from: usize) {
        let mut at = from;
        for _ in 0..LOOKED_AT_ONCE.min(self.entries.len()) {
            if self.is_unwritten(at) && !self.queue(at) {
                break;
            }
            at = (at + 1) % self.entries.len();
        }
        if let Some(late) = &mut self.late {
            late.save_from(at);
        }
    }

    /// Queues blocks that the hand comes to soon, and that it would write.
    fn write_ahead(&mut self) {
        let window = self.pages() / AHEAD_PART;
        if self.has_free(window) && self.places.find_free(self.asked_pages).is_some() {
            // The hand passes blocks over, and is not to take them soon.
            return;
        }
        for _ in 0..AHEAD_AT_ONCE {
            if !self.late.as_ref().is_some_and(LateBlocks::has_room) {
                return;
            }
            let Some(entry) = self.places.look_ahead(window) else { return };
            let entry = entry as usize;
            if entry != NONE as usize && self.is_needed(entry) && !self.entries[entry].is_used {
                self.queue(entry);
            }
        }
    }

    /// Whether the hand waits at an entry's block: it is to be written, and others are before.
    pub(super) fn waits(&self, entry: usize) -> bool {
        !self.entries[entry].is_used
            && self.is_needed(entry)
            && self.late.as_ref().is_some_and(|late| !late.has_room())
    }

    /// Whether the store has an entry's block, or may go without. Queues it otherwise.
    pub(super) fn may_go(&mut self, entry: usize) -> bool {
        if self.is_needed(entry) {
            self.queue(entry);
            return false;
        }
        !matches!(self.entries[entry].stage, WriteStage::Queued | WriteStage::Writing)
    }

    /// Queues an unwritten block, if there is room.
    fn queue(&mut self, entry: usize) -> bool {
        let Some(late) = self.late.as_mut().filter(|late| late.has_room()) else { return false };
        late.push(small(entry));
        self.entries[entry].stage = WriteStage::Queued;
        true
    }

    fn is_unwritten(&self, entry: usize) -> bool {
        let one = &self.entries[entry];
        one.state == EntryState::Shown && one.stage == WriteStage::Unwritten
    }

    /// Whether an entry's block is to be written, and not queued yet.
    fn is_needed(&self, entry: usize) -> bool {
        let Some(late) = &self.late else { return false };
        let one = &self.entries[entry];
        self.is_unwritten(entry) && (one.was_used || late.share.takes(one.group))
    }

    pub(super) fn is_writing(&self, entry: usize) -> bool {
        self.entries[entry].stage == WriteStage::Writing
    }

    pub(super) fn key(&self, entry: usize) -> (u64, u64) {
        (self.entries[entry].uid, self.entries[entry].lo)
    }

    /// The entry's block is none that the tier alone has any more. Whether it was one.
    pub(super) fn lose(&mut self, entry: usize) -> bool {
        let one = &mut self.entries[entry];
        let Some(late) = self.late.as_mut().filter(|_| one.stage != WriteStage::Stored) else {
            return false;
        };
        late.remove(self.places.pages_of(one.span).into());
        self.shares.lose_late(one.uid, one.came_s);
        match one.stage {
            // Until the write ends.
            WriteStage::Writing => return true,
            WriteStage::Queued => late.take_out(small(entry)),
            WriteStage::Stored | WriteStage::Unwritten => {}
        }
        one.stage = WriteStage::Stored;
        true
    }

    /// All bytes of an entry's block have come.
    pub(super) fn count_filled(&mut self, entry: usize) {
        let (pages, counts) = (self.pages_of(entry), &mut self.counts);
        let (blocks, their_pages) = match self.entries[entry].stage {
            WriteStage::Stored => (&mut counts.filled, &mut counts.filled_pages),
            _ => (&mut counts.late, &mut counts.late_pages),
        };
        (*blocks, *their_pages) = (*blocks + 1, *their_pages + pages);
    }

    /// An entry's block goes for others: if it was never written, that may prove wrong.
    pub(super) fn count_dropped(&mut self, entry: usize) {
        if self.is_unwritten(entry)
            && let Some(late) = &mut self.late
        {
            let one = &self.entries[entry];
            late.share.left((one.uid, one.lo), BlockFate::Dropped);
        }
    }

    /// A late block leaves without being written.
    pub(super) fn count_late_dropped(&mut self, entry: usize) {
        let pages = self.pages_of(entry);
        self.counts.late_dropped += 1;
        self.counts.late_dropped_pages += pages;
        let Entry { uid, came_s, .. } = self.entries[entry];
        self.shares.drop_late(uid, pages, came_s);
    }

    pub(super) fn audit_late(&self) {
        let stages = self.entries.iter().map(|one| one.stage);
        // What is hidden while it is written is none any more.
        let late = self
            .entries
            .iter()
            .filter(|one| one.stage != WriteStage::Stored && one.state != EntryState::Held);
        let pages: u64 = late.clone().map(|one| u64::from(self.places.pages_of(one.span))).sum();
        let shown = late.clone().filter(|one| one.state == EntryState::Shown).count() as u64;
        let TierCounts { late: came, late_written, late_dropped, .. } = self.counts;
        assert_eq!(came, late_written + late_dropped + shown, "none is in no counter");
        match &self.late {
            Some(all) => all.audit(stages, (late.count() as u64, pages)),
            None => assert_eq!(late.count(), 0, "a tier without late blocks has none"),
        }
    }
}

/// A word in half of its bits: all have a part in it.
pub(super) fn folded(word: u64) -> u32 {
    small((word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize)
}
