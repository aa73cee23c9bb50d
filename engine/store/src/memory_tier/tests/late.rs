//! Late blocks: what is used, and a share of the rest, gets to the store; nothing else goes unseen.

use super::{Rig, Shown, UID};
use crate::memory_tier::{
    BlockFate, LateWrite, MemoryTier, TierRoom, TierShare, WAYS, writing::folded,
};

impl Rig {
    fn late(pages: u32, sets: usize, store_blocks: u64) -> Self {
        let mut rig = Self::new(pages, sets);
        rig.tier = MemoryTier::with_late(pages, sets * WAYS, store_blocks);
        rig
    }

    fn room(&mut self, lo: u64, pages: u32, group: u64) -> Option<TierRoom> {
        self.tier.put((UID, lo), (pages, group), &mut self.shown)
    }

    /// A put, and the bytes.
    fn put(&mut self, lo: u64, pages: u32, group: u64) -> bool {
        let Some(room) = self.room(lo, pages, group) else { return false };
        self.show_late((lo, pages), &room);
        true
    }

    fn show_late(&mut self, (lo, pages): (u64, u32), room: &TierRoom) {
        self.tier.fill(room, &mut self.shown, |shown| {
            shown.of.insert(room.entry, (lo, room.page, pages));
            assert!(shown.alone.insert(lo), "it was put once");
        });
    }

    /// A step, a second later: no share of a second is used up.
    fn renew(&mut self) {
        self.now_ns += 1_000_000_000;
        self.tier.renew(self.now_ns, &mut self.shown);
    }

    fn key_of(&self, entry: usize) -> u64 {
        self.tier.entries[entry].lo
    }

    fn end(&mut self, entry: usize, how: LateWrite) {
        self.tier.write_ended(entry, how, &mut self.shown);
    }

    /// A block is to be written at once, and is being so.
    fn begin_write(&mut self, lo: u64) -> usize {
        let entry = self.tier.unwritten(UID, lo, &self.shown).expect("it is here alone");
        assert!(self.tier.write_soon(entry));
        assert_eq!(self.tier.next_write(), Some(entry));
        entry
    }

    /// All that is queued is written. Their keys.
    fn write(&mut self) -> Vec<u64> {
        let mut keys = Vec::new();
        while let Some(entry) = self.tier.next_write() {
            keys.push(self.key_of(entry));
            self.end(entry, LateWrite::Written);
        }
        keys
    }

    /// Of a store of 64 blocks, which evicted each that was written: a 64th of the groups is taken.
    fn with_least_share(pages: u32, sets: usize) -> Self {
        let mut rig = Self::late(pages, sets, 64);
        let late = rig.tier.late.as_mut().unwrap();
        for lo in 0..100 {
            late.share.left((UID, lo), BlockFate::Written);
            late.share.offered((UID, lo));
        }
        rig
    }

    /// The first group from this one on that the share takes, or does not.
    fn group(&self, from: u64, is_taken: bool) -> u64 {
        let share = &self.tier.late.as_ref().unwrap().share;
        (from..).find(|group| share.takes(folded(*group)) == is_taken).unwrap()
    }
}

#[test]
fn a_late_block_is_here_alone_until_it_is_written() {
    let mut rig = Rig::late(64, 8, 100);
    let room = rig.room(1, 4, 0).expect("an empty tier has room");
    assert_eq!((rig.tier.unwritten(UID, 1, &rig.shown), rig.tier.late_blocks()), (None, 1));
    rig.show_late((1, 4), &room);
    assert_eq!(rig.tier.unwritten(UID, 1, &rig.shown), Some(room.entry));
    rig.renew();
    assert_eq!(rig.tier.next_write(), None, "there is room");
    assert_eq!(rig.begin_write(1), room.entry);
    assert_eq!(rig.tier.unwritten(UID, 1, &rig.shown), Some(room.entry), "its write is in flight");
    rig.end(room.entry, LateWrite::Written);
    assert!(rig.has(1) && rig.tier.unwritten(UID, 1, &rig.shown).is_none());
    assert_eq!((rig.shown.gone.as_slice(), rig.tier.late_blocks()), ([1].as_slice(), 0));
    let counts = rig.tier.counts();
    assert_eq!((counts.late, counts.late_pages, counts.filled), (1, 4, 0));
    assert_eq!((counts.late_written, counts.late_written_pages), (1, 4));
    rig.tier.audit();
}

