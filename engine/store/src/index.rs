//! The index: which blocks are there. Two candidate buckets of eight for each key, no chains.

use crate::entry::{Entry, Rest};
use crate::key::Key;

/// Entries of a bucket: one line of tags selects the entries to compare.
pub(crate) const WAYS: usize = 8;
const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Bytes of RAM of an entry, with its tag and the rest of its key.
pub(crate) const ENTRY_BYTES: u64 = (size_of::<Entry>() + size_of::<Rest>()) as u64 + 1;

/// How full the table is planned to be, in percent.
pub(crate) const LOAD_PERCENT: u64 = 88;
/// From here on space is made early.
const CROWDED_PERCENT: u64 = 92;

/// An entry's position. Good until the next insertion, which may displace entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position(u64);

/// A key's hash in this store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hash(u64);

impl Hash {
    /// The row in a table of `rows` rows, and bits that do not follow from it: the high ones.
    #[inline(always)]
    pub(crate) fn apart(self, rows: u64) -> (u64, u64) {
        // Not the bits that choose buckets: those of one bucket would share a row.
        let mixed = u128::from(self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let product = Key::new(mixed * u128::from(rows));
        (product.hi(), product.lo())
    }
}

#[derive(Debug)]
pub(crate) struct Index {
    tags: Box<[u64]>,
    entries: Box<[[Entry; WAYS]]>,
    /// Compared after the tags and kept apart from them: a mixed layout would make misses of
    /// lookups slower.
    rests: Box<[[Rest; WAYS]]>,
    /// Namespace number to what its keys are mixed with.
    salts: Box<[u64]>,
    seed: [u64; 2],
    used: u64,
    /// Whether an insertion failed by chance and nothing was removed since: in small tables that
    /// happens before they are crowded.
    refused: bool,
}

fn multiply(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    Key::new(product).lo() ^ Key::new(product).hi()
}

/// Index into memory of a number that a table's length bounds.
fn at(number: u64) -> usize {
    usize::try_from(number).expect("tables fit into memory")
}

impl Index {
    pub(crate) fn new(buckets: u64, numbers: u32) -> Self {
        Self {
            tags: vec![0; at(buckets)].into_boxed_slice(),
            entries: vec![[Entry::EMPTY; WAYS]; at(buckets)].into_boxed_slice(),
            rests: vec![[Rest::default(); WAYS]; at(buckets)].into_boxed_slice(),
            salts: vec![0; numbers as usize].into_boxed_slice(),
            seed: [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03],
            used: 0,
            refused: false,
        }
    }

    /// Gives the table its secret; it must be empty.
    pub(crate) fn reseed(&mut self, seed: u128) {
        assert!(self.used == 0, "entries were placed by another seed");
        self.seed = [Key::new(seed).lo(), Key::new(seed).hi() | 1];
    }

    /// Binds a namespace number to a uid.
    pub(crate) fn set_uid(&mut self, number: u16, uid: u64) {
        self.salts[usize::from(number)] = multiply(uid ^ self.seed[0], self.seed[1]);
    }

    #[inline(always)]
    pub(crate) fn hash(&self, number: u16, lo: u64) -> Hash {
        let salt = self.salts[usize::from(number)];
        let mixed = multiply(lo ^ self.seed[0], salt ^ self.seed[1]);
        Hash(multiply(mixed ^ lo.rotate_left(32), 0x9fb2_1c65_1e98_df25 ^ salt))
    }

    fn buckets(&self) -> u64 {
        self.tags.len() as u64
    }

    #[inline(always)]
    fn candidates(&self, hash: Hash) -> [u64; 2] {
        let (low, high) = (hash.0 & 0xffff_ffff, hash.0 >> 32);
        let first = (low * self.buckets()) >> 32;
        let second = (high * self.buckets()) >> 32;
        // A remainder would be a division for every key.
        let next = if first + 1 == self.buckets() { 0 } else { first + 1 };
        [first, if second == first { next } else { second }]
    }

