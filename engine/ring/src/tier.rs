//! The directory of a memory tier: which blocks lie in it and where, in memory that clients can
//! only read.
//!
//! An entry is one line. A key has the four entries of its set. One writer, the poller; any number
//! of readers, which change nothing and hold nothing: a reader copies the bytes first, and then
//! looks whether the entry is still the same ([`Reader::holds`]). If it is, the memory was the
//! block's all the time. The count of an entry is even while it can be read, and rises with each
//! change.

use crate::presence::{LINE_WORDS, Load, Words, mixed};
use crate::sync::{Ordering, fence};

/// Entries of a set.
pub const TIER_WAYS: usize = 4;

/// The header's words.
pub(crate) const MAGIC_WORD: usize = 0;
const STATE_WORD: usize = 1;
pub(crate) const SETS_WORD: usize = 2;
pub(crate) const NUMBER_WORD: usize = 3;

/// The first word of a directory of this version.
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"kvt1");

/// The state of a directory whose blocks are to be found; any other: none is.
const SERVING: u32 = 0;
/// The member is away, or the directory is not written any more.
const AWAY: u32 = 1;

/// The words of an entry.
const COUNT: usize = 0;
const USED: usize = 1;
const UID: usize = 2;
const KEY: usize = 4;
const CHECK: usize = 6;
const PLACE: usize = 8;
const LENGTH: usize = 10;

/// A block in a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierBlock {
    /// Its namespace.
    pub uid: u64,
    /// Lower half of its key.
    pub lo: u64,
    /// Its check, as in the store.
    pub check: u64,
    /// Where it begins, in bytes from the begin of the memory.
    pub offset: u64,
    /// Its bytes.
    pub length: u32,
}

/// A block that a reader found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierFound {
    /// The block.
    pub block: TierBlock,
    /// Whether a use of it is known already: no other needs to be reported.
    pub is_used: bool,
    entry: usize,
    count: u32,
}

impl TierFound {
    /// Its entry, and the entry's count.
    #[must_use]
    pub fn of(&self) -> (usize, u32) {
        (self.entry, self.count)
    }
}

/// The first entry of a key's set.
pub(crate) fn set_of(uid: u64, lo: u64, sets: u32) -> usize {
    let bits = mixed(mixed(uid).wrapping_add(lo));
    let set = ((bits >> 32) * u64::from(sets)) >> 32;
    usize::try_from(set).expect("sets are u32") * TIER_WAYS
}

/// First word of an entry.
fn line(entry: usize) -> usize {
    (entry + 1) * LINE_WORDS
}

/// The single writer.
#[derive(Debug)]
pub(crate) struct Writer<W: Words> {
    words: W,
    sets: u32,
}

impl<W: Words> Writer<W> {
    /// A writer of words that are zero and that no reader has yet: of the tier with this number.
    pub(crate) fn new(words: W, sets: u32, number: u16) -> Self {
        words.store(SETS_WORD, sets, Ordering::Relaxed);
        words.store(NUMBER_WORD, number.into(), Ordering::Relaxed);
        words.store(MAGIC_WORD, MAGIC, Ordering::Relaxed); // readers get the memory later
        Self { words, sets }
    }

    pub(crate) fn sets(&self) -> u32 {
        self.sets
    }

    /// Has readers find a block, whose bytes are there, in an entry that they cannot read.
    pub(crate) fn show(&mut self, entry: usize, block: &TierBlock) {
        let first = line(entry);
        let count = self.words.load(first + COUNT, Ordering::Relaxed); // our own stores
        assert!(count == 0 || count % 2 == 1, "an entry that is shown is hidden first");
        let TierBlock { uid, lo, check, offset, length } = *block;
        for (word, value) in [(UID, uid), (KEY, lo), (CHECK, check), (PLACE, offset)] {
            let [low, high] = halves(value);
            self.words.store(first + word, low, Ordering::Relaxed);
            self.words.store(first + word + 1, high, Ordering::Relaxed);
        }
        self.words.store(first + LENGTH, length, Ordering::Relaxed);
        self.words.store(first + USED, 0, Ordering::Relaxed); // orders nothing
        let even = if count == 0 { 2 } else { count.wrapping_add(1) };
        // P, pairs with T in `read`
        self.words.store(first + COUNT, even.max(2), Ordering::Release);
    }

