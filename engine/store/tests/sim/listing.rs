//! Listings, the feed, what is known of a key, and blocks that readers suspect.

use std::collections::BTreeSet;

use kvrail_store::{
    Begun, Cursor, DeclineReason, DropKey, Durability, Explained, Extent, Get, Got, Key, Listed,
    Phase, Priority, Reply, Status, WorthClass,
};

use crate::drive::Cut;
use crate::each_seed;
use crate::ledger::Name;
use crate::world::{Asked, SPACES, World, small};

impl World {
    /// A whole listing, with something going on between its pages. All that it hands out is there.
    fn list(&mut self, space: Option<u16>, meanwhile: impl Fn(&mut Self)) -> Vec<Name> {
        let mut all = Vec::new();
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            let id = space.map(|space| self.id(space));
            self.store.list(id, from, self.time()).expect("one listing at a time");
            let busy = self.store.list(id, from, self.time());
            assert_eq!(busy, Err(Status::Declined(DeclineReason::Busy)));
            let page = loop {
                self.ledger.drain(&mut self.store);
                if let Some(page) = self.store.listed() {
                    assert!(page.is_readable());
                    cursor = page.next_cursor();
                    break page.blocks().map(|block| Seen::of(&block)).collect::<Vec<_>>();
                }
                meanwhile(self);
                self.tick();
            };
            for seen in page {
                seen.check(self);
                all.push((seen.uid, seen.key));
            }
            meanwhile(self);
        }
        all
    }

    /// Keys that are there, by asking for each.
    fn known(&mut self) -> BTreeSet<Name> {
        let mut known = BTreeSet::new();
        for (space, number) in self.model.keys() {
            if !self.has_space(space) {
                continue;
            }
            let (id, key, now) = (self.id(space), Self::key(number), self.time());
            if let Explained::There(_) = self.store.explain(id, key, now) {
                known.insert((self.spaces[usize::from(space)].unwrap().uid, key));
            }
        }
        known
    }
}

/// A block of a page.
struct Seen {
    uid: u64,
    key: Key,
    block: (u64, u32, u64),
    depth: u16,
    metadata: Vec<u8>,
}

impl Seen {
    fn of(listed: &Listed<'_>) -> Self {
        Self {
            uid: listed.uid,
            key: listed.key,
            block: (listed.offset, listed.length, listed.check),
            depth: listed.depth,
            metadata: listed.metadata.to_vec(),
        }
    }

    /// The listing equals the index and the model.
    fn check(&self, world: &mut World) {
        let names = world.model.keys();
        let is_it = |(space, number): &&(u16, u64)| {
            let same = world.spaces[usize::from(*space)].is_some_and(|space| space.uid == self.uid);
            same && World::key(*number) == self.key
        };
        let Some(&(space, number)) = names.iter().find(is_it) else { panic!("an unknown key") };
        let (id, now) = (world.id(space), world.time());
        let Explained::There(block) = world.store.explain(id, self.key, now) else {
            panic!("key {number} is listed and not there")
        };
        assert_eq!(self.block, (block.offset, block.length, block.check), "key {number}");
        assert_eq!(self.metadata, World::metadata(number), "key {number}");
        assert_eq!(u64::from(self.depth), number % 20, "key {number}");
    }
}

impl World {
    /// Whether listings, the books and the index have the same blocks.
    fn holds_what_is_listed(&mut self) -> bool {
        let known = self.known();
        assert_eq!(self.store.evictions_lost(), 0);
        let all = self.list(None, |_| {});
        let mut each = Vec::new();
        for space in 0..SPACES {
            let uid = self.spaces[usize::from(space)].unwrap().uid;
            let of_it = self.list(Some(space), |_| {});
            assert!(of_it.iter().all(|name| name.0 == uid));
            each.extend(of_it);
        }
        let same = |all: &[Name]| {
            let set: BTreeSet<Name> = all.iter().copied().collect();
            all.len() == known.len() && set == known
        };
        same(&all) && same(&each) && self.ledger.there() == known
    }
}

