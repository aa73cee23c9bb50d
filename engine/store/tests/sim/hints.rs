//! A put's hint affects the block's worth, and only until the hint's end.

use kvrail_store::{Explained, Hint, Hold, Phase, Priority, WorthClass};

use crate::drive::Cut;
use crate::each_seed;
use crate::pools::rule;
use crate::world::{World, small};

fn put(world: &mut World, key: u64, priority: Priority, until: u32) {
    put_into(world, 0, key, Hint { priority, until });
}

fn put_into(world: &mut World, space: u16, key: u64, hint: Hint) {
    world.hint = hint;
    world.put_length(space, key, false, 1500, 1);
    world.run_until("put", World::is_idle);
    world.hint = Hint::default();
}

/// Puts blocks that are never read until `laps` more segments were reclaimed.
fn turn(world: &mut World, cold: &mut u64, laps: u64) {
    let until = world.laps() + laps;
    while world.laps() < until {
        put(world, *cold, Priority::Normal, 0);
        *cold += 1;
    }
}

fn class(world: &mut World, key: u64) -> Option<WorthClass> {
    class_in(world, 0, key)
}

fn class_in(world: &mut World, space: u16, key: u64) -> Option<WorthClass> {
    let (id, time) = (world.id(space), world.time());
    match world.store.explain(id, World::key(key), time) {
        Explained::There(block) => Some(block.class),
        _ => None,
    }
}

fn there(world: &mut World, keys: std::ops::Range<u64>) -> usize {
    keys.filter(|key| class(world, *key).is_some()).count()
}

fn restart(world: &mut World) {
    world.settle();
    world.cut(Cut::Kill);
    world.reopen();
}

/// Of unread blocks that were put side by side, those of high priority stay, after a restart too.
#[test]
fn what_is_retained_stays() {
    each_seed("retained", 4, |seed| {
        let mut world = World::new(seed, small(16, 512));
        for at in 0..20 {
            put(&mut world, at, Priority::High, 0);
            (0..4).for_each(|other| put(&mut world, 100 + 4 * at + other, Priority::Normal, 0));
        }
        if seed.is_multiple_of(2) {
            restart(&mut world);
        }
        turn(&mut world, &mut 1000, 40);
        let left = [0..20, 100..180].map(|keys| there(&mut world, keys));
        assert!(left[0] == 20 && left[1] < 20, "{left:?} {:?}", world.store.stats());
    });
}

/// Demoted blocks go before others that were put earlier.
#[test]
fn what_is_demoted_goes_first() {
    each_seed("demoted", 4, |seed| {
        let mut world = World::new(seed, small(16, 512));
        (0..80).for_each(|key| put(&mut world, key, Priority::Normal, 0));
        (100..180).for_each(|key| put(&mut world, key, Priority::Low, 0));
        if seed.is_multiple_of(2) {
            restart(&mut world);
        }
        turn(&mut world, &mut 1000, 2);
        let left = [0..80, 100..180].map(|keys| there(&mut world, keys));
        assert!(left[0] >= 60 && left[1] <= 40, "{left:?} {:?}", world.store.stats());
    });
}

/// A block goes like any other, and does not move, once the time of its hint is over: however it is
/// used after that, and also when it ends while the store is down.
#[test]
fn no_hint_outlives_its_time() {
    each_seed("until", 6, |seed| {
        let mut world = World::new(seed, small(16, 512));
        let cold = &mut 1000;
        let end = world.time().unix + 30;
        for key in 0..30 {
            let priority = if key < 15 { Priority::High } else { Priority::Normal };
            put(&mut world, key, priority, end);
        }
        turn(&mut world, cold, 20);
        assert_eq!(there(&mut world, 0..15), 15, "they are retained until then");
        match seed % 3 {
            0 => world.wait(31_000_000_000),
            1 => {
                world.settle();
                world.cut(Cut::Kill);
                world.now += 31_000_000_000;
                world.reopen();
            }
            _ => {
                restart(&mut world);
                world.wait(31_000_000_000);
            }
        }
        assert!(world.time().unix >= end);
        for key in 0..15 {
            let class = class(&mut world, key);
            // Over a restart they may have gone already.
            let gone = seed % 3 == 1 && class.is_none();
            assert!(gone || class == Some(WorthClass::Over), "key {key}: {class:?}");
        }
        // They are used as nothing else is, and yet they go first.
        for _ in 0..40 {
            for key in 0..30 {
                world.get(0, key);
                world.run_until("got", World::is_idle);
            }
            turn(&mut world, cold, 1);
        }
        assert_eq!(there(&mut world, 0..30), 0, "{:?}", world.store.stats());
    });
}

