//! Leases over ranges that an engine's own allocator gave out.
#![expect(unsafe_code, reason = "assume is what is tested")]
// UNSAFETY: the test is the allocator; it hands out disjoint ranges only.

use std::sync::Arc;

use kvrail_memory::{HeapBlock, LeasePool, MemoryError};

#[test]
fn an_assumed_lease_is_counted_but_not_allocated() {
    let pool = LeasePool::new(Arc::new(HeapBlock::new(8192)), 4096);
    // SAFETY: no other lease of the pool exists, and no operation.
    let mut lease = unsafe { pool.assume(100, 50) }.unwrap();
    lease.fill(5);
    assert_eq!((lease.offset(), lease.bytes()), (100, 50));
    assert_eq!((pool.outstanding(), pool.free_bytes()), (1, 8192));
    drop(lease);
    assert_eq!((pool.outstanding(), pool.free_bytes()), (0, 8192));
    // SAFETY: the lease above is gone; still no other and no operation.
    let whole = unsafe { pool.assume(0, 8192) }.unwrap();
    assert!(whole[100..150].iter().all(|byte| *byte == 5) && whole[150] == 0);
}

#[test]
fn an_assumed_lease_splits_without_the_pool() {
    let pool = LeasePool::new(Arc::new(HeapBlock::new(4096)), 512);
    // SAFETY: the only lease of the pool, and no operation.
    let mut front = unsafe { pool.assume(0, 1024) }.unwrap();
    let rest = front.split_off(512);
    drop(front);
    drop(rest);
    assert_eq!((pool.outstanding(), pool.free_bytes()), (0, 4096));
}

#[test]
fn ranges_outside_the_memory_are_refused_with_numbers() {
    let pool = LeasePool::new(Arc::new(HeapBlock::new(4096)), 512);
    for (offset, bytes) in [(0, 4097), (4096, 1), (usize::MAX, 2), (1, usize::MAX)] {
        // SAFETY: refused, so no lease comes to be.
        let refused = unsafe { pool.assume(offset, bytes) }.unwrap_err();
        assert_eq!(refused, MemoryError::Outside { offset, bytes, whole: 4096 });
        assert!(refused.to_string().contains("4096 bytes"), "{refused}");
    }
    // SAFETY: refused, so no lease comes to be.
    assert_eq!(unsafe { pool.assume(0, 0) }.unwrap_err(), MemoryError::Empty);
}
