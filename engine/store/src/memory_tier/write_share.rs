//! Which unused blocks are written when they leave memory.
//!
//! A block that was never used may be asked for yet: by a session that pauses for longer than
//! memory lasts. Where the store has room, each should be written. Where it has not, each written
//! one pushes out a used one. A key that is offered again is evidence: it was dropped too early, or
//! the store evicted it. The first raises the share of unused blocks that is written, the second
//! lowers it, as ARC moves its border between recency and frequency.

/// What happened to a block that left memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockFate {
    /// It was written to the store.
    Written,
    /// It was not.
    Dropped,
}

/// Keys of a set, which push each other out.
const WAYS: usize = 4;

/// The least share is this part: without a written one there would be no evidence that writing is
/// of use.
const LEAST_PART: u64 = 64;

/// Bits of a hash that a share is compared with.
const HASH_BITS: u32 = 24;

/// A count of written blocks has so many bits in a set, and a window of them one less.
const COUNT_BITS: u32 = 31;

/// A key that left memory. All zero: none.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    /// Its fingerprint, which is not zero.
    print: u32,
    /// The lowest bit: whether it was written. Others: how much was by then.
    fate: u32,
}

/// The share, and the keys that it follows: as many as the store has blocks.
#[derive(Debug)]
pub struct WriteShare {
    /// Of `whole`; one evidence moves it by one.
    share: u64,
    /// Blocks of the store: evidence for each moves the share over its whole range.
    whole: u64,
    /// Newest first in each set.
    keys: Box<[[Left; WAYS]]>,
    /// Blocks written so far.
    written: u64,
    /// Counts have this many bits less than blocks, so that they last for all of a store.
    shift: u32,
}

impl WriteShare {
    /// For a store of `store_blocks` blocks. Everything is written at first.
    #[must_use]
    pub fn new(store_blocks: u64) -> Self {
        let whole = store_blocks.max(1);
        let sets = usize::try_from(whole.div_ceil(WAYS as u64)).expect("a table fits into memory");
        let keys = vec![[Left::default(); WAYS]; sets].into_boxed_slice();
        Self { share: whole, whole, keys, written: 0, shift: shift(whole) }
    }

    /// Whether an unused block is written. Blocks of one group have one answer: half a prefix is of
    /// no use.
    #[must_use]
    pub fn takes(&self, group: u32) -> bool {
        let hash = mixed(group.into()) >> (u64::BITS - HASH_BITS);
        u128::from(hash) * u128::from(self.whole) < u128::from(self.share) << HASH_BITS
    }

    /// The set of a key, and its fingerprint there.
    fn place(&self, (uid, lo): (u64, u64)) -> (usize, u32) {
        let bits = mixed(uid.rotate_left(17) ^ lo);
        let set = (u128::from(bits) * self.keys.len() as u128) >> u64::BITS;
        let print = u32::try_from(bits & u64::from(u32::MAX)).expect("it has 32 bits");
        (usize::try_from(set).expect("it is one of them"), print.max(1))
    }

    /// Blocks written so far, as a set has it.
    fn count(&self) -> u32 {
        let count = (self.written >> self.shift) & ((1 << COUNT_BITS) - 1);
        u32::try_from(count).expect("it has fewer bits")
    }

    /// A block left memory.
    pub fn left(&mut self, key: (u64, u64), fate: BlockFate) {
        self.written += u64::from(fate == BlockFate::Written);
        let (place, print) = self.place(key);
        let left = Left { print, fate: self.count() << 1 | u32::from(fate == BlockFate::Written) };
        let set = &mut self.keys[place];
        let is_its = |other: &Left| other.print == print;
        let at = set.iter().position(is_its).or(set.iter().position(|other| other.print == 0));
        let at = at.unwrap_or(WAYS - 1);
        set[..=at].rotate_right(1);
        set[0] = left;
    }

    /// A key is dropped, or replaced: if it is offered again, that is no evidence.
    pub fn forget(&mut self, key: (u64, u64)) {
        let (place, print) = self.place(key);
        let set = &mut self.keys[place];
        if let Some(left) = set.iter_mut().find(|left| left.print == print) {
            *left = Left::default();
        }
    }

