//! Keys that are not there are counted by what became of them.

use kvrail_store::{Budget, DeclineReason, Hint, Hold, Priority, Stats, Status};

use crate::twins::check_of;
use crate::world::{World, small};

/// Counters of absent keys: unknown, evicted, dropped, damaged, budget.
fn counted(stats: &Stats) -> [u64; 5] {
    [
        stats.absent_estimated_unknown,
        stats.absent_estimated_evicted,
        stats.absent_estimated_dropped,
        stats.absent_estimated_damaged,
        stats.absent_estimated_budget,
    ]
}

fn look(world: &mut World, key: u64) -> u64 {
    let (id, time, lows) = (world.id(0), world.time(), [World::key(key).lo()]);
    world.store.lookup(id, 1, &lows, Hold::No, time).expect("a lookup").found
}

fn put(world: &mut World, key: u64) {
    assert_eq!(world.put_length(0, key, false, 1500, 1), None);
    world.run_until("put", World::is_idle);
}

/// The parts of each sum are all of it; a hit counts nothing.
#[test]
fn gets_and_lookups_are_counted_by_reason() {
    let mut world = World::new(1, small(8, 512));
    (0..4).for_each(|key| put(&mut world, key));
    let before = counted(world.store.stats());
    assert_eq!(look(&mut world, 0), 1);
    assert_eq!(world.get(0, 1), None);
    world.run_until("got", World::is_idle);
    assert_eq!(counted(world.store.stats()), before, "hits cost nothing");
    // One is dropped, one is reported and found wrong, one is replaced.
    world.drop_key(0, 1, false);
    let (id, check) = (world.id(0), check_of(&mut world, 0, 2));
    assert!(world.store.suspect(id, World::key(2), check));
    world.drop_only(0, 2, false, Some(check));
    let check = check_of(&mut world, 0, 3);
    world.drop_only(0, 3, false, Some(check));
    world.run_until("dropped", World::is_idle);
    for key in [1, 2, 3, 99] {
        assert_eq!(look(&mut world, key), 0);
        assert_eq!(world.get(0, key), Some(Status::Miss));
    }
    let stats = *world.store.stats();
    assert_eq!(counted(&stats), [2, 0, 4, 2, 0]);
    assert_eq!((stats.absent_estimated, stats.lookup_misses, stats.misses), (8, 4, 4));
    assert_eq!((stats.lookup_misses_absent, stats.misses_absent), (4, 4));
    // Put again, it is a hit, and its past is no reason of anything.
    put(&mut world, 1);
    assert_eq!(look(&mut world, 1), 1);
}

#[test]
fn evicted_keys_are_told_from_those_never_put() {
    let mut world = World::new(2, small(6, 512));
    (0..600).for_each(|key| put(&mut world, key));
    assert!(world.store.stats().evicted > 300, "the ring went round");
    let absent = (0..600).filter(|key| look(&mut world, *key) == 0).count() as u64;
    let [unknown, evicted, ..] = counted(world.store.stats());
    assert_eq!(unknown + evicted, absent);
    assert!(evicted > unknown, "{evicted} of {absent}: the latest are remembered");
    (1000..1200).for_each(|key| assert_eq!(look(&mut world, key), 0));
    assert_eq!(counted(world.store.stats()), [unknown + 200, evicted, 0, 0, 0]);
}

/// The end of a hint, and a put that was declined, are reasons of their own.
#[test]
fn ends_of_hints_and_declined_puts_are_told_apart() {
    let mut world = World::new(3, small(6, 512));
    world.hint = Hint { priority: Priority::Normal, until: 1 };
    (0..10).for_each(|key| put(&mut world, key));
    world.hint = Hint::default();
    (100..450).for_each(|key| put(&mut world, key));
    (0..10).for_each(|key| assert_eq!(look(&mut world, key), 0));
    assert_eq!(world.store.stats().absent_estimated_expired, 10);
    world.store.set_budget(Budget::BytesPerDay(0), world.time());
    while world.put_length(0, 1000, false, 1500, 1) != Some(Status::Declined(DeclineReason::Budget))
    {
        world.run_until("put", World::is_idle);
        world.drop_key(0, 1000, false);
        world.run_until("dropped", World::is_idle);
    }
    assert_eq!(look(&mut world, 1000), 0);
    assert_eq!(counted(world.store.stats()), [0, 0, 0, 0, 1]);
}
