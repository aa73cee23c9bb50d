//! What each namespace has in a tier.

use std::collections::HashMap;

/// Namespaces that are known at most; the blocks of further ones are not counted. A store has a
/// quarter as many open at once: the others were cleared, and their blocks have not gone yet.
const KNOWN_MAX: usize = 4096;

/// When the room of a block was made that is not counted.
const UNCOUNTED: u32 = u32::MAX;

/// What a namespace has in a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierShare {
    /// Its blocks, those on their way too.
    pub blocks: u64,
    /// Their pages.
    pub pages: u64,
    /// Those of its blocks that the store has not got.
    pub late_blocks: u64,
    /// Pages of late blocks that went without being written.
    pub late_dropped_pages: u64,
    /// How long its blocks have been there in seconds, added up.
    pub ages_s: u64,
}

/// What is known of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    /// But for its ages, which change by themselves.
    share: TierShare,
    /// When its blocks came, added up.
    came_s: u64,
    /// Pages that were dropped when `by_pool` was called last.
    taken_pages: u64,
    pool: u8,
    /// The store has a namespace with this uid, as of the last `keep`.
    is_kept: bool,
    /// It had one, and has none any more: no reader asks for its blocks.
    is_over: bool,
}

impl Known {
    fn at(&self, now_s: u32) -> TierShare {
        let ages_s = self.share.blocks * u64::from(now_s) - self.came_s;
        TierShare { ages_s, ..self.share }
    }

    /// Whether it may be forgotten: nothing of it is here, and nothing is still to be taken.
    fn is_idle(&self) -> bool {
        self.share.blocks == 0 && self.share.late_dropped_pages == self.taken_pages
    }
}

/// The shares of all namespaces, by their uids.
#[derive(Debug)]
pub(super) struct TierShares {
    /// Has room for twice as many: a table that is half full moves its entries where it lies, and
    /// pollers allocate nothing.
    known: HashMap<u64, Known>,
    /// Some of them may be forgotten.
    has_idle: bool,
}

impl TierShares {
    pub(super) fn new() -> Self {
        Self { known: HashMap::with_capacity(2 * KNOWN_MAX), has_idle: false }
    }

    /// A namespace's share at this time.
    pub(super) fn at(&self, uid: u64, now_s: u32) -> TierShare {
        self.known.get(&uid).map(|known| known.at(now_s)).unwrap_or_default()
    }

    /// A block has come. The time that it came at for `lose`.
    #[must_use]
    pub(super) fn gain(&mut self, uid: u64, pages: u64, now_s: u32) -> u32 {
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&uid) {
            if std::mem::take(&mut self.has_idle) {
                self.known.retain(|_, known| !known.is_idle());
            }
            if self.known.len() >= KNOWN_MAX {
                return UNCOUNTED;
            }
        }
        let known = self.known.entry(uid).or_default();
        known.share.blocks += 1;
        known.share.pages += pages;
        known.came_s += u64::from(now_s);
        now_s
    }

    /// A block that came then has gone.
    pub(super) fn lose(&mut self, uid: u64, pages: u64, came_s: u32) {
        let Some(known) = self.counted(uid, came_s) else { return };
        known.share.blocks -= 1;
        known.share.pages -= pages;
        known.came_s -= u64::from(came_s);
        self.has_idle |= known.is_idle();
    }

    /// The store has not got a block that came then.
    pub(super) fn gain_late(&mut self, uid: u64, came_s: u32) {
        if let Some(known) = self.counted(uid, came_s) {
            known.share.late_blocks += 1;
        }
    }

    /// The store has got it, or it is gone.
    pub(super) fn lose_late(&mut self, uid: u64, came_s: u32) {
        if let Some(known) = self.counted(uid, came_s) {
            known.share.late_blocks -= 1;
        }
    }

    /// It is gone, and was never written.
    pub(super) fn drop_late(&mut self, uid: u64, pages: u64, came_s: u32) {
        if let Some(known) = self.counted(uid, came_s) {
            known.share.late_dropped_pages += pages;
        }
    }

    fn counted(&mut self, uid: u64, came_s: u32) -> Option<&mut Known> {
        if came_s == UNCOUNTED { None } else { self.known.get_mut(&uid) }
    }

    /// The store has a namespace with this uid, in this pool.
    pub(super) fn keep(&mut self, uid: u64, pool: u8) {
        if let Some(known) = self.known.get_mut(&uid) {
            (known.pool, known.is_kept) = (pool, true);
        }
    }

    /// All that the store has were kept: what it had before is over. Whether one with blocks is
    /// over since now.
    pub(super) fn end_others(&mut self) -> bool {
        let mut any = false;
        for known in self.known.values_mut() {
            let is_over = !std::mem::take(&mut known.is_kept);
            let was_over = std::mem::replace(&mut known.is_over, is_over);
            any |= is_over && !was_over && known.share.blocks > 0;
        }
        any
    }

    /// Whether the namespace with this uid is over.
    pub(super) fn is_over(&self, uid: u64) -> bool {
        self.known.get(&uid).is_some_and(|known| known.is_over)
    }

    /// As `MemoryTier::by_pool`.
    pub(super) fn by_pool(&mut self, now_s: u32) -> impl Iterator<Item = (u8, TierShare)> {
        let Self { known, has_idle } = self;
        known.values_mut().map(move |known| {
            let all = known.share.late_dropped_pages;
            let late_dropped_pages = all - std::mem::replace(&mut known.taken_pages, all);
            *has_idle |= known.is_idle();
            (known.pool, TierShare { late_dropped_pages, ..known.at(now_s) })
        })
    }

    /// Checks that these are the shares of these blocks, for tests: uid, pages, time and whether
    /// the store lacks it. What went without a write is not theirs to know.
    pub(super) fn audit(&self, blocks: impl Iterator<Item = (u64, u64, u32, bool)>) {
        let mut there = Self::new();
        for (uid, pages, came_s, is_late) in blocks.filter(|block| block.2 != UNCOUNTED) {
            assert_eq!(there.gain(uid, pages, came_s), came_s, "as many are counted");
            if is_late {
                there.gain_late(uid, came_s);
            }
        }
        for (uid, known) in &self.known {
            let now = there.known.remove(uid).unwrap_or_default();
            let late_dropped_pages = known.share.late_dropped_pages;
            let share = TierShare { late_dropped_pages, ..now.share };
            assert_eq!((known.share, known.came_s), (share, now.came_s), "namespace {uid}");
        }
        assert!(there.known.is_empty(), "blocks without a share: {:?}", there.known);
    }
}

