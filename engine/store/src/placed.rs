//! Where a block was placed: a row of the log's open segments, and a place there.

/// Segments of a pool that take records at once.
pub(crate) const OPENS: usize = 4;

/// Where a block was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Row of the open segment.
    pub(crate) open: u8,
    /// In units from the area's begin.
    pub(crate) place: u64,
    /// In units from the segment's begin.
    pub(crate) offset: u32,
}

impl Placed {
    /// The pool that it is in.
    pub(crate) fn pool(self) -> u8 {
        pool_of(self.open)
    }
}

/// The pool of an open segment's row.
pub(crate) fn pool_of(row: u8) -> u8 {
    row / OPENS_ROWS
}

/// The same number as rows are counted.
const OPENS_ROWS: u8 = 4;
const _: () = assert!(OPENS_ROWS as usize == OPENS);
