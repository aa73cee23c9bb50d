//! Least recently used.

use super::{Access, Peer};

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
}

impl Lru {
    pub(crate) fn new(capacity: u64, distinct: u32) -> Self {
        let absent = Links { newer: NONE, older: NONE, there: false };
        let links = vec![absent; distinct as usize];
        Self { links, newest: NONE, oldest: NONE, count: 0, capacity }
    }

    fn push(&mut self, block: u32) {
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

    fn remove(&mut self, block: u32) {
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

impl Peer for Lru {
    fn access(&mut self, block: u32) -> Access {
        let hit = self.links[block as usize].there;
        if hit {
            self.remove(block);
        } else if self.capacity == 0 {
            return Access::Passed;
        } else if self.count == self.capacity {
            self.remove(self.oldest);
        }
        self.push(block);
        if hit { Access::Hit } else { Access::Written }
    }
}

#[cfg(test)]
mod tests {
    use super::Lru;
    use crate::peers::{Access, Peer};

    #[test]
    fn the_least_recent_goes() {
        let mut lru = Lru::new(2, 4);
        let blocks = [0, 1, 0, 2, 0, 1, 1, 3, 2];
        let hits: Vec<bool> = blocks.map(|it| lru.access(it) == Access::Hit).into();
        assert_eq!(hits, [false, false, true, false, true, false, true, false, false]);
    }
}
