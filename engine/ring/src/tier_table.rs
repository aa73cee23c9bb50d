//! A memory tier in shared memory: its directory, and behind it the bytes of its blocks.

use std::sync::Arc;

use kvrail_memory::{Pinned, WordView};

use crate::presence::LINE_WORDS;
use crate::shm::ShmTable;
use crate::sync::Ordering;
use crate::tier::{
    MAGIC, MAGIC_WORD, Reader, SETS_WORD, TIER_WAYS, TierBlock, TierFound, Writer, set_of,
};

/// Bytes of an entry.
const LINE_BYTES: usize = LINE_WORDS * 4;

/// Blocks begin at multiples of this, from the begin of the memory on: a page, as direct I/O
/// demands of memory at most.
pub const TIER_PAGE_BYTES: u32 = 4096;

/// The poller's end of the directory.
#[derive(Debug)]
pub struct TierWriter(Writer<ShmTable>);

impl TierWriter {
    /// Bytes of a directory for `blocks` blocks, twice as many entries: in sets of four hardly any
    /// key finds no room then.
    #[must_use]
    pub fn bytes_for(blocks: u64) -> usize {
        let sets = blocks.saturating_mul(2).div_ceil(TIER_WAYS as u64).max(1);
        let sets = usize::try_from(sets).expect("64-bit machines");
        ((sets * TIER_WAYS + 1) * LINE_BYTES).next_multiple_of(TIER_PAGE_BYTES as usize)
    }

    /// A directory of `bytes` bytes at the begin of memory that is zero and has no reader yet.
    ///
    /// # Panics
    /// If there is no room for one set, or the memory is shorter.
    #[must_use]
    pub fn new(memory: &Arc<dyn Pinned>, bytes: usize) -> Self {
        assert!(bytes <= memory.bytes(), "the directory lies within the memory");
        let sets = (bytes / LINE_BYTES).saturating_sub(1) / TIER_WAYS;
        assert!(sets > 0, "a directory has a header and a set at least");
        Self(Writer::new(ShmTable::at(memory), u32::try_from(sets).unwrap_or(u32::MAX)))
    }

    /// Entries that it has.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.0.sets() as usize * TIER_WAYS
    }

    /// The first of the `TIER_WAYS` entries of a key.
    #[must_use]
    pub fn first_of(&self, uid: u64, lo: u64) -> usize {
        set_of(uid, lo, self.0.sets())
    }

    /// Has readers find a block whose bytes are there.
    ///
    /// # Panics
    /// If the entry is shown already.
    pub fn show(&mut self, entry: usize, block: &TierBlock) {
        self.0.show(entry, block);
    }

    /// No reader finds the entry's block from now on, or believes its copy: called before its
    /// memory is written.
    ///
    /// # Panics
    /// If the entry is not shown.
    pub fn hide(&mut self, entry: usize) {
        self.0.hide(entry);
    }

    /// No block is found from now on, until `serve`: the member is away.
    pub fn stop(&mut self) {
        self.0.stop();
    }

    /// Blocks that are shown are found again.
    pub fn serve(&mut self) {
        self.0.serve();
    }

    /// A use of the entry's block is known: readers report no other.
    pub fn set_used(&mut self, entry: usize) {
        self.0.set_used(entry);
    }

    /// Readers are to report the next use of the entry's block.
    pub fn clear_used(&mut self, entry: usize) {
        self.0.clear_used(entry);
    }
}

impl Drop for TierWriter {
    /// No block is found any more.
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The client's end of a tier.
#[derive(Debug)]
pub struct TierReader(Reader<WordView>);

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
        (sets > 0 && needed <= memory.bytes()).then(|| Self(Reader::new(memory, sets)))
    }

    /// The block whose key has this lower half, in the namespace with this uid.
    #[inline]
    #[must_use]
    pub fn find(&self, uid: u64, lo: u64) -> Option<TierFound> {
        self.0.find(uid, lo)
    }

    /// Copies a block that was found. False: it left the tier meanwhile, and `out` holds nothing.
    ///
    /// # Panics
    /// If `out` is shorter than the block.
    #[inline]
    pub fn copy(&self, found: &TierFound, out: &mut [u8]) -> bool {
        let memory = self.0.words();
        let (begin, length) = (found.block.offset, found.block.length as usize);
        let begin = usize::try_from(begin).expect("64-bit machines");
        // A sidecar of a later release could say anything.
        if begin.checked_add(length).is_none_or(|end| end > memory.bytes()) {
            return false;
        }
        memory.copy(begin, &mut out[..length]);
        self.0.holds(found)
    }
}
