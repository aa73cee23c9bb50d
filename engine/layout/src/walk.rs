//! From numbers of bytes to places: the runs of memory that a range of a block consists of.

use crate::Layout;

/// Bytes that lie one after the other both in the block and in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which of the region's memories.
    pub memory: u16,
    /// First byte in that memory.
    pub offset: u64,
    /// First byte in the range walked.
    pub at: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The runs of a range, in order.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    layout: &'a Layout,
    block: u32,
    start: u64,
    at: u64,
    length: u64,
    fragment: usize,
}

impl Layout {
    /// Walks a range of a block.
    ///
    /// # Panics
    /// If the block does not hold the range.
    #[must_use]
    pub fn runs(&self, block: u32, start: u64, length: u32) -> Runs<'_> {
        assert!(self.holds(block, start, length), "{length} bytes from {start} of block {block}");
        let fragment = self.starts.partition_point(|first| *first <= start) - 1;
        Runs { layout: self, block, start, at: 0, length: u64::from(length), fragment }
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        if self.at == self.length {
            return None;
        }
        let fragment = &self.layout.fragments[self.fragment];
        let inside = self.start + self.at - self.layout.starts[self.fragment];
        let bytes = (fragment.bytes - inside).min(self.length - self.at);
        let run = Run {
            memory: fragment.memory,
            offset: fragment.base + u64::from(self.block) * fragment.stride + inside,
            at: self.at,
            bytes,
        };
        self.at += bytes;
        self.fragment += 1;
        Some(run)
    }
}