#[test]
fn a_put_of_a_copy_makes_it_a_late_block() {
    let mut rig = Rig::late(64, 8, 100);
    rig.bring(1, 4);
    assert!(rig.put(1, 5, 0) && rig.has(1));
    assert!(rig.tier.unwritten(UID, 1, &rig.shown).is_some());
    assert_eq!(rig.tier.usage(), (1, 5), "the copy has gone");
    assert!(!rig.put(1, 5, 0), "it is here");
    assert!(Rig::new(64, 8).room(1, 4, 0).is_none(), "a tier without late blocks takes none");
    rig.tier.audit();
}

/// A round of puts: used blocks are written, one of a group that is not taken is dropped.
#[test]
fn used_blocks_are_written_and_of_others_a_share() {
    let mut rig = Rig::with_least_share(64, 64);
    let (dropped, taken) = (rig.group(0, false), rig.group(0, true));
    for lo in 0..64 {
        let group = if lo % 4 == 1 { taken } else { dropped };
        assert!(rig.put(lo, 1, group), "an empty tier has room");
    }
    (0..64).step_by(4).for_each(|lo| rig.tier.use_block(UID, lo, &mut rig.shown));
    let mut written = Vec::new();
    for lo in 100..300 {
        rig.renew();
        written.extend(rig.write());
        assert!(rig.put(lo, 1, dropped), "{lo}");
    }
    written.retain(|lo| *lo < 64);
    written.sort_unstable();
    assert_eq!(written, (0..64).filter(|lo| lo % 4 < 2).collect::<Vec<_>>());
    let counts = rig.tier.counts();
    assert_eq!((counts.late, counts.late_written), (264, 32));
    assert_eq!(counts.late_dropped + rig.tier.late_blocks(), 232);
    rig.tier.audit();
}

#[test]
fn a_dropped_block_that_comes_again_raises_the_share() {
    let mut rig = Rig::with_least_share(16, 16);
    let dropped = rig.group(0, false);
    // None is used, and each comes again after it has gone.
    for lo in (0..40).cycle().take(4000) {
        rig.renew();
        rig.write();
        rig.put(lo, 1, dropped);
    }
    assert_eq!(rig.group(0, true), 0, "all are taken");
    assert!(rig.tier.counts().late_written > 100);
    rig.tier.audit();
}

/// The blocks ahead of the hand are chosen, a bounded number at once.
#[test]
fn writes_run_ahead_of_the_hand_and_no_further() {
    let mut rig = Rig::late(1600, 1600, 100);
    (0..1600).for_each(|lo| {
        assert!(
            {
                rig.renew();
                rig.put(lo, 1, 0)
            },
            "{lo}"
        )
    });
    let ahead = |rig: &mut Rig| {
        let steps = (0..4).map(|_| {
            rig.renew();
            rig.write().len()
        });
        steps.sum::<usize>()
    };
    let first = ahead(&mut rig);
    assert!((60..=140).contains(&first), "{first}: a 16th of the tier, some of it met before");
    assert_eq!(ahead(&mut rig), 0, "the hand stands");
    rig.renew();
    assert!((2000..2030).all(|lo| rig.put(lo, 1, 0)), "what is written makes room at once");
    assert!((25..=35).contains(&ahead(&mut rig)), "as far as the hand went");
    rig.tier.audit();
}

