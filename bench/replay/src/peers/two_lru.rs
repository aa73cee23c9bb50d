//! Least recently used in memory, and least recently used on a drive below.

use super::{CacheResult, Lru, Order, PeerCache};

/// Both levels take every block of each request, and evict tails before heads.
#[derive(Debug)]
pub(crate) struct TwoLru {
    memory: Lru,
    drive: Lru,
    memory_hits: u64,
}

impl TwoLru {
    pub(crate) fn new((memory, drive): (u64, u64), distinct: u32) -> Self {
        let level = |blocks| Lru::new(blocks, distinct, Order::TailFirst);
        Self { memory: level(memory), drive: level(drive), memory_hits: 0 }
    }
}

impl PeerCache for TwoLru {
    fn request(&mut self, blocks: &[u32]) -> CacheResult {
        let there = |block: &&u32| self.memory.has(**block) || self.drive.has(**block);
        let found = blocks.iter().take_while(there);
        let (mut hits, mut in_memory) = (0, 0);
        for block in found {
            hits += 1;
            in_memory += u64::from(self.memory.has(*block));
        }
        self.memory_hits += in_memory;
        self.memory.request(blocks);
        CacheResult { hits, written: self.drive.request(blocks).written }
    }

    fn memory_hits(&self) -> Option<u64> {
        Some(self.memory_hits)
    }
}
