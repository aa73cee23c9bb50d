//! The presence table: which keys a store's member has, in memory that clients can only read.
//!
//! A bucket is one line: 15 fingerprints of 32 bits and a count of keys that found no room. A key
//! has one bucket and never moves in it, so for a reader that finds neither its fingerprint nor a
//! count the key is absent. One writer, the poller; any number of readers, which change nothing.
//!
//! Never false for a block that is there: a reader that has seen its acknowledgement sees the
//! block, because the fingerprint is stored (P) before the acknowledgement is published. Rarely
//! true for one that is gone: two keys of one bucket in 2^32 are alike.

use crate::sync::Ordering;

/// Words of a line.
pub(crate) const LINE_WORDS: usize = 16;
/// The word of a bucket that counts what found no room.
const CROWD: usize = LINE_WORDS - 1;
/// Keys of a bucket when the store is full: one bucket in a hundred has no room for all then.
const KEYS_PLANNED: u64 = 8;

/// The header's words.
pub(crate) const MAGIC_WORD: usize = 0;
const STATE_WORD: usize = 1;
pub(crate) const BUCKETS_WORD: usize = 2;

/// The first word of a table of this version.
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"kvp1");

/// Completeness of the table: whole, or retired; 0 while recovery goes on.
const WHOLE: u32 = 1;
const RETIRED: u32 = 2;

/// Keys that no block has: their presence means that a uid is in force. Two, so that no fingerprint
/// of another key stands for both.
const MARKS: [u64; 2] = [0x6b76_7261_696c_2d30, 0x6b76_7261_696c_2d31];

/// Presence of a block by the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is not there: a get would be a MISS.
    Absent,
    /// Only the store can answer: it has not read all of its records, the namespace was cleared,
    /// the sidecar is gone, or the key's bucket has overflowed.
    Maybe,
    /// It is there, or was a moment ago.
    Present,
}

/// The words of a table as readers have them.
pub(crate) trait Load {
    fn load(&self, word: usize, ordering: Ordering) -> u32;
}

/// The words of a table as its writer has them.
pub(crate) trait Words: Load {
    fn store(&self, word: usize, value: u32, ordering: Ordering);
}

/// Buckets of a table for `blocks` blocks.
pub(crate) fn buckets_for(blocks: u64) -> u32 {
    u32::try_from(blocks.div_ceil(KEYS_PLANNED)).unwrap_or(u32::MAX).max(1)
}

/// First word of a key's bucket, and its fingerprint.
fn place(uid: u64, lo: u64, buckets: u32) -> (usize, u32) {
    let bits = mixed(mixed(uid).wrapping_add(lo));
    let bucket = ((bits >> 32) * u64::from(buckets)) >> 32;
    let [a, b, c, d, ..] = bits.to_le_bytes();
    let line = usize::try_from(bucket).expect("buckets are u32") + 1;
    (line * LINE_WORDS, u32::from_le_bytes([a, b, c, d]).max(1))
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub(crate) const fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The single writer.
#[derive(Debug)]
pub(crate) struct Writer<W: Words> {
    words: W,
    buckets: u32,
}

impl<W: Words> Writer<W> {
    /// A writer of words that are zero and that no reader has yet.
    pub(crate) fn new(words: W, buckets: u32) -> Self {
        words.store(BUCKETS_WORD, buckets, Ordering::Relaxed);
        words.store(MAGIC_WORD, MAGIC, Ordering::Relaxed); // readers get the memory later
        Self { words, buckets }
    }

    /// A key is there from now on.
    pub(crate) fn come(&mut self, uid: u64, lo: u64) {
        let (first, print) = place(uid, lo, self.buckets);
        // Our own stores: there is no other writer.
        let free = (0..CROWD).find(|at| self.words.load(first + at, Ordering::Relaxed) == 0);
        let (word, value) = match free {
            Some(at) => (first + at, print),
            None => (first + CROWD, self.words.load(first + CROWD, Ordering::Relaxed) + 1),
        };
        self.words.store(word, value, Ordering::Release); // P, pairs with T in `scan`
    }

    /// A key that came is gone.
    pub(crate) fn go(&mut self, uid: u64, lo: u64) {
        let (first, print) = place(uid, lo, self.buckets);
        let here = (0..CROWD).find(|at| self.words.load(first + at, Ordering::Relaxed) == print);
        let (word, value) = match here {
            Some(at) => (first + at, 0),
            // It found no room when it came.
            None => {
                let crowd = self.words.load(first + CROWD, Ordering::Relaxed);
                (first + CROWD, crowd.checked_sub(1).expect("a key that goes has come"))
            }
        };
        self.words.store(word, value, Ordering::Relaxed); // orders nothing: a hint may be late
    }

    /// A namespace is open.
    pub(crate) fn open(&mut self, uid: u64) {
        MARKS.into_iter().for_each(|mark| self.come(uid, mark));
    }

    /// A namespace was cleared or removed.
    pub(crate) fn close(&mut self, uid: u64) {
        MARKS.into_iter().for_each(|mark| self.go(uid, mark));
    }

    /// Everything that is there has come.
    pub(crate) fn complete(&mut self) {
        self.words.store(STATE_WORD, WHOLE, Ordering::Release); // P, pairs with T in `probe`
    }

    /// Retires the table: it answers nothing any more.
    pub(crate) fn retire(&mut self) {
        self.words.store(STATE_WORD, RETIRED, Ordering::Release); // P, pairs with T in `probe`
    }
}

/// A reader.
#[derive(Debug)]
pub(crate) struct Reader<L: Load> {
    words: L,
    buckets: u32,
}

impl<L: Load> Reader<L> {
    /// A reader of a table of `buckets` buckets, all of which the words have.
    pub(crate) fn new(words: L, buckets: u32) -> Self {
        Self { words, buckets }
    }

    /// Whether another table stands for the member now.
    pub(crate) fn is_retired(&self) -> bool {
        self.words.load(STATE_WORD, Ordering::Acquire) == RETIRED // T, pairs with P in `retire`
    }

    /// Whether a key is there.
    pub(crate) fn probe(&self, uid: u64, lo: u64) -> Presence {
        // First, so that all that had come when the table was whole is seen below.
        let state = self.words.load(STATE_WORD, Ordering::Acquire); // T, pairs with P
        if state == RETIRED {
            return Presence::Maybe;
        }
        match self.scan(uid, lo) {
            Presence::Absent if state == WHOLE && self.is_open(uid) => Presence::Absent,
            Presence::Present => Presence::Present,
            _ => Presence::Maybe,
        }
    }

    /// The same for bytes that lie elsewhere: they are served only while the uid is in force.
    pub(crate) fn probe_open(&self, uid: u64, lo: u64) -> Presence {
        match self.probe(uid, lo) {
            Presence::Present if !self.is_open(uid) => Presence::Maybe,
            presence => presence,
        }
    }

    /// Whether a uid is in force. Read after the key: if it is in force now, it was then.
    fn is_open(&self, uid: u64) -> bool {
        MARKS.into_iter().all(|mark| self.scan(uid, mark) == Presence::Present)
    }

    fn scan(&self, uid: u64, lo: u64) -> Presence {
        let (first, print) = place(uid, lo, self.buckets);
        // T, pairs with P in `come`
        let load = |at: usize| self.words.load(first + at, Ordering::Acquire);
        if (0..CROWD).any(|at| load(at) == print) {
            return Presence::Present;
        }
        if load(CROWD) == 0 { Presence::Absent } else { Presence::Maybe }
    }
}