#[cfg(test)]
mod tests {
    use super::{KNOWN_MAX, TierShare, TierShares, UNCOUNTED};

    /// A tier's memory has a limit whatever clients open and clear.
    #[test]
    fn namespaces_that_come_and_go_do_not_pile_up() {
        let mut shares = TierShares::new();
        let room = shares.known.capacity();
        for uid in 0..3 * KNOWN_MAX as u64 {
            assert_eq!(shares.gain(uid, 1, 0), 0);
            if uid > 0 {
                shares.lose(uid, 1, 0);
            }
        }
        assert!(shares.known.len() <= KNOWN_MAX && shares.known.capacity() == room);
        assert_eq!(shares.at(0, 7).ages_s, 7, "it has a block");
    }

    #[test]
    fn what_is_beyond_the_known_ones_is_not_counted() {
        let mut shares = TierShares::new();
        let (room, most) = (shares.known.capacity(), KNOWN_MAX as u64);
        let came: Vec<u32> = (0..2 * most).map(|uid| shares.gain(uid, 1, 5)).collect();
        assert!(came[..KNOWN_MAX].iter().all(|came_s| *came_s == 5));
        assert!(came[KNOWN_MAX..].iter().all(|came_s| *came_s == UNCOUNTED));
        assert_eq!((shares.known.len(), shares.known.capacity()), (KNOWN_MAX, room));
        let beyond = most + 1;
        shares.gain_late(beyond, UNCOUNTED);
        shares.drop_late(beyond, 1, UNCOUNTED);
        shares.lose_late(beyond, UNCOUNTED);
        shares.lose(beyond, 1, UNCOUNTED);
        assert_eq!(shares.at(beyond, 9), TierShare::default());
        shares.lose(3, 1, 5);
        assert_eq!(shares.gain(beyond, 1, 6), 6, "one has made room");
    }

    #[test]
    fn what_was_dropped_is_taken_once_and_not_forgotten_before() {
        let mut shares = TierShares::new();
        let came_s = shares.gain(1, 2, 0);
        shares.keep(1, 3);
        shares.gain_late(1, came_s);
        shares.drop_late(1, 2, came_s);
        shares.lose_late(1, came_s);
        shares.lose(1, 2, came_s);
        assert!(!shares.has_idle, "its pool does not know yet");
        let dropped = |shares: &mut TierShares| {
            shares.by_pool(0).map(|(pool, share)| (pool, share.late_dropped_pages)).next().unwrap()
        };
        assert_eq!([dropped(&mut shares), dropped(&mut shares)], [(3, 2), (3, 0)]);
        assert!(shares.has_idle);
        assert_eq!(shares.at(1, 0).late_dropped_pages, 2);
    }
}
