//! Blocks come in at their second get, what is used stays, and no two share a page.

mod late;

use std::collections::{HashMap, HashSet};

use super::{MemoryTier, TierRoom, TierView, WAYS};

/// A directory in which keys of one namespace are found, and the pages that each has.
#[derive(Default)]
struct Shown {
    sets: usize,
    /// Entry -> key, first page, pages.
    of: HashMap<usize, (u64, u32, u32)>,
    used: HashSet<usize>,
    /// Entry -> first page, pages: what a reader reads in place, shown or not.
    held: HashMap<usize, (u32, u32)>,
    holders: usize,
    /// Keys of late blocks that the tier alone has.
    alone: HashSet<u64>,
    gone: Vec<u64>,
}

impl TierView for Shown {
    fn first_of(&self, uid: u64, lo: u64) -> usize {
        let set = (31 * uid + lo) % self.sets as u64;
        usize::try_from(set).unwrap() * WAYS
    }

    fn hide(&mut self, entry: usize) {
        self.of.remove(&entry).expect("what is hidden was shown");
        self.used.remove(&entry);
    }

    fn set_used(&mut self, entry: usize) {
        assert!(self.of.contains_key(&entry), "only what is shown is used");
        assert!(self.used.insert(entry), "a use is reported once");
    }

    fn clear_used(&mut self, entry: usize) {
        assert!(self.used.remove(&entry), "it was used");
    }

    fn is_held(&self, entry: usize) -> bool {
        self.held.contains_key(&entry)
    }

    fn holders(&self) -> usize {
        self.holders
    }

    fn gone(&mut self, _: usize, (uid, lo): (u64, u64)) {
        assert_eq!(uid, UID);
        assert!(self.alone.remove(&lo), "a late block that was shown goes once");
        self.gone.push(lo);
    }
}

const UID: u64 = 9;

struct Rig {
    tier: MemoryTier,
    shown: Shown,
    now_ns: u64,
}

impl Rig {
    fn new(pages: u32, sets: usize) -> Self {
        let shown = Shown { sets, ..Shown::default() };
        Self { tier: MemoryTier::new(pages, sets * WAYS), shown, now_ns: 0 }
    }

    fn meet(&mut self, lo: u64, pages: u32) -> Option<TierRoom> {
        self.tier.renew(0, &mut self.shown);
        self.tier.meet((UID, lo), pages, &mut self.shown)
    }

    fn fill(&mut self, (lo, pages): (u64, u32), room: &TierRoom) {
        self.tier.fill(room, &mut self.shown, |shown| {
            shown.of.insert(room.entry, (lo, room.page, pages));
        });
    }

    /// Two gets, and the device's read.
    fn bring(&mut self, lo: u64, pages: u32) {
        assert_eq!(self.meet(lo, pages), None, "what is asked for once passes through");
        if let Some(room) = self.meet(lo, pages) {
            self.fill((lo, pages), &room);
        }
    }

    /// A reader reads a block in place.
    fn hold(&mut self, lo: u64) -> usize {
        let at = self.shown.of.iter().find(|(_, (key, ..))| *key == lo).expect("it is there");
        let (entry, (_, first, pages)) = (*at.0, *at.1);
        self.shown.held.insert(entry, (first, pages));
        entry
    }

    fn has(&self, lo: u64) -> bool {
        self.shown.of.values().any(|(key, ..)| *key == lo)
    }
}

#[test]
fn a_block_comes_in_at_its_second_get() {
    let mut rig = Rig::new(64, 8);
    assert_eq!(rig.meet(1, 4), None);
    let room = rig.meet(1, 4).expect("an empty tier has room");
    assert!(!rig.has(1), "its bytes are not there yet");
    assert_eq!(rig.meet(1, 4), None, "it is on its way");
    rig.fill((1, 4), &room);
    assert!(rig.has(1));
    assert_eq!(rig.tier.usage(), (1, 4));
    rig.tier.audit();
}

/// With one place for each fingerprint some twenty of them would never come in.
#[test]
fn keys_that_take_turns_come_in_alike() {
    let mut rig = Rig::new(4096, 256);
    assert!((0..200).all(|lo| rig.meet(lo, 1).is_none()));
    let came = (0..200).filter(|lo| rig.meet(*lo, 1).is_some()).count();
    assert!(came >= 195, "{came} of 200");
}