    /// Tags of both candidates: loaded for a batch of keys first, so that their cache misses
    /// overlap.
    #[inline(always)]
    pub(crate) fn touch(&self, hash: Hash) -> u64 {
        let [first, second] = self.candidates(hash);
        self.tags[at(first)] ^ self.tags[at(second)]
    }

    /// Where an entry is that may be the key's, or else the one that an insertion would write now.
    #[inline(always)]
    pub(crate) fn expect(&self, hash: Hash) -> Position {
        let [first, second] = self.candidates(hash);
        let tags = [first, second].map(|bucket| self.tags[at(bucket)]);
        let alike = tags.map(|tags| zeros(tags ^ (ONES * tag(hash))));
        let ways = if alike[0] | alike[1] != 0 { alike } else { tags.map(zeros) };
        let second_better = marked(ways[1]) > marked(ways[0]);
        let (bucket, ways) = if second_better { (second, ways[1]) } else { (first, ways[0]) };
        let way = u64::from(ways.trailing_zeros() / 8).min(WAYS as u64 - 1);
        Position(bucket * WAYS as u64 + way)
    }

    /// The entry of a key, and where it is.
    #[inline(always)]
    pub(crate) fn find(&self, hash: Hash, key: Key, number: u16) -> Option<(Position, &Entry)> {
        let rest = Rest::of(key);
        self.seek(hash, |entry, its| entry.is_like(key, number) && *its == rest)
    }

    /// Where a key with that hash has an entry that `is_it`, if it has one.
    #[inline(always)]
    pub(crate) fn place_of(&self, hash: Hash, is_it: impl Fn(&Entry) -> bool) -> Option<Position> {
        self.seek(hash, |entry, _| is_it(entry)).map(|(position, _)| position)
    }

    #[inline(always)]
    fn seek(
        &self,
        hash: Hash,
        is_it: impl Fn(&Entry, &Rest) -> bool,
    ) -> Option<(Position, &Entry)> {
        let sought = ONES * tag(hash);
        for bucket in self.candidates(hash) {
            let mut hits = zeros(self.tags[at(bucket)] ^ sought);
            while hits != 0 {
                let way = u64::from(hits.trailing_zeros() / 8);
                let entry = &self.entries[at(bucket)][at(way)];
                // Not an empty one: those have no tag.
                if is_it(entry, &self.rests[at(bucket)][at(way)]) {
                    return Some((Position(bucket * WAYS as u64 + way), entry));
                }
                hits &= hits - 1;
            }
        }
        None
    }

    /// The entry at a position.
    #[inline(always)]
    pub(crate) fn get(&self, position: Position) -> Entry {
        let (bucket, way) = (position.0 / WAYS as u64, position.0 % WAYS as u64);
        self.entries[at(bucket)][at(way)]
    }

    /// Puts a key's entry, which is not there. `false`: the table has no room for it.
    pub(crate) fn insert(&mut self, hash: Hash, key: Key, entry: Entry) -> bool {
        let candidates = self.candidates(hash);
        let counts = candidates.map(|bucket| marked(zeros(self.tags[at(bucket)])));
        let best = if counts[1] > counts[0] { 1 } else { 0 };
        let free = self.free_way(candidates[best]).map(|way| (candidates[best], way));
        let Some((bucket, way)) = free.or_else(|| self.make_room(candidates)) else {
            // Two keys of one hash are no chance: a client chose them. Their two buckets are their
            // room, and no block of another client is evicted for more.
            let chosen = |entry: &Entry| self.hash(entry.number(), entry.lo()) == hash;
            self.refused |= self.place_of(hash, chosen).is_none();
            return false;
        };
        self.write(bucket, way, tag(hash), (entry, Rest::of(key)));
        self.used += 1;
        true
    }

