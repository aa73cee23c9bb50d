//! Rings that go round: reads, holds and drops while segments are used again.

use kvrail_store::{DeclineReason, Hold, Phase, Status, StoreConfig};

use crate::drive::Cut;
use crate::each_seed;
use crate::world::{ReadEnds, World, small};

/// Many laps of six segments, with long reads, holds and drops.
#[test]
fn wrap() {
    each_seed("wrap", 12, |seed| {
        let mut world = World::new(seed, small(6, 512));
        world.read_ends = if seed.is_multiple_of(2) { ReadEnds::Late } else { ReadEnds::Soon };
        for round in 0..1500 {
            world.act(120);
            if world.rng.u8(..4) > 0 {
                world.tick();
            }
            if round % 400 == 399 {
                world.cut(if seed.is_multiple_of(2) { Cut::Kill } else { Cut::Power });
                world.reopen();
            }
        }
        world.settle();
        world.verify();
        assert!(world.laps() > 0, "the ring did not go round");
    });
}

/// Blocks that are read again stay: moved from lap to lap; others go.
#[test]
fn hot_blocks_are_moved() {
    let mut world = World::new(3, small(12, 512));
    for key in 0..8 {
        world.put_length(0, key, false, 1500, 1);
        world.run_until("put", World::is_idle);
    }
    for cold in 100..700 {
        world.put_length(0, cold, false, 1500, 1);
        world.run_until("put", World::is_idle);
        world.get(0, cold % 8);
        world.run_until("got", World::is_idle);
    }
    let stats = *world.store.stats();
    assert!(stats.moved >= 8 && stats.evicted > 200, "{stats:?}");
    for key in 0..8 {
        assert_eq!(world.get(0, key), None, "key {key} was evicted: {stats:?}");
        world.run_until("got", World::is_idle);
    }
    world.settle();
    world.cut(Cut::Power);
    world.reopen();
    world.verify();
}

/// The power fails while blocks are moved: they are found at their old or their new place.
#[test]
fn moved_blocks_survive_cuts() {
    each_seed("moved", 30, |seed| {
        let mut world = World::new(seed, small(9, 512));
        let mut cold = 100;
        for key in 0..8 {
            // The first is larger than a buffer.
            let length = if key == 0 { 20_000 } else { 1500 };
            world.put_length(0, key, true, length, 1);
            world.run_until("put", World::is_idle);
            world.get(0, key);
            // Among others: a segment of nothing else would stay where it is.
            for _ in 0..5 {
                world.put_length(0, cold, false, 1500, 1);
                world.run_until("put", World::is_idle);
                cold += 1;
            }
        }
        let laps = 6 + world.rng.u64(..6);
        while world.laps() < laps {
            world.put_length(0, cold, false, 1500, 1);
            for key in 0..2 {
                world.get(0, (cold + key) % 8);
            }
            world.run_until("got", World::is_idle);
            cold += 1;
        }
        let ticks = if seed.is_multiple_of(2) { 40 } else { 10 };
        for _ in 0..world.rng.u32(..ticks) {
            world.tick();
        }
        assert!(world.store.stats().moved >= 8, "{:?}", world.store.stats());
        world.cut(Cut::Power);
        world.reopen();
        world.verify();
        // One that was spoilt was dropped by its reader. At the start, too, the oldest segment goes
        // where space is short.
        for key in 0..8 {
            let status = world.get(0, key);
            let evicts = world.store.stats().evicted + world.laps() > 0;
            assert!(evicts || status.is_none(), "key {key} is lost: {status:?}");
            world.run_until("got", World::is_idle);
        }
    });
}

/// A held block is there as long as it is held, whatever is put.
#[test]
fn held_blocks_are_moved() {
    let mut world = World::new(4, small(12, 512));
    for key in 0..4 {
        world.put_length(0, key, false, 1500, 1);
        world.run_until("put", World::is_idle);
    }
    world.hold(0, 0, 4);
    for cold in 100..600 {
        world.put_length(0, cold, false, 1500, 1);
        world.run_until("put", World::is_idle);
    }
    for key in 0..4 {
        assert_eq!(world.get(0, key), None, "key {key} was evicted");
        world.run_until("got", World::is_idle);
    }
    world.store.owner_gone(1);
    assert_eq!(world.store.holds(), 0);
}

