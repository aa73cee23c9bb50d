//! A drive that reads and refuses writes: once, for a while, for good.

use std::collections::BTreeSet;

use kvrail_store::{DeclineReason, Phase, RETRY_NS_MAX, StartError, Status};

use crate::drive::{Cut, Kind, Refusing, Span};
use crate::each_seed;
use crate::world::{World, small};

const SECOND: u64 = 1_000_000_000;
/// Bytes of a block.
const LENGTH: u32 = 6000;
const SPANS: [Span; 3] = [Span::Once, Span::For(3 * SECOND), Span::Ever];
const REFUSED: Status = Status::Declined(DeclineReason::Refused);

/// A world whose ring has gone round if it is small, with blocks that have hits.
fn filled(seed: u64, segments: u64) -> World {
    let mut world = World::new(seed, small(segments, 512));
    let puts = if segments < 20 { 110 } else { 20 };
    for key in 0..puts {
        world.put_length(0, key, false, LENGTH, 1);
        world.run_until("put", World::is_idle);
        hit(&mut world, key);
    }
    world.settle();
    world
}

/// Some of the last blocks are hit, so that they are moved.
fn hit(world: &mut World, last: u64) {
    for back in [1, 4, 9] {
        world.get(0, last.saturating_sub(back * 7));
    }
    world.run_until("got", World::is_idle);
}

/// Keys that are there.
fn there(world: &mut World) -> BTreeSet<u64> {
    let (id, time) = (world.id(0), world.time());
    let found = |world: &mut World, key: u64| {
        let keys = [World::key(key).lo()];
        world.store.lookup(id, 1, &keys, kvrail_store::Hold::No, time).unwrap().found == 1
    };
    world.model.keys().into_iter().map(|(_, key)| key).filter(|key| found(world, *key)).collect()
}

/// Requests that cause writes, each answered within a second. Returns the put's status.
fn ask(world: &mut World, key: u64) -> Option<Status> {
    let status = world.put_length(0, key, key.is_multiple_of(3), LENGTH, 1);
    if key.is_multiple_of(5) {
        world.drop_key(0, 1_000_000 + key, key.is_multiple_of(2));
    }
    let until = world.now + SECOND;
    while !world.is_idle() {
        world.tick();
        assert!(world.now < until, "key {key} is not answered: {:?}", world.store.refusal());
    }
    hit(world, key);
    world.wait(SECOND / 25);
    status
}

/// Writes of a kind are refused while clients go on: nothing readable is lost, each request is
/// answered, tries are few, and puts are taken again. Whether any was refused.
fn refused(world: &mut World, refusing: Refusing) -> bool {
    world.drive.refusing = Some(refusing);
    let begun = world.now;
    let (mut key, mut declined) = (10_000, 0_u32);
    while world.drive.refused == 0 {
        ask(world, key);
        key += 1;
        if refusing.kind == Kind::Space {
            world.clear(1);
        }
        if world.now > begun + 60 * SECOND {
            return false;
        }
    }
    let kept = there(world);
    let until = world.now + 5 * SECOND / 2;
    while world.now < until {
        let status = ask(world, key);
        declined += u32::from(status == Some(REFUSED));
        key += 1;
        if refusing.span != Span::Once {
            let now = there(world);
            assert!(now.is_superset(&kept), "{:?} are lost", kept.difference(&now));
        }
    }
    // A table of images, a flush and some moves, in rounds that get rarer.
    assert!(world.drive.refused < 150, "{} tries", world.drive.refused);
    let lasts = refusing.span != Span::Once && refusing.kind != Kind::Space;
    assert_eq!(declined > 0, lasts, "{declined} puts were declined");
    assert_eq!(world.store.refusal().is_some(), lasts);
    let refusals = world.store.stats().refusals;
    assert!(refusals == u64::from(lasts) || refusing.kind == Kind::Space, "{refusals} refusals");
    true
}

