//! The lease pool against a model, and under many threads.

use std::sync::Arc;

use kvrail_memory::{HeapBlock, LeasePool};
#[cfg(not(miri))]
use kvrail_memory::{PageSize, Region};

/// Threads lease, fill, check and drop; a byte with two owners would show a foreign pattern.
#[test]
fn many_threads_never_share_a_byte() {
    let rounds: u32 = if cfg!(miri) { 12 } else { 4_000 };
    let pool = LeasePool::new(Arc::new(HeapBlock::new(1 << 16)), 64);
    std::thread::scope(|scope| {
        for thread in 1..=4_u8 {
            let pool = pool.clone();
            scope.spawn(move || {
                let mut held = Vec::new();
                let mut state = u32::from(thread);
                for _ in 0..rounds {
                    // A linear congruential generator (Numerical Recipes): seeded, no crate.
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let bytes = usize::try_from(state >> 20).expect("12 bits") % 3000 + 1;
                    if let Ok(mut lease) = pool.lease(bytes) {
                        lease.fill(thread);
                        held.push(lease);
                    }
                    if held.len() > 6 {
                        let lease = held.swap_remove(bytes % held.len());
                        assert!(lease.iter().all(|byte| *byte == thread), "{lease:?} was shared");
                    }
                }
            });
        }
    });
    assert_eq!((pool.outstanding(), pool.free_bytes()), (0, 1 << 16));
}

#[cfg(not(miri))]
mod model {
    use std::sync::Arc;

    use kvrail_memory::{HeapBlock, Lease, LeasePool};
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Lease(usize),
        Drop(usize),
        Split(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (1_usize..5000).prop_map(Step::Lease),
            2 => (0_usize..64).prop_map(Step::Drop),
            1 => (0_usize..64).prop_map(Step::Split),
        ]
    }

    fn apply(pool: &LeasePool, held: &mut Vec<Lease>, step: &Step) {
        let alignment = pool.alignment();
        match *step {
            Step::Lease(bytes) => held.extend(pool.lease(bytes)),
            Step::Drop(at) if !held.is_empty() => drop(held.swap_remove(at % held.len())),
            Step::Split(at) if !held.is_empty() => {
                let at = at % held.len();
                if held[at].len() > alignment {
                    let rest = held[at].split_off(alignment);
                    held.push(rest);
                }
            }
            Step::Drop(_) | Step::Split(_) => {}
        }
    }

    proptest! {
        /// After every step: leases aligned, apart, inside; the free count is what they leave.
        #[test]
        fn leases_stay_apart_and_add_up(
            alignment in prop_oneof![Just(1_usize), Just(64), Just(512), Just(1000)],
            steps in prop::collection::vec(step(), 1..80),
        ) {
            let pool = LeasePool::new(Arc::new(HeapBlock::new(1 << 15)), alignment);
            let usable = (1 << 15) / alignment * alignment;
            let mut held = Vec::new();
            for step in &steps {
                apply(&pool, &mut held, step);
                held.sort_by_key(Lease::offset);
                let mut end = 0;
                let mut reserved = 0;
                for lease in &held {
                    prop_assert!(lease.offset() >= end && lease.offset() % alignment == 0);
                    reserved += lease.len().next_multiple_of(alignment);
                    end = lease.offset() + lease.len();
                }
                prop_assert!(end <= usable);
                prop_assert_eq!(pool.free_bytes(), usable - reserved);
                prop_assert_eq!(pool.outstanding(), held.len());
            }
            drop(held);
            prop_assert_eq!(pool.lease(usable).map(|lease| lease.offset()), Ok(0));
        }
    }
}

/// Pools made and dropped beside each other: the kernel gives one what another just gave back.
#[cfg(not(miri))]
#[test]
fn memory_that_comes_where_other_memory_was_has_no_other_pool() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..4000 {
                    let memory = Region::create("short", 4096, PageSize::Base).unwrap();
                    let pool = LeasePool::new(Arc::new(memory), 512);
                    drop(pool.lease(512).unwrap());
                }
            });
        }
    });
}