/// In a quiet store, a listing has each block once, and equals the puts less the feed's evictions.
#[test]
fn a_listing_and_the_books_have_what_is_there() {
    let quiet = std::cell::Cell::new(0);
    each_seed("list", 30, |seed| {
        let block = if seed.is_multiple_of(2) { 512 } else { 4096 };
        let mut world = World::new(seed, small(9, block));
        for round in 0..3 {
            for _ in 0..250 {
                world.act(80);
                if world.rng.u8(..3) > 0 {
                    world.tick();
                }
            }
            if round < 2 {
                // Pages in memory and on their way too; then reclaim must happen to rest.
                world.run_until("answered", World::is_idle);
            } else {
                world.settle();
            }
            let since = *world.store.stats();
            if world.holds_what_is_listed() {
                quiet.set(quiet.get() + 1);
            } else {
                let now = *world.store.stats();
                assert!(now.moved + now.evicted > since.moved + since.evicted, "it differs");
            }
        }
        world.cut(Cut::Kill);
        world.reopen();
        if world.store.phase() == Phase::Warming {
            let early = world.store.list(None, Cursor::default(), world.time());
            assert_eq!(early, Err(Status::Warming));
        }
        world.verify();
        world.settle();
        let known = world.known();
        let all = world.list(None, |_| {});
        assert_eq!(all.len(), known.len(), "after a restart");
        assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), known, "after a restart");
        assert_eq!(known.len() as u64, world.store.entries());
        assert!(quiet.get() > 0);
    });
}

/// Records that no page on the medium has yet are listed: of the page being filled, and of pages on
/// their way.
#[test]
fn pages_in_memory_are_listed() {
    let mut world = World::new(5, small(12, 512));
    world.stalled = true;
    for key in 0..14 {
        world.put_length(0, key, false, 600, 1);
        world.run_until("put", World::is_idle);
        let (known, now) = (world.known(), world.now);
        assert_eq!(known.len() as u64, key + 1);
        let all = world.list(None, |_| {});
        assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), known);
        assert_eq!(world.now, now, "no page was waited for");
    }
    assert!(world.store.stats().pages > 0, "no page is on its way");
}

/// The ring goes round under a listing: what stays is not missed, though it is moved.
#[test]
fn a_listing_misses_nothing_that_stays() {
    let (moved, stayed) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    each_seed("list on the move", 40, |seed| {
        let mut world = World::new(seed, small(9, 512));
        for _ in 0..500 {
            world.act(60);
            world.tick();
        }
        let (before, since) = (world.known(), world.ledger.gone.len());
        let moves = world.store.stats().moved;
        let all: BTreeSet<Name> = world.list(None, |world| world.act(60)).into_iter().collect();
        for name in &before {
            let went = world.ledger.went(since, *name);
            assert!(went || all.contains(name), "{name:?} is missed");
            stayed.set(stayed.get() + u64::from(!went));
        }
        moved.set(moved.get() + world.store.stats().moved - moves);
    });
    assert!(moved.get() > 20 && stayed.get() > 200, "{moved:?} moved, {stayed:?} stayed");
}

/// An unread feed counts the rows that do not fit.
#[test]
fn a_feed_that_nobody_reads_says_what_it_lost() {
    let mut world = World::new(2, small(8, 512));
    let mut number = 0;
    while world.store.stats().evicted < 700 {
        world.put_length(0, number, false, 700, 1);
        number += 1;
        while !world.is_idle() {
            world.tick_unread();
        }
    }
    let evicted = world.store.stats().evicted;
    world.ledger.drain(&mut world.store);
    assert_eq!(world.ledger.gone.len() as u64 + world.store.evictions_lost(), evicted);
    assert!(world.store.evictions_lost() > 0);
}