/// Whole segments are held, up to the limit, while the ring goes round. Each granted hold is kept;
/// a hold above the limit is refused at the request.
#[test]
fn segments_of_held_blocks_stay() {
    each_seed("held", 6, |seed| {
        let config = StoreConfig { holds: 256, owner_holds: 256, ..small(30, 512) };
        let mut world = World::new(seed, config);
        // Seven of 32 segments may be held, and 14 of these blocks lie in each.
        let mut held = Vec::new();
        for key in 0..128 {
            world.put_length(0, key, false, 4096, 1);
            world.run_until("put", World::is_idle);
        }
        let mut cold = 1000;
        for _ in 0..3 {
            for first in [0, 64] {
                let found = world.hold(0, first, 64);
                held.extend((0..64).filter(|at| found.held >> at & 1 == 1).map(|at| first + at));
            }
            held.sort_unstable();
            held.dedup();
            let laps = world.laps();
            while world.laps() < laps + 40 {
                world.put_length(0, cold, false, 1500, 1);
                world.run_until("put", World::is_idle);
                cold += 1;
            }
            let stats = world.store.stats();
            assert_eq!((held.len(), stats.holds_broken), (112, 0), "{stats:?}");
            assert!(stats.holds_refused >= 16, "{stats:?}");
            assert!(stats.moved_bytes < stats.put_bytes, "{stats:?}");
            for key in &held {
                assert_eq!(world.get(0, *key), None, "key {key} was evicted");
                world.run_until("got", World::is_idle);
            }
        }
        // Segments that were passed over are read again when holds end, and go.
        world.wait(70_000_000_000);
        let evicted = world.store.stats().evicted;
        while world.store.stats().evicted < evicted + 900 {
            world.put_length(0, cold, false, 1500, 1);
            world.run_until("put", World::is_idle);
            cold += 1;
        }
        assert_eq!((world.store.holds(), world.store.stats().holds_broken), (0, 0));
    });
}

/// Most of the ring is hot all the time: the bytes of moves equal the bytes of puts, and held
/// blocks move nevertheless.
#[test]
fn no_more_moves_than_is_put_but_for_holds() {
    let mut world = World::new(6, small(12, 512));
    // Held blocks are put between others and never read: their segments are reclaimed.
    let (held, first, hot) = (400, 8, 300);
    for put in 0..1200 {
        world.put_length(0, put, false, 1500, 1);
        world.run_until("put", World::is_idle);
        if put >= held + 8 && put % 10 == 8 {
            world.hold(0, held, 8); // each lease ends
        }
        for at in 0..if put < hot { 0 } else { 6 } {
            world.get(0, first + (put * 6 + at) % (hot - first));
            world.run_until("got", World::is_idle);
        }
    }
    let stats = *world.store.stats();
    println!("hot: {} bytes put, {} moved", stats.put_bytes, stats.moved_bytes);
    assert!(stats.moved_bytes <= stats.put_bytes, "{stats:?}");
    assert!(stats.moved_bytes > stats.put_bytes / 8, "{stats:?}");
    for key in held..held + 8 {
        assert_eq!(world.get(0, key), None, "key {key} was evicted: {stats:?}");
        world.run_until("got", World::is_idle);
    }
}

/// Moves are charged to no session while there is space, and to the waiting sessions when there is
/// none.
#[test]
fn blocks_are_moved_for_who_waits_for_space() {
    let mut world = World::new(5, small(12, 512));
    let moved = |world: &World, owner| world.moved_for.get(&owner).copied().unwrap_or(0);
    for key in 0..900 {
        world.put_length(0, key, false, 1500, 1);
        world.run_until("put", World::is_idle);
        // One of four is read again and again.
        for again in [16, 32, 48, 64, 80, 96] {
            world.get(0, (key & !3).saturating_sub(again));
            world.run_until("got", World::is_idle);
        }
        world.wait(20_000_000);
    }
    let slowly = [None, Some(1)].map(|owner| moved(&world, owner));
    assert!(slowly[0] > 100 && slowly[1] < slowly[0], "{slowly:?}");
    for key in 900..1800 {
        while world.put_length(0, key, false, 1500, 1).is_some() {
            world.tick();
        }
        for again in [16, 32, 48, 64, 80, 96] {
            world.get(0, (key & !3) - again);
        }
    }
    let fast = [None, Some(1)].map(|owner| moved(&world, owner));
    assert!(fast[1] - slowly[1] > 100, "{fast:?} after {slowly:?}");
    assert!((fast[0] - slowly[0]) * 4 < fast[1] - slowly[1], "{fast:?} after {slowly:?}");
}

