//! Keys that differ in nothing but the 24 bits that an entry of the index has no room for.

use kvrail_store::{Extent, Get, Got, Outcome, Status};

use crate::drive::Cut;
use crate::each_seed;
use crate::world::{TWIN, World, small};

/// The check of a block that is there.
pub(crate) fn check_of(world: &mut World, space: u16, key: u64) -> u64 {
    let (space, key) = (world.id(space), World::key(key));
    match world.store.inspect(&Get { space, key, extent: Extent::Whole { capacity: 0 } }) {
        Got::Done(answer) if answer.status == Status::TooSmall => answer.check,
        other => panic!("not there: {other:?}"),
    }
}

#[test]
fn a_key_says_nothing_of_another_one() {
    let mut world = World::new(1, small(8, 512));
    let (one, other) = (7, 7 + TWIN);
    assert_eq!(World::key(one).lo(), World::key(other).lo());
    assert_eq!(World::key(one).hi() ^ World::key(other).hi(), 1 << 40);
    assert_eq!(world.put_length(0, one, false, 1000, 1), None);
    world.run_until("put", World::is_idle);
    let (id, check) = (world.id(0), check_of(&mut world, 0, one));
    assert_eq!(world.get(0, other), Some(Status::Miss));
    assert!(!world.store.suspect(id, World::key(other), check), "its block is none");
    world.drop_key(0, other, true);
    world.run_until("dropped", World::is_idle);
    assert_eq!(check_of(&mut world, 0, one), check);
    // A put of it is taken, whatever is there.
    assert_eq!(world.put_length(0, other, false, 1000, 1), None);
    assert_eq!(world.put_length(0, other, false, 1000, 1), Some(Status::Pending));
    world.run_until("put", World::is_idle);
    assert_eq!(world.put_length(0, other, false, 1000, 1), Some(Status::Present));
    assert!(world.store.suspect(id, World::key(one), check));
    world.settle();
    world.cut(Cut::Power);
    world.reopen();
    world.verify();
    assert_eq!(world.store.entries(), 2);
}

/// The sidecar's own looks at blocks leave the hit ratio alone.
#[test]
fn inspections_count_as_no_gets() {
    let mut world = World::new(1, small(8, 512));
    assert_eq!(world.put_length(0, 7, false, 1000, 1), None);
    world.run_until("put", World::is_idle);
    let counts = |world: &World| {
        let stats = world.store.stats();
        (stats.hits, stats.misses, stats.misses_absent, stats.misses_other_length)
    };
    let before = counts(&world);
    check_of(&mut world, 0, 7);
    let get = |key, capacity| Get {
        space: world.id(0),
        key: World::key(key),
        extent: Extent::Whole { capacity },
    };
    let (there, absent) = (get(7, 4096), get(8, 4096));
    let Got::Read(reading) = world.store.inspect(&there) else { panic!("the block is there") };
    world.store.read_ended(reading.id, Outcome::Done);
    assert!(matches!(world.store.inspect(&absent), Got::Done(_)));
    assert_eq!(counts(&world), before);
}

/// Ten keys of each of eight kinds, with some displaced entries.
#[test]
fn lives() {
    each_seed("twins", 20, |seed| {
        let mut world = World::new(seed, small(if seed.is_multiple_of(2) { 8 } else { 40 }, 512));
        for _ in 0..2 {
            for _ in 0..300 {
                let space = world.rng.u16(..2);
                let key = world.rng.u64(..10) + TWIN * world.rng.u64(..8);
                let durable = world.rng.u8(..4) == 0;
                match world.rng.u8(..10) {
                    0..5 => drop(world.put(space, key, durable)),
                    5..7 => world.drop_key(space, key, durable),
                    _ if world.may_get() => drop(world.get(space, key)),
                    _ => {}
                }
                world.tick();
            }
            let cut = if world.rng.bool() { Cut::Kill } else { Cut::Power };
            world.cut(cut);
            world.reopen();
            world.verify();
        }
    });
}
