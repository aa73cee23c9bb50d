//! Belady: knows what comes, keeps what is asked for soonest, and passes by what is not. No cache
//! of single blocks has more hits.

use std::collections::BTreeSet;

use super::{CacheAccess, CacheResult, PeerCache, in_turn};

/// Asked for no more.
const NEVER: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Belady {
    /// For each block asked for, when it is asked for the next time.
    next: Vec<u32>,
    at: usize,
    /// The cached blocks, by the time of their next request.
    there: BTreeSet<(u32, u32)>,
    /// For each block, its time in `there`.
    due: Vec<u32>,
    capacity: u64,
}

impl Belady {
    /// `blocks`: every block in the order in which they are asked for.
    pub(crate) fn new(capacity: u64, distinct: u32, blocks: impl Iterator<Item = u32>) -> Self {
        let blocks: Vec<u32> = blocks.collect();
        let mut last = vec![NEVER; distinct as usize];
        let mut next = vec![NEVER; blocks.len()];
        for (at, block) in blocks.iter().enumerate().rev() {
            let now = u32::try_from(at).expect("the reader has counted");
            next[at] = std::mem::replace(&mut last[*block as usize], now);
        }
        Self { next, at: 0, there: BTreeSet::new(), due: vec![NEVER; distinct as usize], capacity }
    }
}

impl Belady {
    /// A block is asked for.
    fn access(&mut self, block: u32) -> CacheAccess {
        let next = self.next[self.at];
        self.at += 1;
        let due = &mut self.due[block as usize];
        let hit = self.there.remove(&(*due, block));
        *due = next;
        if next == NEVER {
            return if hit { CacheAccess::Hit } else { CacheAccess::Passed };
        }
        if self.there.len() as u64 == self.capacity {
            match self.there.last().copied() {
                Some(furthest) if furthest.0 > next => self.there.remove(&furthest),
                _ => return CacheAccess::Passed,
            };
        }
        self.there.insert((next, block));
        if hit { CacheAccess::Hit } else { CacheAccess::Written }
    }
}

impl PeerCache for Belady {
    fn request(&mut self, blocks: &[u32]) -> CacheResult {
        in_turn(blocks, |block| self.access(block))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Belady;
    use crate::peers::{Lru, Order, PeerCache};

    #[test]
    fn nothing_has_more_hits() {
        let mut random = fastrand::Rng::with_seed(5);
        let blocks: Vec<u32> =
            (0..5000).map(|_| random.u32(..100).min(random.u32(..100))).collect();
        for capacity in [0, 1, 3, 10, 30, 200] {
            let mut best = Belady::new(capacity, 100, blocks.iter().copied());
            let mut lru = Lru::new(capacity, 100, Order::HeadFirst);
            let mut hits = (0, 0);
            for block in &blocks {
                hits.0 += best.request(&[*block]).hits;
                hits.1 += lru.request(&[*block]).hits;
                assert!(best.there.len() as u64 <= capacity);
            }
            assert!(hits.0 >= hits.1, "{capacity}: {hits:?}");
            let most = 5000 - blocks.iter().collect::<BTreeSet<_>>().len() as u64;
            assert!(capacity < 200 || hits == (most, most), "{hits:?}");
        }
    }
}
