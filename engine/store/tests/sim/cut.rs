//! A cut after every single write of a fixed life, and after every write of the recovery behind it.

use kvrail_store::{Hold, Phase, PoolLimits, Status, StoreConfig, Times};

use crate::drive::Cut;
use crate::each_seed;
use crate::pools::rule;
use crate::world::{ReadEnds, World, small};

/// The life: everything that writes, in a small ring.
fn live(world: &mut World, until: u64) -> bool {
    for step in 0..260_u64 {
        world.act(25);
        if step == 130 {
            world.clear(1);
        }
        for _ in 0..2 {
            world.tick();
            if world.drive.finished >= until {
                return true;
            }
        }
        if step % 90 == 89 && !world.settle_before(until) {
            return true;
        }
    }
    false
}

#[test]
fn cut() {
    each_seed("cut", 2, |seed| {
        let block = if seed.is_multiple_of(2) { 4096 } else { 512 };
        cut_each(seed, || World::new(seed, small(8, block)));
    });
}

/// The same in two pools, of which one has what it needs and no more.
#[test]
fn cut_with_pools() {
    each_seed("cut with pools", 1, |seed| {
        let rules = || vec![rule("one", "space 1", (0, 4))];
        cut_each(seed, || World::with_pools(seed, small(10, 512), rules()));
    });
}

fn cut_each(seed: u64, fresh: impl Fn() -> World) {
    let mut whole = fresh();
    let first = whole.drive.finished + 1;
    live(&mut whole, u64::MAX);
    let last = whole.drive.finished;
    println!("cut: seed {seed}: after each of writes {first} to {last}");
    for at in first..last {
        let mut world = fresh();
        assert!(live(&mut world, at), "the same life reaches the same write");
        let cut = if at % 3 == 0 { Cut::Kill } else { Cut::Power };
        world.cut(cut);
        // Recovery is cut twice: after each of its first writes, by turns.
        for again in [at % 5, at % 3] {
            let until = world.drive.finished + again;
            world.open();
            for _ in 0..400 {
                if world.drive.finished > until {
                    break;
                }
                world.tick();
            }
            world.cut(Cut::Power);
        }
        world.reopen();
        world.verify();
    }
}

/// The segment of a block that is there: a get has found it.
fn segment_of(world: &mut World, (space, key): (u16, u64)) -> u64 {
    assert_eq!(world.get(space, key), None, "key {key} is there");
    let (_, reading) = world.reads.last().expect("a read began");
    reading.offset / world.config.segment_bytes
}

/// Puts blocks and drops, those of the first segment in space 1: the last key of the second one,
/// at whose beginning `begin` happens.
fn two_segments(world: &mut World, begin: impl Fn(&mut World)) -> u64 {
    let mut segments = Vec::new();
    for key in 0.. {
        let space = u16::from(segments.len() < 2);
        world.put_length(space, key, false, 1500, 1);
        world.run_until("put", World::is_idle);
        let segment = segment_of(world, (space, key));
        world.run_until("got", World::is_idle);
        if segments.last() != Some(&segment) {
            segments.push(segment);
            match segments.len() {
                2 => begin(world),
                3 => return key - 1,
                _ => {}
            }
        }
        if key % 4 == 0 {
            world.drop_key(0, 900_000 + key, true);
            world.run_until("dropped", World::is_idle);
        }
    }
    unreachable!("keys have no end");
}

/// Uses all blocks but those of the second segment.
fn use_all(world: &mut World, last: u64, end: u64) {
    for (space, keys) in [(1, 0..last), (0, 10_000..end)] {
        let (id, time) = (world.id(space), world.time());
        let keys: Vec<u64> = keys.map(|key| World::key(key).lo()).collect();
        for keys in keys.chunks(8) {
            let _ = world.store.lookup(id, 1, keys, Hold::Touch, time).unwrap();
        }
    }
}

/// A segment was released whose drops are in the ledger, and the oldest one is there. The segment
/// cannot be prepared before reads end: a get reads it.
fn with_ledger() -> World {
    let rules = vec![rule("default", "", (0, 20))];
    let mut world = World::with_pools(3, small(9, 512), rules);
    let last = two_segments(&mut world, |_| {});
    world.read_ends = ReadEnds::Never;
    assert_eq!(world.get(0, last), None);
    for key in 10_000.. {
        use_all(&mut world, last, key);
        world.put_length(0, key, false, 1500, 1);
        for _ in 0..20 {
            world.tick();
        }
        if world.laps() > 0 {
            return world;
        }
    }
    unreachable!("keys have no end");
}

/// The oldest segment goes while the head of another is on its way: the head still has the floor
/// below it, and so the numbers.
#[test]
fn a_head_has_the_numbers_above_its_floors() {
    for ticks in 0..60 {
        let mut world = with_ledger();
        world.clear(1);
        let (limits, time) = (PoolLimits { minimum: 0, maximum: 8 }, world.time());
        world.store.set_pool_limits(&[limits], time);
        for key in 20_000..20_100 {
            world.put_length(0, key, false, 1500, 1);
            for _ in 0..20 {
                world.tick();
            }
            if world.laps() > 2 {
                break;
            }
        }
        world.read_ends = ReadEnds::Soon;
        for _ in 0..ticks {
            world.tick();
        }
        world.cut(Cut::Power);
        world.reopen();
        world.verify();
        assert_eq!(world.store.stats().distrusted, 0, "after {ticks} ticks");
    }
}

