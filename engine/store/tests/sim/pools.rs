//! Several pools in one store: each keeps its blocks, and what was dropped stays away.

use kvrail_store::{
    Budget, Hint, Hold, Phase, PoolLimits, PoolRule, PoolView, Priority, StartError, Status,
    StoreConfig,
};

use crate::crash::crash_and_verify;
use crate::drive::Cut;
use crate::each_seed;
use crate::world::{ReadEnds, World, small};

/// The pool of a namespace, with minimum and maximum.
pub(crate) fn rule(name: &str, namespaces: &str, (minimum, maximum): (u32, u32)) -> PoolRule {
    let limits = PoolLimits { minimum, maximum };
    PoolRule { name: name.into(), namespaces: namespaces.into(), limits }
}

/// The pool of space 0 is the default one, that of space 1 has a rule.
fn world(seed: u64, segments: u64, limits: (u32, u32)) -> World {
    World::with_pools(seed, small(segments, 512), vec![rule("one", "space 1", limits)])
}

fn pool<'a>(world: &'a World, name: &str) -> PoolView<'a> {
    world.store.pools().find(|pool| pool.name == name).expect("the pool is there")
}

/// Puts a block, however long it must wait.
fn put(world: &mut World, space: u16, key: u64, length: u32) {
    let mut tries = 0;
    while let Some(status) = world.put_length(space, key, false, length, 1) {
        if status == Status::Present {
            return;
        }
        assert!(matches!(status, Status::Declined(_)), "{status:?}");
        world.tick();
        tries += 1;
        assert!(tries < 20_000, "puts are declined for ever: {:?}", world.store.stats());
    }
    world.run_until("put", World::is_idle);
}

fn flood(world: &mut World, keys: std::ops::Range<u64>) {
    for key in keys {
        put(world, 0, key, 1500);
    }
}

/// Every one of these blocks of space 1 is there.
fn all_there(world: &mut World, keys: u64) {
    for key in 0..keys {
        let status = world.get(1, key);
        assert_eq!(status, None, "key {key} is gone: {:?}", pool(world, "one"));
        world.run_until("got", World::is_idle);
    }
}

/// A durable put of a key that is there waits for the page of its own block, and no other: pages
/// cost each pool of its write budget. It counts once, when it is answered.
#[test]
fn a_durable_put_of_what_is_there_waits_for_its_own_page_alone() {
    let mut world = world(3, 24, (8, 24));
    assert_eq!(world.put_length(1, 0, true, 1500, 1), None);
    world.run_until("put", World::is_idle);
    // A page of another pool takes records.
    put(&mut world, 0, 1, 1500);
    let present = world.store.stats().present;
    let status = world.put_length(1, 0, true, 1500, 1);
    assert_eq!(status, Some(Status::Present), "it is durable");
    assert_eq!(world.store.stats().present, present + 1);
    // One that is not.
    world.settle();
    put(&mut world, 1, 2, 1500);
    put(&mut world, 0, 3, 1500);
    let pages = world.store.stats().pages;
    assert_eq!(world.put_length(1, 2, true, 1500, 1), None);
    assert_eq!(world.store.stats().present, present + 1);
    world.run_until("confirmed", World::is_idle);
    assert_eq!(world.store.stats().present, present + 2);
    assert_eq!(world.store.stats().pages, pages + 1, "that of the other pool is open");
}

/// Of the rows for ends each pool has some, whatever the others have noted.
#[test]
fn ends_of_one_pool_leave_room_for_those_of_another() {
    let mut world = world(3, 24, (8, 24));
    put(&mut world, 1, 0, 1500);
    let until = world.time().unix + 600;
    let noted = |world: &mut World, space: u16, key: u64| {
        let before = world.store.stats().hints_refused;
        world.hint = Hint { priority: Priority::High, until };
        put(world, space, key, 100);
        world.hint = Hint::default();
        world.store.stats().hints_refused == before
    };
    let count = |world: &mut World, space: u16, from: u64| {
        (from..).take_while(|key| noted(world, space, *key)).count()
    };
    let [first, second] = [0, 1].map(|space| count(&mut world, space, 1_000));
    assert!(first >= 16 && second >= 16, "{first} {second}");
    assert_eq!(count(&mut world, 0, 10_000), 0, "the first one has its part, and no more");
    for (name, count) in [("default", first), ("one", second)] {
        let (stats, count) = (pool(&world, name).stats, u64::try_from(count).unwrap());
        let wanted = (count, 512 * count);
        assert_eq!((stats.ends, stats.retained_bytes), wanted, "{name}: one logical block each");
    }
    world.store.audit();
}

