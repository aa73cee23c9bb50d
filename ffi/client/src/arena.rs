//! Arenas: memory that is registered with the sidecar's devices.

use std::sync::Arc;

use kvrail_memory::{LeasePool, MemoryError};
use kvrail_ring::RegionId;

use crate::error::ClientError;
use crate::lease::Lease;
use crate::mapping;
use crate::session::Session;

/// Memory shared with the sidecar, registered with its devices. It stays attached until `detach`
/// or until the client is gone; dropping this handle alone does not detach it.
#[derive(Debug)]
pub struct Arena {
    session: Arc<Session>,
    pool: LeasePool,
    region: RegionId,
    bytes: usize,
    page_bytes: u64,
    note: Option<String>,
}

/// What the sidecar said about a new arena.
#[derive(Debug)]
pub(crate) struct ArenaFacts {
    pub(crate) region: RegionId,
    pub(crate) page_bytes: u64,
    pub(crate) note: Option<String>,
}

impl Arena {
    pub(crate) fn new(session: Arc<Session>, pool: LeasePool, facts: ArenaFacts) -> Self {
        let bytes = pool.memory().bytes();
        let ArenaFacts { region, page_bytes, note } = facts;
        Self { session, pool, region, bytes, page_bytes, note }
    }

    /// Bytes to be moved by one request. Leases start at multiples of 4096 bytes, or of what the
    /// volumes want if that is more. Takes a lock: for the hot path, lease once and reuse.
    ///
    /// # Errors
    /// `ClientError::Memory` when the arena has no room or 0 bytes are asked for.
    pub fn lease(&self, bytes: usize) -> Result<Lease, ClientError> {
        let lease = self.pool.lease(bytes)?;
        debug_assert!(lease.offset().is_multiple_of(4096), "where every device can read and write");
        self.adopt(lease)
    }

    /// Bytes of the arena.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that are not leased, perhaps in several pieces.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.pool.free_bytes()
    }

    /// Leases that exist now, those in requests in flight included.
    #[must_use]
    pub fn leases(&self) -> usize {
        self.pool.outstanding()
    }

    /// Bytes of the pages behind it.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Why it has no reserved hugepages although those were wished for, with the remedy.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Its number on the wire.
    #[must_use]
    pub fn region(&self) -> RegionId {
        self.region
    }

    /// What gives out the leases: for code that lays its blocks out by hand, with
    /// [`LeasePool::assume`] and [`Arena::adopt`].
    #[must_use]
    pub fn pool(&self) -> &LeasePool {
        &self.pool
    }

    /// Where in this arena the byte at an address of this process lies, if it does: by the arena's
    /// own mapping, or by another one of the same file. The second way reads /proc/self/maps.
    #[must_use]
    pub fn position_of(&self, address: usize) -> Option<usize> {
        mapping::position(self.pool.memory().base().as_ptr().addr(), self.bytes, address)
    }

    /// Makes a lease of this arena's pool fit for requests.
    ///
    /// # Errors
    /// `ClientError::Memory` when it is a lease of other memory.
    pub fn adopt(&self, memory: kvrail_memory::Lease) -> Result<Lease, ClientError> {
        let (offset, bytes) = (memory.offset(), memory.bytes());
        if !Arc::ptr_eq(memory.memory(), self.pool.memory()) {
            return Err(MemoryError::Outside { offset, bytes, whole: self.bytes }.into());
        }
        debug_assert!(offset + bytes <= self.bytes, "a lease of this arena is within it");
        Ok(Lease::new(memory, self.region, self.session.tag()))
    }

    /// Takes the arena away from the sidecar. Blocks until neither the sidecar nor its devices can
    /// touch the memory any more; requests in flight are finished first. Leases that are still
    /// held keep their bytes, but requests with them end INVALID from now on.
    ///
    /// # Errors
    /// `SidecarGone` when the sidecar ends before it answers: hardware may still write then.
    /// `Denied` when it was detached before.
    pub fn detach(&self) -> Result<(), ClientError> {
        self.session.detach("detaching an arena", self.region)
    }
}
