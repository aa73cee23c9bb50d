//! Which blocks of a member lie in memory too: admission, places and eviction, without the bytes.
//!
//! A block comes in at its second get within the time in which as many other keys were asked for as
//! the tier has entries: what is asked for once passes through. Places are spans in the order of
//! their addresses. A hand goes round them: a span that was used since its last visit stays, others
//! go, and the first run of free bytes that is long enough is the new block's. While much is free
//! it passes over all of them. So lengths may differ, no byte is ever moved, and each step is a few
//! words. What clients fetch comes in at once, and takes a part of the tier from other blocks in a
//! second (`fetches`). A late block comes in at its put, and may be written to the store later
//! (`writing`).

mod fetches;
mod late;
mod lists;
mod places;
mod shares;
mod write_share;
mod writing;

use fetches::{FREE_PART, FetchBudget};
pub use late::LateWrite;
use late::{LateBlocks, WriteStage};
use lists::NONE;
use places::{Places, small};
pub use shares::TierShare;
use shares::TierShares;
pub use write_share::{BlockFate, WriteShare};

/// Entries of a set: the keys that share it compete.
pub const WAYS: usize = 4;

/// Spans that searches visit at most until `renew`: some microseconds.
const VISITS_MAX: u32 = 64;

/// Entries that a step of a clear looks at.
const CLEARED_AT_ONCE: usize = 1024;
/// For how many entries one that has a block counts at least: each of 256 may be a row of a feed.
const CLEARED_BLOCK: usize = 4;

/// Entries that a step looks at for blocks of namespaces that are over, each that goes counted as
/// `CLEARED_BLOCK`: some microseconds.
const SWEPT_AT_ONCE: usize = 256;

/// Hidden blocks that a step looks at.
const HELD_AT_ONCE: u32 = 32;

/// What an entry is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryState {
    Empty,
    /// The device writes its bytes; `Doomed`: they are never to be seen.
    Filling,
    Doomed,
    /// Readers find it.
    Shown,
    /// No reader finds it any more, and one, or the device, may still read its memory.
    Held,
}

/// A block's place in the table of keys.
#[derive(Clone, Copy, Debug)]
struct Entry {
    uid: u64,
    lo: u64,
    span: u32,
    /// Blocks of one group are written, or dropped, together.
    group: u32,
    /// When its room was made.
    came_s: u32,
    state: EntryState,
    stage: WriteStage,
    /// Since the hand came by.
    is_used: bool,
    /// Since the block came in.
    was_used: bool,
}

const EMPTY: Entry = Entry {
    uid: 0,
    lo: 0,
    span: NONE,
    group: 0,
    came_s: 0,
    state: EntryState::Empty,
    stage: WriteStage::Stored,
    is_used: false,
    was_used: false,
};

/// A room that was made for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierRoom {
    /// Its entry.
    pub entry: usize,
    /// Its first page.
    pub page: u32,
}

/// What readers are to see of a change. Called before the memory of what is hidden is free.
pub trait TierView {
    /// The first of the `WAYS` entries of a key.
    fn first_of(&self, uid: u64, lo: u64) -> usize;
    /// No reader finds the entry's block any more.
    fn hide(&mut self, entry: usize);
    /// A use of the entry's block is known.
    fn set_used(&mut self, entry: usize);
    /// The next use of the entry's block is to be reported.
    fn clear_used(&mut self, entry: usize);
    /// Whether a reader reads the entry's memory in place. Once that is hidden, false is final.
    fn is_held(&self, entry: usize) -> bool;
    /// Readers that `is_held` looks at: some tens of nanoseconds each.
    fn holders(&self) -> usize;
    /// An entry's late block, which was shown, is not one that the tier alone has any more: the
    /// store has written it, or it is gone. Called once for each of them, and for no other block.
    fn gone(&mut self, entry: usize, key: (u64, u64));
}

/// Counters of a tier since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// Copies that came in.
    pub filled: u64,
    /// Their bytes, whole pages.
    pub filled_pages: u64,
    /// Blocks that went for others, late ones that were never written too.
    pub evicted: u64,
    /// Blocks for which no room was found.
    pub refused: u64,
    /// Blocks that went because a reader found them wrong.
    pub wrong: u64,
    /// Late blocks that came in.
    pub late: u64,
    /// Their bytes, whole pages.
    pub late_pages: u64,
    /// Late blocks that the store has written.
    pub late_written: u64,
    /// Their bytes, whole pages.
    pub late_written_pages: u64,
    /// Late blocks that left without being written: for others, because the store did not take
    /// them, or because they were dropped, replaced or cleared.
    pub late_dropped: u64,
    /// Their bytes, whole pages.
    pub late_dropped_pages: u64,
}

