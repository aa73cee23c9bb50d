//! Spans of a tier that are found without a walk: free ones by their length, for blocks that come
//! in, and those that are to be free once no reader has them.

/// No span, or no entry.
pub(super) const NONE: u32 = u32::MAX;

/// Free spans of `2^n` pages and more, to less than twice as many, are in list `n`.
const LENGTHS: usize = 32;
/// Spans whose blocks are hidden, while one may still read them.
const HELD: usize = LENGTHS;

/// Spans of the list in which one may be too short that a search looks at; in those behind it none
/// is.
const LOOKED_AT: usize = 8;

/// Where a span is in its list.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// The one behind it; `NONE`: it is the last one.
    next: u32,
    /// The one before it; of the first one, the list's last one.
    before: u32,
}

/// Lists of spans, by number. Each free span is in one of them, and each one that is held.
#[derive(Debug)]
pub(super) struct SpanLists {
    first: [u32; LENGTHS + 1],
    links: Vec<Link>,
}

impl SpanLists {
    /// For this number of spans.
    pub(super) fn new(spans: usize) -> Self {
        Self { first: [NONE; LENGTHS + 1], links: Vec::with_capacity(spans) }
    }

    /// A span of this number of pages is free.
    pub(super) fn add_free(&mut self, span: u32, pages: u32) {
        self.add(of_length(pages), span);
    }

    /// It is not free any more, or has other pages.
    pub(super) fn take_free(&mut self, span: u32, pages: u32) {
        self.take(of_length(pages), span);
    }

    /// A span is to be free once no reader has it.
    pub(super) fn add_held(&mut self, span: u32) {
        self.add(HELD, span);
    }

    /// No reader has it.
    pub(super) fn take_held(&mut self, span: u32) {
        self.take(HELD, span);
    }

    /// The one of those that was returned longest ago.
    pub(super) fn next_held(&mut self) -> Option<u32> {
        let span = Some(self.first[HELD]).filter(|span| *span != NONE)?;
        self.take(HELD, span);
        self.add(HELD, span);
        Some(span)
    }

    /// A free span of at least this number of pages, if one is found among a few: rather one of
    /// those that have been free for long.
    pub(super) fn find(&self, pages: u32, pages_of: impl Fn(u32) -> u32) -> Option<u32> {
        let own = of_length(pages);
        let mut at = self.first[own];
        for _ in 0..LOOKED_AT {
            if at == NONE {
                break;
            }
            if pages_of(at) >= pages {
                return Some(at);
            }
            at = self.links[at as usize].next;
        }
        self.first[own + 1..LENGTHS].iter().copied().find(|first| *first != NONE)
    }

    /// A span comes last in a list.
    fn add(&mut self, list: usize, span: u32) {
        while self.links.len() <= span as usize {
            self.links.push(Link { next: NONE, before: NONE });
        }
        let first = self.first[list];
        if first == NONE {
            self.first[list] = span;
            self.links[span as usize] = Link { next: NONE, before: span };
            return;
        }
        let last = std::mem::replace(&mut self.links[first as usize].before, span);
        self.links[last as usize].next = span;
        self.links[span as usize] = Link { next: NONE, before: last };
    }

    /// A span leaves its list.
    fn take(&mut self, list: usize, span: u32) {
        let Link { next, before } = self.links[span as usize];
        let first = self.first[list];
        if span == first {
            self.first[list] = next;
        } else {
            self.links[before as usize].next = next;
        }
        // Behind the last one comes the first, for this.
        let behind = if next == NONE { first } else { next };
        if behind != span {
            self.links[behind as usize].before = before;
        }
    }

    /// Checks that each free span is in the list of its length, and each that is held in theirs,
    /// for tests: numbers of spans, and pages of free ones.
    pub(super) fn audit(
        &self,
        free: impl Iterator<Item = (u32, u32)>,
        held: impl Iterator<Item = u32>,
    ) {
        let listed = |list: usize| {
            let (mut at, mut last) = (self.first[list], NONE);
            let mut spans = Vec::new();
            while at != NONE {
                let Link { next, before } = self.links[at as usize];
                assert!(spans.is_empty() || before == last, "spans are linked both ways");
                spans.push((list, at));
                (last, at) = (at, next);
            }
            if let Some((_, first)) = spans.first() {
                assert_eq!(
                    self.links[*first as usize].before, last,
                    "the first one knows the last"
                );
            }
            spans
        };
        let mut there: Vec<_> = (0..=HELD).flat_map(listed).collect();
        let free = free.map(|(span, pages)| (of_length(pages), span));
        let mut all: Vec<_> = free.chain(held.map(|span| (HELD, span))).collect();
        there.sort_unstable();
        all.sort_unstable();
        assert_eq!(there, all, "each span is in its list, once");
    }
}

/// The list of free spans of this length.
fn of_length(pages: u32) -> usize {
    pages.ilog2() as usize
}