#[test]
fn what_was_used_since_the_hand_came_by_stays() {
    let mut rig = Rig::new(16, 16);
    (0..4).for_each(|lo| rig.bring(lo, 4));
    assert!((0..4).all(|lo| rig.has(lo)));
    rig.tier.use_block(UID, 0, &mut rig.shown);
    rig.tier.use_block(UID, 2, &mut rig.shown);
    rig.bring(10, 4);
    assert!(rig.has(0) && !rig.has(1) && rig.has(2) && rig.has(10));
    rig.bring(11, 4);
    assert!(rig.has(2) && !rig.has(3), "the hand goes on where it was");
    rig.tier.audit();
}

/// Most of a tier is free, while the hand goes round for what comes and goes.
#[test]
fn nothing_goes_while_much_is_free() {
    let mut rig = Rig::new(256, 256);
    (0..40).for_each(|lo| rig.bring(lo, 1 + u32::try_from(lo % 3).unwrap()));
    for lo in 1000..3000_u64 {
        rig.bring(lo, 1 + u32::try_from(lo % 4).unwrap());
        rig.tier.forget(UID, lo - 20, &mut rig.shown);
        rig.tier.audit();
    }
    assert!((0..40).all(|lo| rig.has(lo)));
    assert_eq!((rig.tier.counts().evicted, rig.tier.counts().refused), (0, 0));
    // Short of free pages, all of it goes.
    (4000..4300).for_each(|lo| rig.bring(lo, 1));
    assert!(!(0..40).any(|lo| rig.has(lo)) && rig.tier.usage().1 > 250, "{:?}", rig.tier.usage());
    rig.tier.audit();
}

/// Half of a tier is free, in pieces of a page.
#[test]
fn free_pieces_that_are_short_stop_no_long_block() {
    let mut rig = Rig::new(256, 256);
    (0..256).for_each(|lo| rig.bring(lo, 1));
    (0..256).step_by(2).for_each(|lo| assert!(rig.tier.forget(UID, lo, &mut rig.shown)));
    rig.bring(1000, 1);
    assert_eq!(rig.tier.counts().evicted, 0, "that has room");
    rig.bring(1001, 4);
    assert!(rig.has(1001) && rig.tier.counts().evicted <= 3, "{}", rig.tier.counts().evicted);
    rig.tier.audit();
}

#[test]
fn a_long_block_takes_the_place_of_short_neighbours() {
    let mut rig = Rig::new(16, 16);
    (0..16).for_each(|lo| rig.bring(lo, 1));
    rig.bring(20, 10);
    assert!(rig.has(20));
    assert_eq!((0..16).filter(|lo| rig.has(*lo)).count(), 6);
    rig.bring(21, 17);
    assert!(!rig.has(21), "longer than the tier");
    assert_eq!(rig.tier.counts().refused, 1);
    rig.tier.audit();
}

#[test]
fn what_is_forgotten_on_its_way_is_never_found() {
    let mut rig = Rig::new(16, 4);
    rig.meet(1, 4);
    let room = rig.meet(1, 4).unwrap();
    rig.tier.forget(UID, 1, &mut rig.shown);
    // The same key, put again and asked for twice, before the device's read of the old bytes ends.
    rig.meet(1, 4);
    let again = rig.meet(1, 4).unwrap();
    assert_ne!((room.entry, room.page), (again.entry, again.page));
    rig.fill((1, 4), &room);
    assert!(!rig.has(1), "the old bytes are not shown");
    rig.fill((1, 4), &again);
    assert!(rig.has(1));
    assert!(rig.tier.report(UID, 1, &mut rig.shown), "readers have found it");
    assert!(!rig.has(1) && !rig.tier.report(UID, 1, &mut rig.shown));
    assert_eq!((rig.tier.usage(), rig.tier.counts().wrong), ((0, 0), 1));
    rig.tier.audit();
}

#[test]
fn a_search_that_finds_no_room_costs_little_and_evicts_little() {
    let mut rig = Rig::new(4096, 4096);
    (0..4096).for_each(|lo| rig.bring(lo, 1));
    assert!(rig.tier.usage().0 > 3500, "{:?}", rig.tier.usage());
    let before = rig.tier.usage().0;
    rig.tier.renew(0, &mut rig.shown);
    for lo in 10_000..10_100 {
        assert_eq!(rig.tier.fetch((UID, lo), 5000, &mut rig.shown), None, "longer than the tier");
    }
    assert_eq!(rig.tier.usage().0, before, "nothing goes for what can never come");
    for lo in 10_000..10_100 {
        rig.tier.fetch((UID, lo), 1000, &mut rig.shown);
    }
    assert!(rig.tier.usage().0 + 64 >= before, "one budget for all searches of a step");
    rig.tier.audit();
}

