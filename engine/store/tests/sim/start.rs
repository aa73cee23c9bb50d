//! Starts: what is refused, what is taken, and what a member that was away may not bring back.

use kvrail_store::{
    Begun, Expect, Fault, Members, Phase, Start, StartError, Status, StoreConfig, SuperError,
};

use crate::drive::Cut;
use crate::each_seed;
use crate::world::{World, small};

const SUPER_B: usize = 32 << 10;
/// Where segments begin.
const SEGMENTS: usize = 256 << 10;

/// A world with a few blocks, cut and not started.
fn stopped(seed: u64) -> World {
    let mut world = World::new(seed, small(12, 512));
    for key in 0..6 {
        world.put_length(0, key, true, 900, 1);
        world.run_until("put", World::is_idle);
    }
    world.settle();
    world.cut(Cut::Power);
    world
}

fn refused(mut world: World, expect: Expect) -> StartError {
    let before = world.drive.medium().to_vec();
    world.open_as(expect);
    world.run_until("refused", |world| matches!(world.store.phase(), Phase::Failed(_)));
    assert!(before == world.drive.medium(), "a refused start writes nothing");
    let Phase::Failed(why) = world.store.phase() else { unreachable!() };
    why
}

#[test]
fn a_foreign_or_unknown_member_is_refused() {
    let expect = World::expect();
    let why = refused(stopped(1), Expect { volume: 1, ..expect });
    assert!(matches!(why, StartError::Foreign { .. }), "{why}");
    let why = refused(stopped(1), Expect { member: 1, ..expect });
    assert!(matches!(why, StartError::Foreign { .. }), "{why}");
    let mut world = stopped(1);
    for at in [0, SUPER_B] {
        world.drive.medium()[at + 200] ^= 1;
    }
    assert_eq!(refused(world, expect), StartError::Super(SuperError::Damaged));
    let mut world = stopped(1);
    world.drive.medium()[..64 << 10].fill(0);
    assert_eq!(refused(world, expect), StartError::Super(SuperError::Absent));
    let mut world = stopped(1);
    for at in [0, SUPER_B] {
        let page = &mut world.drive.medium()[at..at + 4096];
        page[16] = 3;
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &page[..4088]);
        page[4088..].copy_from_slice(&crc.to_le_bytes());
    }
    assert_eq!(refused(world, expect), StartError::Super(SuperError::OtherVersion(3)));
}

#[test]
fn one_damaged_super_is_mended() {
    for at in [0, SUPER_B] {
        let mut world = stopped(2);
        world.drive.medium()[at + 40] ^= 0x80;
        world.reopen();
        world.verify();
        world.cut(Cut::Power);
        world.drive.medium()[SUPER_B - at + 40] ^= 0x80;
        world.reopen();
        world.verify();
    }
}

#[test]
fn a_member_that_was_away_has_misses_only() {
    let mut world = stopped(3);
    let expect = Expect { generation: 5, next_generation: 5, ..World::expect() };
    world.model.forget_must();
    world.open_as(expect);
    world.run_until("open", |world| world.store.phase() == Phase::Serving);
    world.adopt_spaces();
    for key in 0..6 {
        assert_eq!(world.get(0, key), Some(Status::Miss));
    }
    world.put_length(0, 1, true, 100, 1);
    world.run_until("put", World::is_idle);
    world.settle();
    world.cut(Cut::Power);
    // From now on it belongs to that generation.
    world.open_as(expect);
    world.run_until("open", |world| world.store.phase() == Phase::Serving);
    world.adopt_spaces();
    world.verify();
    assert_eq!(world.get(0, 2), Some(Status::Miss));
}

/// A medium older than its superblocks: an earlier copy of the segments was restored.
#[test]
fn segments_older_than_the_supers_are_misses() {
    let mut world = World::new(4, small(12, 512));
    world.settle();
    world.cut(Cut::Kill);
    let old = world.drive.medium().to_vec();
    world.reopen();
    for key in 0..300 {
        world.put_length(0, key, true, 900, 1);
        world.run_until("put", World::is_idle);
    }
    world.settle();
    world.cut(Cut::Kill);
    world.reopen();
    world.settle();
    world.cut(Cut::Kill);
    let front = 128 << 10;
    world.drive.medium()[front..].copy_from_slice(&old[front..]);
    world.model.forget_must();
    world.reopen();
    world.run_until("open", |world| world.store.phase() == Phase::Serving);
    for key in 0..300 {
        assert_eq!(world.get(0, key), Some(Status::Miss));
    }
}

