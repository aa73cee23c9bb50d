//! What listings, explanations and feeds bring to the control thread: with all their memory from
//! there, so that a poller allocates nothing.

use kvrail_store::{
    Cursor, Evicted, Explained, Gone, Key, Listed, ListingPage, METADATA_BYTES_MAX, PAGE_BYTES,
    RECORDS_MAX,
};

/// Blocks of a batch of those that are gone.
const BATCH_BLOCKS: usize = 512;
/// Bytes of metadata of a batch.
const BATCH_BYTES: usize = 64 << 10;

/// The place of a block that no device has.
pub const IN_MEMORY: u64 = u64::MAX;

/// What a call found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreFound {
    /// Nothing was sought.
    Nothing,
    /// Blocks.
    Blocks(Box<BlockRows>),
    /// What is known of a key, and the time that holds are counted in.
    Key {
        /// What is known; nothing yet while the call is on its way.
        known: Option<Explained>,
        /// For how many seconds clients have found it in the memory tier.
        memory_age_s: Option<u32>,
        /// The poller's time then, in nanoseconds.
        now_ns: u64,
    },
}

/// A block that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRow {
    /// Its key.
    pub key: Key,
    /// Its bytes.
    pub length: u32,
    /// How deep in its chain it is.
    pub depth: u16,
    /// Seconds since 1970 when it was put.
    pub time: u32,
    /// Its check.
    pub check: u64,
    /// Its first byte on the area; `IN_MEMORY`: it is not there.
    pub offset: u64,
    metadata: usize,
}

/// A page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRows {
    rows: Vec<BlockRow>,
    metadata: Vec<u8>,
    /// Where the next page begins; nothing: this was the last one.
    pub next: Option<Cursor>,
    /// Whether the page could be read.
    pub is_readable: bool,
}

impl Default for BlockRows {
    /// Empty, with room for any page.
    fn default() -> Self {
        let (rows, metadata) = (Vec::with_capacity(RECORDS_MAX), Vec::with_capacity(PAGE_BYTES));
        Self { rows, metadata, next: None, is_readable: true }
    }
}

impl BlockRows {
    /// Copies a page.
    pub(crate) fn fill(&mut self, page: &ListingPage<'_>) {
        (self.next, self.is_readable) = (page.next_cursor(), page.is_readable());
        for Listed { key, length, depth, time, check, offset, metadata, .. } in page.blocks() {
            self.metadata.extend_from_slice(metadata);
            let metadata = metadata.len();
            self.rows.push(BlockRow { key, length, depth, time, check, offset, metadata });
        }
    }

    /// Whether a further block has room, whatever its metadata is.
    pub(crate) fn has_room(&self) -> bool {
        let bytes = self.metadata.len() + METADATA_BYTES_MAX;
        self.rows.len() < RECORDS_MAX && bytes <= PAGE_BYTES
    }

    /// Adds a block that memory alone has.
    pub(crate) fn push_in_memory(&mut self, listed: &Listed<'_>) {
        let Listed { key, length, depth, time, check, metadata, .. } = *listed;
        self.metadata.extend_from_slice(metadata);
        let (metadata, offset) = (metadata.len(), IN_MEMORY);
        self.rows.push(BlockRow { key, length, depth, time, check, offset, metadata });
    }

    /// Its blocks, each with its metadata.
    pub fn iter(&self) -> impl Iterator<Item = (&BlockRow, &[u8])> {
        let mut at = 0;
        self.rows.iter().map(move |row| {
            let first = at;
            at += row.metadata;
            (row, &self.metadata[first..at])
        })
    }
}

/// A block that is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoneRow {
    /// Uid of its namespace.
    pub uid: u64,
    /// Its key; 0 for all of a namespace that was cleared.
    pub key: Key,
    /// Its bytes.
    pub length: u32,
    /// Why.
    pub why: Gone,
    metadata: usize,
}

/// Blocks of one store that are gone, in the order in which they went.
#[derive(Debug)]
pub struct GoneRows {
    /// The poller's device, in local order.
    pub device: usize,
    rows: Vec<GoneRow>,
    metadata: Vec<u8>,
    /// Blocks that went and are in no batch, since the store began.
    pub lost: u64,
}

impl Default for GoneRows {
    /// Empty, with room for 512 blocks and 64 KiB of metadata.
    fn default() -> Self {
        let (rows, metadata) = (Vec::with_capacity(BATCH_BLOCKS), Vec::with_capacity(BATCH_BYTES));
        Self { device: 0, rows, metadata, lost: 0 }
    }
}

impl GoneRows {
    /// Whether any block has room.
    pub(crate) fn has_room(&self) -> bool {
        self.rows.len() < BATCH_BLOCKS && self.metadata.len() + METADATA_BYTES_MAX <= BATCH_BYTES
    }

    pub(crate) fn push(&mut self, gone: &Evicted<'_>) {
        let Evicted { uid, key, length, why, metadata } = *gone;
        self.metadata.extend_from_slice(metadata);
        self.rows.push(GoneRow { uid, key, length, why, metadata: metadata.len() });
    }

    /// Its blocks, each with its metadata.
    pub fn iter(&self) -> impl Iterator<Item = (GoneRow, &[u8])> {
        let mut at = 0;
        self.rows.iter().map(move |row| {
            let first = at;
            at += row.metadata;
            (*row, &self.metadata[first..at])
        })
    }

    /// Makes it empty again.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.metadata.clear();
    }
}
