//! Blocks of a tier that the store has not got yet: how many, and which of them are next.

use std::collections::VecDeque;

use super::write_share::WriteShare;

/// Blocks that are queued for the store or on their way to it at once.
pub(super) const WRITES_MAX: usize = 64;

/// How far a block of a tier is on its way to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteStage {
    /// The store has it, or had it: what is here is a copy.
    Stored,
    /// It is here alone.
    Unwritten,
    /// It is to be written next.
    Queued,
    /// The caller writes it.
    Writing,
}

/// How the write of a late block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateWrite {
    /// The store has the block.
    Written,
    /// The store does not take it.
    Declined,
}

/// What a tier knows of its late blocks.
#[derive(Debug)]
pub(super) struct LateBlocks {
    pub(super) share: WriteShare,
    queue: VecDeque<u32>,
    /// Writes in flight.
    writing: usize,
    /// Blocks that the store has not got, those on their way into the tier too.
    blocks: u64,
    /// Pages of them.
    pages: u64,
    /// All are to be written: the entry that is looked at next.
    saving: Option<usize>,
}

impl LateBlocks {
    pub(super) fn new(store_blocks: u64) -> Self {
        let share = WriteShare::new(store_blocks);
        let queue = VecDeque::with_capacity(WRITES_MAX);
        Self { share, queue, writing: 0, blocks: 0, pages: 0, saving: None }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// A block of this number of pages comes in.
    pub(super) fn add(&mut self, pages: u64) {
        (self.blocks, self.pages) = (self.blocks + 1, self.pages + pages);
    }

    /// A block of this number of pages is in the store, or nowhere.
    pub(super) fn remove(&mut self, pages: u64) {
        (self.blocks, self.pages) = (self.blocks - 1, self.pages - pages);
    }

    /// Whether one more block can be queued.
    pub(super) fn has_room(&self) -> bool {
        self.queue.len() + self.writing < WRITES_MAX
    }

    /// An entry's block is written after those that are queued.
    pub(super) fn push(&mut self, entry: u32) {
        debug_assert!(self.has_room(), "the queue is as long as it was made");
        self.queue.push_back(entry);
    }

    /// An entry's block is written before those that are queued.
    pub(super) fn push_first(&mut self, entry: u32) {
        debug_assert!(self.has_room(), "the queue is as long as it was made");
        self.queue.push_front(entry);
    }

    /// An entry's block is not queued any more.
    pub(super) fn take_out(&mut self, entry: u32) {
        self.queue.retain(|queued| *queued != entry);
    }

    /// The entry whose block is to be written now: its write is in flight.
    pub(super) fn begin(&mut self) -> Option<u32> {
        let entry = self.queue.pop_front()?;
        self.writing += 1;
        Some(entry)
    }

    /// A write is in flight no more.
    pub(super) fn end(&mut self) {
        self.writing -= 1;
    }

    /// All blocks are to be written.
    pub(super) fn save(&mut self) {
        self.saving.get_or_insert(0);
    }

    /// The entry that is looked at next, while all are to be written.
    pub(super) fn saving(&self) -> Option<usize> {
        self.saving
    }

    /// The next entries are looked at later.
    pub(super) fn save_from(&mut self, entry: usize) {
        self.saving = Some(entry);
    }

    /// Blocks come in again.
    pub(super) fn stop_saving(&mut self) {
        self.saving = None;
    }

    /// Checks that what is counted is so, for tests.
    pub(super) fn audit(&self, stages: impl Iterator<Item = WriteStage> + Clone, late: (u64, u64)) {
        let count = |stage| stages.clone().filter(|other| *other == stage).count();
        assert_eq!(count(WriteStage::Queued), self.queue.len(), "what is queued is in the queue");
        assert_eq!(count(WriteStage::Writing), self.writing, "writes are counted");
        assert_eq!(late, (self.blocks, self.pages), "late blocks are counted");
        assert!(self.queue.len() + self.writing <= WRITES_MAX, "few are written at once");
    }
}