    fn free_way(&self, bucket: u64) -> Option<u64> {
        let free = zeros(self.tags[at(bucket)]);
        (free != 0).then(|| u64::from(free.trailing_zeros() / 8))
    }

    /// Moves an entry of these full buckets into its other one; at most two entries move.
    fn make_room(&mut self, candidates: [u64; 2]) -> Option<(u64, u64)> {
        for bucket in candidates {
            for way in 0..WAYS as u64 {
                if self.displace(bucket, way) {
                    return Some((bucket, way));
                }
            }
        }
        for bucket in candidates {
            for way in 0..WAYS as u64 {
                let other = self.other(bucket, way);
                let mut ways = 0..WAYS as u64;
                let second =
                    ways.find(|&way| self.other(other, way) != bucket && self.displace(other, way));
                if second.is_some() && self.displace(bucket, way) {
                    return Some((bucket, way));
                }
            }
        }
        None
    }

    /// The other candidate of a resident entry.
    fn other(&self, bucket: u64, way: u64) -> u64 {
        let entry = &self.entries[at(bucket)][at(way)];
        let [first, second] = self.candidates(self.hash(entry.number(), entry.lo()));
        if first == bucket { second } else { first }
    }

    fn displace(&mut self, bucket: u64, way: u64) -> bool {
        let other = self.other(bucket, way);
        let Some(free) = self.free_way(other) else { return false };
        let moved = (self.entries[at(bucket)][at(way)], self.rests[at(bucket)][at(way)]);
        let kept = self.tags[at(bucket)].to_le_bytes()[at(way)];
        self.write(other, free, u64::from(kept), moved);
        self.write(bucket, way, 0, (Entry::EMPTY, Rest::default()));
        true
    }

    fn write(&mut self, bucket: u64, way: u64, tag: u64, (entry, rest): (Entry, Rest)) {
        let tags = &mut self.tags[at(bucket)];
        *tags = *tags & !(0xff << (way * 8)) | tag << (way * 8);
        self.entries[at(bucket)][at(way)] = entry;
        self.rests[at(bucket)][at(way)] = rest;
    }

    /// Replaces the value of an entry; key and namespace stay.
    #[inline]
    pub(crate) fn update(&mut self, position: Position, entry: Entry) {
        let (bucket, way) = (position.0 / WAYS as u64, position.0 % WAYS as u64);
        let old = &mut self.entries[at(bucket)][at(way)];
        debug_assert!(old.lo() == entry.lo() && old.number() == entry.number());
        *old = entry;
    }

    pub(crate) fn remove(&mut self, position: Position) -> Entry {
        let (bucket, way) = (position.0 / WAYS as u64, position.0 % WAYS as u64);
        let entry = self.entries[at(bucket)][at(way)];
        assert!(!entry.is_empty(), "an entry is removed once");
        self.write(bucket, way, 0, (Entry::EMPTY, Rest::default()));
        (self.used, self.refused) = (self.used - 1, false);
        entry
    }

    /// Positions in use of one bucket, for a walk over all.
    pub(crate) fn bucket(&self, bucket: u64) -> impl Iterator<Item = (Position, Entry)> + use<> {
        let entries = self.entries[at(bucket)];
        let all = (0..WAYS as u64).map(move |way| Position(bucket * WAYS as u64 + way));
        all.zip(entries).filter(|(_, entry)| !entry.is_empty())
    }

    /// Buckets of the table.
    pub(crate) fn len(&self) -> u64 {
        self.buckets()
    }

    /// Entries in use.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Entries that the table has places for.
    pub(crate) fn capacity(&self) -> u64 {
        self.buckets() * WAYS as u64
    }