/// The tier of one member.
#[derive(Debug)]
pub struct MemoryTier {
    entries: Box<[Entry]>,
    places: Places,
    /// Spans that may still be visited until `renew`.
    visits: u32,
    /// The pages for which there was to be room last.
    asked_pages: u32,
    /// The next entry of a clear that goes on; nothing comes in meanwhile.
    clearing: Option<usize>,
    /// The next entry that is looked at for blocks of namespaces that are over.
    sweeping: Option<usize>,
    /// All entries are looked at, once more.
    sweeps_again: bool,
    /// The last look has left blocks that were on their way.
    sweep_left_some: bool,
    /// Entries whose blocks are hidden, while one may still read them.
    held: usize,
    /// Those of them that are looked at in this second.
    held_left: usize,
    fetches: FetchBudget,
    late: Option<LateBlocks>,
    /// Fingerprints of keys that were asked for once, newest first in each set: with one place for
    /// each, two keys that take turns would push each other out for ever.
    seen: Box<[[u32; WAYS]]>,
    blocks: u64,
    used_pages: u64,
    shares: TierShares,
    /// Time of the last `renew`.
    now_s: u32,
    counts: TierCounts,
}

impl MemoryTier {
    /// A tier of this number of pages and of entries, a multiple of `WAYS`.
    ///
    /// # Panics
    /// Without pages or entries.
    #[must_use]
    pub fn new(pages: u32, entries: usize) -> Self {
        assert!(pages > 0 && entries > 0 && entries.is_multiple_of(WAYS), "a tier has room");
        Self {
            entries: vec![EMPTY; entries].into_boxed_slice(),
            places: Places::new(pages, entries),
            visits: VISITS_MAX,
            asked_pages: 1,
            clearing: None,
            sweeping: None,
            sweeps_again: false,
            sweep_left_some: false,
            held: 0,
            held_left: 0,
            fetches: FetchBudget::new(pages),
            late: None,
            seen: vec![[0; WAYS]; (entries / WAYS).next_power_of_two()].into_boxed_slice(),
            blocks: 0,
            used_pages: 0,
            shares: TierShares::new(),
            now_s: 0,
            counts: TierCounts::default(),
        }
    }

    /// The same, which takes late blocks too, above a store for about `store_blocks` blocks: 8
    /// bytes of memory for each.
    ///
    /// # Panics
    /// Without pages or entries.
    #[must_use]
    pub fn with_late(pages: u32, entries: usize, store_blocks: u64) -> Self {
        let late = Some(LateBlocks::new(store_blocks));
        Self { late, ..Self::new(pages, entries) }
    }

    /// Counters since the start.
    #[must_use]
    pub fn counts(&self) -> TierCounts {
        self.counts
    }

    /// Blocks in it, and their pages; those on their way too.
    #[must_use]
    pub fn usage(&self) -> (u64, u64) {
        (self.blocks, self.used_pages)
    }

    /// What the namespace with this uid has in it.
    #[must_use]
    pub fn share(&self, uid: u64) -> TierShare {
        self.shares.at(uid, self.now_s)
    }

    /// These are all namespaces of the store, by uid, with their pools: blocks of others go step by
    /// step (`renew`), since no reader asks for them.
    pub fn keep_only(&mut self, spaces: impl Iterator<Item = (u64, u8)>) {
        spaces.for_each(|(uid, pool)| self.shares.keep(uid, pool));
        self.sweeps_again |= self.shares.end_others() | std::mem::take(&mut self.sweep_left_some);
    }

    /// The namespace with this uid is in this pool, also when the store has it no more.
    pub fn set_pool(&mut self, uid: u64, pool: u8) {
        self.shares.keep(uid, pool);
    }

    /// What each namespace has, those that were cleared too, with its pool. Of pages that went
    /// without being written only those since the last call.
    pub fn by_pool(&mut self) -> impl Iterator<Item = (u8, TierShare)> {
        self.shares.by_pool(self.now_s)
    }

