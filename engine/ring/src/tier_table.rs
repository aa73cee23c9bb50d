//! A memory tier in shared memory: its directory, and behind it the bytes of its blocks.

use std::ptr::NonNull;
use std::sync::Arc;

use kvrail_memory::{Pinned, WordView};

use crate::hold_table::{HoldTables, Holds};
use crate::presence::LINE_WORDS;
use crate::shm::ShmTable;
use crate::sync::Ordering;
use crate::tier::{
    MAGIC, MAGIC_WORD, NUMBER_WORD, Reader, SETS_WORD, TIER_WAYS, TierBlock, TierFound, Writer,
    set_of,
};

/// Bytes of an entry.
const LINE_BYTES: usize = LINE_WORDS * 4;

/// Blocks begin at multiples of this, from the begin of the memory on: a page, as direct I/O
/// demands of memory at most.
pub const TIER_PAGE_BYTES: u32 = 4096;

/// Entries for each block: in sets of four hardly any key finds no room then. With two, one set of
/// seven is full, and each further key of it breaks a prefix.
const ENTRIES: u64 = 8;

/// The poller's end of the directory.
#[derive(Debug)]
pub struct TierWriter {
    directory: Writer<ShmTable>,
    number: u16,
    holds: Arc<HoldTables>,
}

impl TierWriter {
    /// Bytes of a directory for `blocks` blocks.
    #[must_use]
    pub fn bytes_for(blocks: u64) -> usize {
        let sets = blocks.saturating_mul(ENTRIES).div_ceil(TIER_WAYS as u64).max(1);
        let sets = usize::try_from(sets).expect("64-bit machines");
        ((sets * TIER_WAYS + 1) * LINE_BYTES).next_multiple_of(TIER_PAGE_BYTES as usize)
    }

    /// A directory of `bytes` bytes at the begin of memory that is zero and has no reader yet: that
    /// of the tier with this number among those of the sidecar.
    ///
    /// # Panics
    /// If there is no room for one set, or the memory is shorter.
    #[must_use]
    pub fn new(
        memory: &Arc<dyn Pinned>,
        bytes: usize,
        (number, holds): (u16, Arc<HoldTables>),
    ) -> Self {
        assert!(bytes <= memory.bytes(), "the directory lies within the memory");
        let sets = (bytes / LINE_BYTES).saturating_sub(1) / TIER_WAYS;
        assert!(sets > 0, "a directory has a header and a set at least");
        let sets = u32::try_from(sets).unwrap_or(u32::MAX);
        Self { directory: Writer::new(ShmTable::at(memory), sets, number), number, holds }
    }

    /// Entries that it has.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.directory.sets() as usize * TIER_WAYS
    }

    /// The first of the `TIER_WAYS` entries of a key.
    #[must_use]
    pub fn first_of(&self, uid: u64, lo: u64) -> usize {
        set_of(uid, lo, self.directory.sets())
    }

    /// Has readers find a block whose bytes are there.
    ///
    /// # Panics
    /// If the entry is shown already.
    pub fn show(&mut self, entry: usize, block: &TierBlock) {
        self.directory.show(entry, block);
    }

    /// No reader finds the entry's block from now on, or believes its copy: called before its
    /// memory is written.
    ///
    /// # Panics
    /// If the entry is not shown.
    pub fn hide(&mut self, entry: usize) {
        self.directory.hide(entry);
    }

    /// Whether a client reads the entry's block in place, or may do so. Once the entry is hidden,
    /// false is final: its memory may be written.
    #[must_use]
    pub fn is_held(&self, entry: usize) -> bool {
        self.holds.hold(self.number, entry, self.directory.count(entry))
    }

    /// Clients whose words `is_held` loads.
    #[must_use]
    pub fn holders(&self) -> usize {
        self.holds.clients()
    }

    /// No block is found from now on, until `serve`: the member is away.
    pub fn stop(&mut self) {
        self.directory.stop();
    }

    /// Blocks that are shown are found again.
    pub fn serve(&mut self) {
        self.directory.serve();
    }

    /// A use of the entry's block is known: readers report no other.
    pub fn set_used(&mut self, entry: usize) {
        self.directory.set_used(entry);
    }

    /// Readers are to report the next use of the entry's block.
    pub fn clear_used(&mut self, entry: usize) {
        self.directory.clear_used(entry);
    }
}

impl Drop for TierWriter {
    /// No block is found any more.
    fn drop(&mut self) {
        self.directory.stop();
    }
}

/// The client's end of a tier.
#[derive(Debug)]
pub struct TierReader {
    directory: Reader<WordView>,
    number: u16,
}

impl TierReader {
    /// A tier that a sidecar has shown. Nothing where the memory holds none of this version.
    #[must_use]
    pub fn new(memory: WordView) -> Option<Self> {
        // Written before the memory was sent here.
        let word = |at: usize| memory.load(at, Ordering::Relaxed);
        if memory.bytes() < 2 * LINE_BYTES || word(MAGIC_WORD) != MAGIC {
            return None;
        }
        let sets = word(SETS_WORD);
        let needed = (sets as usize * TIER_WAYS + 1) * LINE_BYTES;
        let number = u16::try_from(word(NUMBER_WORD)).ok()?;
        let is_whole = sets > 0 && needed <= memory.bytes();
        is_whole.then(|| Self { directory: Reader::new(memory, sets), number })
    }

    /// The block whose key has this lower half, in the namespace with this uid.
    #[inline]
    #[must_use]
    pub fn find(&self, uid: u64, lo: u64) -> Option<TierFound> {
        self.directory.find(uid, lo)
    }

    /// Copies a block that was found. False: it left the tier meanwhile, and `out` holds nothing.
    ///
    /// # Panics
    /// If `out` is shorter than the block.
    #[inline]
    pub fn copy(&self, found: &TierFound, out: &mut [u8]) -> bool {
        let Some(begin) = self.place(found) else { return false };
        self.directory.words().copy(begin, &mut out[..found.block.length as usize]);
        self.directory.holds(found)
    }

    /// Holds a block that was found: the hold, and where the block begins.
    pub(crate) fn hold(&self, found: &TierFound, holds: &Holds) -> Option<(u16, NonNull<u8>)> {
        let begin = self.place(found)?;
        let at = holds.hold((&self.directory, self.number), found)?;
        Some((at, self.directory.words().address(begin, found.block.length as usize)))
    }

    /// All of its memory, for what reads held blocks without this process's cores.
    #[must_use]
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        let words = self.directory.words();
        (words.address(0, words.bytes()), words.bytes())
    }

    /// Entries that it has.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.directory.sets() as usize * TIER_WAYS
    }

    /// Where a block begins, if it lies within the memory: the sidecar may be of a later release.
    fn place(&self, found: &TierFound) -> Option<usize> {
        let begin = usize::try_from(found.block.offset).expect("64-bit machines");
        let end = begin.checked_add(found.block.length as usize)?;
        (end <= self.directory.words().bytes()).then_some(begin)
    }
}
