//! Why keys are not there: the latest fates of some keys, in a table of a fixed size.
//!
//! A key is in the sample by its hash, always or never, so that a key of the sample without a fate
//! was never put, or its fate was forgotten. The table is read for one absent key in `one_in`, and
//! for no key that is there. It remembers about as many fates as the store holds blocks; the oldest
//! of a line goes first.

use crate::index::Hash;
use crate::request::DeclineReason;

/// Fates in a line; one more word of the line holds the position of the oldest.
const FATES: u32 = 15;
/// Lines at least, and at most: 256 KiB, which a core's cache holds.
const LINES_MIN: u64 = 16;
const LINES_MAX: u64 = 4096;
/// Bits of a word for the fate; the others are of the key's hash.
const FATE_BITS: u32 = 4;

/// Why a key is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its segment was reclaimed.
    Evicted,
    /// It was evicted when the time that it was to be kept for was over.
    Expired,
    /// A client dropped it.
    Dropped,
    /// It was dropped because its bytes were wrong.
    Damaged,
    /// Its segment could not be trusted.
    Lost,
    /// Its put was declined: little or none of the write budget was left.
    Budget,
    /// Its put was declined: the blocks that were there are used too often.
    Colder,
    /// Its put was declined for another reason.
    Declined,
}

const ALL: [Fate; 8] = [
    Fate::Evicted,
    Fate::Expired,
    Fate::Dropped,
    Fate::Damaged,
    Fate::Lost,
    Fate::Budget,
    Fate::Colder,
    Fate::Declined,
];

impl From<DeclineReason> for Fate {
    fn from(why: DeclineReason) -> Self {
        match why {
            DeclineReason::FirstSight | DeclineReason::Budget => Self::Budget,
            DeclineReason::Colder => Self::Colder,
            DeclineReason::IndexFull
            | DeclineReason::Broken
            | DeclineReason::Refused
            | DeclineReason::Busy
            | DeclineReason::Starting => Self::Declined,
        }
    }
}

/// One line of the cache. A word of 0 is no fate.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line {
    words: [u32; FATES as usize],
    oldest: u32,
}

/// A key of the sample: its line, and its hash's part of the word.
#[derive(Clone, Copy, Debug)]
struct Sampled {
    line: usize,
    mark: u32,
}

/// The fates.
#[derive(Debug)]
pub(crate) struct Fates {
    lines: Box<[Line]>,
    one_in: u64,
}

/// Lines of a store of `blocks` blocks, and of how many keys one is in the sample.
fn shape(blocks: u64) -> (u64, u64) {
    let wanted = blocks.div_ceil(FATES.into());
    let lines = wanted.clamp(LINES_MIN, LINES_MAX);
    (lines, wanted.div_ceil(lines).max(1))
}

/// Bytes of RAM of the table of a store of `blocks` blocks.
pub(crate) fn fates_bytes(blocks: u64) -> u64 {
    shape(blocks).0 * size_of::<Line>() as u64
}

impl Fates {
    pub(crate) fn new(blocks: u64) -> Self {
        let (lines, one_in) = shape(blocks);
        let lines = usize::try_from(lines).expect("at most LINES_MAX");
        Self { lines: vec![Line::default(); lines].into_boxed_slice(), one_in }
    }

    /// Of how many keys one is in the sample.
    pub(crate) fn one_in(&self) -> u64 {
        self.one_in
    }

    /// The place of a key, if it is in the sample.
    #[inline(always)]
    fn place(&self, hash: Hash) -> Option<Sampled> {
        let (line, rest) = hash.apart(self.lines.len() as u64 * self.one_in);
        let line = usize::try_from(line).ok().filter(|line| *line < self.lines.len())?;
        let [.., a, b, c, d] = rest.to_le_bytes();
        Some(Sampled { line, mark: u32::from_le_bytes([a, b, c, d]) >> FATE_BITS << FATE_BITS })
    }

    /// Whether a key is in the sample.
    #[inline(always)]
    pub(crate) fn has(&self, hash: Hash) -> bool {
        self.place(hash).is_some()
    }

    /// The key went, or did not come.
    pub(crate) fn enter(&mut self, hash: Hash, fate: Fate) {
        let Some(Sampled { line, mark }) = self.place(hash) else { return };
        let code = ALL.iter().zip(1..).find_map(|(other, code)| (*other == fate).then_some(code));
        let word = mark | code.expect("each fate has a code");
        let Line { words, oldest } = &mut self.lines[line];
        let same = words.iter().position(|word| is_of(*word, mark));
        let at = same.unwrap_or_else(|| {
            let at = *oldest as usize;
            *oldest = (*oldest + 1) % FATES;
            at
        });
        words[at] = word;
    }

    /// The latest fate of a key, if it is known.
    pub(crate) fn of(&self, hash: Hash) -> Option<Fate> {
        let Sampled { line, mark } = self.place(hash)?;
        let word = self.lines[line].words.iter().find(|word| is_of(**word, mark))?;
        let code = word & ((1 << FATE_BITS) - 1);
        ALL.iter().zip(1..).find_map(|(fate, other)| (other == code).then_some(*fate))
    }
}

/// Whether a word has the fate of a key with that mark.
fn is_of(word: u32, mark: u32) -> bool {
    word != 0 && word >> FATE_BITS << FATE_BITS == mark
}

#[cfg(test)]
mod tests {
    use super::{ALL, Fate, Fates, LINES_MAX, fates_bytes};
    use crate::index::Index;

    #[test]
    fn the_latest_fate_of_each_key_is_known() {
        let (mut fates, index) = (Fates::new(1000), Index::new(2, 8));
        let hash = |key| index.hash(3, key);
        for (key, fate) in (0..).zip(ALL) {
            fates.enter(hash(key), Fate::Declined);
            fates.enter(hash(key), fate);
        }
        for (key, fate) in (0..).zip(ALL) {
            assert_eq!(fates.of(hash(key)), Some(fate));
            assert!(fates.has(hash(key)));
        }
        assert_eq!((fates.of(hash(ALL.len() as u64)), fates.one_in()), (None, 1));
    }

    /// As many are known as the store holds blocks, within the memory of a cache.
    #[test]
    fn a_large_store_remembers_a_sample() {
        let blocks = 16_000_000;
        assert_eq!(fates_bytes(blocks), LINES_MAX * 64);
        let (mut fates, index) = (Fates::new(blocks), Index::new(2, 8));
        let one_in = fates.one_in();
        assert_eq!(one_in, 261);
        let keys = 0..blocks / 2;
        keys.clone().for_each(|key| fates.enter(index.hash(3, key), Fate::Evicted));
        let own: Vec<_> =
            keys.map(|key| index.hash(3, key)).filter(|hash| fates.has(*hash)).collect();
        let estimate = own.len() as u64 * one_in;
        assert!(estimate.abs_diff(blocks / 2) < blocks / 50, "{estimate}");
        let known = own.iter().filter(|hash| fates.of(**hash).is_some()).count();
        assert!(known * 100 > own.len() * 97, "{known} of {} are known", own.len());
        let strange = (blocks..2 * blocks).map(|key| index.hash(3, key));
        let strange = strange.filter(|hash| fates.of(*hash).is_some()).count();
        assert!(strange < 5, "{strange} keys that never were have a fate");
    }
}