/// A put that is given up while recovery goes on hides an older one of its key. A third put of the
/// key must not go before the first: it would come back.
#[test]
fn a_put_that_is_given_up_during_recovery_brings_nothing_back() {
    let mut world = World::new(4, small(12, 512));
    let put = |world: &mut World, key: u64| {
        assert_eq!(world.put_length(0, key, false, 1500, 1), None);
        world.run_until("put", World::is_idle);
    };
    (0..120).for_each(|key| put(&mut world, key));
    world.settle();
    world.cut(Cut::Kill);
    world.reopen();
    world.put_partly(0, 0, 1500, 2, 1);
    world.store.owner_gone(1);
    assert_eq!(world.store.phase(), Phase::Warming, "the first segment is not read");
    world.run_until("recovered", |world| world.store.phase() == Phase::Serving);
    assert_eq!(world.get(0, 0), Some(Status::Miss));
    put(&mut world, 0);
    // What is put next is cold, and everything else is used.
    (1000..1060).for_each(|key| put(&mut world, key));
    for key in 2000.. {
        put(&mut world, key);
        let (id, time) = (world.id(0), world.time());
        for first in (1..113).chain(2000..key).step_by(8) {
            let lows: Vec<u64> = (first..first + 8).map(|key| World::key(key).lo()).collect();
            let _ = world.store.lookup(id, 1, &lows, Hold::Touch, time).unwrap();
        }
        if world.laps() > 1 {
            break;
        }
    }
    world.settle();
    world.cut(Cut::Kill);
    world.reopen();
    world.verify();
}

/// Everything is hot: reclaim still ends, and puts go on.
#[test]
fn a_ring_of_hot_blocks_goes_on() {
    each_seed("spiral", 4, |seed| {
        let mut world = World::new(seed, small(8, 512));
        for key in 0..900 {
            let length = 1000 + [0, 700, 1400][usize::try_from(key % 3).unwrap()];
            world.put_length(0, key, false, length, 1);
            world.get(0, key);
            world.run_until("put", World::is_idle);
            world.get(0, key);
            world.run_until("got", World::is_idle);
        }
        let stats = *world.store.stats();
        assert_eq!(stats.puts, 900, "{stats:?}");
        println!("spiral: {} bytes put, {} moved", stats.put_bytes, stats.moved_bytes);
        assert!(stats.evicted > 0, "{stats:?}");
    });
}

/// More keys than the index has entries for: declined or reclaimed early, and life goes on.
#[test]
fn full() {
    each_seed("full", 6, |seed| {
        let config = StoreConfig { block_mean: 16 << 10, ..small(12, 512) };
        let mut world = World::new(seed, config);
        let mut declined = 0;
        for key in 0..900 {
            let length = 1 + u32::try_from(key % 500).unwrap();
            let status = world.put_length(0, key, false, length, 1);
            match status {
                None => {}
                Some(Status::Declined(DeclineReason::IndexFull | DeclineReason::Busy)) => {
                    declined += 1
                }
                other => panic!("{other:?}"),
            }
            world.tick();
        }
        world.settle();
        let stats = *world.store.stats();
        assert!(stats.puts > 100 && stats.reclaimed > 0, "{stats:?} {declined}");
        world.verify();
        world.cut(Cut::Power);
        world.reopen();
        world.verify();
    });
}

/// Blocks so small that the index is full before the first segment is: the oldest go, the newest
/// are taken, and each reclaim takes a part of what is there, not all.
#[test]
fn an_index_that_is_full_before_the_first_segment_is() {
    each_seed("full, first segment", 40, |seed| {
        // 39 blocks of 512 bytes fill the index; a segment takes more than 100.
        let segments = 6 + 4 * (seed % 4);
        let block_mean = u32::try_from(segments * 64 * 1024 / 32).unwrap();
        let mut world = World::new(seed, StoreConfig { block_mean, ..small(segments, 512) });
        for key in 0..600 {
            let mut tries = 0;
            while world.put_length(0, key, false, 500, 1).is_some() {
                world.tick();
                tries += 1;
                assert!(tries < 2000, "puts are declined for ever: {:?}", world.store.stats());
            }
            world.run_until("put", World::is_idle);
            let there = world.store.entries();
            assert!(key < 100 || there >= 16, "{there} blocks are left at {key}");
        }
        assert!(world.store.stats().evicted > 500, "{:?}", world.store.stats());
        world.verify();
        world.cut(Cut::Power);
        world.reopen();
        world.verify();
    });
}

/// Holds beyond their limits are not granted, and nothing leaks.
#[test]
fn holds_are_bounded() {
    let mut world = World::new(9, small(12, 512));
    for key in 0..24 {
        world.put_length(0, key, false, 700, 1);
        world.run_until("put", World::is_idle);
    }
    for first in [0, 8, 16] {
        world.hold(0, first, 8);
    }
    assert_eq!(world.store.holds(), 16, "at most those of one owner");
    world.wait(70_000_000_000);
    assert_eq!(world.store.holds(), 0, "they end by time");
}
