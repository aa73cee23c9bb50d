//! Which blocks of a member lie in memory too: admission, places and eviction, without the bytes.
//!
//! A block comes in at its second get within the time in which as many other keys were asked for as
//! the tier has entries: what is asked for once passes through. Places are spans in the order of
//! their addresses. A hand goes round them: a span that was used since its last visit stays, others
//! go, and the first run of free bytes that is long enough is the new block's. So lengths may
//! differ, no byte is ever moved, and each step is a few words. What clients fetch comes in at
//! once, and takes a part of the tier from other blocks in a second (`fetches`).

mod fetches;

use fetches::FetchBudget;

/// Entries of a set: the keys that share it compete.
pub const WAYS: usize = 4;

/// Spans that searches visit at most until `renew`: some microseconds.
const VISITS_MAX: u32 = 64;

/// Entries that a step of a clear looks at.
const CLEARED_AT_ONCE: usize = 1024;

/// The first span by address: it grows and shrinks, and never goes.
const FIRST: u32 = 0;

/// No span.
const NONE: u32 = u32::MAX;

/// What an entry is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryState {
    Empty,
    /// The device writes its bytes; `Doomed`: they are never to be seen.
    Filling,
    Doomed,
    /// Readers find it.
    Shown,
    /// No reader finds it any more, and one may still read its memory.
    Held,
}

/// A block's place in the table of keys.
#[derive(Clone, Copy, Debug)]
struct Entry {
    uid: u64,
    lo: u64,
    span: u32,
    state: EntryState,
    is_used: bool,
}

const EMPTY: Entry = Entry { uid: 0, lo: 0, span: NONE, state: EntryState::Empty, is_used: false };

/// Consecutive pages: of one entry, or free.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: u32,
    pages: u32,
    /// `NONE`: it is free.
    entry: u32,
    next: u32,
    before: u32,
}

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
}

/// Counters of a tier since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// Blocks that came in.
    pub filled: u64,
    /// Their bytes, whole pages.
    pub filled_pages: u64,
    /// Blocks that went for others.
    pub evicted: u64,
    /// Blocks for which no room was found.
    pub refused: u64,
    /// Blocks that went because a reader found them wrong.
    pub wrong: u64,
}

/// The tier of one member.
#[derive(Debug)]
pub struct MemoryTier {
    entries: Box<[Entry]>,
    spans: Vec<Span>,
    /// Numbers of spans that are none now.
    unused: Vec<u32>,
    /// Where the next search begins.
    hand: u32,
    /// Spans that may still be visited until `renew`.
    visits: u32,
    /// The next entry of a clear that goes on; nothing comes in meanwhile.
    clearing: Option<usize>,
    pages: u32,
    fetches: FetchBudget,
    /// Fingerprints of keys that were asked for once, newest first in each set: with one place for
    /// each, two keys that take turns would push each other out for ever.
    seen: Box<[[u32; WAYS]]>,
    blocks: u64,
    used_pages: u64,
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
        let spans_max = 2 * entries + 1;
        assert!(u32::try_from(spans_max).is_ok_and(|max| max < NONE), "numbers have 32 bits");
        let mut spans = Vec::with_capacity(spans_max);
        spans.push(Span { first: 0, pages, entry: NONE, next: NONE, before: NONE });
        Self {
            entries: vec![EMPTY; entries].into_boxed_slice(),
            spans,
            unused: Vec::with_capacity(spans_max),
            hand: FIRST,
            visits: VISITS_MAX,
            clearing: None,
            pages,
            fetches: FetchBudget::new(pages),
            seen: vec![[0; WAYS]; (entries / WAYS).next_power_of_two()].into_boxed_slice(),
            blocks: 0,
            used_pages: 0,
            counts: TierCounts::default(),
        }
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

