//! A presence table in shared memory: the sidecar's end, and the clients'.

use std::sync::Arc;

use kvrail_memory::{Pinned, WordView};

use crate::presence::{
    BUCKETS_WORD, LINE_WORDS, Load, MAGIC, MAGIC_WORD, Presence, Reader, Words, Writer, buckets_for,
};
use crate::shm::ShmTable;
use crate::sync::Ordering;

/// The poller's end of the table.
#[derive(Debug)]
pub struct PresenceWriter(Writer<ShmTable>);

impl PresenceWriter {
    /// Bytes of a table for `blocks` blocks: 8 for each.
    #[must_use]
    pub fn bytes_for(blocks: u64) -> usize {
        (buckets_for(blocks) as usize + 1) * LINE_WORDS * 4
    }

    /// A table in memory that is zero and has no reader yet. It fills the memory.
    ///
    /// # Panics
    /// If the memory has no room for one bucket.
    #[must_use]
    pub fn new(memory: &Arc<dyn Pinned>) -> Self {
        let lines = memory.bytes() / (LINE_WORDS * 4);
        let buckets = u32::try_from(lines - 1).unwrap_or(u32::MAX);
        assert!(buckets > 0, "a table has a header and a bucket at least");
        Self(Writer::new(ShmTable::at(memory), buckets))
    }

    /// A key is there from now on: called before the acknowledgement.
    pub fn come(&mut self, uid: u64, lo: u64) {
        self.0.come(uid, lo);
    }

    /// A key that came is gone.
    ///
    /// # Panics
    /// If it had not come.
    pub fn go(&mut self, uid: u64, lo: u64) {
        self.0.go(uid, lo);
    }

    /// A namespace is open under this uid.
    pub fn open(&mut self, uid: u64) {
        self.0.open(uid);
    }

    /// The uid is in force no more: called before the answer.
    pub fn close(&mut self, uid: u64) {
        self.0.close(uid);
    }

    /// All that is there has come.
    pub fn complete(&mut self) {
        self.0.complete();
    }
}

impl Drop for PresenceWriter {
    /// Retires the table.
    fn drop(&mut self) {
        self.0.retire();
    }
}

/// The client's end of the table.
#[derive(Debug)]
pub struct PresenceReader(Reader<WordView>);

impl PresenceReader {
    /// A table that a sidecar has shown. Nothing where the memory holds none of this version.
    #[must_use]
    pub fn new(memory: WordView) -> Option<Self> {
        let lines = memory.bytes() / (LINE_WORDS * 4);
        // Written before the memory was sent here.
        if lines < 2 || memory.load(MAGIC_WORD, Ordering::Relaxed) != MAGIC {
            return None;
        }
        let buckets = memory.load(BUCKETS_WORD, Ordering::Relaxed); // as above
        let fits = buckets > 0 && (buckets as usize) < lines;
        fits.then(|| Self(Reader::new(memory, buckets)))
    }

    /// Whether another table stands for the member now.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.0.is_retired()
    }

    /// As `probe`; what is present is so in a namespace whose uid is in force.
    #[must_use]
    pub fn probe_open(&self, uid: u64, lo: u64) -> Presence {
        self.0.probe_open(uid, lo)
    }

    /// Whether the block is there whose key has this lower half, in the namespace with this uid.
    #[must_use]
    pub fn probe(&self, uid: u64, lo: u64) -> Presence {
        self.0.probe(uid, lo)
    }
}

impl Load for WordView {
    fn load(&self, word: usize, ordering: Ordering) -> u32 {
        Self::load(self, word, ordering)
    }
}

impl Load for ShmTable {
    fn load(&self, word: usize, ordering: Ordering) -> u32 {
        self.word(word).load(ordering)
    }
}

impl Words for ShmTable {
    fn store(&self, word: usize, value: u32, ordering: Ordering) {
        self.word(word).store(value, ordering);
    }
}

// Miri has no memfd; loom checks the words' order.
#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::Arc;

    use kvrail_memory::{Pinned, Region, WordView};

    use super::{Presence, PresenceReader, PresenceWriter};

    /// A table and a reader of it.
    fn table(blocks: u64) -> (Region, PresenceWriter, PresenceReader) {
        let region = Region::create_open("presence", PresenceWriter::bytes_for(blocks)).unwrap();
        let file = region.fd().try_clone_to_owned().unwrap();
        let shared: Arc<dyn Pinned> = Arc::new(
            Region::import_with(file, region.bytes() as u64, kvrail_memory::Sealing::Size).unwrap(),
        );
        let writer = PresenceWriter::new(&shared);
        region.close().unwrap();
        let view = WordView::open(region.fd().try_clone_to_owned().unwrap(), region.bytes() as u64);
        let reader = PresenceReader::new(view.unwrap()).unwrap();
        (region, writer, reader)
    }

    #[test]
    fn what_came_is_there_until_it_goes() {
        let (_region, mut writer, reader) = table(4096);
        assert_eq!(reader.probe(7, 1), Presence::Maybe, "warming");
        writer.come(7, 1);
        assert_eq!(reader.probe(7, 1), Presence::Present);
        writer.complete();
        assert_eq!(reader.probe(7, 2), Presence::Maybe, "an unknown namespace");
        writer.open(7);
        assert_eq!((reader.probe(7, 1), reader.probe(7, 2)), (Presence::Present, Presence::Absent));
        writer.go(7, 1);
        assert_eq!(reader.probe(7, 1), Presence::Absent);
        writer.close(7);
        assert_eq!(reader.probe(7, 1), Presence::Maybe, "cleared");
        assert!(!reader.is_retired());
        drop(writer);
        assert!(reader.is_retired());
        assert_eq!(reader.probe(7, 1), Presence::Maybe);
    }

    /// Three times what it was made for, and away again: never false, and exact at the end.
    #[test]
    fn a_crowded_table_is_never_false() {
        let (_region, mut writer, reader) = table(4096);
        writer.open(7);
        writer.complete();
        (0..12_288).for_each(|lo| writer.come(7, lo));
        assert!((0..12_288).all(|lo| reader.probe(7, lo) != Presence::Absent));
        (4000..12_288).for_each(|lo| writer.go(7, lo));
        assert!((0..4000).all(|lo| reader.probe(7, lo) != Presence::Absent));
        (0..4000).for_each(|lo| writer.go(7, lo));
        assert!((0..12_288).all(|lo| reader.probe(7, lo) == Presence::Absent));
    }

    #[test]
    fn a_full_table_rarely_says_maybe_and_hardly_ever_lies() {
        let (_region, mut writer, reader) = table(100_000);
        writer.open(7);
        writer.complete();
        (0..100_000).for_each(|lo| writer.come(7, lo));
        let others = (1 << 32..(1 << 32) + 200_000_u64).map(|lo| reader.probe(7, lo));
        let mut counts = [0; 3];
        others.for_each(|other| counts[other as usize] += 1);
        let [absent, maybe, present] = counts;
        assert!(present == 0 && maybe < 4000, "{absent} {maybe} {present}");
    }

    #[test]
    fn memory_without_a_table_is_none() {
        let region = Region::create_open("none", 8192).unwrap();
        region.close().unwrap();
        let view = WordView::open(region.fd().try_clone_to_owned().unwrap(), region.bytes() as u64);
        assert!(PresenceReader::new(view.unwrap()).is_none());
    }
}