fn taken_again(world: &mut World) {
    world.wait(SECOND + 2 * RETRY_NS_MAX);
    assert_eq!(world.store.refusal(), None);
    for key in 50_000..50_010 {
        assert_eq!(world.put_length(0, key, true, LENGTH, 1), None);
        world.run_until("put", World::is_idle);
        world.get(0, key);
        world.run_until("got", World::is_idle);
    }
    world.settle();
}

fn sweep(segments: u64, kinds: &[Kind]) {
    each_seed("refused", 1, |seed| {
        for (kind, span) in kinds.iter().flat_map(|kind| SPANS.map(|span| (*kind, span))) {
            for after in [0, 3] {
                println!("{kind:?} {span:?}, {after} go well before");
                let mut world = filled(seed, segments);
                assert!(refused(&mut world, Refusing::new(kind, after, span)), "none was refused");
                if span == Span::Ever {
                    assert!(kind == Kind::Space || world.store.is_written(), "a stop would wait");
                } else {
                    taken_again(&mut world);
                }
                // Without evictions all that was acknowledged must be there.
                world.cut(Cut::Kill);
                world.drive.refusing = None;
                world.reopen();
                world.verify();
            }
        }
    });
}

/// Nothing is evicted here.
#[test]
fn each_write_in_a_roomy_ring() {
    let kinds = [Kind::Flush, Kind::Head(0), Kind::Head(1), Kind::Page, Kind::Block, Kind::Space];
    sweep(60, &kinds);
}

/// Each put takes the place of others here.
#[test]
fn each_write_in_a_ring_that_goes_round() {
    sweep(9, &[Kind::Flush, Kind::Head(0), Kind::Head(1), Kind::Page, Kind::Block, Kind::Move]);
}

/// A drive that takes nothing more, which a flush is the first to meet: no page waits for another
/// try then.
#[test]
fn puts_are_declined_within_a_second_where_a_flush_is_refused_first() {
    let mut world = filled(5, 60);
    let put = |world: &mut World, key| {
        let status = world.put_length(0, key, false, LENGTH, 1);
        world.run_until("answered", World::is_idle);
        status
    };
    put(&mut world, 10_000);
    // Its page is written, and its flush is to come.
    world.wait(SECOND / 5);
    world.drive.refusing = Some(Refusing::all_from(Kind::Flush));
    world.run_until("refused", |world| world.drive.refused > 0);
    let until = world.now + SECOND;
    for key in 10_001.. {
        if put(&mut world, key) == Some(REFUSED) {
            break;
        }
        world.wait(SECOND / 25);
        assert!(world.now < until, "not declined: {:?}", world.store.refusal());
    }
}

/// Blocks whose writes fail because of the client take no space, and cost other clients no put.
#[test]
fn a_client_whose_writes_fail_takes_nothing_from_others() {
    let mut world = filled(3, 9);
    let (kept, laps) = (there(&mut world), world.laps());
    for key in 20_000..20_100 {
        world.drive.refusing = Some(Refusing::new(Kind::Block, 0, Span::Once));
        assert_eq!(world.put_length(0, key, false, LENGTH, 1), None);
        world.run_until("answered", World::is_idle);
        world.tick();
        world.run_until("probed", |world| world.flights.is_empty());
    }
    assert_eq!((there(&mut world), world.laps()), (kept, laps));
    assert_eq!(world.store.stats().refusals, 0);
    assert_eq!(world.put_length(0, 30_000, false, LENGTH, 1), None);
}

/// The store tries the superblocks several times; then the start fails with the cause, and can be
/// repeated.
#[test]
fn a_start_names_why_the_supers_were_refused() {
    for (span, starts) in [(Span::Once, true), (Span::Ever, false)] {
        for after in [0, 1] {
            let mut world = filled(4, 60);
            world.cut(Cut::Kill);
            world.drive.refusing = Some(Refusing::new(Kind::Super, after, span));
            world.open();
            world.run_until("started", |world| world.store.phase() != Phase::Starting);
            let refused = world.store.phase() == Phase::Failed(StartError::Refused(7));
            assert_eq!((refused, world.drive.refused), (!starts, if starts { 1 } else { 3 }));
            world.cut(Cut::Kill);
            world.drive.refusing = None;
            world.reopen();
            world.verify();
        }
    }
}
