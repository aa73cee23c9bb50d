//! Life, crashes, and what is found after them.

use kvrail_store::{Discard, StoreConfig};

use crate::drive::Cut;
use crate::each_seed;
use crate::world::{World, small};

/// The state machine against the model, without crashes: small rings, so that reclaim runs.
#[test]
fn model() {
    each_seed("model", 40, |seed| {
        let block = if seed.is_multiple_of(2) { 512 } else { 4096 };
        let mut world = World::new(seed, small(8, block));
        for _ in 0..600 {
            world.act(60);
            if world.rng.u8(..3) > 0 {
                world.tick();
            }
        }
        world.settle();
        world.verify();
        world.cut(Cut::Kill);
        world.reopen();
        world.verify();
    });
}

fn life(seed: u64, segments: u64, keys: u64, acts: u32) -> World {
    let block = if seed.is_multiple_of(2) { 512 } else { 4096 };
    let discard = if seed.is_multiple_of(3) { Discard::Off } else { Discard::Segments };
    let mut world = World::new(seed, StoreConfig { discard, ..small(segments, block) });
    for _ in 0..3 {
        for _ in 0..world.rng.u32(1..acts) {
            world.act(keys);
            if world.rng.u8(..3) > 0 {
                world.tick();
            }
        }
        if world.rng.bool() {
            world.settle();
        }
        crash_and_verify(&mut world, keys);
    }
    world
}

/// A crash, others while recovery goes on, and a look at all that there is.
pub(crate) fn crash_and_verify(world: &mut World, keys: u64) {
    let cut = if world.rng.u8(..3) == 0 { Cut::Kill } else { Cut::Power };
    world.cut(cut);
    // Another crash during recovery, at any point.
    while world.rng.bool() {
        world.open();
        for _ in 0..world.rng.u32(..60) {
            world.tick();
        }
        let cut = if world.rng.bool() { Cut::Kill } else { Cut::Power };
        world.cut(cut);
    }
    world.reopen();
    if world.rng.bool() {
        // Requests while recovery goes on.
        for _ in 0..world.rng.u32(..50) {
            world.act(keys);
            world.tick();
        }
    }
    world.verify();
    // This drive loses nothing that was durable: no drop may be missed.
    assert_eq!(world.store.stats().distrusted, 0);
}

/// Nothing is evicted here: what must be found is.
#[test]
fn crash() {
    each_seed("crash", 60, |seed| drop(life(seed, 40, 50, 150)));
}

/// The same in a ring that goes round.
#[test]
fn crash_in_a_small_ring() {
    each_seed("crash in a small ring", 40, |seed| drop(life(seed, 7, 60, 400)));
}

/// A life depends on its seed and on nothing else.
#[test]
fn replays_are_identical() {
    each_seed("replay", 5, |seed| {
        let (one, other) = (life(seed, 10, 40, 200), life(seed, 10, 40, 200));
        assert_eq!((one.trace, one.drive.finished), (other.trace, other.drive.finished));
    });
}

/// Drops that the power takes before they were durable are no damage, then and later.
#[test]
fn lost_drops_are_no_damage() {
    each_seed("gaps", 40, |seed| {
        let mut world = World::new(seed, small(40, 512));
        for round in 0..3 {
            for key in 0..6 {
                world.put(0, round * 10 + key, true);
                world.run_until("put", World::is_idle);
            }
            world.settle();
            for key in 0..5 {
                world.drop_key(0, 1000 + key, false);
                world.put(0, 500 + round * 10 + key, false);
                world.wait(120_000_000);
            }
            world.cut(Cut::Power);
            world.reopen();
            world.verify();
            assert_eq!(world.store.stats().distrusted, 0);
            world.settle();
        }
    });
}

/// A drop waits for a page; a put of its key that follows must not be recorded before it.
#[test]
fn a_put_does_not_overtake_a_drop() {
    each_seed("overtake", 10, |seed| {
        let mut world = World::new(seed, small(12, 512));
        world.put_length(0, 5, false, 700, 1);
        world.settle();
        world.stalled = true;
        let mut key = 1000;
        while world.is_idle() {
            world.drop_key(0, key, false);
            world.tick();
            key += 1;
        }
        world.drop_key(0, 5, false);
        world.put_length(0, 5, false, 900, 1);
        for _ in 0..200 {
            world.tick();
        }
        world.stalled = false;
        world.settle();
        world.cut(Cut::Kill);
        world.reopen();
        world.verify();
    });
}

/// A store without pools is on the medium as these lives left it in version 4. A change of what is
/// written when, which is no change of the format, gets new numbers here.
#[test]
fn a_store_without_pools_is_written_as_ever() {
    let lives = [(1, 40, 50), (2, 7, 60), (3, 10, 40)].map(|(seed, segments, keys)| {
        let mut world = life(seed, segments, keys, 200);
        world.settle();
        let medium = world.drive.medium();
        // Not a CRC: a page followed by its own CRC has the same CRC for any content.
        let fold = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        (world.trace, medium.iter().fold(0xcbf2_9ce4_8422_2325, fold))
    });
    let then = [
        (12_385_153_029_400_472_806, 277_597_742_664_945_023),
        (14_675_819_003_133_268_022, 11_448_968_019_215_303_097),
        (13_825_011_324_413_414_404, 11_995_689_056_299_648_108),
    ];
    assert_eq!(lives, then);
}
