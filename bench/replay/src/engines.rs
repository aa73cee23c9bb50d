//! Engines that each have a memory of their own above one store, as they do without a tier that
//! they share.

use kvrail_store::Chain;

use crate::peers::{Lru, Order};
use crate::player::Keyed;
use crate::report::StoreCounts;
use crate::rings::{ChainPlace, Rings};

/// Which engine gets a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// One after the other.
    InTurns,
    /// The one whose memory has the longest prefix of it; of equal ones the next in turn.
    LongestPrefix,
}

/// The engines and their store.
pub(crate) struct Engines {
    own: Vec<Lru>,
    routing: Routing,
    /// The engine that has the request.
    turn: usize,
    store: Rings,
    hits: u64,
    capacity: u64,
}

impl Engines {
    /// `count` engines that share `capacity` blocks of memory evenly. Each takes all blocks of its
    /// requests, and evicts tails before heads.
    pub(crate) fn new(
        routing: Routing,
        (count, capacity): (u16, u64),
        store: Rings,
        distinct: u32,
    ) -> Self {
        let capacity = capacity / u64::from(count);
        let own = (0..count).map(|_| Lru::new(capacity, distinct, Order::TailFirst)).collect();
        Self { own, routing, turn: 0, store, hits: 0, capacity }
    }

    pub(crate) fn store(&mut self) -> &mut Rings {
        &mut self.store
    }

    /// Hits in memory, and what the store counted.
    pub(crate) fn counted(&self) -> (u64, (StoreCounts, u64)) {
        (self.hits, self.store.counted())
    }

    fn route(&self, blocks: &[u32]) -> usize {
        let count = self.own.len();
        let next = (self.turn + 1) % count;
        if self.routing == Routing::InTurns {
            return next;
        }
        let prefix = |at: &usize| {
            let own = &self.own[*at];
            blocks.iter().take_while(|block| own.has(**block)).count()
        };
        // The first of those with the longest one.
        let engines = (0..count).map(|step| (next + step) % count);
        engines.rev().max_by_key(prefix).unwrap_or(next)
    }
}

impl Keyed for Engines {
    type Error = String;

    fn get(&mut self, blocks: &[u32]) -> Result<usize, String> {
        self.turn = self.route(blocks);
        for (depth, block) in blocks.iter().enumerate() {
            let in_memory = self.own[self.turn].has(*block);
            self.hits += u64::from(in_memory);
            if !in_memory && !self.store.get_block(*block, ChainPlace::of(blocks, depth))? {
                return Ok(depth);
            }
        }
        Ok(blocks.len())
    }

    fn put(&mut self, blocks: &[u32], there: usize, chain: Chain) -> Result<(), String> {
        for (depth, block) in blocks.iter().enumerate().skip(there) {
            self.store.put_block(*block, (chain, ChainPlace::of(blocks, depth)))?;
        }
        let own = &mut self.own[self.turn];
        for block in blocks.iter().rev() {
            if own.has(*block) {
                own.remove(*block);
            }
            own.push(*block);
        }
        while own.count() > self.capacity {
            let oldest = own.oldest().expect("it is over its capacity");
            own.remove(oldest);
        }
        Ok(())
    }
}