/// The hand stands before blocks that it passes over: none of them is to leave.
#[test]
fn nothing_is_written_ahead_while_much_is_free() {
    let mut rig = Rig::late(256, 256, 100);
    (0..40).for_each(|lo| assert!(rig.put(lo, 1, 0)));
    for lo in 1000..3000 {
        rig.renew();
        assert!(rig.put(lo, 2, 0), "{lo}");
        rig.tier.forget(UID, lo - 20, &mut rig.shown);
        assert_eq!(rig.tier.next_write(), None, "{lo}");
    }
    assert!((0..40).all(|lo| rig.has(lo)));
    let mut written = Vec::new();
    for lo in 4000..4200 {
        rig.renew();
        written.extend(rig.write());
        assert!(rig.put(lo, 1, 0), "writes run ahead again: {lo}");
    }
    assert!((0..40).all(|lo| rig.has(lo) || written.contains(&lo)), "{written:?}");
    assert_eq!(rig.tier.counts().evicted + rig.tier.usage().0, 240 + 20);
    rig.tier.audit();
}

/// Nothing is written: the tier takes what it has room for, and then no more.
#[test]
fn puts_that_outrun_writes_find_no_room_and_lose_nothing() {
    // Of pages, and of entries.
    for (sets, room) in [(256, 256), (32, 128)] {
        let mut rig = Rig::late(256, sets, 100);
        let mut taken = 0;
        for lo in 0..2000 {
            rig.renew();
            taken += u64::from(rig.put(lo, 1, 0));
            rig.tier.audit();
        }
        assert_eq!((taken, rig.tier.late_blocks()), (room, room), "none was dropped");
        let queued = std::iter::from_fn(|| rig.tier.next_write()).count();
        assert_eq!(queued, 64, "and few are on their way at once");
        rig.renew();
        assert_eq!(rig.tier.next_write(), None);
        rig.tier.audit();
    }
}

/// While writes are behind, puts in vain take no used block for an unused one.
#[test]
fn the_hand_waits_for_writes() {
    let mut rig = Rig::late(256, 256, 100);
    let put = |rig: &mut Rig, lo| {
        rig.renew();
        rig.put(lo, 1, 0)
    };
    assert!((0..256).all(|lo| put(&mut rig, lo)));
    assert!((1000..1100).all(|lo| !put(&mut rig, lo)));
    (128..256).for_each(|lo| rig.tier.use_block(UID, lo, &mut rig.shown));
    assert!((2000..2100).all(|lo| !put(&mut rig, lo)));
    assert_eq!(rig.shown.used.len(), 128);
    assert_eq!(rig.write().len(), 64);
    let mut goes_on = |lo| {
        rig.write();
        put(&mut rig, lo)
    };
    assert!((3000..3020).any(&mut goes_on), "a round later");
    rig.tier.audit();
}

#[test]
fn a_declined_block_leaves_and_a_busy_store_is_asked_again() {
    let mut rig = Rig::late(64, 8, 100);
    assert!(rig.put(1, 2, 0) && rig.put(2, 2, 0));
    let (one, two) = (rig.begin_write(1), rig.begin_write(2));
    rig.tier.write_again(one);
    assert_eq!(rig.tier.next_write(), Some(one));
    rig.end(one, LateWrite::Declined);
    assert!(!rig.has(1) && rig.has(2));
    assert_eq!((rig.shown.gone.as_slice(), rig.tier.counts().late_dropped_pages), (&[1][..], 2));
    rig.tier.forget(UID, 2, &mut rig.shown);
    rig.tier.write_again(two);
    assert_eq!(rig.tier.next_write(), None, "nobody wants it any more");
    assert_eq!(rig.tier.late_blocks(), 0);
    rig.tier.audit();
}