/// One that was dropped and put again has the end of the second put only.
#[test]
fn a_hint_goes_with_its_block() {
    let mut world = World::new(5, small(16, 512));
    let now = world.time().unix;
    put(&mut world, 1, Priority::High, now + 20);
    world.drop_key(0, 1, false);
    world.run_until("dropped", World::is_idle);
    put(&mut world, 1, Priority::High, now + 300);
    world.wait(40_000_000_000);
    assert_eq!(class(&mut world, 1), Some(WorthClass::Of(Priority::High)));
    world.store.audit();
}

/// Where there is no room for another end, the hint counts for nothing, and is counted.
#[test]
fn hints_that_end_are_bounded() {
    let mut world = World::new(6, small(16, 512));
    let now = world.time().unix;
    let (mut refused, mut key) = (0, 0);
    while refused == 0 {
        put(&mut world, key, Priority::High, now + 300);
        refused = world.store.stats().hints_refused;
        key += 1;
    }
    assert!(key > 4, "{key}");
    assert_eq!(class(&mut world, key - 1), Some(WorthClass::Of(Priority::Normal)));
    put(&mut world, key, Priority::High, 0);
    assert_eq!(class(&mut world, key), Some(WorthClass::Of(Priority::High)), "it needs no room");
    // Its record has the end nevertheless: after that it does not move.
    world.wait(301_000_000_000);
    let mut cold = 1000;
    for _ in 0..40 {
        world.get(0, key - 1);
        world.run_until("got", World::is_idle);
        turn(&mut world, &mut cold, 1);
    }
    assert_eq!(class(&mut world, key - 1), None, "{:?}", world.store.stats());
}

/// A drop is lost with its page: what recovery finds instead of a retained block has its bytes.
#[test]
fn a_block_that_is_found_twice_counts_once() {
    let high = Some(WorthClass::Of(Priority::High));
    let hint = Hint { priority: Priority::High, until: 0 };
    // Half a segment is a quarter of the pool. Blocks are retained until no more fit; the last one
    // is dropped, and put again.
    let made = |acts: usize| {
        let mut world = World::with_pools(8, small(16, 512), vec![rule("one", "space 1", (6, 6))]);
        let mut keys = 0;
        while world.store.stats().hints_refused == 0 {
            put_into(&mut world, 1, keys, hint);
            keys += 1;
        }
        let last = keys - 2;
        let acts = &[
            |_: &mut World, _| {},
            |world: &mut World, key| world.drop_key(1, key, false),
            |world: &mut World, key| {
                put_into(world, 1, key, Hint { priority: Priority::High, until: 0 });
            },
        ][..acts];
        for act in acts {
            act(&mut world, last);
            // A page is written, and no flush follows.
            world.wait(120_000_000);
        }
        assert!(acts.len() < 3 || class_in(&mut world, 1, last) == high);
        world.cut(Cut::Kill);
        (world, last)
    };
    let [before, dropped] = [1, 2].map(|acts| made(acts).0.drive.medium().to_vec());
    let mut pages = before.chunks(4096).zip(dropped.chunks(4096));
    let page = pages.position(|(old, new)| old != new).expect("a page has the drop");
    let (mut world, last) = made(3);
    world.lying = true;
    world.model.forget_must();
    world.drive.medium()[page * 4096 + 100] ^= 0x10;
    world.reopen();
    world.run_until("recovered", |world| world.store.phase() == Phase::Serving);
    assert_eq!(class_in(&mut world, 1, last), high);
}