/// Rules change, pools come and go, the power fails: no wrong byte, nothing that was dropped.
fn life(mut world: World, largest: u32, keys: u64, acts: u32) {
    for _ in 0..3 {
        for _ in 0..world.rng.u32(1..acts) {
            world.act(keys);
            if world.rng.u8(..3) > 0 {
                world.tick();
            }
            if world.rng.u8(..50) == 0 {
                let [one, other] = [0, 0].map(|from| world.rng.u32(from..largest));
                let limits = PoolLimits { minimum: one.min(other), maximum: one.max(other) };
                let time = world.time();
                world.store.set_pool_limits(&[limits], time);
            }
        }
        if world.rng.bool() {
            world.settle();
        }
        if world.rng.u8(..3) == 0 {
            // The rule is gone, or comes again, behind another or not.
            let one = rule("one", "space 1", (world.rng.u32(..4), largest));
            world.rules = match world.rng.u8(..3) {
                0 => Vec::new(),
                1 => vec![rule("two", "space 2", (0, 4)), one],
                _ => vec![one, rule("default", "", (2, largest))],
            };
        }
        crash_and_verify(&mut world, keys);
    }
}

/// Nothing is evicted here: what must be found is.
#[test]
fn crash_with_pools() {
    each_seed("crash with pools", 40, |seed| life(world(seed, 60, (0, 60)), 60, 50, 150));
}

/// The same in rings that go round, with limits that change.
#[test]
fn crash_in_small_rings() {
    each_seed("crash in small rings", 40, |seed| life(world(seed, 12, (0, 12)), 12, 60, 400));
}

/// Segments are released while a head is prepared: the head's ledger has the numbers above the
/// floors it was given. A free segment that is read for long stretches the preparation.
#[test]
fn crash_while_a_free_segment_is_read() {
    each_seed("crash while read", 40, |seed| {
        let slow = World { read_ends: ReadEnds::Late, ..world(seed, 14, (0, 14)) };
        life(slow, 14, 60, 600);
    });
}

/// Long reads, holds and drops while segments go from pool to pool.
#[test]
fn wrap_with_pools() {
    each_seed("wrap with pools", 12, |seed| {
        let mut world = world(seed, 10, (3, 6));
        world.read_ends = if seed.is_multiple_of(2) { ReadEnds::Late } else { ReadEnds::Soon };
        for round in 0..2000 {
            world.act(120);
            if world.rng.u8(..4) > 0 {
                world.tick();
            }
            if round % 700 == 699 {
                world.cut(if seed.is_multiple_of(2) { Cut::Kill } else { Cut::Power });
                world.reopen();
            }
        }
        world.settle();
        world.verify();
        let stats = ["one", "default"].map(|name| pool(&world, name).stats);
        assert!(stats.iter().all(|pool| pool.puts > 0), "{stats:?}");
        assert!(world.laps() > 0, "the rings did not go round");
    });
}

/// The reservation of a pool that has nothing yet stays free, however much others put.
#[test]
fn a_flood_leaves_free_what_is_kept() {
    each_seed("kept", 6, |seed| {
        let mut world = world(seed, 24, (10, 24));
        for first in [0, 1000, 2000] {
            flood(&mut world, first..first + 1000);
            let (taken, all) = (pool(&world, "default").segments, world.store.sizing().segments);
            assert!(taken <= all - 10, "{taken} of {all} segments, and 10 are another pool's");
        }
        assert!(pool(&world, "default").stats.evicted > 0, "the ring came round");
    });
}

