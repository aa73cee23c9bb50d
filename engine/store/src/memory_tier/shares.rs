//! What each namespace has in a tier.

use std::collections::HashMap;

/// Namespaces that are known at least: what those without a block had is forgotten for others.
const KNOWN: usize = 4096;

/// What a namespace has in a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierShare {
    /// Its blocks, those on their way too.
    pub blocks: u64,
    /// Their pages.
    pub pages: u64,
    /// Those of its blocks that the store has not got.
    pub late_blocks: u64,
    /// Pages of late blocks that went without being written, since the start.
    pub late_dropped_pages: u64,
    /// How long its blocks have been there in seconds, added up.
    pub ages_s: u64,
}

/// What is known of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// But for its ages, which change by themselves.
    share: TierShare,
    /// When its blocks came, added up.
    came_s: u64,
    /// Pages that were dropped when `take_dropped` was called last.
    taken_pages: u64,
}

impl Known {
    /// A block has come.
    pub(super) fn gain(&mut self, pages: u64, came_s: u32) {
        self.share.blocks += 1;
        self.share.pages += pages;
        self.came_s += u64::from(came_s);
    }

    /// A block that came then has gone.
    pub(super) fn lose(&mut self, pages: u64, came_s: u32) {
        self.share.blocks -= 1;
        self.share.pages -= pages;
        self.came_s -= u64::from(came_s);
    }

    /// The store has not got one of its blocks.
    pub(super) fn gain_late(&mut self) {
        self.share.late_blocks += 1;
    }

    /// The store has got it, or it is gone.
    pub(super) fn lose_late(&mut self) {
        self.share.late_blocks -= 1;
    }

    /// It is gone, and was never written.
    pub(super) fn drop_late(&mut self, pages: u64) {
        self.share.late_dropped_pages += pages;
    }
}

/// The shares of all namespaces, by their uids.
#[derive(Debug)]
pub(super) struct TierShares(HashMap<u64, Known>);

impl TierShares {
    pub(super) fn new() -> Self {
        Self(HashMap::with_capacity(KNOWN))
    }

    /// A namespace's share at this time.
    pub(super) fn at(&self, uid: u64, now_s: u32) -> TierShare {
        let Known { share, came_s, .. } = self.0.get(&uid).copied().unwrap_or_default();
        TierShare { ages_s: share.blocks * u64::from(now_s) - came_s, ..share }
    }

    /// As `MemoryTier::take_late_dropped`.
    pub(super) fn take_dropped(&mut self, uid: u64) -> u64 {
        let Some(Known { share, taken_pages, .. }) = self.0.get_mut(&uid) else { return 0 };
        let all = share.late_dropped_pages;
        all - std::mem::replace(taken_pages, all)
    }

    /// What is known of a namespace.
    pub(super) fn of(&mut self, uid: u64) -> &mut Known {
        if self.0.len() >= KNOWN && !self.0.contains_key(&uid) {
            self.0.retain(|_, known| known.share.blocks > 0);
        }
        self.0.entry(uid).or_default()
    }

    /// Namespaces that are known.
    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.0.len()
    }

    /// Checks that these are the shares of blocks, for tests: what went without a write is not
    /// theirs to know.
    pub(super) fn audit(&self, mut there: HashMap<u64, Known>) {
        for (uid, known) in &self.0 {
            let mut now = there.remove(uid).unwrap_or_default();
            now.share.late_dropped_pages = known.share.late_dropped_pages;
            now.taken_pages = known.taken_pages;
            assert_eq!(*known, now, "namespace {uid}");
        }
        assert!(there.is_empty(), "blocks without a share: {there:?}");
    }
}
