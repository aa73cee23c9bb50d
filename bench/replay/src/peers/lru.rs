//! Least recently used.

use super::{CacheAccess, CacheResult, PeerCache, in_turn};

/// In which order the blocks of a request count as used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As they are asked for.
    HeadFirst,
    /// The other way, after all were looked for: a tail goes before its head.
    TailFirst,
}

/// No block.
const NONE: u32 = u32::MAX;

/// Neighbours of a block in the order of use; `NONE` twice for one that is not there.
#[derive(Clone, Copy, Debug)]
struct Links {
    newer: u32,
    older: u32,
    there: bool,
}

/// A list through a table of all blocks.
#[derive(Debug)]
pub(crate) struct Lru {
    links: Vec<Links>,
    newest: u32,
    oldest: u32,
    count: u64,
    capacity: u64,
    order: Order,
}

impl Lru {
    pub(crate) fn new(capacity: u64, distinct: u32, order: Order) -> Self {
        let absent = Links { newer: NONE, older: NONE, there: false };
        let links = vec![absent; distinct as usize];
        Self { links, newest: NONE, oldest: NONE, count: 0, capacity, order }
    }

    pub(crate) fn has(&self, block: u32) -> bool {
        self.links[block as usize].there
    }

    /// A block is asked for, and put where it is not there.
    fn access(&mut self, block: u32) -> CacheAccess {
        let hit = self.has(block);
        if hit {
            self.remove(block);
        } else if self.capacity == 0 {
            return CacheAccess::Passed;
        } else if self.count == self.capacity {
            self.remove(self.oldest);
        }
        self.push(block);
        if hit { CacheAccess::Hit } else { CacheAccess::Written }
    }

    /// Blocks that are there.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The block that was used the longest ago.
    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Enters a block that is not there, as the newest.
    pub(crate) fn push(&mut self, block: u32) {
        let older = self.newest;
        self.links[block as usize] = Links { newer: NONE, older, there: true };
        if older == NONE {
            self.oldest = block;
        } else {
            self.links[older as usize].newer = block;
        }
        self.newest = block;
        self.count += 1;
    }

    /// Takes out a block that is there.
    pub(crate) fn remove(&mut self, block: u32) {
        let Links { newer, older, .. } = self.links[block as usize];
        if newer == NONE {
            self.newest = older;
        } else {
            self.links[newer as usize].older = older;
        }
        if older == NONE {
            self.oldest = newer;
        } else {
            self.links[older as usize].newer = newer;
        }
        self.links[block as usize].there = false;
        self.count -= 1;
    }
}

impl PeerCache for Lru {
    fn request(&mut self, blocks: &[u32]) -> CacheResult {
        if self.order == Order::HeadFirst {
            return in_turn(blocks, |block| self.access(block));
        }
        let hits = blocks.iter().take_while(|block| self.has(**block)).count() as u64;
        let written = |block: &&u32| self.access(**block) == CacheAccess::Written;
        let written = blocks.iter().rev().filter(written).count() as u64;
        CacheResult { hits, written }
    }
}

#[cfg(test)]
mod tests {
    use super::{Lru, Order};
    use crate::peers::{CacheAccess, CacheResult, PeerCache};

    #[test]
    fn the_least_recent_goes() {
        let mut lru = Lru::new(2, 4, Order::HeadFirst);
        let blocks = [0, 1, 0, 2, 0, 1, 1, 3, 2];
        let hits: Vec<bool> = blocks.map(|block| lru.access(block) == CacheAccess::Hit).into();
        assert_eq!(hits, [false, false, true, false, true, false, true, false, false]);
    }

    /// Of a prompt that is longer than the cache the head is left, or the tail.
    #[test]
    fn leaf_first_keeps_heads() {
        for (order, hits) in [(Order::TailFirst, 3), (Order::HeadFirst, 0)] {
            let mut lru = Lru::new(3, 4, order);
            assert_eq!(lru.request(&[0, 1, 2, 3]), CacheResult { hits: 0, written: 4 });
            assert_eq!(lru.request(&[0, 1, 2, 3]).hits, hits, "{order:?}");
        }
    }
}
