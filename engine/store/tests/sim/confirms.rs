//! Durable puts of keys that are there: PRESENT is an answer that power may test.

use kvrail_store::{Phase, Status};

use crate::drive::Cut;
use crate::each_seed;
use crate::world::{World, small};

/// What an earlier process has written may be in the drive's cache alone, and power may fail right
/// behind the answer.
#[test]
fn a_block_of_an_earlier_process_is_durable_when_it_is_confirmed() {
    each_seed("confirms", 20, |seed| {
        let mut world = World::new(seed, small(12, 512));
        for key in 0..6 {
            world.put_length(0, key, false, 1500, 1);
            world.run_until("put", World::is_idle);
        }
        // Its page is written, and no flush is due.
        world.wait(200_000_000);
        world.cut(Cut::Kill);
        world.reopen();
        world.run_until("recovered", |world| world.store.phase() == Phase::Serving);
        for key in 0..6 {
            let status = world.put_length(0, key, true, 1500, 1);
            assert!(matches!(status, None | Some(Status::Present)), "{status:?}");
            world.run_until("confirmed", World::is_idle);
        }
        assert_eq!(world.store.stats().present, 6);
        world.cut(Cut::Power);
        world.reopen();
        world.verify();
    });
}

/// Blocks of one segment, with pages of their own.
const KEYS: u64 = 5;

/// A drop stands behind its put in one segment: while recovery reads that, the key is not there.
#[test]
fn no_put_finds_a_block_whose_drop_recovery_has_not_read() {
    each_seed("unsettled", 300, |seed| {
        let mut world = World::new(seed, small(12, 512));
        // Each record has a page, so that recovery stops between them.
        for key in 0..KEYS {
            world.put_length(0, key, true, 600, 1);
            world.run_until("put", World::is_idle);
        }
        for key in 0..KEYS {
            world.drop_key(0, key, true);
            world.run_until("dropped", World::is_idle);
        }
        world.settle();
        world.cut(Cut::Kill);
        world.reopen();
        let mut keys: Vec<u64> = (0..KEYS).collect();
        while world.store.phase() == Phase::Warming {
            if world.rng.u8(..3) == 0
                && let Some(key) = keys.pop()
            {
                let durable = world.rng.bool();
                let status = world.put_length(0, key, durable, 600, 1);
                assert_ne!(status, Some(Status::Present), "key {key} was dropped");
            }
            world.tick();
        }
        world.run_until("answered", World::is_idle);
        world.verify();
    });
}

/// A durable drop cannot be read, so its segment does not count: what is to go is not there.
#[test]
fn no_put_finds_a_block_of_a_segment_without_its_drops() {
    each_seed("distrusted", 40, |seed| {
        let mut world = World::new(seed, small(12, 512));
        for key in 0..KEYS {
            world.put_length(0, key, true, 600, 1);
            world.run_until("put", World::is_idle);
        }
        for key in [100, 101] {
            world.drop_key(0, key, true);
            world.run_until("dropped", World::is_idle);
        }
        world.settle();
        world.cut(Cut::Kill);
        let medium = world.drive.medium();
        let is_page = |at: &usize| medium[*at..].starts_with(b"kvr-page");
        // They grow towards lower addresses: the second one behind the blocks' has a drop.
        let pages: Vec<usize> = (0..medium.len()).step_by(4096).filter(is_page).collect();
        let at = pages[pages.len() - 1 - usize::try_from(KEYS).unwrap()];
        world.drive.medium()[at + 100] ^= 1;
        world.lying = true;
        world.model.forget_must();
        world.reopen();
        world.run_until("recovered", |world| world.store.phase() == Phase::Serving);
        let stats = world.store.stats();
        assert!(stats.distrusted > 0, "its segment does not count");
        let before = stats.present;
        for key in 0..KEYS {
            let status = world.put_length(0, key, true, 600, 1);
            assert_eq!(status, None, "key {key} was lost");
        }
        world.run_until("answered", World::is_idle);
        assert_eq!(world.store.stats().present, before, "none of them is there");
        world.store.audit();
    });
}
