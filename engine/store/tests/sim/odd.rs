//! Lengths of every kind.

use kvrail_store::{Extent, Fault, Get, Got, Sizing, Status, StoreConfig};

use crate::drive::Cut;
use crate::each_seed;
use crate::world::{World, small};

fn large(logical_block: u32) -> StoreConfig {
    let segment_bytes = 4 << 20;
    StoreConfig {
        segment_bytes,
        area_bytes: (1 << 20) + 10 * segment_bytes,
        block_mean: 64 << 10,
        ..small(10, logical_block)
    }
}

/// Each length is found with its own bytes and none beside them, after a restart too.
#[test]
fn odd() {
    each_seed("odd", 2, |seed| {
        let block = if seed.is_multiple_of(2) { 4096 } else { 512 };
        let mut world = World::new(seed, large(block));
        let fixed = [1, 2, 511, 512, 513, 4095, 4096, 4097, 640_256, 1_124_352, 48_068 * 16];
        let lengths = fixed.into_iter().chain([751 * 1024 + 1, 2 << 20, 2_000_000, 65_537]);
        for (key, length) in (0..).zip(lengths.clone()) {
            for (space, parts) in [(0, 1), (1, 3)] {
                let status = world.put_length(space, key, false, length, parts);
                assert_eq!(status, None, "{length}");
                world.run_until("put", World::is_idle);
                world.get(space, key);
                world.run_until("got", World::is_idle);
            }
        }
        world.settle();
        world.cut(Cut::Power);
        world.reopen();
        world.verify();
        let longest = (2 << 20) + 1;
        let status = world.put_length(0, 77, false, longest, 1);
        assert_eq!(status, Some(Status::Invalid(Fault::Length)));
        let status = world.put_length(0, 77, false, 0, 1);
        assert_eq!(status, None, "no part of nothing is put");
    });
}

/// A buffer that is too small stays untouched, and the answer has the required size.
#[test]
fn too_small() {
    let mut world = World::new(1, small(8, 512));
    world.put_length(0, 5, false, 1000, 1);
    world.run_until("put", World::is_idle);
    let get = |world: &mut World, extent: Extent| {
        let (space, key) = (world.id(0), World::key(5));
        world.store.get(&Get { space, key, extent })
    };
    let Got::Done(answer) = get(&mut world, Extent::Whole { capacity: 999 }) else {
        panic!("it was begun")
    };
    assert_eq!((answer.status, answer.length), (Status::TooSmall, 1000));
    for (at, bytes) in [(1, 10), (0, 1001), (512, 489), (0, 0), (u32::MAX - 511, 512)] {
        let begun = get(&mut world, Extent::Part { at, bytes });
        assert_eq!(begun, Got::Done(Status::Invalid(Fault::Part).into()), "{at} {bytes}");
    }
}

/// The parts of a large block appear together or not at all.
#[test]
fn parts_appear_together() {
    each_seed("parts", 20, |seed| {
        let mut world = World::new(seed, small(12, 512));
        world.put_partly(0, 7, 6000, 3, 2);
        world.run_until("parts", |world| world.asked_parts() == 0);
        world.get(0, 7);
        assert_eq!(world.put_length(0, 7, false, 900, 1), Some(Status::Pending));
        match seed % 3 {
            0 => {
                // The rest does not come: given up after a while, and the next put goes on.
                world.wait(6_000_000_000);
            }
            1 => world.store.owner_gone(1),
            _ => {
                world.settle_time();
                world.cut(Cut::Kill);
                world.reopen();
                world.verify();
            }
        }
        world.run_until("over", World::is_idle);
        world.get(0, 7);
        assert_eq!(world.put_length(0, 7, true, 6000, 3), None);
        world.run_until("put", World::is_idle);
        world.get(0, 7);
        world.settle();
        world.verify();
    });
}

/// Sizes of a store with the configuration of `kvrail serve`.
#[test]
fn sizes() {
    let config = |block_mean: u32| StoreConfig {
        area_bytes: 1_000_000_000_000,
        logical_block: 4096,
        segment_bytes: 256 << 20,
        block_mean,
        spaces: 256,
        puts: 1024,
        writes: 4096,
        holds: 29_802,
        owners: 65,
        owner_holds: 4096,
        buffers: 6,
        buffer_bytes: 8 << 20,
        images: 64,
        ..small(8, 512)
    };
    for (mean, most) in [(1 << 20, 52), (64 << 10, 47)] {
        let sizing = Sizing::of(&config(mean)).unwrap();
        println!("{sizing}");
        assert!(sizing.per_block() <= most, "{sizing}");
    }
}
