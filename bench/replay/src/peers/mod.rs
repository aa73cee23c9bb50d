//! The caches that the store is compared with. They cache single blocks and know no segments.

mod belady;
mod lru;
mod s3fifo;

pub(crate) use belady::Belady;
pub(crate) use lru::Lru;
pub(crate) use s3fifo::S3Fifo;

/// A cache of so many blocks.
pub(crate) trait Peer {
    /// A block is asked for, and put where it is not there.
    fn access(&mut self, block: u32) -> Access;
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// It was there.
    Hit,
    /// It was not, and was written.
    Written,
    /// It was not, and was passed by.
    Passed,
}
