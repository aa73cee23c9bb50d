//! A store of several members, each with its own ring.

use kvrail_store::{Budget, Chain, Members};

use crate::report::StoreCounts;
use crate::store::{Replayed, Shape, lower_half};

/// The uid of the namespace.
const UID: u64 = 1;

/// Which member has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// That of the highest weight for its key: what kvrail does.
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
        shape: Shape,
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

    /// Fills all with blocks that nobody asks for.
    pub(crate) fn fill(&mut self) -> Result<(), String> {
        self.rings.iter_mut().try_for_each(Replayed::fill)
    }

    /// One request: gets from the front until the first miss, then puts of the rest. The number of
    /// hits.
    ///
    /// # Errors
    /// A store that is stuck or fails: a fault of its own.
    pub(crate) fn request(&mut self, at_ns: u64, blocks: &[u32]) -> Result<u64, String> {
        self.rings.iter_mut().for_each(|ring| ring.pass(at_ns));
        let root = blocks.first().map_or(0, |block| lower_half(*block));
        let place = |(depth, block): (usize, u32)| {
            self.placement.of(self.members, (root, depth), lower_half(block))
        };
        let places: Vec<usize> = blocks.iter().copied().enumerate().map(place).collect();
        let mut hits = 0;
        for (block, place) in blocks.iter().zip(&places) {
            if !self.rings[*place].get(*block)? {
                break;
            }
            hits += 1;
        }
        let chain = if 2 * hits < blocks.len() { Chain::Begins } else { Chain::Extends };
        for (depth, (block, place)) in blocks.iter().zip(&places).enumerate().skip(hits) {
            self.rings[*place].store(*block, (chain, depth))?;
        }
        Ok(hits as u64)
    }

    /// What all counted since the first request, and the bytes they wrote.
    pub(crate) fn counted(&self) -> (StoreCounts, u64) {
        let each = self.rings.iter().map(Replayed::counted);
        let sum = each.reduce(|(one, bytes), (other, more)| (one.and(other), bytes + more));
        sum.expect("a store has a member")
    }
}
