//! A medium that decays, and a drive that lies or fails.

use kvrail_store::{Phase, StartError};

use crate::drive::{Cut, Lies};
use crate::each_seed;
use crate::model::Now;
use crate::world::{World, small};

fn fill(world: &mut World, acts: u32, keys: u64) {
    for _ in 0..acts {
        world.act(keys);
        world.tick();
    }
}

/// Bits of anything flip: a miss or the right bytes, never others, and never a refused start.
#[test]
fn rot() {
    each_seed("rot", 30, |seed| {
        let block = if seed.is_multiple_of(2) { 512 } else { 4096 };
        let mut world = World::new(seed, small(24, block));
        // One flip costs no drop; of many, two may hit a drop and the record of its absence.
        let flips = if seed.is_multiple_of(3) { 1 } else { 40 };
        world.drops = flips == 1;
        fill(&mut world, 300, 40);
        world.settle();
        world.cut(Cut::Power);
        world.lying = true;
        world.model.forget_must();
        for _ in 0..flips {
            world.flip();
        }
        world.reopen();
        world.verify();
        fill(&mut world, 60, 40);
        world.settle();
        world.verify();
    });
}

/// Every page and head in turn is spoilt: what was dropped does not come back.
#[test]
fn rot_of_each_page() {
    each_seed("rot of each page", 2, |seed| {
        let made = |page: Option<usize>| {
            let mut world = World::new(seed, small(9, 512));
            for round in 0..4 {
                for key in 0..12 {
                    world.put_length(0, key + round, false, 900, 1);
                    world.tick();
                }
                world.settle();
                for key in 0..6 {
                    world.drop_key(0, key * 2 + round, true);
                }
                world.run_until("dropped", World::is_idle);
            }
            world.settle();
            world.cut(Cut::Power);
            world.lying = true;
            world.model.forget_must();
            let pages = world.drive.medium().len() / 4096;
            if let Some(page) = page {
                world.drive.medium()[page * 4096 + 100] ^= 0x10;
            }
            (world, pages)
        };
        let (_, pages) = made(None);
        for page in 0..pages {
            let (mut world, _) = made(Some(page));
            world.reopen();
            world.verify();
        }
    });
}

/// A page with a drop is spoilt, and the next page was written before a flush made that drop
/// durable: only a later page has its number.
#[test]
fn rot_of_a_page_whose_drop_was_durable_later() {
    let made = || {
        let mut world = World::new(3, small(9, 512));
        for key in 0..4 {
            world.put_length(0, key, true, 900, 1);
            world.run_until("put", World::is_idle);
        }
        for key in 0..4 {
            world.drop_key(0, key, false);
            world.put_length(0, 100 + key, false, 900, 1);
            world.wait(120_000_000);
        }
        world.settle();
        world.cut(Cut::Power);
        world.lying = true;
        world.model.forget_must();
        world
    };
    let pages = made().drive.medium().len() / 4096;
    for page in 0..pages {
        let mut world = made();
        world.drive.medium()[page * 4096 + 100] ^= 0x10;
        world.reopen();
        world.verify();
    }
}

/// Writes that never happen or land elsewhere, reads from elsewhere: misses, never wrong bytes.
#[test]
fn misdirect() {
    let corrupt = std::cell::Cell::new(0);
    each_seed("misdirect", 40, |seed| {
        let mut world = World::new(seed, small(12, 512));
        world.lying = true;
        world.drive.lies = Lies { lost: 20, misdirected: 20, misread: 20, failed: 0 };
        for _ in 0..2 {
            for _ in 0..200 {
                // A drop without a written record leaves no trace.
                let key = world.rng.u64(..40);
                if world.rng.bool() {
                    world.put(0, key, false);
                } else if world.may_get() && world.has_space(0) {
                    world.get(0, key);
                }
                world.tick();
            }
            world.cut(Cut::Power);
            world.model.anything_goes();
            let lies = std::mem::take(&mut world.drive.lies);
            world.reopen();
            world.drive.lies = lies;
            if matches!(world.store.phase(), Phase::Failed(StartError::Super(_))) {
                // Both superblocks were lost: a start is refused.
                break;
            }
            world.verify();
        }
        corrupt.set(corrupt.get() + world.corrupt);
    });
    assert!(corrupt.get() > 0, "the drive did not lie");
}

/// A drive that fails with errors: each request is answered, nothing is wrong.
#[test]
fn failing() {
    each_seed("failing", 40, |seed| {
        let mut world = World::new(seed, small(9, 512));
        world.lying = true;
        world.drive.lies = Lies { failed: 15, ..Lies::default() };
        fill(&mut world, 300, 40);
        world.run_until("all answered", World::is_idle);
        world.drive.lies = Lies::default();
        world.cut(Cut::Power);
        world.reopen();
        world.verify();
    });
}

/// A drive on which every write fails: puts are declined, gets go on.
#[test]
fn a_drive_that_only_reads() {
    let mut world = World::new(5, small(9, 512));
    for key in 0..10 {
        world.put_length(0, key, true, 600, 1);
        world.run_until("put", World::is_idle);
    }
    world.drive.lies = Lies { failed: 1000, ..Lies::default() };
    world.lying = true;
    world.drop_key(0, 3, true);
    world.put_length(0, 70, true, 600, 1);
    world.run_until("answered", World::is_idle);
    world.drive.lies = Lies::default();
    let status = world.put_length(0, 71, false, 600, 1);
    assert_eq!(status, Some(kvrail_store::Status::Declined(kvrail_store::DeclineReason::Refused)));
    world.get(0, 1);
    world.run_until("got", World::is_idle);
}

/// A block is found wrong and put again, in the segment of its first record: the second counts.
#[test]
fn a_block_that_is_put_again_is_the_one_that_is_found() {
    let mut world = World::new(7, small(9, 512));
    world.put_length(0, 1, true, 600, 1);
    world.run_until("put", World::is_idle);
    let Now::This(first) = world.model.expect(0, 1).now else { panic!("it was put") };
    world.drive.spoil(&first.bytes());
    world.lying = true;
    world.model.anything_goes();
    world.get(0, 1);
    world.run_until("got", World::is_idle);
    assert_eq!(world.corrupt, 1, "the get read other bytes");
    assert_eq!(world.put_length(0, 1, true, 600, 1), None, "the wrong block is gone");
    world.run_until("put again", World::is_idle);
    world.settle();
    assert_eq!(world.laps(), 0, "both records are in the first segment");
    world.cut(Cut::Power);
    world.reopen();
    world.verify();
    assert_eq!(world.corrupt, 1, "the second one was read");
}
