//! Leases: exclusive, safe views of bytes in shared memory, and the pool that gives them out.
//!
//! Invariant 2 (ownership) in types: a [`Lease`] is the only safe way to a `&[u8]` of pinned
//! memory, no two leases of one pool overlap, no two pools share a byte, and hardware writes only
//! between the moment a lease is moved into an operation and the operation's completion. Preparing
//! an operation takes the lease; reading the completion returns it. In between no reference can be
//! formed, because no code has the lease.
//!
//! Types cannot constrain the other process. A program leases only memory whose other user it
//! trusts to keep that rule: a client trusts its sidecar, as it trusts its kernel. The sidecar
//! trusts no client: it reads and writes their arenas by [`crate::load`] and [`crate::store`] or by
//! hardware, never through a lease.
#![expect(unsafe_code, reason = "turns leased addresses into slices")]
// UNSAFETY: a lease owns its bytes alone and keeps the memory alive; see the module docs.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use range_alloc::RangeAllocator;

use crate::address_ranges::AddressClaim;
use crate::error::MemoryError;
use crate::pinned::Pinned;

/// Gives out leases of one piece of pinned memory. Cheap to clone; all clones are one pool.
/// Allocating takes a lock: for clients and control threads, never for a poller.
#[derive(Clone)]
pub struct LeasePool {
    shared: Arc<PoolMemory>,
}

/// The state that the pool and its leases keep alive together.
struct PoolMemory {
    /// Keeps a second pool from giving out the same bytes. First, so that it ends before the
    /// memory: once that is unmapped, another thread's memory may come to lie at its addresses.
    _claim: AddressClaim,
    memory: Arc<dyn Pinned>,
    alignment: usize,
    free: Mutex<RangeAllocator<usize>>,
    outstanding: AtomicUsize,
}

impl LeasePool {
    /// A pool over the whole memory. Leases start at multiples of `alignment` bytes from its
    /// first byte and occupy multiples of it; a rest at the end stays unused.
    ///
    /// # Panics
    /// If `alignment` is 0, or a pool (or a lease of one) over any byte of this memory exists in
    /// this process: the same bytes would have two owners.
    #[must_use]
    pub fn new(memory: Arc<dyn Pinned>, alignment: usize) -> Self {
        assert!(alignment > 0, "a lease pool needs an alignment of at least 1 byte");
        let claim = AddressClaim::take(memory.base().as_ptr().addr(), memory.bytes());
        let claim = claim.expect("invariant 2: another lease pool owns a part of this memory");
        let usable = memory.bytes() / alignment * alignment;
        let free = Mutex::new(RangeAllocator::new(0..usable));
        let outstanding = AtomicUsize::new(0);
        let shared = PoolMemory { _claim: claim, memory, alignment, free, outstanding };
        Self { shared: Arc::new(shared) }
    }

    /// Leases `bytes` bytes. The pool sets aside whole multiples of its alignment for them; the
    /// lease shows exactly `bytes`.
    ///
    /// # Errors
    /// `Empty` for 0 bytes, `ArenaFull` when no free range is long enough.
    pub fn lease(&self, bytes: usize) -> Result<Lease, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        let Self { shared } = self;
        let mut free = shared.free();
        let whole = free.initial_range().end;
        let wanted = bytes.checked_next_multiple_of(shared.alignment).filter(|all| *all <= whole);
        let Some(wanted) = wanted else {
            let free = free.total_available();
            return Err(MemoryError::ArenaFull { wanted: bytes, free });
        };
        let reserved = free
            .allocate_range(wanted)
            .map_err(|full| MemoryError::ArenaFull { wanted, free: full.fragmented_free_length })?;
        drop(free);
        Ok(Lease::new(shared, reserved.start, bytes, reserved.len()))
    }

    /// A lease over a range from another allocator: for engines with an allocator of their own, or
    /// blocks laid out once by hand. The pool neither reserves nor frees the range.
    ///
    /// # Errors
    /// `Empty` for 0 bytes, `Outside` for a range that does not lie within the memory.
    ///
    /// # Safety
    /// For the lease's lifetime no other lease may overlap it, neither assumed nor from
    /// [`LeasePool::lease`], and no operation may be in flight over its bytes when it is made. The
    /// alternative is a lease without any dereference: such a lease only names its range, and forms
    /// no slice.
    pub unsafe fn assume(&self, offset: usize, bytes: usize) -> Result<Lease, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        let whole = self.shared.memory.bytes();
        if offset > whole || bytes > whole - offset {
            return Err(MemoryError::Outside { offset, bytes, whole });
        }
        Ok(Lease::new(&self.shared, offset, bytes, 0))
    }

    /// Leases that exist now, assumed ones included.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.shared.outstanding.load(Ordering::Acquire) // pairs with Release in `Lease::drop`
    }

    /// Bytes that are not reserved, in all; perhaps in several pieces.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.shared.free().total_available()
    }

    /// Unit of offsets and reservations, in bytes.
    #[must_use]
    pub fn alignment(&self) -> usize {
        self.shared.alignment
    }

    /// The memory that the leases lie in.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn Pinned> {
        &self.shared.memory
    }
}

