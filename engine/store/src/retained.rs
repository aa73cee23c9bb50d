//! Bytes of blocks of a high priority. They have a limit in each pool: were all blocks retained,
//! none would be.

use crate::config::StoreGeometry;
use crate::entry::Entry;
use crate::format::POOLS_MAX;
use crate::hint::{Priority, WorthClass};

/// The bytes of each pool, with what blocks leave of their last logical blocks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Retained([u64; POOLS_MAX]);

impl Retained {
    /// Those of a pool.
    pub(crate) fn bytes(&self, pool: u8) -> u64 {
        self.0[usize::from(pool)]
    }

    /// A block is there that lies in a segment of this pool.
    pub(crate) fn gain(&mut self, entry: &Entry, pool: u8, geometry: &StoreGeometry) {
        self.0[usize::from(pool)] += retained(entry, geometry);
    }

    /// It is not there any more, or not retained.
    pub(crate) fn lose(&mut self, entry: &Entry, pool: u8, geometry: &StoreGeometry) {
        let all = &mut self.0[usize::from(pool)];
        let left = all.checked_sub(retained(entry, geometry));
        *all = left.expect("a retained block is counted in before it is counted out");
    }
}

/// The bytes of an entry that are retained.
pub(crate) fn retained(entry: &Entry, geometry: &StoreGeometry) -> u64 {
    let is_retained = entry.class() == WorthClass::Of(Priority::High);
    if is_retained { geometry.padded(entry.length()).into() } else { 0 }
}