    /// Its pages.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages
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
        let is_here = self.find(uid, lo, view).is_some();
        if !is_here && !self.fetches.allows(self.pages, self.used_pages) {
            self.counts.refused += 1;
            return None;
        }
        let evicted = self.counts.evicted;
        // Not a use: were all blocks used ones, the hand would take the next best.
        let room = self.enter((uid, lo), pages, view);
        if !is_here && (room.is_none() || self.counts.evicted > evicted) {
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

    /// Searches may visit spans again: called once in a while, which bounds the work in between.
    /// Goes on with a clear. True: that has more to do.
    pub fn renew(&mut self, now_ns: u64, view: &mut impl TierView) -> bool {
        self.visits = VISITS_MAX;
        self.fetches.renew(now_ns);
        let Some(from) = self.clearing else { return false };
        let (mut end, mut left) = (from, CLEARED_AT_ONCE);
        while end < self.entries.len() && left > 0 {
            left -= 1;
            if self.entries[end].state == EntryState::Shown {
                left = left.saturating_sub(16 * costs(view) as usize);
                self.leave(end, view);
            }
            end += 1;
        }
        self.clearing = (end < self.entries.len()).then_some(end);
        self.clearing.is_some()
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
        if pages > self.pages || self.clearing.is_some() || self.visits == 0 {
            return None;
        }
        let entry = self.choose_entry((uid, lo), view)?;
        let span = self.sweep(pages, view)?;
        self.cut(span, pages);
        self.spans[span as usize].entry = small(entry);
        let page = self.spans[span as usize].first;
        let state = EntryState::Filling;
        self.entries[entry] = Entry { uid, lo, span, state, is_used: false };
        self.blocks += 1;
        self.used_pages += u64::from(pages);
        self.hand = self.after(span);
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
            } else if self.let_go(at, view).is_some() {
                return Some(at);
            }
        }
        None
    }

    /// Goes round until this number of pages lies free one behind the other; returns their span.
    fn sweep(&mut self, pages: u32, view: &mut impl TierView) -> Option<u32> {
        while self.visits > 0 {
            self.visits -= 1;
            let at = self.hand;
            let Span { entry, pages: there, .. } = self.spans[at as usize];
            if entry == NONE && there >= pages {
                return Some(at);
            }
            let free = match entry {
                NONE => None,
                entry => self.pass(entry as usize, view),
            };
            // The free span that it is part of now, or the next one.
            self.hand = free.unwrap_or_else(|| self.after(at));
        }
        None
    }

    /// The hand comes by: what was not used goes. Returns the free span.
    fn pass(&mut self, entry: usize, view: &mut impl TierView) -> Option<u32> {
        let Entry { state, is_used, .. } = self.entries[entry];
        if state == EntryState::Shown && is_used {
            self.clear_used(entry, view);
            return None;
        }
        self.let_go(entry, view)
    }

    /// The block of an entry goes, unless a reader or the device is at its memory. Returns the free
    /// span.
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
        self.leave(entry, view)
    }

    /// No reader finds the block of an entry from now on. Returns the free span, unless one still
    /// reads it: its memory is free when the hand comes by and none does.
    fn leave(&mut self, entry: usize, view: &mut impl TierView) -> Option<u32> {
        view.hide(entry);
        if view.is_held(entry) {
            self.entries[entry].state = EntryState::Held;
            return None;
        }
        Some(self.release(entry))
    }

    /// Frees an entry and its pages, which no reader and no device uses any more.
    fn release(&mut self, entry: usize) -> u32 {
        let span = self.entries[entry].span;
        self.entries[entry] = EMPTY;
        self.blocks -= 1;
        self.used_pages -= u64::from(self.spans[span as usize].pages);
        self.spans[span as usize].entry = NONE;
        let span = self.join_with_next(span);
        let before = self.spans[span as usize].before;
        match before != NONE && self.spans[before as usize].entry == NONE {
            true => self.join_with_next(before),
            false => span,
        }
    }

    /// One free span of this one and the next, if that is free.
    fn join_with_next(&mut self, at: u32) -> u32 {
        let next = self.spans[at as usize].next;
        if next == NONE || self.spans[next as usize].entry != NONE {
            return at;
        }
        let Span { pages, next: behind, .. } = self.spans[next as usize];
        self.spans[at as usize].pages += pages;
        self.spans[at as usize].next = behind;
        if behind != NONE {
            self.spans[behind as usize].before = at;
        }
        if self.hand == next {
            self.hand = at;
        }
        self.unused.push(next);
        at
    }

    /// Leaves a free span this number of pages, and makes another of the rest.
    fn cut(&mut self, at: u32, pages: u32) {
        let Span { first, pages: there, next, .. } = self.spans[at as usize];
        if there == pages {
            return;
        }
        let rest =
            Span { first: first + pages, pages: there - pages, entry: NONE, next, before: at };
        let number = match self.unused.pop() {
            Some(number) => {
                self.spans[number as usize] = rest;
                number
            }
            None => {
                self.spans.push(rest);
                small(self.spans.len() - 1)
            }
        };
        let span = &mut self.spans[at as usize];
        (span.pages, span.next) = (pages, number);
        if next != NONE {
            self.spans[next as usize].before = number;
        }
    }

    /// The next span by address; behind the last comes the first.
    fn after(&self, at: u32) -> u32 {
        match self.spans[at as usize].next {
            NONE => FIRST,
            next => next,
        }
    }

    fn clear_used(&mut self, entry: usize, view: &mut impl TierView) {
        self.entries[entry].is_used = false;
        view.clear_used(entry);
    }

    fn set_used(&mut self, entry: usize, view: &mut impl TierView) {
        let one = &mut self.entries[entry];
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
        let Some(entry) = self.find(uid, lo, view) else { return false };
        if self.entries[entry].state == EntryState::Filling {
            self.entries[entry].state = EntryState::Doomed;
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
        let span = self.entries[room.entry].span;
        self.counts.filled += 1;
        self.counts.filled_pages += u64::from(self.spans[span as usize].pages);
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
    }

    /// Checks that spans and entries are what they say, for tests.
    ///
    /// # Panics
    /// If they are not.
    pub fn audit(&self) {
        let (mut at, mut before, mut page, mut was_free) = (FIRST, NONE, 0, false);
        let (mut blocks, mut used) = (0, 0);
        while at != NONE {
            let Span { first, pages, entry, next, before: back } = self.spans[at as usize];
            assert_eq!((first, back), (page, before), "spans lie one behind the other");
            assert!(pages > 0 && !(was_free && entry == NONE), "free neighbours are one span");
            if entry != NONE {
                let owner = self.entries[entry as usize];
                assert_eq!(owner.span, at, "a span is its entry's");
                assert_ne!(owner.state, EntryState::Empty, "an empty entry has no span");
                (blocks, used) = (blocks + 1, used + u64::from(pages));
            }
            (page, before, at, was_free) = (page + pages, at, next, entry == NONE);
        }
        assert_eq!(page, self.pages, "spans fill the memory");
        assert_eq!((blocks, used), (self.blocks, self.used_pages), "they are counted");
    }
}

/// Visits whose time a look at all readers takes.
fn costs(view: &impl TierView) -> u32 {
    small(view.holders().div_ceil(8))
}

fn small(number: usize) -> u32 {
    u32::try_from(number).expect("numbers have 32 bits")
}

#[cfg(test)]
mod tests;
