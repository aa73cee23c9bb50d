//! Which pages of a tier are whose: spans in the order of their addresses, and the hand among them.

use super::lists::{NONE, SpanLists};

/// The first span by address: it grows and shrinks, and never goes.
const FIRST: u32 = 0;

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

/// All pages of a tier.
#[derive(Debug)]
pub(super) struct Places {
    spans: Vec<Span>,
    /// Numbers of spans that are none now.
    unused: Vec<u32>,
    lists: SpanLists,
    /// Where the next search begins.
    hand: u32,
    /// A span that the hand comes to soon.
    ahead: u32,
    pages: u32,
}

impl Places {
    /// Pages of which none is used yet, for this number of entries.
    pub(super) fn new(pages: u32, entries: usize) -> Self {
        let spans_max = 2 * entries + 1;
        assert!(u32::try_from(spans_max).is_ok_and(|max| max < NONE), "numbers have 32 bits");
        let mut spans = Vec::with_capacity(spans_max);
        spans.push(Span { first: 0, pages, entry: NONE, next: NONE, before: NONE });
        let (unused, mut lists) = (Vec::with_capacity(spans_max), SpanLists::new(spans_max));
        lists.add_free(FIRST, pages);
        Self { spans, unused, lists, hand: FIRST, ahead: FIRST, pages }
    }

    /// All of them.
    pub(super) fn pages(&self) -> u32 {
        self.pages
    }

    /// The hand's span, its entry (`NONE`: it is free) and pages.
    pub(super) fn at_hand(&self) -> (u32, u32, u32) {
        let Span { entry, pages, .. } = self.spans[self.hand as usize];
        (self.hand, entry, pages)
    }

    /// Pages of a span.
    pub(super) fn pages_of(&self, span: u32) -> u32 {
        self.spans[span as usize].pages
    }

    /// Moves the hand to a span.
    pub(super) fn move_hand(&mut self, to: u32) {
        self.hand = to;
    }

    /// The entry of the next span ahead of the hand (`NONE`: it is free), each once: none that the
    /// hand comes to after `window` pages, or after as many that are free.
    pub(super) fn look_ahead(&mut self, window: u32) -> Option<u32> {
        let first = |span: u32| self.spans[span as usize].first;
        let (at, hand) = (first(self.ahead), first(self.hand));
        let before = if at >= hand { at - hand } else { at + (self.pages - hand) };
        if before > self.pages / 2 {
            // The hand has come by.
            self.ahead = self.hand;
        } else if before > window {
            return None;
        }
        let Span { entry, pages, .. } = self.spans[self.ahead as usize];
        if entry == NONE && pages > window {
            return None;
        }
        self.ahead = self.after(self.ahead);
        Some(entry)
    }

    /// A free span with at least this number of pages, wherever the hand is. `None`: there is none,
    /// or none was found soon.
    pub(super) fn find_free(&self, pages: u32) -> Option<u32> {
        self.lists.find(pages, |span| self.pages_of(span))
    }

    /// Gives an entry the first pages of a free span; the hand goes on behind it. The first page.
    pub(super) fn take(&mut self, span: u32, pages: u32, entry: u32) -> u32 {
        self.lists.take_free(span, self.pages_of(span));
        self.cut(span, pages);
        self.spans[span as usize].entry = entry;
        let next = self.after(span);
        let was_at = std::mem::replace(&mut self.hand, next);
        if was_at != span {
            // It has left out what is in between.
            self.ahead = self.hand;
        }
        self.spans[span as usize].first
    }

    /// The block of a span is hidden, and one still reads it.
    pub(super) fn hold(&mut self, span: u32) {
        self.lists.add_held(span);
    }

    /// None reads it any more.
    pub(super) fn end_hold(&mut self, span: u32) {
        self.lists.take_held(span);
    }

    /// The entry of a span that was held, each in turn.
    pub(super) fn next_held(&mut self) -> Option<u32> {
        let span = self.lists.next_held()?;
        Some(self.spans[span as usize].entry)
    }

    /// The pages of a span are free from now on. The free span that it is part of.
    pub(super) fn free(&mut self, span: u32) -> u32 {
        self.spans[span as usize].entry = NONE;
        let Span { next, before, .. } = self.spans[span as usize];
        if self.is_free(next) {
            self.lists.take_free(next, self.pages_of(next));
            self.join_with_next(span);
        }
        let at = if self.is_free(before) { before } else { span };
        if at == before {
            self.lists.take_free(before, self.pages_of(before));
            self.join_with_next(before);
        }
        self.lists.add_free(at, self.pages_of(at));
        at
    }

    fn is_free(&self, span: u32) -> bool {
        span != NONE && self.spans[span as usize].entry == NONE
    }

    /// One free span of this one and the next.
    fn join_with_next(&mut self, at: u32) {
        let next = self.spans[at as usize].next;
        let Span { pages, next: behind, .. } = self.spans[next as usize];
        self.spans[at as usize].pages += pages;
        self.spans[at as usize].next = behind;
        if behind != NONE {
            self.spans[behind as usize].before = at;
        }
        for one in [&mut self.hand, &mut self.ahead] {
            if *one == next {
                *one = at;
            }
        }
        self.unused.push(next);
    }

    /// Leaves a span this number of pages, and makes a free one of the rest.
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
        self.lists.add_free(number, there - pages);
    }

    /// The next span by address; behind the last comes the first.
    pub(super) fn after(&self, at: u32) -> u32 {
        match self.spans[at as usize].next {
            NONE => FIRST,
            next => next,
        }
    }

    /// Checks that spans fill the pages, that each is the one of its entry, and that these are
    /// held. Entries that have one, and pages of theirs.
    pub(super) fn audit(
        &self,
        span_of: impl Fn(usize) -> u32,
        held: impl Iterator<Item = u32>,
    ) -> (u64, u64) {
        let (mut at, mut before, mut page, mut was_free) = (FIRST, NONE, 0, false);
        let (mut blocks, mut used, mut free) = (0, 0, Vec::new());
        while at != NONE {
            let Span { first, pages, entry, next, before: back } = self.spans[at as usize];
            assert_eq!((first, back), (page, before), "spans lie one behind the other");
            assert!(pages > 0 && !(was_free && entry == NONE), "free neighbours are one span");
            if entry != NONE {
                assert_eq!(span_of(entry as usize), at, "a span is its entry's");
                (blocks, used) = (blocks + 1, used + u64::from(pages));
            } else {
                free.push((at, pages));
            }
            (page, before, at, was_free) = (page + pages, at, next, entry == NONE);
        }
        assert_eq!(page, self.pages, "spans fill the memory");
        self.lists.audit(free.into_iter(), held);
        (blocks, used)
    }
}

/// A number of 32 bits.
pub(super) fn small(number: usize) -> u32 {
    u32::try_from(number).expect("numbers have 32 bits")
}