/// Its key is free at once, its memory when the write has ended.
#[test]
fn what_is_forgotten_while_it_is_written_keeps_its_memory() {
    let mut rig = Rig::late(8, 4, 100);
    assert!(rig.put(1, 4, 0));
    let entry = rig.begin_write(1);
    rig.tier.forget(UID, 1, &mut rig.shown);
    assert_eq!((rig.has(1), rig.shown.gone.as_slice()), (false, &[1][..]));
    assert!(!rig.put(2, 5, 0), "the device reads there");
    rig.renew();
    assert!(rig.put(1, 4, 0), "another block of the key");
    rig.end(entry, LateWrite::Written);
    assert_eq!((rig.shown.gone.len(), rig.tier.late_blocks()), (1, 1), "that is still unwritten");
    assert!(rig.has(1));
    let counts = rig.tier.counts();
    assert_eq!((counts.late, counts.late_written, counts.late_dropped), (2, 0, 1));
    rig.renew();
    assert!(rig.put(3, 4, 0));
    rig.tier.audit();
}

#[test]
fn what_is_read_in_place_after_its_write_stays() {
    let mut rig = Rig::late(8, 4, 100);
    assert!(rig.put(1, 8, 0));
    let entry = rig.begin_write(1);
    let held = rig.hold(1);
    assert!(rig.tier.report(UID, 1, &mut rig.shown));
    rig.end(entry, LateWrite::Written);
    assert!(!rig.put(2, 1, 0), "a reader is there");
    rig.shown.held.remove(&held);
    rig.renew();
    assert!(rig.put(2, 8, 0));
    rig.tier.audit();
}

#[test]
fn what_is_forgotten_or_given_up_on_its_way_was_never_here() {
    let mut rig = Rig::late(8, 4, 100);
    let room = rig.room(1, 4, 0).unwrap();
    assert!(rig.room(1, 4, 0).is_none(), "one put of a key at a time");
    rig.tier.forget(UID, 1, &mut rig.shown);
    let again = rig.room(1, 4, 0).expect("the first one is no more");
    rig.show_late((1, 4), &room);
    assert!(!rig.has(1));
    rig.tier.give_up(&again);
    assert_eq!((rig.tier.late_blocks(), rig.tier.usage(), rig.shown.gone.len()), (0, (0, 0), 0));
    rig.tier.audit();
}

#[test]
fn what_is_to_be_written_soon_comes_first() {
    let mut rig = Rig::late(3200, 1600, 100);
    for lo in 0..100 {
        rig.renew();
        assert!(rig.put(lo, 1, 0), "it is empty");
    }
    let entry = |rig: &Rig, lo| rig.tier.unwritten(UID, lo, &rig.shown).unwrap();
    let all: Vec<_> = (0..100).map(|lo| entry(&rig, lo)).collect();
    assert!([0, 1, 2, 1].iter().all(|at| rig.tier.write_soon(all[*at])));
    let order: Vec<_> = (0..3).map_while(|_| rig.tier.next_write()).collect();
    assert_eq!(order, [all[1], all[2], all[0]], "the last one first, and each once");
    assert!(rig.tier.write_soon(all[1]), "it is being written");
    assert!(all[3..64].iter().all(|entry| rig.tier.write_soon(*entry)));
    assert!(!rig.tier.write_soon(all[64]), "64 are on their way");
    rig.end(all[1], LateWrite::Written);
    assert!(rig.tier.write_soon(all[64]));
    rig.tier.audit();
}