fn demote(world: &mut World, keys: std::ops::Range<u64>) {
    let (id, time) = (world.id(0), world.time());
    let lows: Vec<u64> = keys.map(|key| World::key(key).lo()).collect();
    for some in lows.chunks(5) {
        let found = world.store.lookup(id, 1, some, Hold::Demote, time).unwrap();
        assert_eq!(found.found.count_ones() as usize, some.len());
    }
}

/// Blocks that are demoted while they are there go before others that were put earlier, retained
/// ones too; one that is used again is as young as others.
#[test]
fn what_was_demoted_goes_first_until_it_is_used() {
    each_seed("demoted later", 4, |seed| {
        let mut world = World::new(seed, small(16, 512));
        (0..80).for_each(|key| put(&mut world, key, Priority::Normal, 0));
        (100..160).for_each(|key| put(&mut world, key, Priority::Normal, 0));
        (200..220).for_each(|key| put(&mut world, key, Priority::High, 0));
        (300..320).for_each(|key| put(&mut world, key, Priority::Normal, 0));
        let before = world.store.stats().lookup_hits;
        demote(&mut world, 100..160);
        demote(&mut world, 200..220);
        demote(&mut world, 300..320);
        assert_eq!(world.store.stats().lookup_hits, before, "a demotion is no lookup");
        assert_eq!(world.store.stats().demoted, 100);
        assert_eq!(class(&mut world, 200), Some(WorthClass::Of(Priority::Normal)));
        for key in 300..320 {
            world.get(0, key);
            world.run_until("got", World::is_idle);
        }
        turn(&mut world, &mut 1000, 3);
        let left = [0..80, 100..160, 200..220, 300..320].map(|keys| there(&mut world, keys));
        world.store.audit();
        assert!(left[0] >= 60 && left[1] <= 30 && left[3] == 20, "{left:?}");
    });
}

/// A client that retains everything retains a quarter; the rest is as others. Blocks
/// that go make room for others that are retained.
#[test]
fn not_all_is_retained() {
    each_seed("retains all", 4, |seed| {
        let mut world = World::new(seed, small(16, 512));
        let retained = |world: &mut World, keys: std::ops::Range<u64>| {
            let high = Some(WorthClass::Of(Priority::High));
            keys.filter(|key| class(world, *key) == high).count()
        };
        for key in 0..400 {
            put(&mut world, key, Priority::High, 0);
        }
        let (now, refused) = (retained(&mut world, 0..400), world.store.stats().hints_refused);
        // Blocks take 1,536 bytes of 16 segments of 64 KiB.
        assert!((60..=171).contains(&now) && refused >= 200, "{now} {refused}");
        if seed.is_multiple_of(2) {
            restart(&mut world);
            world.run_until("recovered", |world| world.store.phase() == Phase::Serving);
            let after = retained(&mut world, 0..400);
            assert!((now / 2..=171).contains(&after), "{after} of {now}");
            assert_eq!(world.store.stats().hints_refused, 0, "they were counted at their puts");
        }
        // The end of one that is beyond the quarter counts all the same.
        let end = world.time().unix + 5;
        put(&mut world, 600, Priority::High, end);
        assert_eq!(class(&mut world, 600), Some(WorthClass::Of(Priority::Normal)));
        world.wait(6_000_000_000);
        assert_eq!(class(&mut world, 600), Some(WorthClass::Over));
        for key in 0..400 {
            world.drop_key(0, key, false);
            world.run_until("dropped", World::is_idle);
        }
        put(&mut world, 500, Priority::High, 0);
        assert_eq!(class(&mut world, 500), Some(WorthClass::Of(Priority::High)), "there is room");
        world.store.audit();
    });
}