#[test]
fn identity() {
    let mut world = World::new(5, small(12, 512));
    let uid = world.store.uid_mark() + 1;
    let now = world.time();
    let mut create = |name: &[u8], document: &[u8], uid: u64| {
        world.store.create_space((7, 0), name, document, uid, now)
    };
    let refused = Begun::Done(Status::Invalid(Fault::Identity).into());
    assert_eq!(create(b"space 0", b"{}", uid), refused, "the name exists");
    assert_eq!(create(b"", b"{}", uid), refused);
    assert_eq!(create(&[b'x'; 65], b"{}", uid), refused);
    assert_eq!(create(b"new", &[b'x'; 4097], uid), refused);
    assert_eq!(create(b"new", b"{}", uid - 1), refused, "the uid was used before");
    let view = world.store.space(b"space 1").unwrap();
    assert_eq!(view.document, b"{\"space\":1}");
    // The same key in two namespaces is two blocks.
    world.put_length(0, 1, true, 900, 1);
    world.run_until("put", World::is_idle);
    assert_eq!(world.get(1, 1), Some(Status::Miss));
    world.put_length(1, 1, true, 800, 1);
    world.run_until("put", World::is_idle);
    let before = world.id(0);
    world.clear(0);
    world.run_until("cleared", World::is_idle);
    assert_ne!(world.id(0), before, "the old name is unknown");
    assert_eq!(world.get(0, 1), Some(Status::Miss));
    world.get(1, 1);
    world.settle();
    for cut in [Cut::Kill, Cut::Power] {
        world.cut(cut);
        world.reopen();
        world.verify();
        assert_eq!(world.get(0, 1), Some(Status::Miss));
        world.get(1, 1);
        world.run_until("got", World::is_idle);
    }
    let (space, now) = (world.id(1), world.time());
    assert_eq!(world.store.remove_space((8, 0), space, now), Begun::Taken);
    world.expect_reply(8);
    assert!(world.store.space(b"space 1").is_none());
}

/// A copy of a cleared namespace's slot that stayed behind does not bring its blocks back.
#[test]
fn clear_survives_the_loss_of_either_copy() {
    for copy in [0, 1] {
        let mut world = stopped(6);
        world.reopen();
        world.verify();
        world.clear(0);
        world.run_until("cleared", World::is_idle);
        world.cut(Cut::Power);
        world.drive.medium()[(64 << 10) + copy * 4 * 8192 + 50] ^= 1;
        world.reopen();
        world.verify();
        for key in 0..6 {
            assert_eq!(world.get(0, key), Some(Status::Miss));
        }
        // The damaged copy is mended, so that the other one may go next.
        world.settle();
        world.cut(Cut::Power);
        world.drive.medium()[(64 << 10) + (1 - copy) * 4 * 8192 + 50] ^= 1;
        world.reopen();
        assert!(world.has_space(0), "both copies were whole");
        world.verify();
    }
}

#[test]
fn recovery_reads_little_more_than_the_summaries() {
    let segment_bytes = 1 << 20;
    let config = StoreConfig {
        segment_bytes,
        area_bytes: (1 << 20) + 24 * segment_bytes,
        block_mean: 16 << 10,
        buffer_bytes: 512 << 10,
        ..small(24, 512)
    };
    let mut world = World::new(5, config);
    for key in 0..1000 {
        world.put_length(0, key, false, 16 << 10, 1);
        world.run_until("put", World::is_idle);
    }
    world.settle();
    let (pages, blocks) = (world.store.stats().pages, world.store.entries());
    world.cut(Cut::Power);
    let before = (world.own_reads, world.own_read_tasks);
    world.reopen();
    world.run_until("recovered", |world| world.store.phase() == Phase::Serving);
    assert_eq!(world.store.entries(), blocks);
    let (read, reads) = (world.own_reads - before.0, world.own_read_tasks - before.1);
    println!("recovery: {reads} reads of {read} bytes for {pages} pages of {blocks} blocks");
    // The front, two copies of each head, and the pages with about as many behind them.
    assert!(read < 4 * pages * 4096 + 24 * 3 * 4096 + (512 << 10), "{read} bytes, {pages} pages");
    // Two supers, four reads of namespaces at most, three of heads that are none, one of pages.
    assert!(reads <= 6 + 24 * 3, "{reads} reads");
}

