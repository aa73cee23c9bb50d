//! A memory tier above the store: what is kept in memory, and what of it is written.

use kvrail_store::{BlockFate, Chain, WriteShare};

use crate::peers::{Lru, Order};
use crate::player::Keyed;
use crate::report::StoreCounts;
use crate::rings::{ChainPlace, Rings, UID};
use crate::store::lower_half;

/// When blocks of the tier are written to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierWrites {
    /// At their put, by an engine with a tier of its own: the store counts no hit of the tier as a
    /// use, and each block that the store served is copied to the tier.
    Apart,
    /// At their put. One policy for both levels: a use in memory counts in the store once the block
    /// leaves memory, and a block that the store has lost meanwhile is written again. The store's
    /// blocks come to memory at their second hit.
    AtOnce,
    /// When they leave memory, with the same policy. Used blocks are; of others a share, which
    /// follows what is asked for later.
    Late,
}

/// A block in memory.
#[derive(Clone, Copy, Debug)]
struct Kept {
    used: bool,
    /// It was never offered to the store.
    is_new: bool,
    chain: Chain,
    place: ChainPlace,
    /// The first of the blocks that came with it.
    first: u32,
}

/// The tier and its store.
pub(crate) struct Tiered {
    writes: TierWrites,
    memory: Lru,
    capacity: u64,
    kept: Vec<Option<Kept>>,
    /// Blocks whose next hit in the store brings them to memory.
    hit_below: Vec<bool>,
    share: WriteShare,
    store: Rings,
    hits: u64,
}

impl Tiered {
    /// A tier of `capacity` blocks above an empty store of `store_blocks`.
    pub(crate) fn new(
        writes: TierWrites,
        capacity: u64,
        (store, store_blocks): (Rings, u64),
        distinct: u32,
    ) -> Self {
        Self {
            writes,
            memory: Lru::new(capacity, distinct, Order::TailFirst),
            capacity,
            kept: vec![None; distinct as usize],
            hit_below: vec![false; distinct as usize],
            share: WriteShare::new(store_blocks),
            store,
            hits: 0,
        }
    }

    pub(crate) fn store(&mut self) -> &mut Rings {
        &mut self.store
    }

    /// Hits in memory, and what the store counted.
    pub(crate) fn counted(&self) -> (u64, (StoreCounts, u64)) {
        (self.hits, self.store.counted())
    }

    /// A block leaves memory.
    fn leave(&mut self, block: u32) -> Result<(), String> {
        let kept = self.kept[block as usize].take().expect("it was in memory");
        self.memory.remove(block);
        if self.writes == TierWrites::Apart {
            return Ok(());
        }
        // The get is the use that the store has not seen.
        if kept.used && self.store.get_block(block, kept.place)? {
            return Ok(());
        }
        let goes_down = kept.used || kept.is_new && self.share.takes(kept.first);
        if kept.used || kept.is_new {
            let fate = if goes_down { BlockFate::Written } else { BlockFate::Dropped };
            self.share.left((UID, lower_half(block)), fate);
        }
        if goes_down { self.store.put_block(block, (kept.chain, kept.place)) } else { Ok(()) }
    }

    /// A block enters memory, or is used there.
    fn enter(&mut self, block: u32, new: Kept) {
        let slot = &mut self.kept[block as usize];
        if let Some(kept) = slot {
            kept.used = true;
            self.memory.remove(block);
        } else {
            *slot = Some(new);
        }
        self.memory.push(block);
    }

    /// Whether a block that the store served comes to memory.
    fn is_promoted(&mut self, block: u32) -> bool {
        let seen = &mut self.hit_below[block as usize];
        *seen = self.writes != TierWrites::Apart && !*seen;
        !*seen
    }
}

impl Keyed for Tiered {
    type Error = String;

    fn get(&mut self, blocks: &[u32]) -> Result<usize, String> {
        for (depth, block) in blocks.iter().enumerate() {
            let in_memory = self.memory.has(*block);
            self.hits += u64::from(in_memory);
            if !in_memory && !self.store.get_block(*block, ChainPlace::of(blocks, depth))? {
                return Ok(depth);
            }
        }
        Ok(blocks.len())
    }

    /// The tail of a prompt counts as used before its head, and so goes first.
    fn put(&mut self, blocks: &[u32], there: usize, chain: Chain) -> Result<(), String> {
        let first = blocks.get(there).or(blocks.first()).copied().unwrap_or_default();
        for (depth, block) in blocks.iter().enumerate().skip(there) {
            if self.memory.has(*block) {
                continue;
            }
            self.share.offered((UID, lower_half(*block)));
            if self.writes != TierWrites::Late {
                self.store.put_block(*block, (chain, ChainPlace::of(blocks, depth)))?;
            }
        }
        for (depth, block) in blocks.iter().enumerate().rev() {
            let is_new = depth >= there && self.writes == TierWrites::Late;
            let place = ChainPlace::of(blocks, depth);
            let kept = Kept { used: false, is_new, chain, place, first };
            if depth >= there || self.memory.has(*block) || self.is_promoted(*block) {
                self.enter(*block, kept);
            }
        }
        while self.memory.count() > self.capacity {
            let oldest = self.memory.oldest().expect("it is over its capacity");
            self.leave(oldest)?;
        }
        Ok(())
    }
}
