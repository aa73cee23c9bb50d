//! The policies that a replay compares.

use std::fmt;

use crate::engines::Routing;
use crate::peers::{Belady, Lru, Order, PeerCache, S3Fifo, TwoLru};
use crate::share::CacheSize;
use crate::sidecar_tier::{TierEntry, TierUses};
use crate::tiered::TierWrites;
use crate::trace::Trace;

/// A policy: the store or a cache of single blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CachePolicy {
    /// The store, which takes everything.
    All,
    /// The store with a write budget: bytes written for each byte asked for, moves and records
    /// counted. Its ring is full of other blocks when the trace begins, as it is in all of its life
    /// but the first filling.
    Budget(f64),
    /// Least recently used.
    Lru,
    /// The same, but the tail of a prompt counts as used before its head, and so goes first.
    LeafFirst,
    /// S3-FIFO.
    S3Fifo,
    /// With knowledge of what comes.
    Belady,
    /// The store, which takes everything, below a memory tier of this size.
    Tiered(CacheSize, TierWrites),
    /// The same, below the tier that the sidecar has.
    Sidecar(CacheSize, TierEntry, TierUses),
    /// The same, below engines that share this memory evenly, each with its part to itself.
    Engines(CacheSize, Routing, u16),
    /// Least recently used on both levels, with this memory.
    TwoLru(CacheSize),
}

impl CachePolicy {
    /// The cache of single blocks, with the given capacity; none for the store.
    pub(crate) fn peer(self, blocks: u64, trace: &Trace) -> Option<Box<dyn PeerCache>> {
        let distinct = trace.distinct();
        Some(match self {
            Self::All
            | Self::Budget(_)
            | Self::Tiered(..)
            | Self::Sidecar(..)
            | Self::Engines(..) => return None,
            Self::TwoLru(memory) => {
                Box::new(TwoLru::new((memory.blocks(distinct), blocks), distinct))
            }
            Self::Lru => Box::new(Lru::new(blocks, distinct, Order::HeadFirst)),
            Self::LeafFirst => Box::new(Lru::new(blocks, distinct, Order::TailFirst)),
            Self::S3Fifo => Box::new(S3Fifo::new(blocks, distinct)),
            Self::Belady => {
                let all = trace.iter().flat_map(|(_, blocks)| blocks.iter().copied());
                Box::new(Belady::new(blocks, distinct, all))
            }
        })
    }
}

impl fmt::Display for CachePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "kvrail, all admitted",
            Self::Budget(share) => return write!(f, "kvrail, budget {share:.2}"),
            Self::Lru => "LRU",
            Self::LeafFirst => "LRU, leaf first",
            Self::S3Fifo => "S3-FIFO",
            Self::Belady => "Belady",
            Self::Tiered(size, writes) => {
                let written = match writes {
                    TierWrites::Apart => "the engine's own",
                    TierWrites::AtOnce => "written at once",
                    TierWrites::Late => "written late",
                };
                return write!(f, "memory {size}, {written}");
            }
            Self::Sidecar(size, TierEntry::SecondGet, TierUses::Once) => {
                return write!(f, "memory {size}, the sidecar's");
            }
            Self::Sidecar(size, TierEntry::AtPut, TierUses::Once) => {
                return write!(f, "memory {size}, the sidecar's, at put");
            }
            Self::Sidecar(size, TierEntry::SecondGet, TierUses::Each) => {
                return write!(f, "memory {size}, all uses");
            }
            Self::Sidecar(size, TierEntry::Late, _) => {
                return write!(f, "memory {size}, the sidecar's, late");
            }
            Self::Sidecar(size, TierEntry::AtPut, TierUses::Each) => {
                return write!(f, "memory {size}, at put, all uses");
            }
            Self::Engines(size, routing, count) => {
                let routed = match routing {
                    Routing::InTurns => "in turns",
                    Routing::LongestPrefix => "routed",
                };
                return write!(f, "memory {size} of {count} engines, {routed}");
            }
            Self::TwoLru(size) => return write!(f, "memory {size}, LRU over LRU"),
        })
    }
}