/// Pages that cannot be read hide none behind them, as long as they are no more than show the end
/// of a segment.
#[test]
fn damaged_pages_in_a_row_hide_none_behind_them() {
    let segment_bytes = 256 << 10;
    let area_bytes = (1 << 20) + 8 * segment_bytes;
    let config = StoreConfig { segment_bytes, area_bytes, ..small(8, 512) };
    let after = |damaged: usize| {
        let mut world = World::new(9, config);
        for key in 0..40 {
            world.put_length(0, key, true, 600, 1);
            world.run_until("put", World::is_idle);
        }
        world.settle();
        let stats = world.store.stats();
        let (all, pages) = (world.store.entries(), stats.pages);
        world.cut(Cut::Power);
        world.lying = true;
        world.model.forget_must();
        let medium = world.drive.medium();
        let is_page = |at: &usize| medium[*at..].starts_with(b"kvr-page");
        let mut pages_at: Vec<usize> = (0..medium.len()).step_by(4096).filter(is_page).collect();
        // They grow towards lower addresses; the first few stay.
        pages_at.reverse();
        assert!(pages >= 40 && pages_at.len() >= 40, "{pages} pages, {}", pages_at.len());
        for at in &pages_at[5..5 + damaged] {
            world.drive.medium()[at + 100] ^= 1;
        }
        world.reopen();
        world.run_until("recovered", |world| world.store.phase() == Phase::Serving);
        (all, world.store.entries())
    };
    let (all, found) = after(7);
    assert!(found + 7 >= all && found < all, "{found} of {all}");
    let (all, found) = after(8);
    assert!(found < all / 2, "a segment goes on behind 8 foreign pages: {found} of {all}");
}

#[test]
fn a_store_starts_with_other_sizes_never() {
    let mut world = stopped(7);
    world.config.area_bytes -= 64 << 10;
    world.store = kvrail_store::Store::new(&world.config).unwrap();
    world.store.start(Start::Open(World::expect()), world.time());
    world.run_until("refused", |world| matches!(world.store.phase(), Phase::Failed(_)));
    assert_eq!(world.store.phase(), Phase::Failed(StartError::Geometry));
}

/// An empty store whose epochs have reached `epoch`.
fn worn(seed: u64, epoch: u64) -> World {
    let mut world = World::new(seed, small(8, 512));
    world.cut(Cut::Kill);
    for at in [0, SUPER_B] {
        let page = &mut world.drive.medium()[at..at + 4096];
        page[128..136].copy_from_slice(&epoch.to_le_bytes());
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &page[..4088]);
        page[4088..].copy_from_slice(&crc.to_le_bytes());
    }
    world.reopen();
    world
}

/// Epochs pass 32 bits in mid life.
#[test]
fn epochs_pass_32_bits() {
    for seed in 0..6 {
        let mut world = worn(seed, u64::from(u32::MAX) - 3);
        for round in 0..3 {
            for _ in 0..500 {
                world.act(60);
                world.tick();
            }
            assert!(round == 0 || world.laps() > 0);
            world.cut(if seed.is_multiple_of(2) { Cut::Kill } else { Cut::Power });
            world.reopen();
            world.verify();
        }
    }
}

/// The last epoch is given out: puts are declined, nothing hangs, gets go on.
#[test]
fn the_last_epoch() {
    let mut world = worn(1, u64::MAX - 6);
    let mut declined = 0;
    for key in 0..400 {
        if world.put_length(0, key, false, 3000, 1).is_some() {
            declined += 1;
        }
        world.run_until("answered", World::is_idle);
    }
    assert!(declined > 100 && declined < 400, "{declined}");
    world.verify();
    world.cut(Cut::Power);
    world.reopen();
    world.verify();
}