/// One pool is flooded, before and after kills and cuts: another one's blocks below its minimum
/// all stay.
#[test]
fn a_flood_evicts_no_block_of_another_pool() {
    each_seed("flood", 6, |seed| {
        let mut world = world(seed, 24, (0, 24));
        // Seven segments of 64 KiB, with room for a page of its own for each few blocks.
        let keys = 7 * 14;
        flood(&mut world, 10_000..11_000);
        // The default pool has everything, and gives what the other one is to have.
        world.rules = vec![rule("one", "space 1", (10, 24))];
        let (limits, time) = (world.rules[0].limits, world.time());
        world.store.set_pool_limits(&[limits], time);
        (0..keys).for_each(|key| put(&mut world, 1, key, 2000));
        assert!(pool(&world, "default").stats.given > 0, "{:?}", pool(&world, "default"));
        for round in 0..4 {
            let first = 20_000 + round * 1_000;
            flood(&mut world, first..first + 800);
            all_there(&mut world, keys);
            let evicted = pool(&world, "one").stats.evicted;
            assert_eq!(evicted, 0, "{:?}", pool(&world, "one"));
            world.settle();
            world.cut(if round % 2 == 0 { Cut::Kill } else { Cut::Power });
            world.reopen();
            if round % 2 == 0 {
                // The flood goes on while recovery does.
                flood(&mut world, first + 800..first + 900);
            }
            world.run_until("recovered", |world| world.store.phase() == Phase::Serving);
            all_there(&mut world, keys);
        }
        world.settle();
        world.verify();
    });
}

/// A pool that is given less gives up its oldest segments one after the other, and goes on.
#[test]
fn a_pool_shrinks_while_it_serves() {
    each_seed("shrink", 6, |seed| {
        let mut world = world(seed, 24, (0, 18));
        (0..600).for_each(|key| put(&mut world, 1, key, 2000));
        assert!((17..=18).contains(&pool(&world, "one").segments), "{:?}", pool(&world, "one"));
        let limits = PoolLimits { minimum: 0, maximum: 5 };
        let time = world.time();
        world.store.set_pool_limits(&[limits], time);
        world.run_until("shrunk", |world| pool(world, "one").segments <= 5);
        (600..700).for_each(|key| put(&mut world, 1, key, 2000));
        assert!(pool(&world, "one").segments <= 5);
        // The newest are the ones that stayed.
        for key in 680..700 {
            assert_eq!(world.get(1, key), None, "key {key}: {:?}", pool(&world, "one"));
            world.run_until("got", World::is_idle);
        }
        flood(&mut world, 10_000..10_500);
        assert!(pool(&world, "default").segments >= 18, "{:?}", pool(&world, "default"));
        world.settle();
        world.cut(Cut::Power);
        world.reopen();
        world.verify();
    });
}

/// Puts that many blocks into the default pool, uses others, and drops now and then.
fn put_use_and_drop(world: &mut World, keys: std::ops::Range<u64>) {
    for key in keys {
        world.put_length(0, key, false, 1500, 1);
        if key.is_multiple_of(4) {
            world.drop_key(0, 900_000 + key, false);
        }
        let (id, time) = (world.id(0), world.time());
        let used = (0..10).map(|nth| key.saturating_sub(1 + 37 * nth));
        let used: Vec<u64> = used.filter(|key| !key.is_multiple_of(8)).collect();
        let lows: Vec<u64> = used.into_iter().map(|key| World::key(key).lo()).collect();
        let _ = world.store.lookup(id, 1, &lows, Hold::Touch, time).unwrap();
        (0..4).for_each(|_| world.tick());
    }
}

/// A pool gets less at any moment of a reclaim, so that drops of the next victims find no space:
/// requests are answered.
#[test]
fn a_pool_shrinks_at_any_moment_of_a_reclaim() {
    for first in (600..720).step_by(3) {
        let mut world = World::with_pools(3, small(10, 512), vec![rule("default", "", (0, 10))]);
        put_use_and_drop(&mut world, 0..first);
        assert!(world.laps() > 2, "the ring goes round: {:?}", world.store.stats());
        let (limits, time) = (PoolLimits { minimum: 0, maximum: 4 }, world.time());
        world.store.set_pool_limits(&[limits], time);
        put_use_and_drop(&mut world, first..first + 300);
        world.run_until(&format!("answered, less from {first} on"), World::is_idle);
    }
}