/// The newest head alone has the newest numbers of the ledger: power fails in one start after
/// another, while an empty segment gets its head anew.
#[test]
fn a_ledger_outlives_starts_that_are_cut_off() {
    let mut world = with_ledger();
    world.read_ends = ReadEnds::Soon;
    world.settle();
    world.cut_starts(300);
}

/// A key that is dropped in the second segment of a ring and put again behind that.
const TWICE: u64 = 5000;

/// Where it is put again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    SecondSegment,
    ThirdSegment,
}

fn put_again(world: &mut World) {
    world.put_length(0, TWICE, true, 600, 1);
    world.run_until("put again", World::is_idle);
}

/// The second segment is reclaimed, up to that write: whether it was released.
fn reclaim_second(again: Again, until: u64) -> (World, bool) {
    // Each page is written at once: no drop shares the page of a moved block.
    let times = Times { page: 0, ..Times::default() };
    let mut world = World::new(3, StoreConfig { times, ..small(9, 512) });
    let last = two_segments(&mut world, |world| {
        world.drop_key(0, TWICE, true);
        world.run_until("dropped", World::is_idle);
        if again == Again::SecondSegment {
            put_again(world);
        }
    });
    if again == Again::ThirdSegment {
        put_again(&mut world);
    }
    let second = segment_of(&mut world, (0, last));
    let is_there = segment_of(&mut world, (0, TWICE)) == second;
    assert_eq!(is_there, again == Again::SecondSegment, "{again:?}");
    for key in 10_000.. {
        use_all(&mut world, last, key);
        world.hold(0, TWICE, 1);
        world.put_length(0, key, true, 1500, 1);
        for _ in 0..20 {
            let over = world.laps() > 0;
            if over || world.drive.finished >= until {
                return (world, over);
            }
            world.tick();
        }
    }
    unreachable!("keys have no end");
}

/// The key is found after a cut.
fn find_again(mut world: World, cut: Cut, when: u64) {
    world.cut(cut);
    world.reopen();
    while world.store.phase() == Phase::Warming {
        let status = world.get(0, TWICE);
        assert_ne!(status, Some(Status::Miss), "it may yet turn up, {cut:?} after write {when}");
        world.tick();
    }
    assert_eq!(world.get(0, TWICE), None, "it is there, {cut:?} after write {when}");
    world.run_until("got", World::is_idle);
    assert_eq!(world.corrupt, 0, "its bytes are there, {cut:?} after write {when}");
    world.verify();
}

/// A victim's drop is written again, and the put behind it is not moved yet when the process or
/// power ends: the put counts.
#[test]
fn a_put_behind_a_drop_that_is_written_again_counts() {
    let (whole, _) = reclaim_second(Again::SecondSegment, u64::MAX);
    let last = whole.drive.finished;
    for (at, cut) in (last - 60..last).flat_map(|at| [(at, Cut::Kill), (at, Cut::Power)]) {
        let (world, over) = reclaim_second(Again::SecondSegment, at);
        assert!(!over, "the segment is the victim after write {at}");
        find_again(world, cut, at);
    }
}

/// The same while recovery goes on, at any pace: the key is no miss before its segment is read.
#[test]
fn a_put_behind_a_drop_that_is_written_again_may_yet_turn_up() {
    let (whole, _) = reclaim_second(Again::SecondSegment, u64::MAX);
    let last = whole.drive.finished;
    for (at, pace) in (last - 8..last).flat_map(|at| (0..30).map(move |pace| (at, pace))) {
        let (mut world, _) = reclaim_second(Again::SecondSegment, at);
        world.rng = fastrand::Rng::with_seed(pace);
        find_again(world, Cut::Kill, at);
    }
}

/// A drop that is written again does not count against a put between its segment and its copy.
#[test]
fn a_put_above_a_drop_that_is_written_again_counts() {
    let (world, over) = reclaim_second(Again::ThirdSegment, u64::MAX);
    assert!(over, "the drop has a copy only");
    let when = world.drive.finished;
    find_again(world, Cut::Kill, when);
}

/// Power takes the copies of moved blocks that no flush covered, and leaves all pages.
#[test]
fn a_moved_block_is_on_stable_media_before_its_record() {
    let (whole, _) = reclaim_second(Again::SecondSegment, u64::MAX);
    assert!(!whole.move_writes.is_empty(), "the held block is moved");
    let last = whole.drive.finished;
    for at in last - 60..last {
        let (mut world, _) = reclaim_second(Again::SecondSegment, at);
        for write in std::mem::take(&mut world.move_writes) {
            world.drive.lose(write);
        }
        find_again(world, Cut::Kill, at);
    }
}