    /// A block is offered that is neither in memory nor in the store.
    pub fn offered(&mut self, key: (u64, u64)) {
        let (place, print) = self.place(key);
        let now = self.count();
        let set = &mut self.keys[place];
        let Some(at) = set.iter().position(|left| left.print == print) else { return };
        let Left { fate, .. } = std::mem::take(&mut set[at]);
        let past = now.wrapping_sub(fate >> 1) & ((1 << COUNT_BITS) - 1);
        if u64::from(past) << self.shift > self.whole {
            return;
        }
        self.share = match fate & 1 {
            0 => self.whole.min(self.share + 1),
            _ => self.whole.div_ceil(LEAST_PART).max(self.share - 1),
        };
    }
}

/// Bits that a count of written blocks goes without, for a store of this number of them.
fn shift(blocks: u64) -> u32 {
    (u64::BITS - blocks.leading_zeros()).saturating_sub(COUNT_BITS - 1)
}

/// All bits of a word have a part in each of the result's upper ones, and in its lower half.
fn mixed(word: u64) -> u64 {
    let word = (word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

#[cfg(test)]
mod tests {
    use super::{BlockFate, WriteShare};

    const UID: u64 = 3;

    fn taken(share: &WriteShare) -> usize {
        (0..10_000).filter(|group| share.takes(*group)).count()
    }

    fn leaves(share: &mut WriteShare, keys: impl Iterator<Item = u64>, fate: BlockFate) {
        for lo in keys {
            share.left((UID, lo), fate);
        }
    }

    fn offer(share: &mut WriteShare, keys: impl Iterator<Item = u64>) {
        for lo in keys {
            share.offered((UID, lo));
        }
    }

    #[test]
    fn a_key_that_a_client_drops_is_no_evidence() {
        let mut share = WriteShare::new(100);
        let before = taken(&share);
        leaves(&mut share, 0..50, BlockFate::Written);
        (0..50).for_each(|lo| share.forget((UID, lo)));
        offer(&mut share, 0..50);
        assert_eq!(taken(&share), before);
        leaves(&mut share, 0..50, BlockFate::Written);
        offer(&mut share, 0..50);
        assert!(taken(&share) < before);
    }

    #[test]
    fn evidence_moves_the_share_and_fades() {
        let mut share = WriteShare::new(128);
        assert_eq!(taken(&share), 10_000, "everything at first");
        for lo in 0..64 {
            leaves(&mut share, lo..=lo, BlockFate::Written);
            offer(&mut share, lo..=lo);
        }
        assert!(taken(&share).abs_diff(5_000) < 200, "{}", taken(&share));
        offer(&mut share, 7..8);
        assert_eq!(share.share, 64, "evidence counts once");
        for lo in 0..32 {
            leaves(&mut share, lo..=lo, BlockFate::Dropped);
            offer(&mut share, lo..=lo);
        }
        assert_eq!(share.share, 96);
        for lo in 0..200 {
            leaves(&mut share, lo..=lo, BlockFate::Written);
            offer(&mut share, lo..=lo);
        }
        assert_eq!(share.share, 2, "the least part");
    }

    /// Other keys are in other sets mostly: what has gone by is known by what was written.
    #[test]
    fn evidence_of_long_ago_counts_no_more() {
        for (written, share_then) in [(1000, 501), (1002, 500)] {
            let mut share = WriteShare::new(1000);
            share.share = 500;
            leaves(&mut share, 1..2, BlockFate::Dropped);
            for _ in 0..written {
                leaves(&mut share, 5..6, BlockFate::Written);
            }
            offer(&mut share, 1..2);
            assert_eq!(share.share, share_then, "{written}");
        }
    }

    /// Nine of ten keys of half a store's length are remembered, nearly all of a tenth of it.
    #[test]
    fn a_table_of_a_store_s_length_remembers_most_of_its_keys() {
        for (keys, least) in [(5_000, 4_500), (1_000, 990)] {
            let mut share = WriteShare::new(10_000);
            leaves(&mut share, 0..keys, BlockFate::Written);
            offer(&mut share, 0..keys);
            assert!(10_000 - share.share >= least, "{} of {keys}", 10_000 - share.share);
        }
    }

    /// A window of a store's length is no more than half of what a count has room for.
    #[test]
    fn a_large_store_counts_in_steps() {
        assert_eq!([1 << 20, (1 << 30) - 1, 1 << 30, 1 << 32].map(super::shift), [0, 0, 1, 3]);
        let mut share = WriteShare { shift: 3, ..WriteShare::new(1) };
        share.written = u64::MAX;
        assert_eq!(share.count(), (1 << 31) - 1);
    }
}