/// A segment takes the numbers of drops along that its pool no longer has records of. Another pool
/// gets it and uses it again, while the first one rests: the numbers stay on the medium.
#[test]
fn a_ledger_outlives_the_segment_that_carries_it() {
    let mut world = world(5, 16, (0, 16));
    let touch = |world: &mut World, keys: &[u64]| {
        let (id, time) = (world.id(1), world.time());
        for keys in keys.chunks(8) {
            let lows: Vec<u64> = keys.iter().map(|key| World::key(*key).lo()).collect();
            let _ = world.store.lookup(id, 1, &lows, Hold::Touch, time).unwrap();
        }
    };
    for key in 0..160 {
        put(&mut world, 1, key, 2000);
        if key.is_multiple_of(4) {
            world.drop_key(1, 900_000 + key, true);
            world.run_until("dropped", World::is_idle);
        }
        // The second quarter is not used any more: one of its segments goes.
        let used: Vec<u64> = (0..=key).filter(|key| !(40..80).contains(key)).collect();
        touch(&mut world, &used);
    }
    let (held, time) = (pool(&world, "one").segments, world.time());
    world.store.set_pool_limits(&[PoolLimits { minimum: 0, maximum: held - 1 }], time);
    world.run_until("given", |world| pool(world, "one").segments < held);
    flood(&mut world, 10_000..11_500);
    world.settle();
    world.cut(Cut::Power);
    world.reopen();
    world.verify();
    assert_eq!(world.store.stats().distrusted, 0, "nothing durable is lost");
}

/// A pool whose rule is gone keeps its blocks and its namespaces until other pools need the space.
/// Then its oldest segments go as if they belonged to the others, and the pool regains space in the
/// same way.
#[test]
fn a_pool_without_a_rule_keeps_what_nobody_needs() {
    let mut world = world(3, 24, (10, 24));
    (0..100).for_each(|key| put(&mut world, 1, key, 2000));
    world.settle();
    world.rules.clear();
    world.cut(Cut::Kill);
    world.reopen();
    world.run_until("recovered", |world| world.store.phase() == Phase::Serving);
    all_there(&mut world, 100);
    assert_eq!((pool(&world, "one").ruled, pool(&world, "one").number), (false, 1));
    put(&mut world, 1, 100, 2000);
    flood(&mut world, 10_000..11_500);
    let segments = pool(&world, "one").segments;
    assert!((1..=4).contains(&segments), "{segments}: all of it is older than the flood");
    (101..1000).for_each(|key| put(&mut world, 1, key, 2000));
    assert!(pool(&world, "one").segments >= 18, "{:?}", pool(&world, "one"));
    world.settle();
    world.verify();
}

/// A pool without a rule and without use leaves all of its segments to the others.
#[test]
fn a_pool_that_is_not_used_any_more_leaves_nothing_behind() {
    let mut world = world(4, 24, (10, 24));
    (0..200).for_each(|key| put(&mut world, 1, key, 2000));
    world.settle();
    world.rules = vec![rule("two", "space 2", (4, 24)), rule("default", "", (2, 24))];
    world.cut(Cut::Kill);
    world.reopen();
    world.run_until("recovered", |world| world.store.phase() == Phase::Serving);
    // The one that needs it takes it, also where every pool in use has a rule.
    flood(&mut world, 10_000..11_500);
    assert_eq!(pool(&world, "one").segments, 0, "{:?}", pool(&world, "default"));
    assert!(pool(&world, "default").segments >= 18, "{:?}", pool(&world, "default"));
    world.settle();
    world.verify();
}

/// Drops are counted by pool: those of one are no gap in the other.
#[test]
fn drops_are_numbered_by_pool() {
    each_seed("drops by pool", 4, |seed| {
        let mut world = world(seed, 40, (4, 40));
        for round in 0..4 {
            for key in 0..8 {
                let space = u16::try_from(key % 2).unwrap();
                put(&mut world, space, round * 10 + key, 900);
                world.drop_key(space, round * 10 + key, true);
                world.run_until("dropped", World::is_idle);
                put(&mut world, space, 1000 + round * 10 + key, 900);
            }
            world.settle();
            world.cut(if round % 2 == 0 { Cut::Kill } else { Cut::Power });
            world.reopen();
            world.verify();
            assert_eq!(world.store.stats().distrusted, 0);
        }
    });
}