    /// Its pages.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.places.pages()
    }

    fn find(&self, uid: u64, lo: u64, view: &impl TierView) -> Option<usize> {
        let first = view.first_of(uid, lo);
        let there = |at: &usize| {
            let Entry { uid: other, lo: key, state, .. } = self.entries[*at];
            let lives = matches!(state, EntryState::Filling | EntryState::Shown);
            lives && (other, key) == (uid, lo)
        };
        (first..first + WAYS).find(there)
    }

    /// Whether readers find a block.
    #[must_use]
    pub fn shows(&self, uid: u64, lo: u64, view: &impl TierView) -> bool {
        let entry = self.find(uid, lo, view);
        entry.is_some_and(|entry| self.entries[entry].state == EntryState::Shown)
    }

    /// How long ago the room was made of a block that readers find, in seconds; 0 where that is not
    /// known.
    #[must_use]
    pub fn age_s(&self, uid: u64, lo: u64, view: &impl TierView) -> Option<u32> {
        let entry = &self.entries[self.find(uid, lo, view)?];
        (entry.state == EntryState::Shown).then(|| self.now_s.saturating_sub(entry.came_s))
    }

    /// A get of a block that the device serves: a room if the block is to come in now.
    pub fn meet(
        &mut self,
        (uid, lo): (u64, u64),
        pages: u32,
        view: &mut impl TierView,
    ) -> Option<TierRoom> {
        let is_known = self.find(uid, lo, view).is_some() || self.is_seen_again(uid, lo);
        if is_known { self.enter((uid, lo), pages, view) } else { None }
    }

    /// A block is to come in now, as a client expects to use it: a room for it, unless fetched
    /// blocks have taken much from others lately.
    pub fn fetch(
        &mut self,
        (uid, lo): (u64, u64),
        pages: u32,
        view: &mut impl TierView,
    ) -> Option<TierRoom> {
        if let Some(entry) = self.find(uid, lo, view) {
            self.set_used(entry, view);
            return None;
        }
        self.make_room_in_share((uid, lo), pages, view)
    }

    /// A block is to come in now, and the caller brings as many as it can already.
    pub fn fetch_refused(&mut self, (uid, lo): (u64, u64), view: &mut impl TierView) {
        match self.find(uid, lo, view) {
            Some(entry) => self.set_used(entry, view),
            None => self.refuse(),
        }
    }

    /// A room for a block that was not asked for twice, unless such blocks have taken much from
    /// others lately.
    fn make_room_in_share(
        &mut self,
        key: (u64, u64),
        pages: u32,
        view: &mut impl TierView,
    ) -> Option<TierRoom> {
        let evicted = self.counts.evicted;
        let may = self.fetches.allows(self.pages(), self.used_pages);
        // Not a use: were all blocks used ones, the hand would take the next best.
        let room = if may { self.make_room(key, pages, view) } else { None };
        self.counts.refused += u64::from(room.is_none());
        if may && (room.is_none() || self.counts.evicted > evicted) {
            self.fetches.take(pages);
        }
        room
    }

    /// A room for a block that is not here; one that is counts as used.
    fn enter(
        &mut self,
        (uid, lo): (u64, u64),
        pages: u32,
        view: &mut impl TierView,
    ) -> Option<TierRoom> {
        if let Some(entry) = self.find(uid, lo, view) {
            self.set_used(entry, view);
            return None;
        }
        let room = self.make_room((uid, lo), pages, view);
        self.counts.refused += u64::from(room.is_none());
        room
    }

    /// A block that the tier was to be asked for a room for found none before that.
    pub fn refuse(&mut self) {
        self.counts.refused += 1;
    }

    /// Searches may visit spans again: called once in a while, which bounds the work in between.
    /// Goes on with a clear, or looks for blocks of namespaces that are over. True: there is more
    /// of that to do. Chooses late blocks to be written.
    pub fn renew(&mut self, now_ns: u64, view: &mut impl TierView) -> bool {
        self.visits = VISITS_MAX;
        let now_s = u32::try_from(now_ns / 1_000_000_000).unwrap_or(u32::MAX);
        if now_s > self.now_s {
            self.now_s = now_s;
            // All of the second before come first, and then there is a step without more to do.
            self.held_left = if self.held_left > 0 { self.held_left } else { self.held };
        }
        self.fetches.renew(now_ns);
        let Some(from) = self.clearing else {
            self.choose_writes();
            self.free_held(view);
            return self.sweep_over(view) || self.held_left > 0;
        };
        let (mut end, mut left) = (from, CLEARED_AT_ONCE);
        while end < self.entries.len() && left > 0 {
            left -= 1;
            if self.entries[end].state == EntryState::Shown {
                let costs = (16 * costs(view) as usize).max(CLEARED_BLOCK - 1);
                left = left.saturating_sub(costs);
                self.leave(end, view);
            }
            end += 1;
        }
        self.clearing = (end < self.entries.len()).then_some(end);
        self.clearing.is_some()
    }

    /// Memory of hidden blocks that none reads any more is free: of some of them, each once in a
    /// second.
    fn free_held(&mut self, view: &mut impl TierView) {
        let mut left = HELD_AT_ONCE;
        while self.held_left > 0 && left > 0 {
            left = left.saturating_sub(1 + costs(view));
            self.held_left -= 1;
            let Some(entry) = self.places.next_held() else { continue };
            let entry = entry as usize;
            if !self.is_writing(entry) && !view.is_held(entry) {
                self.release(entry);
            }
        }
    }

    /// Blocks of namespaces that are over go: some entries further. True: there are more.
    fn sweep_over(&mut self, view: &mut impl TierView) -> bool {
        if self.sweeping.is_none() && std::mem::take(&mut self.sweeps_again) {
            self.sweeping = Some(0);
        }
        let Some(mut at) = self.sweeping else { return false };
        let mut left = SWEPT_AT_ONCE;
        while at < self.entries.len() && left > 0 {
            left -= 1;
            let Entry { uid, state, .. } = self.entries[at];
            self.sweep_left_some |= state == EntryState::Filling && self.shares.is_over(uid);
            if state == EntryState::Shown && self.shares.is_over(uid) {
                left = left.saturating_sub(costs(view) as usize + CLEARED_BLOCK - 1);
                self.leave(at, view);
            }
            at += 1;
        }
        self.sweeping = (at < self.entries.len()).then_some(at);
        self.sweeping.is_some() || self.sweeps_again
    }

    /// Whether the key was asked for a while ago; remembers it otherwise.
    fn is_seen_again(&mut self, uid: u64, lo: u64) -> bool {
        let bits = (uid.rotate_left(17) ^ lo).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let [a, b, c, d, e, f, g, h] = bits.to_le_bytes();
        let print = u32::from_le_bytes([a, b, c, d]).max(1);
        let place = u32::from_le_bytes([e, f, g, h]) as usize & (self.seen.len() - 1);
        let set = &mut self.seen[place];
        let Some(at) = set.iter().position(|seen| *seen == print) else {
            set.rotate_right(1);
            set[0] = print;
            return false;
        };
        set[at] = 0;
        true
    }

    fn make_room(
        &mut self,
        (uid, lo): (u64, u64),
        pages: u32,
        view: &mut impl TierView,
    ) -> Option<TierRoom> {
        debug_assert!(pages > 0, "a block has bytes");
        if pages > self.pages() || self.clearing.is_some() || self.visits == 0 {
            return None;
        }
        self.asked_pages = pages;
        let entry = self.choose_entry((uid, lo), view)?;
        let span = self.sweep(pages, view)?;
        let page = self.places.take(span, pages, small(entry));
        let came_s = self.shares.gain(uid, pages.into(), self.now_s);
        self.entries[entry] = Entry { uid, lo, span, came_s, state: EntryState::Filling, ..EMPTY };
        self.blocks += 1;
        self.used_pages += u64::from(pages);
        Some(TierRoom { entry, page })
    }

    /// An empty entry of the key's set: the first block that was not used goes for it.
    fn choose_entry(&mut self, key: (u64, u64), view: &mut impl TierView) -> Option<usize> {
        let first = view.first_of(key.0, key.1);
        let set = first..first + WAYS;
        if let Some(empty) = set.clone().find(|at| self.entries[*at].state == EntryState::Empty) {
            return Some(empty);
        }
        for at in set {
            let Entry { state, is_used, .. } = self.entries[at];
            if state == EntryState::Shown && is_used {
                self.clear_used(at, view);
            } else if self.may_go(at) && self.let_go(at, view).is_some() {
                return Some(at);
            }
        }
        None
    }

    /// Goes round until this number of pages lies free one behind the other; returns their span.
    /// While much is free, blocks are passed over, unless all that is free lies in short pieces.
    fn sweep(&mut self, pages: u32, view: &mut impl TierView) -> Option<u32> {
        let (_, entry, there) = self.places.at_hand();
        let fits = entry == NONE && there >= pages;
        if !fits
            && self.has_free(0)
            && let Some(span) = self.places.find_free(pages)
        {
            return Some(span);
        }
        while self.visits > 0 {
            self.visits -= 1;
            let (at, entry, there) = self.places.at_hand();
            if entry == NONE && there >= pages {
                return Some(at);
            }
            let free = match entry {
                NONE => None,
                entry if self.waits(entry as usize) => return None,
                entry => self.pass(entry as usize, view),
            };
            // The free span that it is part of now, or the next one.
            self.places.move_hand(free.unwrap_or_else(|| self.places.after(at)));
        }
        None
    }

    /// Whether more than a part is free, for which no block has to leave, and these pages besides.
    fn has_free(&self, besides: u32) -> bool {
        let kept = u64::from(self.pages() / FREE_PART) + u64::from(besides);
        self.used_pages + kept < self.pages().into()
    }

    /// The hand comes by: what was not used goes. Returns the free span.
    fn pass(&mut self, entry: usize, view: &mut impl TierView) -> Option<u32> {
        let Entry { state, is_used, .. } = self.entries[entry];
        if state == EntryState::Shown && is_used {
            self.clear_used(entry, view);
            return None;
        }
        if self.may_go(entry) { self.let_go(entry, view) } else { None }
    }

    /// The block of an entry goes, unless a reader or the device is at its memory. Returns the free
    /// span. The store has it, or goes without (`may_go`).
    fn let_go(&mut self, entry: usize, view: &mut impl TierView) -> Option<u32> {
        let state = self.entries[entry].state;
        if !matches!(state, EntryState::Shown | EntryState::Held) {
            return None;
        }
        // Some readers' words take the time of a visit.
        self.visits = self.visits.saturating_sub(costs(view));
        // Looked at before it is hidden too: what is read in place stays to be found.
        if view.is_held(entry) {
            return None;
        }
        if state == EntryState::Held {
            return Some(self.release(entry));
        }
        self.counts.evicted += 1;
        self.count_dropped(entry);
        self.leave(entry, view)
    }

    /// No reader finds the block of an entry from now on. Returns the free span, unless one still
    /// reads it, or the device does: its memory is free when none does (`free_held`, or the hand).
    fn leave(&mut self, entry: usize, view: &mut impl TierView) -> Option<u32> {
        view.hide(entry);
        if self.lose(entry) {
            self.count_late_dropped(entry);
            view.gone(entry, self.key(entry));
        }
        if self.is_writing(entry) || view.is_held(entry) {
            self.entries[entry].state = EntryState::Held;
            self.places.hold(self.entries[entry].span);
            self.held += 1;
            return None;
        }
        Some(self.release(entry))
    }

    /// Frees an entry and its pages, which no reader and no device uses any more.
    fn release(&mut self, entry: usize) -> u32 {
        let (one, pages) = (self.entries[entry], self.pages_of(entry));
        let Entry { uid, span, came_s, state, .. } = one;
        if state == EntryState::Held {
            self.places.end_hold(span);
            self.held -= 1;
        }
        self.lose(entry);
        self.entries[entry] = EMPTY;
        self.blocks -= 1;
        self.used_pages -= pages;
        self.shares.lose(uid, pages, came_s);
        self.places.free(span)
    }

    /// Pages of an entry's block.
    fn pages_of(&self, entry: usize) -> u64 {
        self.places.pages_of(self.entries[entry].span).into()
    }

    fn clear_used(&mut self, entry: usize, view: &mut impl TierView) {
        self.entries[entry].is_used = false;
        view.clear_used(entry);
    }

    fn set_used(&mut self, entry: usize, view: &mut impl TierView) {
        let one = &mut self.entries[entry];
        one.was_used = true;
        let was_used = std::mem::replace(&mut one.is_used, true);
        if one.state == EntryState::Shown && !was_used {
            view.set_used(entry);
        }
    }

    /// A client used a block, wherever it got it from.
    pub fn use_block(&mut self, uid: u64, lo: u64, view: &mut impl TierView) {
        if let Some(entry) = self.find(uid, lo, view) {
            self.set_used(entry, view);
        }
    }

    /// The key's block is another one from now on, or none: what lies here is not found any more.
    /// Whether readers have found it.
    pub fn forget(&mut self, uid: u64, lo: u64, view: &mut impl TierView) -> bool {
        if let Some(late) = &mut self.late {
            late.share.forget((uid, lo));
        }
        let Some(entry) = self.find(uid, lo, view) else { return false };
        if self.entries[entry].state == EntryState::Filling {
            self.entries[entry].state = EntryState::Doomed;
            self.lose(entry);
            return false;
        }
        self.leave(entry, view);
        true
    }

    /// A reader found the bytes of a block wrong: the block goes. False: readers have not found it.
    pub fn report(&mut self, uid: u64, lo: u64, view: &mut impl TierView) -> bool {
        let was_shown = self.forget(uid, lo, view);
        self.counts.wrong += u64::from(was_shown);
        was_shown
    }

    /// All bytes of a room are there: `show` has readers find them, unless they are of a block that
    /// was forgotten meanwhile.
    pub fn fill<V: TierView>(&mut self, room: &TierRoom, view: &mut V, show: impl FnOnce(&mut V)) {
        if self.entries[room.entry].state == EntryState::Doomed || self.clearing.is_some() {
            self.release(room.entry);
            return;
        }
        debug_assert_eq!(self.entries[room.entry].state, EntryState::Filling, "its device's");
        self.entries[room.entry].state = EntryState::Shown;
        self.count_filled(room.entry);
        show(view);
        if self.entries[room.entry].is_used {
            view.set_used(room.entry);
        }
    }

    /// The bytes of a room did not come.
    pub fn give_up(&mut self, room: &TierRoom) {
        debug_assert!(
            matches!(self.entries[room.entry].state, EntryState::Filling | EntryState::Doomed),
            "a room is given up once"
        );
        self.release(room.entry);
    }

    /// All blocks go, step by step (`renew`), and none comes in meanwhile.
    pub fn clear(&mut self) {
        self.clearing = Some(0);
        (self.sweeping, self.sweeps_again) = (None, false);
        self.end_saving();
    }

    /// Whether a clear goes on.
    #[must_use]
    pub fn is_clearing(&self) -> bool {
        self.clearing.is_some()
    }

    /// Whether there is more to look at than one `renew` does.
    #[must_use]
    pub fn is_walking(&self) -> bool {
        let walks = self.clearing.is_some() || self.sweeping.is_some() || self.sweeps_again;
        walks || self.held_left > 0
    }

    /// Whether `renew` is to be called once in a second: one may still read hidden blocks, and
    /// their memory is free once none does.
    #[must_use]
    pub fn has_held(&self) -> bool {
        self.held > 0
    }

    /// Checks that spans and entries are what they say, for tests.
    ///
    /// # Panics
    /// If they are not.
    pub fn audit(&self) {
        let held = self.entries.iter().filter(|one| one.state == EntryState::Held);
        let held: Vec<u32> = held.map(|one| one.span).collect();
        let (blocks, used) = self.places.audit(
            |entry| {
                let Entry { state, span, .. } = self.entries[entry];
                assert_ne!(state, EntryState::Empty, "an empty entry has no span");
                span
            },
            held.iter().copied(),
        );
        assert_eq!(held.len(), self.held, "they are counted");
        assert_eq!((blocks, used), (self.blocks, self.used_pages), "they are counted");
        self.audit_shares();
        self.audit_late();
    }

    fn audit_shares(&self) {
        let taken = self.entries.iter().enumerate();
        let taken = taken.filter(|(_, one)| one.state != EntryState::Empty);
        self.shares.audit(taken.map(|(at, one)| {
            let is_late = one.stage != WriteStage::Stored && one.state != EntryState::Held;
            (one.uid, self.pages_of(at), one.came_s, is_late)
        }));
    }
}

/// Visits whose time a look at all readers takes.
fn costs(view: &impl TierView) -> u32 {
    small(view.holders().div_ceil(8))
}

#[cfg(test)]
mod tests;
