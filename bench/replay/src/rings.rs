//! A store of several members, each with its own ring.

use kvrail_store::{Budget, Chain, Members};

use crate::line::Hints;
use crate::player::Keyed;
use crate::report::StoreCounts;
use crate::store::{MemberShape, Replayed, lower_half};

/// The uid of the namespace.
pub(crate) const UID: u64 = 1;

/// Which member has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The member of the highest weight for its key, as in kvrail.
    Hash,
    /// The members in turn along each chain, from that of its first block on: an experiment.
    Chain,
}

impl Placement {
    /// The member of a block at this depth of the chain that begins with `root`.
    #[must_use]
    pub fn of(self, members: Members, (root, depth): (u64, usize), lo: u64) -> usize {
        let count = usize::from(members.count());
        match self {
            Self::Hash => usize::from(members.place_of(UID, lo)),
            Self::Chain => (usize::from(members.place_of(UID, root)) + depth) % count.max(1),
        }
    }
}

/// Where a block stands in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainPlace {
    root: u32,
    depth: u32,
}

impl ChainPlace {
    /// Of a chain's block at this depth.
    pub(crate) fn of(chain: &[u32], depth: usize) -> Self {
        Self { root: chain[0], depth: u32::try_from(depth).unwrap_or(u32::MAX) }
    }
}

/// The members.
pub(crate) struct Rings {
    rings: Vec<Replayed>,
    members: Members,
    placement: Placement,
}

impl Rings {
    /// Members of this shape, each with its share of the budget.
    pub(crate) fn new(
        (count, placement): (u16, Placement),
        shape: MemberShape,
        (block_bytes, budget): (u32, Budget),
    ) -> Result<Self, String> {
        let share = match budget {
            Budget::BytesPerDay(bytes) => Budget::BytesPerDay(bytes / u64::from(count)),
            other => other,
        };
        let rings = (0..count).map(|_| Replayed::new(shape, block_bytes, share));
        let rings = rings.collect::<Result<_, _>>()?;
        Ok(Self { rings, members: Members::first(count), placement })
    }

    /// Fills all with blocks that no request reads.
    pub(crate) fn fill(&mut self) -> Result<(), String> {
        self.rings.iter_mut().try_for_each(Replayed::fill)
    }

    /// The trace has come to a request at this time, of whose blocks this is known.
    pub(crate) fn pass(&mut self, at_ns: u64, hints: Hints) {
        self.rings.iter_mut().for_each(|ring| ring.pass(at_ns, hints));
    }

    /// The member of a block.
    fn ring(&mut self, block: u32, at: ChainPlace) -> &mut Replayed {
        let root = (lower_half(at.root), at.depth as usize);
        &mut self.rings[self.placement.of(self.members, root, lower_half(block))]
    }

    /// Whether a block is there; a use of it.
    pub(crate) fn get_block(&mut self, block: u32, at: ChainPlace) -> Result<bool, String> {
        self.ring(block, at).get(block)
    }

    /// Whether a block is there, without a use of it.
    pub(crate) fn has_block(&mut self, block: u32, at: ChainPlace) -> bool {
        self.ring(block, at).has(block)
    }

    /// A use of a block that a client has got elsewhere.
    pub(crate) fn touch_block(&mut self, block: u32, at: ChainPlace) -> Result<(), String> {
        self.ring(block, at).touch(block)
    }

    /// Puts one block of a chain.
    pub(crate) fn put_block(
        &mut self,
        block: u32,
        (chain, at): (Chain, ChainPlace),
    ) -> Result<(), String> {
        self.ring(block, at).store(block, (chain, at.depth as usize))
    }

    /// The counters of all members since the first request, and the bytes they wrote.
    pub(crate) fn counted(&self) -> (StoreCounts, u64) {
        let each = self.rings.iter().map(Replayed::counted);
        let sum = each.reduce(|(one, bytes), (other, more)| (one.and(other), bytes + more));
        sum.expect("a store has a member")
    }
}

impl Keyed for Rings {
    type Error = String;

    fn get(&mut self, blocks: &[u32]) -> Result<usize, String> {
        for (depth, block) in blocks.iter().enumerate() {
            if !self.get_block(*block, ChainPlace::of(blocks, depth))? {
                return Ok(depth);
            }
        }
        Ok(blocks.len())
    }

    fn put(&mut self, blocks: &[u32], there: usize, chain: Chain) -> Result<(), String> {
        for (depth, block) in blocks.iter().enumerate().skip(there) {
            self.put_block(*block, (chain, ChainPlace::of(blocks, depth)))?;
        }
        Ok(())
    }
}