    /// Whether insertions fail, or are about to.
    pub(crate) fn is_crowded(&self) -> bool {
        self.refused || self.used * 100 > self.capacity() * CROWDED_PERCENT
    }
}

/// Eight bits of the hash that are not zero.
fn tag(hash: Hash) -> u64 {
    let mixed = hash.0.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 56;
    mixed.max(1)
}

/// The high bit of every zero byte; bytes above a zero byte may be flagged in error.
fn zeros(word: u64) -> u64 {
    // The exact form: no borrow runs from one byte into the next.
    !(((word & !HIGHS) + !HIGHS) | word | !HIGHS)
}

/// How many bytes have their high bit set, of a word of nothing else. Fewer instructions than a
/// count of bits, where the processor may have none for that.
fn marked(highs: u64) -> u64 {
    (highs >> 7).wrapping_mul(ONES) >> 56
}

#[cfg(test)]
mod tests {
    use super::{Index, WAYS, marked, zeros};
    use crate::entry::{Entry, Kind};
    use crate::key::Key;

    fn entry(key: Key) -> Entry {
        Entry::new(key, 3, Kind::Live).with_place(key.lo() & 0xff)
    }

    fn index(buckets: u64) -> Index {
        let mut index = Index::new(buckets, 8);
        index.reseed(0x1234_5678_9abc_def0_0fed_cba9_8765_4321);
        index.set_uid(3, 77);
        index
    }

    #[test]
    fn zero_bytes_are_found_exactly() {
        assert_eq!(zeros(0x0100_0001_ff00_0080), 0x0080_8000_0080_8000);
        assert_eq!(zeros(u64::MAX), 0);
        assert_eq!([0, 0x80, 0x8000_0080, super::HIGHS].map(marked), [0, 1, 2, 8]);
    }

    #[test]
    fn it_takes_more_than_planned_and_finds_all() {
        let mut index = index(1000);
        let mut random = fastrand::Rng::with_seed(7);
        let keys: Vec<Key> = (0..7600).map(|_| Key::of(random.u64(..), random.u64(..))).collect();
        for key in &keys {
            assert!(index.insert(index.hash(3, key.lo()), *key, entry(*key)), "{}", index.used());
        }
        assert!(index.is_crowded() && index.used() == 7600);
        for key in &keys {
            let found = index.find(index.hash(3, key.lo()), *key, 3);
            assert!(found.is_some_and(|(_, it)| it.place() == key.lo() & 0xff));
        }
        for key in &keys {
            let found = index.find(index.hash(3, key.lo()), *key, 3);
            index.remove(found.unwrap().0);
        }
        assert_eq!(index.used(), 0);
    }

    #[test]
    fn a_full_table_refuses_and_loses_nothing() {
        let mut index = index(4);
        let mut taken = Vec::new();
        for lo in 0..100 {
            let key = Key::of(lo, lo.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            if index.insert(index.hash(3, key.lo()), key, entry(key)) {
                taken.push(key);
            }
        }
        assert!(taken.len() >= 28 && taken.len() <= 32, "{}", taken.len());
        for key in taken {
            assert!(index.find(index.hash(3, key.lo()), key, 3).is_some());
        }
    }

    #[test]
    fn keys_of_equal_low_halves_are_told_apart() {
        let mut index = index(4);
        for hi in 0..9 {
            let key = Key::of(hi, 5);
            assert!(index.insert(index.hash(3, 5), key, entry(key)));
        }
        assert!((0..9).all(|hi| index.find(index.hash(3, 5), Key::of(hi, 5), 3).is_some()));
        for hi in [9, 1 << 40, 1 << 63] {
            assert!(index.find(index.hash(3, 5), Key::of(hi, 5), 3).is_none(), "{hi:x}");
        }
    }

    /// They were chosen: nothing that is evicted for them gives them a place, and each eviction
    /// takes blocks of others.
    #[test]
    fn keys_of_one_hash_have_two_buckets_and_crowd_nobody() {
        let mut index = index(1000);
        let mut put = |hi| {
            let key = Key::of(hi, 5);
            index.insert(index.hash(3, 5), key, entry(key))
        };
        assert_eq!((0..100).filter(|hi| put(*hi)).count(), 2 * WAYS);
        assert!(!index.is_crowded());
    }
}