#[test]
fn a_clear_goes_on_step_by_step_and_nothing_comes_in_meanwhile() {
    let mut rig = Rig::new(4096, 1024);
    (0..2000).for_each(|lo| rig.bring(lo, 1));
    rig.meet(5000, 1);
    let room = rig.meet(5000, 1).unwrap();
    rig.tier.clear();
    assert_eq!(rig.tier.fetch((UID, 6000), 1, &mut rig.shown), None);
    rig.fill((5000, 1), &room);
    while rig.tier.renew(0, &mut rig.shown) {}
    assert_eq!((rig.tier.usage(), rig.shown.of.len()), ((0, 0), 0));
    rig.bring(1, 1);
    assert!(rig.has(1));
    rig.tier.audit();
}

#[test]
fn a_read_that_failed_leaves_its_room() {
    let mut rig = Rig::new(8, 4);
    rig.meet(1, 8);
    let room = rig.meet(1, 8).unwrap();
    rig.meet(2, 8);
    assert_eq!(rig.meet(2, 8), None, "the device writes there");
    rig.tier.give_up(&room);
    rig.bring(3, 8);
    assert!(rig.has(3));
    rig.tier.audit();
}

#[test]
fn what_is_read_in_place_stays_where_it_is() {
    let mut rig = Rig::new(8, 16);
    rig.bring(1, 4);
    rig.bring(2, 4);
    let (one, two) = (rig.hold(1), rig.hold(2));
    rig.bring(3, 4);
    assert!(rig.has(1) && rig.has(2) && !rig.has(3), "nothing can go");
    // Another block has the key: this one is not found any more, and its memory stays.
    rig.tier.forget(UID, 1, &mut rig.shown);
    rig.bring(1, 4);
    assert!(!rig.has(1) && rig.tier.usage() == (2, 8));
    rig.shown.held.remove(&one);
    rig.bring(4, 4);
    assert!(rig.has(4) && rig.has(2));
    rig.shown.held.remove(&two);
    rig.bring(5, 4);
    assert!(rig.has(5));
    rig.tier.audit();
}

/// Nothing comes in: the hand stands.
#[test]
fn what_was_held_is_free_a_second_after_its_last_reader() {
    let mut rig = Rig::new(256, 64);
    (0..100).for_each(|lo| rig.bring(lo, 1));
    let held: Vec<usize> = (0..100).map(|lo| rig.hold(lo)).collect();
    (0..99).for_each(|lo| assert!(rig.tier.forget(UID, lo, &mut rig.shown)));
    assert!(rig.tier.has_held() && !rig.tier.is_walking());
    let look = |rig: &mut Rig| {
        rig.now_ns += 1_000_000_000;
        let mut steps = 1;
        while rig.tier.renew(rig.now_ns, &mut rig.shown) {
            assert!(rig.tier.is_walking(), "the caller must not sleep long");
            steps += 1;
        }
        rig.tier.audit();
        (rig.tier.usage().0, steps)
    };
    assert_eq!(look(&mut rig), (100, 4), "all are read, and a step is short");
    held[..98].iter().step_by(2).for_each(|entry| assert!(rig.shown.held.remove(entry).is_some()));
    let now_ns = rig.now_ns + 999_999_999;
    assert!(!rig.tier.renew(now_ns, &mut rig.shown), "once in a second");
    assert_eq!(look(&mut rig).0, 51);
    rig.shown.held.clear();
    assert_eq!(look(&mut rig).0, 1, "one was never hidden");
    assert!(rig.has(99) && !rig.tier.has_held());
}

#[test]
fn a_clear_leaves_what_is_read_in_place_until_it_is_not() {
    let mut rig = Rig::new(8, 1);
    (0..4).for_each(|lo| rig.bring(lo, 2));
    let held = rig.hold(2);
    rig.tier.clear();
    while rig.tier.renew(0, &mut rig.shown) {}
    assert_eq!((rig.shown.of.len(), rig.tier.usage()), (0, (1, 2)));
    rig.bring(7, 8);
    assert!(!rig.has(7));
    rig.shown.held.remove(&held);
    rig.bring(8, 8);
    assert!(rig.has(8));
    rig.tier.audit();
}

