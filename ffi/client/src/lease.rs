//! Leases: the memory that requests move.

use std::fmt;
use std::ops::{Deref, DerefMut};

use kvrail_ring::RegionId;

use crate::tag::ClientTag;

/// Exclusive ownership of some bytes of an arena; dereferences to them. A request takes it, its
/// completion brings it back. Dropping it gives the bytes back to the arena.
pub struct Lease {
    memory: kvrail_memory::Lease,
    region: RegionId,
    client: ClientTag,
}

impl Lease {
    pub(crate) fn new(memory: kvrail_memory::Lease, region: RegionId, client: ClientTag) -> Self {
        Self { memory, region, client }
    }

    /// The arena it is of.
    #[inline(always)]
    pub(crate) fn region(&self) -> RegionId {
        self.region
    }

    /// The client whose arena that is.
    #[inline(always)]
    pub(crate) fn client(&self) -> ClientTag {
        self.client
    }

    /// Where it starts in its arena.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.memory.offset()
    }

    /// Shows only the first `bytes` bytes from now on; the reservation stays.
    pub fn truncate(&mut self, bytes: usize) {
        self.memory.truncate(bytes);
    }

    /// Bytes, without touching them.
    pub(crate) fn bytes(&self) -> u64 {
        self.memory.bytes() as u64
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of region {}", self.memory, self.region)
    }
}
