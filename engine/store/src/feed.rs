//! Evicted blocks, for readers that keep a copy of the set of blocks: a queue of a fixed length.

use kvrail_units::METADATA_BYTES_MAX;

use crate::key::Key;

/// Rows of the queue. A step evicts at most as many blocks as its budget, so a caller that drains
/// the feed after each step of up to 512 records loses nothing.
const ROWS: usize = 512;

/// Why a block is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Its segment was reclaimed.
    Evicted,
    /// It was dropped. Its metadata is not known.
    Dropped,
    /// Its namespace was cleared or removed: one row for all blocks of that uid, with key 0.
    Cleared,
}

/// A block that is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted<'a> {
    /// Uid of its namespace.
    pub uid: u64,
    /// Its key.
    pub key: Key,
    /// Its bytes.
    pub length: u32,
    /// Why.
    pub why: Gone,
    /// The metadata of its put, up to 1 KiB; empty unless it was evicted.
    pub metadata: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
struct QueuedEvent {
    uid: u64,
    key: Key,
    length: u32,
    why: Gone,
    metadata: usize,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Feed {
    rows: Box<[QueuedEvent]>,
    metadata: Box<[u8]>,
    first: usize,
    count: usize,
    lost: u64,
}

/// Bytes of RAM of the feed.
pub(crate) const FEED_BYTES: u64 = (ROWS * (size_of::<QueuedEvent>() + METADATA_BYTES_MAX)) as u64;

impl Feed {
    pub(crate) fn new() -> Self {
        let row =
            QueuedEvent { uid: 0, key: Key::default(), length: 0, why: Gone::Evicted, metadata: 0 };
        Self {
            rows: vec![row; ROWS].into_boxed_slice(),
            metadata: vec![0; ROWS * METADATA_BYTES_MAX].into_boxed_slice(),
            first: 0,
            count: 0,
            lost: 0,
        }
    }

    /// Adds a row, or counts it as lost.
    pub(crate) fn push(&mut self, gone: &Evicted<'_>) {
        if self.count == ROWS {
            self.lost += 1;
            return;
        }
        let slot = (self.first + self.count) % ROWS;
        self.count += 1;
        let Evicted { uid, key, length, why, metadata } = *gone;
        self.rows[slot] = QueuedEvent { uid, key, length, why, metadata: metadata.len() };
        let at = slot * METADATA_BYTES_MAX;
        self.metadata[at..at + metadata.len()].copy_from_slice(metadata);
    }

    /// Counts an evicted block whose key is unknown.
    pub(crate) fn lose(&mut self) {
        self.lost += 1;
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn pop(&mut self) -> Option<Evicted<'_>> {
        self.count = self.count.checked_sub(1)?;
        let slot = self.first;
        self.first = (slot + 1) % ROWS;
        let QueuedEvent { uid, key, length, why, metadata } = self.rows[slot];
        let at = slot * METADATA_BYTES_MAX;
        let metadata = &self.metadata[at..at + metadata];
        Some(Evicted { uid, key, length, why, metadata })
    }
}

#[cfg(test)]
mod tests {
    use super::{Evicted, Feed, Gone, ROWS};
    use crate::key::Key;

    fn metadata(number: u64) -> Vec<u8> {
        vec![7; usize::try_from(number % 1025).expect("small")]
    }

    #[test]
    fn rows_come_in_order_and_what_is_lost_is_counted() {
        let mut feed = Feed::new();
        let mut next = 0;
        for lap in 0..3_u64 {
            for number in 0..ROWS as u64 + lap {
                let metadata = metadata(number);
                let key = Key::of(lap, number);
                let (uid, length, why) = (5, 9, Gone::Evicted);
                feed.push(&Evicted { uid, key, length, why, metadata: &metadata });
            }
            next += lap;
            assert_eq!(feed.lost(), next);
            for number in 0..ROWS as u64 {
                let gone = feed.pop().expect("a row");
                assert_eq!((gone.key, gone.uid, gone.length), (Key::of(lap, number), 5, 9));
                assert_eq!(gone.metadata, metadata(number));
            }
            assert_eq!(feed.pop(), None);
        }
    }
}