/// Each block that goes may be a row of the feed of evictions, which has room for 512.
#[test]
fn a_step_of_a_clear_is_short_without_readers_too() {
    let mut rig = Rig::new(4096, 1024);
    (0..4000).for_each(|lo| rig.bring(lo, 1));
    let mut before = rig.shown.of.len();
    assert!(before > 2000 && rig.shown.holders == 0);
    rig.tier.clear();
    while rig.tier.renew(0, &mut rig.shown) {
        assert!(rig.shown.of.len() + 256 >= before, "{before}, {}", rig.shown.of.len());
        before = rig.shown.of.len();
    }
    assert!(rig.shown.of.is_empty());
}

/// Words of many readers take time: a step does less then, and comes to an end in some steps.
#[test]
fn a_step_is_short_with_many_readers() {
    let mut rig = Rig::new(4096, 1024);
    (0..2000).for_each(|lo| rig.bring(lo, 1));
    let all = rig.shown.of.len();
    rig.shown.holders = 64;
    rig.tier.renew(0, &mut rig.shown);
    rig.tier.fetch((UID, 9000), 3000, &mut rig.shown);
    assert!(rig.shown.of.len() + 8 >= all, "few blocks went in a step");
    rig.tier.clear();
    let before = rig.shown.of.len();
    assert!(rig.tier.renew(0, &mut rig.shown));
    assert_eq!(rig.shown.of.len() + 8, before);
    while rig.tier.renew(0, &mut rig.shown) {}
    assert!(rig.shown.of.is_empty());
    rig.tier.audit();
}

/// All entries of a set are held: keys of that set wait, and others come in.
#[test]
fn a_set_that_is_held_whole_takes_no_key() {
    let mut rig = Rig::new(64, 2);
    let of_set = |set: u64| (0..).filter(move |lo| (31 * UID + lo) % 2 == set);
    let held: Vec<_> = of_set(0).take(WAYS).collect();
    for lo in &held {
        rig.bring(*lo, 1);
        rig.hold(*lo);
    }
    let (other, free) = (of_set(0).nth(WAYS).unwrap(), of_set(1).next().unwrap());
    rig.bring(other, 1);
    rig.bring(free, 1);
    assert!(!rig.has(other) && rig.has(free));
    rig.shown.held.clear();
    rig.bring(other, 1);
    assert!(rig.has(other));
    rig.tier.audit();
}

/// One client fetches without an end, as fast as the sidecar takes it: what another one uses ten
/// times in a second stays. Unused room is not counted, and a pause brings the part back.
#[test]
fn a_flood_of_fetches_leaves_what_is_used() {
    const PAGES: u32 = 1024;
    let mut rig = Rig::new(PAGES, 1024);
    let fetch = |rig: &mut Rig, lo: u64| {
        let room = rig.tier.fetch((UID, lo), 4, &mut rig.shown)?;
        rig.fill((lo, 4), &room);
        Some(())
    };
    let (hot, mut next, mut gets_of_hot) = (64, 1000, 0);
    (0..hot).for_each(|lo| fetch(&mut rig, lo).expect("it is empty"));
    let mut came = 0;
    for step in 0..30_000 {
        rig.tier.renew(step * 100_000, &mut rig.shown); // 3 s
        for _ in 0..4 {
            came += u64::from(fetch(&mut rig, next).is_some());
            next += 1;
        }
        if step % 1000 == 0 {
            gets_of_hot += (0..hot).filter(|lo| rig.has(*lo)).count();
            (0..hot).for_each(|lo| rig.tier.use_block(UID, lo, &mut rig.shown));
        }
    }
    assert_eq!(gets_of_hot, 30 * 64, "all of what is used is there, always");
    assert!((300..600).contains(&came), "{came} of 120,000 came: the free room, and 3 quarters");
    rig.tier.audit();
    let came = (0..100).filter(|lo| {
        rig.tier.renew(60_000_000_000, &mut rig.shown);
        fetch(&mut rig, 900_000 + lo).is_some()
    });
    assert_eq!(came.count(), 64, "a quarter");
}
