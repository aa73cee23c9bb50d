//! How much of what lies in a tier gives way to blocks that are fetched.
//!
//! A get brings a block in at second sight, a fetch at once: without a limit one client that
//! fetches all it can think of would push out what all others use.

/// The part of a tier that gives way to fetched blocks in a second.
const PART: u32 = 4;

/// Where more than this part of a tier is free, blocks that come in take that and push nothing out.
pub(super) const FREE_PART: u32 = 8;

const SECOND_NS: u64 = 1_000_000_000;

/// Pages that fetches may still take from other blocks.
#[derive(Debug)]
pub(super) struct FetchBudget {
    /// The most there can be, and what a second adds.
    most: u32,
    left: i64,
    /// Until when it was renewed.
    at_ns: u64,
}

impl FetchBudget {
    pub(super) fn new(pages: u32) -> Self {
        let most = (pages / PART).max(1);
        Self { most, left: most.into(), at_ns: 0 }
    }

    /// Adds what came since the last time.
    pub(super) fn renew(&mut self, now_ns: u64) {
        let past_ns = now_ns.saturating_sub(self.at_ns).min(SECOND_NS);
        let earned = past_ns * u64::from(self.most);
        if earned >= SECOND_NS {
            let pages = i64::try_from(earned / SECOND_NS).expect("no more than the most");
            self.left = i64::from(self.most).min(self.left + pages);
            self.at_ns = now_ns - earned % SECOND_NS / u64::from(self.most);
        }
    }

    /// Whether a tier of `pages` pages, `used` of them in use, takes another fetched block.
    pub(super) fn allows(&self, pages: u32, used: u64) -> bool {
        self.left > 0 || used + u64::from(pages / FREE_PART) < u64::from(pages)
    }

    /// A fetched block had others pushed out, or searched in vain: its pages count, also beyond
    /// what is left.
    pub(super) fn take(&mut self, pages: u32) {
        self.left -= i64::from(pages);
    }
}