/// A stop: all is written in bounded steps, and nothing comes in meanwhile.
#[test]
fn a_stop_writes_all_that_is_here_alone() {
    let mut rig = Rig::with_least_share(4096, 1024);
    let dropped = rig.group(0, false);
    let put = (0..3000)
        .filter(|lo| {
            rig.renew();
            rig.put(*lo, 1, dropped)
        })
        .count();
    let filling = rig.room(5000, 1, dropped).unwrap();
    rig.tier.write_all();
    assert!(rig.room(5001, 1, dropped).is_none());
    let (mut written, mut steps) = (rig.write().len(), 0);
    while rig.tier.late_blocks() > 0 {
        rig.renew();
        let now = rig.write().len();
        assert!(now <= 64);
        (written, steps) = (written + now, steps + 1);
        if steps == 20 {
            rig.show_late((5000, 1), &filling);
        }
    }
    let counts = rig.tier.counts();
    assert!(steps < 70, "{steps}");
    assert_eq!((written, counts.late_written + counts.late_dropped), (put + 1, put as u64 + 1));
    rig.tier.clear();
    while rig.tier.renew(0, &mut rig.shown) {}
    assert!(rig.room(5001, 1, dropped).is_some(), "another store, another life");
    rig.tier.audit();
}

#[test]
fn a_clear_waits_for_writes_and_drops_what_is_queued() {
    let mut rig = Rig::late(8, 4, 100);
    (0..4).for_each(|lo| assert!(rig.put(lo, 2, 0)));
    for lo in 0..4 {
        let entry = rig.tier.unwritten(UID, lo, &rig.shown).unwrap();
        assert!(rig.tier.write_soon(entry));
    }
    let entry = rig.tier.next_write().unwrap();
    rig.tier.clear();
    while rig.tier.renew(0, &mut rig.shown) {}
    assert_eq!((rig.tier.next_write(), rig.shown.gone.len()), (None, 4));
    assert_eq!((rig.tier.usage(), rig.tier.late_blocks()), ((1, 2), 0));
    rig.end(entry, LateWrite::Declined);
    assert_eq!((rig.tier.usage(), rig.tier.counts().late_dropped), ((0, 0), 4));
    assert_eq!(rig.tier.counts().late_dropped_pages, 8);
    rig.tier.audit();
}

/// Whatever happens in whatever order: what is shown never shares a page with anything else, each
/// late block goes once, and all pages are there in the end.
#[test]
fn no_two_blocks_share_a_page() {
    (0..60).for_each(Play::run);
}

/// One order of events.
struct Play {
    random: fastrand::Rng,
    rig: Rig,
    filling: Vec<(u64, u32, bool, TierRoom)>,
    /// Entry, first page, pages: what the device reads.
    writing: Vec<(usize, u32, u32)>,
}

impl Play {
    fn run(seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let rig = Rig::late(random.u32(40..100), random.usize(2..16), random.u64(1..200));
        let mut play = Self { random, rig, filling: Vec::new(), writing: Vec::new() };
        for _ in 0..2000 {
            play.step();
            play.rig.tier.audit();
            play.check();
        }
        play.end();
    }

    fn step(&mut self) {
        let (lo, rig) = (self.random.u64(..40), &mut self.rig);
        let length = 1 + u32::try_from(lo % 7).unwrap();
        match self.random.u8(..16) {
            0..4 => {
                if let Some(room) = rig.meet(lo, length) {
                    self.filling.push((lo, length, false, room));
                }
            }
            4 => rig.tier.use_block(UID, lo, &mut rig.shown),
            5 => {
                rig.tier.forget(UID, lo, &mut rig.shown);
                rig.renew();
            }
            6 if rig.has(lo) => {
                rig.hold(lo);
            }
            7 => rig.shown.held.retain(|_, _| self.random.bool()),
            8..11 => {
                if let Some(room) = rig.room(lo, length, lo / 8) {
                    self.filling.push((lo, length, true, room));
                }
            }
            11 => {
                if let Some(entry) = rig.tier.unwritten(UID, lo, &rig.shown) {
                    let _ = rig.tier.write_soon(entry);
                }
            }
            12 => self.begin_write(),
            13 => self.end_write(),
            other => self.end_fill(other == 14),
        }
    }

    fn begin_write(&mut self) {
        if let Some(entry) = self.rig.tier.next_write() {
            let (_, first, pages) = self.rig.shown.of[&entry];
            self.writing.push((entry, first, pages));
        }
    }

