//! Leases: exclusive, aligned, returned, over heap memory so that checkers without system calls
//! can run them.

use std::sync::Arc;

use kvrail_memory::{HeapBlock, Lease, LeasePool, MemoryError, Pinned};

fn pool(bytes: usize, alignment: usize) -> LeasePool {
    LeasePool::new(Arc::new(HeapBlock::new(bytes)), alignment)
}

#[test]
fn a_lease_is_aligned_exact_and_writable() {
    let pool = pool(8192, 512);
    let mut first = pool.lease(1000).unwrap();
    let second = pool.lease(1).unwrap();
    assert_eq!((first.bytes(), first.len(), second.len()), (1000, 1000, 1));
    assert!(first.offset().is_multiple_of(512) && second.offset().is_multiple_of(512));
    assert_eq!(pool.free_bytes(), 8192 - 1024 - 512);
    first.fill(7);
    assert_eq!(&*second, &[0], "a neighbour is untouched");
    assert!(first.iter().all(|byte| *byte == 7));
}

#[test]
fn dropped_leases_come_back_and_merge() {
    let pool = pool(4096, 512);
    let leases: Vec<Lease> = (0..8).map(|_| pool.lease(512).unwrap()).collect();
    assert_eq!(pool.outstanding(), 8);
    assert_eq!(pool.lease(1).unwrap_err(), MemoryError::ArenaFull { wanted: 512, free: 0 });
    drop(leases);
    assert_eq!((pool.outstanding(), pool.free_bytes()), (0, 4096));
    assert_eq!(pool.lease(4096).unwrap().offset(), 0);
}

#[test]
fn fragments_and_impossible_sizes_are_full_with_numbers() {
    let pool = pool(4096, 512);
    let mut leases: Vec<Lease> = (0..8).map(|_| pool.lease(512).unwrap()).collect();
    leases.sort_by_key(Lease::offset);
    let _odd: Vec<Lease> =
        leases.into_iter().enumerate().filter(|(at, _)| at % 2 == 1).map(|(_, it)| it).collect();
    let full = pool.lease(1024).unwrap_err();
    assert_eq!(full, MemoryError::ArenaFull { wanted: 1024, free: 2048 });
    let text = full.to_string();
    assert!(text.contains("1024") && text.contains("2048 free in all"), "{text}");
    for bytes in [usize::MAX, usize::MAX / 2 + 1, 8192] {
        assert!(matches!(pool.lease(bytes), Err(MemoryError::ArenaFull { .. })), "{bytes}");
    }
    assert_eq!(pool.lease(0).unwrap_err(), MemoryError::Empty);
}

#[test]
fn a_rest_below_the_alignment_is_never_given_out() {
    let pool = pool(8192, 3000);
    let both = (pool.lease(3000).unwrap(), pool.lease(2999).unwrap());
    assert_eq!(both.0.offset() + both.1.offset(), 3000);
    assert!(pool.lease(1).is_err(), "2192 bytes are left, less than one unit");
    let none = LeasePool::new(Arc::new(HeapBlock::new(4096)), 8192);
    assert!(none.lease(1).is_err(), "one unit is larger than the memory");
}

#[test]
fn truncate_keeps_the_reservation_and_split_off_shares_it() {
    let pool = pool(4096, 512);
    let mut front = pool.lease(2000).unwrap();
    let start = front.offset();
    let mut rest = front.split_off(512);
    assert_eq!((front.len(), rest.offset(), rest.len()), (512, start + 512, 1488));
    rest.fill(1);
    assert!(front.iter().all(|byte| *byte == 0));
    rest.truncate(10);
    rest.truncate(100);
    assert_eq!((rest.len(), pool.outstanding(), pool.free_bytes()), (10, 2, 2048));
    drop(front);
    assert_eq!(pool.free_bytes(), 2560);
    drop(rest);
    assert_eq!(pool.free_bytes(), 4096);
}

#[test]
#[should_panic(expected = "cannot be split at 100")]
fn a_split_off_the_alignment_is_refused() {
    let _rest = pool(4096, 512).lease(1024).unwrap().split_off(100);
}

#[test]
fn a_lease_keeps_the_memory_and_the_claim() {
    let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(4096));
    let alive = Arc::downgrade(&memory);
    let pool = LeasePool::new(memory, 1);
    let mut lease = pool.lease(16).unwrap();
    drop(pool);
    lease.fill(3);
    assert_eq!(*lease, [3; 16]);
    assert!(alive.upgrade().is_some());
    drop(lease);
    assert!(alive.upgrade().is_none(), "the last lease frees the memory");
}

#[test]
#[should_panic(expected = "invariant 2")]
fn two_pools_over_one_memory_are_refused() {
    let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(4096));
    let _first = LeasePool::new(Arc::clone(&memory), 1);
    let _second = LeasePool::new(memory, 1);
}

#[test]
fn a_pool_may_follow_another_over_the_same_memory() {
    let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(4096));
    drop(LeasePool::new(Arc::clone(&memory), 1));
    assert_eq!(LeasePool::new(memory, 1).lease(4096).unwrap().len(), 4096);
}

#[test]
fn a_lease_moves_to_another_thread() {
    let pool = pool(4096, 1);
    let mut lease = pool.lease(8).unwrap();
    let back = std::thread::spawn(move || {
        lease.fill(9);
        lease
    });
    assert_eq!(*back.join().unwrap(), [9; 8]);
}