/// `explain` of a key in each state of its life.
#[test]
fn keys_are_explained() {
    let mut world = World::new(7, small(12, 512));
    let (id, key) = (world.id(0), World::key(7));
    let explain = |world: &mut World| {
        let now = world.time();
        world.store.explain(id, key, now)
    };
    assert_eq!(explain(&mut world), Explained::Absent);
    world.put_partly(0, 7, 6000, 3, 2);
    world.run_until("parts", |world| world.asked_parts() == 0);
    assert_eq!(explain(&mut world), Explained::Putting { length: 6000, written: 4096 });
    world.wait(6_000_000_000);
    world.put_length(0, 7, true, 900, 1);
    world.run_until("put", World::is_idle);
    world.get(0, 7);
    world.run_until("got", World::is_idle);
    world.touch(0, 7);
    world.hold(0, 7, 1);
    let held = world.now + 60_000_000_000;
    let Explained::There(block) = explain(&mut world) else { panic!("it is there") };
    assert_eq!((block.length, block.class), (900, WorthClass::Of(Priority::Normal)));
    assert_eq!((block.held_until, block.suspect), (Some(held), false));
    assert!(block.offset < world.config.area_bytes && block.epoch > 0);
    assert!(world.store.suspect(id, key, block.check) && !world.store.suspect(id, key, 1));
    let Explained::There(block) = explain(&mut world) else { panic!("it is there still") };
    assert!(block.suspect);
    world.drop_key(0, 7, true);
    world.run_until("dropped", World::is_idle);
    assert_eq!(explain(&mut world), Explained::Absent);
    world.clear(0);
    world.run_until("cleared", World::is_idle);
    assert_eq!(explain(&mut world), Explained::UnknownSpace);
    world.settle();
    world.cut(Cut::Power);
    assert_eq!(explain(&mut world), Explained::Starting);
}

/// The owner's treatment of a report: reads the block by parts, then drops or absolves it.
fn look(world: &mut World, number: u64, length: u32) -> bool {
    let (id, key, now) = (world.id(0), World::key(number), world.time());
    let Explained::There(block) = world.store.explain(id, key, now) else { panic!("it is there") };
    assert!(world.store.suspect(id, key, block.check));
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    for at in (0..length).step_by(2048) {
        let extent = Extent::Part { at, bytes: 2048.min(length - at) };
        let expected = crate::model::Expected::default();
        let asked = Asked::Get { space: 0, key: number, memory: Vec::new(), expected, uid: 0 };
        let user = world.user(asked);
        let Got::Read(reading) = world.store.get(&Get { space: id, key, extent }) else {
            panic!("it is there")
        };
        world.begin_read(user, reading);
        let (reply, part) = world.own_reply(user);
        assert_eq!((reply.answer.status, reply.answer.check), (Status::Ok, block.check));
        digest.update(&part);
    }
    let uid = world.spaces[0].unwrap().uid;
    let right = kvrail_store::check(digest.finalize(), uid, key, length) == block.check;
    if right {
        assert!(world.store.absolve(id, key, block.check));
    } else {
        let (user, only) = (world.user(Asked::Create { space: 0 }), Some(block.check));
        let durability = Durability::Soon;
        let drop = DropKey { user, owner: 3, space: id, key, only, durability };
        assert_eq!(world.store.drop_key(&drop, world.time()), Begun::Taken);
        world.own_reply(user);
    }
    right
}

impl World {
    /// Ticks until the reply to a request of the store's owner.
    fn own_reply(&mut self, user: u64) -> (Reply, Vec<u8>) {
        loop {
            self.turn();
            if let Some(reply) = self.next_reply() {
                assert_eq!(reply.user, user);
                let memory = match self.asked.remove(&user) {
                    Some(Asked::Get { memory, .. }) => memory[..memory.len() - 64].to_vec(),
                    _ => Vec::new(),
                };
                return (reply, memory);
            }
        }
    }
}

/// A false report costs a block nothing; a true one removes it.
#[test]
fn reports_are_looked_into() {
    for length in [700, 2048, 5000] {
        let mut world = World::new(11, small(12, 512));
        world.put_length(0, 3, true, length, 1);
        world.run_until("put", World::is_idle);
        world.settle();
        assert!(look(&mut world, 3, length), "{length}");
        let (id, key, now) = (world.id(0), World::key(3), world.time());
        let Explained::There(block) = world.store.explain(id, key, now) else { panic!("there") };
        assert!(!block.suspect);
        world.get(0, 3);
        world.run_until("got", World::is_idle);
        let last = usize::try_from(block.offset + u64::from(length) - 1).unwrap();
        world.drive.medium()[last] ^= 4;
        assert!(!look(&mut world, 3, length), "{length}");
        let now = world.time();
        assert_eq!(world.store.explain(id, key, now), Explained::Absent);
        world.ledger.drain(&mut world.store);
        assert!(world.ledger.there().is_empty());
    }
}