/// Hot blocks of a pool that gives segments stay in it.
#[test]
fn hot_blocks_stay_in_their_pool() {
    let mut world = world(5, 16, (0, 16));
    for key in 0..400 {
        put(&mut world, 0, key, 1500);
        if key.is_multiple_of(3) {
            world.get(0, key);
            world.run_until("got", World::is_idle);
        }
    }
    let limits = PoolLimits { minimum: 8, maximum: 16 };
    let time = world.time();
    world.store.set_pool_limits(&[limits], time);
    let before = pool(&world, "default").stats;
    (0..150).for_each(|key| put(&mut world, 1, key, 1500));
    let stats = pool(&world, "default").stats;
    assert!(stats.given > before.given && stats.moved > before.moved + 10, "{stats:?} {before:?}");
    assert_eq!(pool(&world, "one").stats.moved, 0, "none came out of the other pool");
    world.settle();
    world.cut(Cut::Power);
    world.reopen();
    world.verify();
}

/// A pool's share of the write budget is its own: a flood into another one does not use it up.
#[test]
fn a_flood_uses_up_no_other_budget() {
    let budget = Budget::BytesPerDay(200_000 * 86_400);
    let config = StoreConfig { budget, ..small(40, 512) };
    let rules = vec![rule("one", "space 1", (20, 40))];
    let mut world = World::with_pools(8, config, rules);
    let mut next = 1000;
    // Both are full once: from here on the budget counts.
    let mut fill = |world: &mut World, space: u16, segments: u32| {
        for _ in 0..2 * segments * 30 {
            next += 1;
            let status = world.put_length(space, next, false, 2000, 1);
            if status.is_some() {
                break;
            }
            world.run_until("put", World::is_idle);
        }
    };
    fill(&mut world, 1, 20);
    fill(&mut world, 0, 20);
    fill(&mut world, 1, 20);
    let (mut declined, mut taken) = (0, 0);
    for round in 0..2000_u64 {
        let status = world.put_length(0, 100_000 + round, false, 2000, 1);
        declined += u32::from(matches!(status, Some(Status::Declined(_))));
        // A tenth of what its part of the budget allows.
        if round % 200 == 199 {
            let status = world.put_length(1, 200_000 + round, false, 2000, 1);
            assert!(status.is_none() || round < 1000, "{status:?} {:?}", pool(&world, "one"));
            taken += u32::from(status.is_none());
        }
        world.run_until("put", World::is_idle);
        world.now += 1_000_000;
        world.tick();
    }
    assert!(declined > 200 && taken >= 5, "{declined} declined, {taken} taken");
}

/// Blocks that are much smaller than the index was made for: they crowd their own pool.
#[test]
fn small_blocks_crowd_their_own_pool() {
    each_seed("small blocks", 6, |seed| {
        let config = StoreConfig { block_mean: 4096, ..small(24, 512) };
        let rules = vec![rule("one", "space 1", (10, 12))];
        let mut world = World::with_pools(seed, config, rules);
        (0..90).for_each(|key| put(&mut world, 1, key, 3900));
        for key in 10_000..12_000 {
            put(&mut world, 0, key, 300);
        }
        all_there(&mut world, 90);
        assert!(pool(&world, "default").stats.evicted > 500, "{:?}", pool(&world, "default"));
        world.settle();
        world.verify();
    });
}

/// A store has as many pools as can work in it, and rejects more with an error.
#[test]
fn more_pools_than_a_store_can_have() {
    let mut world = World::with_pools(4, small(9, 512), vec![rule("one", "space 1", (0, 4))]);
    world.settle();
    world.rules = vec![rule("two", "space 2", (0, 4))];
    world.cut(Cut::Kill);
    world.open();
    world.run_until("failed", |world| matches!(world.store.phase(), Phase::Failed(_)));
    assert_eq!(world.store.phase(), Phase::Failed(StartError::Pools { most: 2 }));
}