impl fmt::Debug for LeasePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasePool")
            .field("memory", &self.shared.memory)
            .field("alignment", &self.shared.alignment)
            .field("outstanding", &self.outstanding())
            .finish_non_exhaustive()
    }
}

impl PoolMemory {
    /// The free list. A panic of another thread cannot leave it half changed: the allocator
    /// checks before it writes.
    fn free(&self) -> MutexGuard<'_, RangeAllocator<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exclusive ownership of some bytes of pinned memory; dereferences to them. Moving it into an
/// operation is what allows hardware to write them. Dropping it gives the bytes back to the pool;
/// leaking it leaks them, nothing worse. It keeps the memory alive.
pub struct Lease {
    shared: Arc<PoolMemory>,
    offset: usize,
    bytes: usize,
    /// Bytes to give back from `offset` on; 0 for an assumed lease.
    reserved: usize,
}

impl Lease {
    fn new(shared: &Arc<PoolMemory>, offset: usize, bytes: usize, reserved: usize) -> Self {
        // A count only; the free list's lock orders the ranges.
        shared.outstanding.fetch_add(1, Ordering::Relaxed);
        Self { shared: Arc::clone(shared), offset, bytes, reserved }
    }

    /// First byte, counted from the start of the memory.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory it lies in.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn Pinned> {
        &self.shared.memory
    }

    /// Shows only the first `bytes` bytes from now on. All of the reservation stays with the
    /// lease. Does nothing when the lease is not longer.
    pub fn truncate(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(bytes);
    }

    /// Cuts the lease in two at `at`; this one keeps the front, the returned one owns the rest.
    ///
    /// # Panics
    /// Unless `at` is a multiple of the pool's alignment, beyond 0 and below the length.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        let alignment = self.shared.alignment;
        assert!(
            at.is_multiple_of(alignment) && at > 0 && at < self.bytes,
            "a lease of {} bytes cannot be split at {at}: not a multiple of {alignment} within it",
            self.bytes
        );
        let bytes = self.bytes - at;
        let reserved = self.reserved.saturating_sub(at); // an assumed lease has none
        self.bytes = at;
        self.reserved -= reserved;
        Self::new(&self.shared, self.offset + at, bytes, reserved)
    }

    fn first(&self) -> *mut u8 {
        self.shared.memory.base().as_ptr().wrapping_add(self.offset)
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range was checked against the memory, which this lease keeps alive and
        // which `Pinned` promises is initialised. The lease is here and not in an operation, so
        // no hardware writes; it overlaps no other lease (pool, claim, or `assume`'s caller), and
        // `&self` rules out a `&mut` of it for as long as the slice lives.
        unsafe { slice::from_raw_parts(self.first(), self.bytes) }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes this the only slice of the only lease.
        unsafe { slice::from_raw_parts_mut(self.first(), self.bytes) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.reserved > 0 {
            self.shared.free().free_range(self.offset..self.offset + self.reserved);
        }
        // Pairs with Acquire in `outstanding`: a reader of 0 sees the bytes given back too.
        self.shared.outstanding.fetch_sub(1, Ordering::Release);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, bytes, .. } = self;
        write!(f, "Lease({bytes} bytes at {offset})")
    }
}