    fn end_write(&mut self) {
        if self.writing.is_empty() {
            return;
        }
        let (entry, ..) = self.writing.swap_remove(self.random.usize(..self.writing.len()));
        match self.random.u8(..4) {
            0 => self.rig.tier.write_again(entry),
            1 => self.rig.end(entry, LateWrite::Declined),
            _ => self.rig.end(entry, LateWrite::Written),
        }
    }

    fn end_fill(&mut self, is_filled: bool) {
        if self.filling.is_empty() {
            return;
        }
        let at = self.random.usize(..self.filling.len());
        let (lo, length, is_late, room) = self.filling.swap_remove(at);
        match (is_filled, is_late) {
            (true, true) => self.rig.show_late((lo, length), &room),
            (true, false) => self.rig.fill((lo, length), &room),
            (false, _) => self.rig.tier.give_up(&room),
        }
    }

    fn check(&self) {
        let Shown { of, held, alone, .. } = &self.rig.shown;
        let ranges = of.values().map(|(_, first, pages)| (*first, *pages));
        let flying = self.filling.iter().map(|(_, pages, _, room)| (room.page, *pages));
        let mut all: Vec<_> = ranges.chain(flying).collect();
        all.extend(held.values());
        all.extend(self.writing.iter().map(|(_, first, pages)| (*first, *pages)));
        all.sort_unstable();
        all.dedup(); // what is held or written may be shown too
        assert!(all.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{all:?}");
        let unwritten = |lo: &u64| self.rig.tier.unwritten(UID, *lo, &self.rig.shown).is_some();
        assert!((0..40).all(|lo| unwritten(&lo) == alone.contains(&lo)), "{alone:?}");
        let on_their_way = self.filling.iter().filter(|(_, _, is_late, _)| *is_late).count();
        let most = (alone.len() + on_their_way) as u64;
        assert!((alone.len() as u64..=most).contains(&self.rig.tier.late_blocks()));
    }

    fn end(mut self) {
        let rig = &mut self.rig;
        for (.., room) in self.filling.drain(..) {
            rig.tier.give_up(&room);
        }
        for (entry, ..) in self.writing.drain(..) {
            rig.end(entry, LateWrite::Written);
        }
        rig.shown.held.clear();
        rig.tier.clear();
        while rig.tier.renew(0, &mut rig.shown) {}
        assert!(rig.shown.alone.is_empty() && rig.tier.late_blocks() == 0);
        // The hand comes by what was held.
        let all = rig.tier.pages();
        let room = std::iter::repeat_with(|| rig.meet(77, all)).find_map(|room| room);
        rig.tier.give_up(&room.expect("it never ends without one"));
        rig.tier.audit();
        assert_eq!(rig.tier.usage(), (0, 0));
    }
}

/// One client puts without an end, as fast as the sidecar takes it: what another one uses ten times
/// in a second stays.
#[test]
fn a_flood_of_puts_leaves_what_is_used() {
    const PAGES: u32 = 1024;
    let mut rig = Rig::late(PAGES, 1024, 1000);
    let hot = 64;
    (0..hot).for_each(|lo| assert!(rig.put(lo, 4, lo), "it is empty"));
    rig.write();
    let (mut next, mut came, mut gets_of_hot) = (1000, 0_u64, 0);
    for step in 0..30_000 {
        rig.tier.renew(step * 100_000, &mut rig.shown); // 3 s
        for _ in 0..4 {
            came += u64::from(rig.put(next, 4, next));
            next += 1;
        }
        rig.write();
        if step % 1000 == 0 {
            gets_of_hot += (0..hot).filter(|lo| rig.has(*lo)).count();
            (0..hot).for_each(|lo| rig.tier.use_block(UID, lo, &mut rig.shown));
        }
    }
    assert_eq!(gets_of_hot, 30 * 64, "all of what is used is there, always");
    assert!((300..600).contains(&came), "{came} of 120,000 came: the free room, and 3 quarters");
    rig.tier.audit();
}

#[test]
fn each_namespace_has_its_share() {
    let mut rig = Rig::late(64, 8, 64);
    assert!(rig.put(1, 3, 0));
    rig.renew();
    rig.renew();
    assert!(rig.put(2, 5, 0));
    rig.renew();
    let share = rig.tier.share(UID);
    assert_eq!((share.blocks, share.pages, share.late_blocks), (2, 8, 2));
    assert_eq!((share.ages_s, share.late_dropped_pages), (3 + 1, 0));
    assert_eq!(rig.tier.age_s(UID, 1, &rig.shown), Some(3));
    assert_eq!(rig.tier.share(UID + 1), TierShare::default());
    let entry = rig.begin_write(1);
    rig.end(entry, LateWrite::Written);
    let entry = rig.begin_write(2);
    rig.end(entry, LateWrite::Declined);
    let share = rig.tier.share(UID);
    assert_eq!((share.blocks, share.pages, share.late_blocks), (1, 3, 0));
    assert_eq!((share.ages_s, share.late_dropped_pages), (3, 5));
    rig.tier.set_pool(UID, 2);
    let dropped = |rig: &mut Rig| {
        let pools = rig.tier.by_pool().map(|(pool, share)| (pool, share.late_dropped_pages));
        pools.collect::<Vec<_>>()
    };
    assert_eq!([dropped(&mut rig), dropped(&mut rig)], [[(2, 5)], [(2, 0)]]);
    rig.tier.audit();
}

/// Blocks of a namespace that was cleared leave room, and are not late any more.
#[test]
fn blocks_of_a_namespace_that_is_over_go() {
    let mut rig = Rig::late(64, 8, 64);
    rig.tier.keep_only([(UID, 1)].into_iter());
    (1..9).for_each(|lo| assert!(rig.put(lo, 2, 0)));
    rig.tier.keep_only([(UID, 1)].into_iter());
    rig.renew();
    assert_eq!(rig.tier.share(UID).blocks, 8, "it is there");
    let held = rig.hold(3);
    assert!(!rig.tier.is_walking());
    rig.tier.keep_only([(UID + 1, 0)].into_iter());
    assert!(rig.tier.is_walking(), "the caller must not sleep long");
    while rig.tier.renew(rig.now_ns, &mut rig.shown) {}
    assert!(!rig.tier.is_walking());
    assert_eq!((rig.tier.late_blocks(), rig.tier.counts().late_dropped), (0, 8));
    assert_eq!(rig.tier.share(UID).late_dropped_pages, 16, "none of them was written");
    assert_eq!(rig.tier.share(UID).blocks, 1, "what is read in place stays, and is not found");
    assert!(!rig.has(3));
    assert_eq!(rig.shown.gone.len(), 8);
    rig.shown.held.remove(&held);
    rig.tier.audit();
}

/// A block whose bytes come while its namespace's blocks go is one of them.
#[test]
fn a_block_on_its_way_goes_with_its_namespace() {
    let mut rig = Rig::late(64, 8, 64);
    rig.tier.keep_only([(UID, 1)].into_iter());
    assert!(rig.put(1, 2, 0));
    let room = rig.room(2, 2, 0).expect("an empty tier has room");
    rig.tier.keep_only([(UID + 1, 0)].into_iter());
    while rig.tier.renew(rig.now_ns, &mut rig.shown) {}
    assert_eq!((rig.has(1), rig.tier.usage().0), (false, 1));
    rig.show_late((2, 2), &room);
    rig.tier.keep_only([(UID + 1, 0)].into_iter());
    while rig.tier.renew(rig.now_ns, &mut rig.shown) {}
    assert_eq!((rig.has(2), rig.tier.usage()), (false, (0, 0)));
    rig.tier.audit();
}