    /// No reader that looks from now on finds the entry's block, and none that found it believes
    /// its copy: the memory may be written.
    pub(crate) fn hide(&mut self, entry: usize) {
        let place = line(entry) + COUNT;
        let count = self.words.load(place, Ordering::Relaxed); // our own stores
        assert!(count != 0 && count.is_multiple_of(2), "an entry is hidden once");
        self.words.store(place, count.wrapping_add(1), Ordering::Relaxed);
        // Before all that is stored into the entry and the block's memory from now on: F, pairs
        // with the fences in `read` and `holds`.
        fence(Ordering::Release);
    }

    /// The count of an entry: odd once it is hidden, one more than readers found it with.
    pub(crate) fn count(&self, entry: usize) -> u32 {
        self.words.load(line(entry) + COUNT, Ordering::Relaxed) // our own stores
    }

    /// A use of the entry's block is known.
    pub(crate) fn set_used(&mut self, entry: usize) {
        self.words.store(line(entry) + USED, 1, Ordering::Relaxed); // orders nothing
    }

    /// The next use of the entry's block is to be reported.
    pub(crate) fn clear_used(&mut self, entry: usize) {
        self.words.store(line(entry) + USED, 0, Ordering::Relaxed); // orders nothing
    }

    /// No block is found from now on, until `serve`.
    pub(crate) fn stop(&mut self) {
        self.words.store(STATE_WORD, AWAY, Ordering::Release); // P, pairs with T in `find`
    }

    /// Blocks that are shown are found.
    pub(crate) fn serve(&mut self) {
        self.words.store(STATE_WORD, SERVING, Ordering::Release); // P, pairs with T in `find`
    }
}

/// A reader.
#[derive(Debug)]
pub(crate) struct Reader<L: Load> {
    words: L,
    sets: u32,
}

impl<L: Load> Reader<L> {
    /// A reader of a directory of `sets` sets, all of which the words have.
    pub(crate) fn new(words: L, sets: u32) -> Self {
        Self { words, sets }
    }

    pub(crate) fn words(&self) -> &L {
        &self.words
    }

    pub(crate) fn sets(&self) -> u32 {
        self.sets
    }

    /// The block of a key, if it is in the tier.
    pub(crate) fn find(&self, uid: u64, lo: u64) -> Option<TierFound> {
        // T, pairs with P in `stop` and `serve`
        if self.words.load(STATE_WORD, Ordering::Acquire) != SERVING {
            return None;
        }
        let first = set_of(uid, lo, self.sets);
        (first..first + TIER_WAYS).find_map(|entry| self.read(entry, uid, lo))
    }

    fn read(&self, entry: usize, uid: u64, lo: u64) -> Option<TierFound> {
        let first = line(entry);
        let count = self.words.load(first + COUNT, Ordering::Acquire); // T, pairs with P in `show`
        if count == 0 || count % 2 == 1 {
            return None;
        }
        let word = |at: usize| self.words.load(first + at, Ordering::Relaxed); // ordered below
        let pair = |at: usize| u64::from(word(at)) | u64::from(word(at + 1)) << 32;
        if pair(KEY) != lo || pair(UID) != uid {
            return None;
        }
        let (check, offset, length) = (pair(CHECK), pair(PLACE), word(LENGTH));
        let block = TierBlock { uid, lo, check, offset, length };
        let found = TierFound { block, is_used: word(USED) != 0, entry, count };
        self.holds(&found).then_some(found)
    }

    /// Whether all that was loaded of a block since it was found was the block's.
    pub(crate) fn holds(&self, found: &TierFound) -> bool {
        fence(Ordering::Acquire); // F, pairs with the fence in `hide`
        self.words.load(line(found.entry) + COUNT, Ordering::Relaxed) == found.count
    }
}

fn halves(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}