/// Members 0 and 1 of a store are served, and 1 comes and goes. Blocks here with keys of 1 from
/// before it came may have been dropped there, so they never count again.
#[test]
fn keys_of_a_member_that_came_and_went_do_not_come_back() {
    const KEYS: u64 = 16;
    let (alone, both) = (Members::first(1), Members::first(2));
    let expect = |members, generation| Expect {
        members,
        generation: 1,
        next_generation: generation,
        ..World::expect()
    };
    let mut world = World::new(9, small(12, 512));
    let put_all = |world: &mut World| {
        for key in 0..KEYS {
            world.put_length(0, key, true, 700, 1);
            world.run_until("put", World::is_idle);
        }
        world.settle();
    };
    put_all(&mut world);
    let uid = world.spaces[0].expect("made by the world").uid;
    world.cut(Cut::Power);
    let begin = |world: &mut World, expect| {
        world.model.forget_must();
        world.open_as(expect);
        world.run_until("open", |world| world.store.phase() == Phase::Serving);
        world.adopt_spaces();
    };
    let of_other = |key: u64| both.owner(uid, World::key(key).lo()) == 1;
    let found = |world: &mut World| {
        let found = |key| {
            let answer = world.get(0, key);
            world.run_until("got", World::is_idle);
            answer != Some(Status::Miss)
        };
        (0..KEYS).map(found).collect::<Vec<_>>()
    };
    let own: Vec<bool> = (0..KEYS).map(|key| !of_other(key)).collect();
    assert!(own.contains(&true) && own.contains(&false), "{own:?}");
    begin(&mut world, expect(both, 1));
    assert_eq!(found(&mut world), own, "another member has them now");
    world.cut(Cut::Power);
    for _ in 0..2 {
        begin(&mut world, expect(alone, 2));
        assert_eq!(found(&mut world), own, "they may have been dropped where they were");
        world.cut(Cut::Power);
    }
    begin(&mut world, expect(alone, 2));
    put_all(&mut world);
    world.cut(Cut::Kill);
    begin(&mut world, expect(alone, 2));
    assert_eq!(found(&mut world), vec![true; own.len()], "put here since then");
}

/// Power fails in one start after another, at any point: of two copies one is whole.
#[test]
fn starts_that_are_cut_off_lose_nothing() {
    each_seed("starts cut off", 4, |seed| {
        let mut world = World::new(seed, small(9, 512));
        while world.laps() < 12 {
            world.act(40);
            world.tick();
        }
        world.settle();
        world.cut_starts(300);
    });
}

/// Of two copies, the one that a start found is written last: power may fail in each write.
#[test]
fn the_copy_that_was_found_is_written_last() {
    for (copy, of_super, of_head) in [(0, 0, 60 << 10), (1, SUPER_B, 0)] {
        let mut world = World::new(3, small(9, 512));
        for key in 0.. {
            world.put_length(0, key, false, 1500, 1);
            world.tick();
            if world.laps() > 12 {
                break;
            }
        }
        world.settle();
        world.cut(Cut::Power);
        let medium = world.drive.medium();
        medium[of_super + 40] ^= 0x80;
        let segments = (medium.len() - SEGMENTS) >> 16;
        for segment in 0..segments {
            medium[SEGMENTS + (segment << 16) + of_head + 40] ^= 0x80;
        }
        world.durable_writes.clear();
        world.reopen();
        for key in 9000..9200 {
            world.put_length(0, key, false, 1500, 1);
            world.tick();
        }
        let first = world.durable_writes.iter().find(|at| **at >= SEGMENTS as u64);
        let first = first.expect("a head was written");
        assert_eq!(world.durable_writes[0], of_super as u64, "copy {copy} is damaged");
        assert_eq!(first % (64 << 10), of_head as u64, "copy {copy} is damaged");
    }
}

/// Power fails in one change of a namespace after another: it is what it was, or what it becomes.
#[test]
fn changes_of_namespaces_that_are_cut_off_lose_none() {
    each_seed("changes cut off", 4, |seed| {
        let mut world = World::new(seed, small(9, 512));
        for _ in 0..150 {
            world.clear(1);
            for _ in 0..world.rng.u32(..6) {
                world.tick();
            }
            world.cut(Cut::Power);
            world.open();
            world.run_until("open", |world| world.store.phase() != Phase::Starting);
            world.adopt_spaces();
            assert!(world.has_space(0) && world.has_space(1), "namespaces last");
        }
        world.verify();
    });
}
