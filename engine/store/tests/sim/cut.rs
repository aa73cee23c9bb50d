//! A cut after every single write of a fixed life, and after every write of the recovery behind it.

use crate::drive::Cut;
use crate::each_seed;
use crate::pools::rule;
use crate::world::{World, small};

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

/// Power ends behind the page with a moved block's record, and keeps it.
#[test]
fn a_moved_block_is_on_stable_media_before_its_record() {
    let rules = || vec![rule("one", "space 1", (0, 4))];
    cut_each(15, || World::with_pools(15, small(10, 512), rules()));
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
