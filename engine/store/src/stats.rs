//! What a store counts.

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks put.
    pub puts: u64,
    /// Bytes of them.
    pub put_bytes: u64,
    /// Puts of keys that were there.
    pub present: u64,
    /// Puts of keys that were being put.
    pub pending: u64,
    /// Puts and drops that were declined.
    pub declined: u64,
    /// Puts given up before they were complete.
    pub abandoned: u64,
    /// Gets that found their block.
    pub hits: u64,
    /// Gets that did not.
    pub misses: u64,
    /// Keys dropped that were there.
    pub drops: u64,
    /// Blocks evicted.
    pub evicted: u64,
    /// Blocks evicted although they were held.
    pub holds_broken: u64,
    /// Blocks moved.
    pub moved: u64,
    /// Bytes of them.
    pub moved_bytes: u64,
    /// Segments reclaimed.
    pub reclaimed: u64,
    /// Pages written.
    pub pages: u64,
    /// Bytes written to the medium in all.
    pub written_bytes: u64,
    /// Writes, flushes and moves that failed.
    pub failures: u64,
    /// Records read back at the start.
    pub recovered: u64,
    /// Segments whose content was distrusted because records of drops were missing.
    pub distrusted: u64,
    /// Blocks that readers reported.
    pub suspects: u64,
}
