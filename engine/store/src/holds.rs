//! Leases on blocks that lookups found: by namespace number and lower half of the key.
//!
//! A held block is moved from segment to segment. So that a segment with few of them can always be
//! found, the held bytes of a pool are counted, each block once, and have a limit.

use std::num::NonZeroU64;

use crate::format::POOLS_MAX;
use crate::slab::Slab;

const NONE: u32 = u32::MAX;
/// Holds looked at for their end in one step.
const CHECKED: u32 = 32;

/// A block that is to be held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldBlock {
    pub(crate) number: u16,
    pub(crate) lo: u64,
    pub(crate) pool: u8,
    /// Its bytes on the medium.
    pub(crate) bytes: u32,
}

#[derive(Clone, Copy, Debug)]
struct HoldRow {
    number: u16,
    owner: u16,
    lo: u64,
    pool: u8,
    /// The block's bytes, in one of its holds; 0 in the others.
    bytes: u32,
    /// Not 0: a free row needs no word of its own.
    until: NonZeroU64,
    /// Next hold of the same chain.
    chain: u32,
    /// Neighbours in the owner's list.
    before: u32,
    after: u32,
}

#[derive(Clone, Copy, Debug)]
struct OwnerHolds {
    first: u32,
    count: u32,
}

/// All holds of a shard.
#[derive(Debug)]
pub(crate) struct Holds {
    slots: Slab<HoldRow>,
    chains: Box<[u32]>,
    owners: Box<[OwnerHolds]>,
    owner_max: u32,
    /// Of each pool: held bytes.
    bytes: [u64; POOLS_MAX],
    hand: u32,
}

/// Bytes of RAM for each hold there may be.
pub(crate) const HOLD_BYTES: u64 = size_of::<Option<HoldRow>>() as u64 + 4 + 4;

impl Holds {
    pub(crate) fn new(count: u32, owners: u16, owner_max: u32) -> Self {
        Self {
            slots: Slab::with_slots(count),
            chains: vec![NONE; count as usize].into_boxed_slice(),
            owners: vec![OwnerHolds { first: NONE, count: 0 }; usize::from(owners)]
                .into_boxed_slice(),
            owner_max,
            bytes: [0; POOLS_MAX],
            hand: 0,
        }
    }

    fn chain(&self, number: u16, lo: u64) -> usize {
        let mixed = (lo ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        usize::try_from((mixed * self.chains.len() as u64) >> 32).expect("below the length")
    }

    fn find(&self, number: u16, lo: u64, is_it: impl Fn(&HoldRow) -> bool) -> Option<u32> {
        let mut at = self.chains[self.chain(number, lo)];
        while at != NONE {
            let hold = self.slots.get(at);
            if hold.number == number && hold.lo == lo && is_it(hold) {
                return Some(at);
            }
            at = hold.chain;
        }
        None
    }

    /// Held bytes of a pool, including holds that have ended and are not removed yet.
    pub(crate) fn bytes(&self, pool: u8) -> u64 {
        self.bytes[usize::from(pool)]
    }

    /// Enters a block's bytes into one of its holds.
    fn charge(&mut self, at: u32, bytes: u32) {
        let hold = self.slots.get_mut(at);
        let sum = &mut self.bytes[usize::from(hold.pool)];
        *sum = *sum + u64::from(bytes) - u64::from(hold.bytes);
        hold.bytes = bytes;
    }

    /// Holds a block until then, or longer if the owner holds it longer already. `false`: the
    /// owner or the table has no room, or more than `most` bytes of the pool would be held.
    pub(crate) fn take(&mut self, block: HeldBlock, owner: u16, until: u64, most: u64) -> bool {
        let HeldBlock { number, lo, pool, bytes } = block;
        let charged = self.find(number, lo, |hold| hold.bytes > 0);
        let before = charged.map_or(0, |at| self.slots.get(at).bytes);
        if self.bytes(pool).saturating_sub(before.into()) + u64::from(bytes) > most {
            return false;
        }
        let Some(at) = self.enter(block, owner, until) else { return false };
        self.charge(charged.unwrap_or(at), bytes);
        true
    }

    /// The owner's hold of a block, a new one if there is none.
    fn enter(&mut self, block: HeldBlock, owner: u16, until: u64) -> Option<u32> {
        let HeldBlock { number, lo, pool, .. } = block;
        let until = NonZeroU64::new(until).unwrap_or(NonZeroU64::MIN);
        if let Some(at) = self.find(number, lo, |hold| hold.owner == owner) {
            let hold = self.slots.get_mut(at);
            hold.until = hold.until.max(until);
            return Some(at);
        }
        let chain = self.chain(number, lo);
        let list = self.owners[usize::from(owner)];
        if list.count >= self.owner_max {
            return None;
        }
        let hold = HoldRow {
            number,
            owner,
            lo,
            pool,
            bytes: 0,
            until,
            chain: self.chains[chain],
            before: NONE,
            after: list.first,
        };
        let at = self.slots.insert(hold)?;
        self.chains[chain] = at;
        if list.first != NONE {
            self.slots.get_mut(list.first).before = at;
        }
        self.owners[usize::from(owner)] = OwnerHolds { first: at, count: list.count + 1 };
        Some(at)
    }

    fn remove(&mut self, at: u32) {
        let bytes = self.slots.get(at).bytes;
        self.charge(at, 0);
        let hold = self.unlink(at);
        if bytes > 0
            && let Some(other) = self.find(hold.number, hold.lo, |_| true)
        {
            self.charge(other, bytes);
        }
    }

    /// Takes a hold out of its chain and its owner's list.
    fn unlink(&mut self, at: u32) -> HoldRow {
        let hold = self.slots.remove(at);
        let chain = self.chain(hold.number, hold.lo);
        if self.chains[chain] == at {
            self.chains[chain] = hold.chain;
        } else {
            let mut before = self.chains[chain];
            while self.slots.get(before).chain != at {
                before = self.slots.get(before).chain;
            }
            self.slots.get_mut(before).chain = hold.chain;
        }
        let owner = &mut self.owners[usize::from(hold.owner)];
        owner.count -= 1;
        if hold.before == NONE {
            owner.first = hold.after;
        } else {
            self.slots.get_mut(hold.before).after = hold.after;
        }
        if hold.after != NONE {
            self.slots.get_mut(hold.after).before = hold.before;
        }
        hold
    }

    pub(crate) fn release(&mut self, number: u16, lo: u64, owner: u16) -> bool {
        let found = self.find(number, lo, |hold| hold.owner == owner);
        found.is_some_and(|at| {
            self.remove(at);
            true
        })
    }

    /// Ends all holds of a block.
    pub(crate) fn release_all(&mut self, number: u16, lo: u64) {
        while let Some(at) = self.find(number, lo, |_| true) {
            self.remove(at);
        }
    }

    /// Ends all holds of an owner.
    pub(crate) fn owner_gone(&mut self, owner: u16) {
        while self.owners[usize::from(owner)].first != NONE {
            self.remove(self.owners[usize::from(owner)].first);
        }
        debug_assert_eq!(self.owners[usize::from(owner)].count, 0, "holds outside of the list");
    }

    pub(crate) fn is_held(&self, number: u16, lo: u64, now: u64) -> bool {
        self.find(number, lo, |hold| hold.until.get() > now).is_some()
    }

    /// When the last of a block's holds ends, if it is held.
    pub(crate) fn held_until(&self, number: u16, lo: u64, now: u64) -> Option<u64> {
        let mut at = self.chains[self.chain(number, lo)];
        let mut last = None;
        while at != NONE {
            let hold = self.slots.get(at);
            if hold.number == number && hold.lo == lo && hold.until.get() > now {
                last = last.max(Some(hold.until.get()));
            }
            at = hold.chain;
        }
        last
    }

    /// Removes some expired holds; calls `ended` with the number and key of each.
    pub(crate) fn expire(&mut self, now: u64, mut ended: impl FnMut(u16, u64)) {
        if self.slots.used() == 0 {
            return;
        }
        for _ in 0..CHECKED.min(self.slots.slots()) {
            self.hand = if self.hand + 1 < self.slots.slots() { self.hand + 1 } else { 0 };
            let over = self.slots.peek(self.hand).filter(|hold| hold.until.get() <= now);
            if let Some(&HoldRow { number, lo, .. }) = over {
                self.remove(self.hand);
                ended(number, lo);
            }
        }
    }

    /// Holds that there may be.
    pub(crate) fn limit(&self) -> u32 {
        self.slots.slots()
    }

    /// Holds of an owner.
    pub(crate) fn count_of(&self, owner: u16) -> u32 {
        self.owners[usize::from(owner)].count
    }

    /// Holds in force.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.slots.used()).expect("slots are counted in u32")
    }
}

#[cfg(test)]
mod tests {
    use super::{HeldBlock, Holds};

    fn block(number: u16, lo: u64) -> HeldBlock {
        HeldBlock { number, lo, pool: 0, bytes: 512 }
    }

    #[test]
    fn holds_end_by_release_time_and_death() {
        let mut holds = Holds::new(64, 4, 3);
        for lo in 0..3 {
            assert!(holds.take(block(1, lo), 2, 100, u64::MAX));
        }
        assert!(!holds.take(block(1, 3), 2, 100, u64::MAX), "at most 3 of one owner");
        assert!(holds.take(block(1, 0), 3, 50, u64::MAX));
        assert!(holds.take(block(2, 0), 3, 50, u64::MAX));
        assert!(holds.is_held(1, 0, 99) && !holds.is_held(1, 0, 100));
        assert!(holds.release(1, 0, 2) && !holds.release(1, 0, 2));
        assert!(holds.is_held(1, 0, 49) && !holds.is_held(1, 0, 60));
        holds.owner_gone(2);
        assert!(!holds.is_held(1, 1, 0) && holds.count() == 2);
        for _ in 0..4 {
            holds.expire(60, |_, _| {});
        }
        assert_eq!((holds.count(), holds.bytes(0)), (0, 0));
    }

    #[test]
    fn held_bytes_have_a_limit_and_each_block_counts_once() {
        let mut holds = Holds::new(64, 4, 60);
        assert!(holds.take(block(1, 0), 0, 100, 1024) && holds.take(block(1, 0), 1, 100, 1024));
        assert!(holds.take(block(1, 1), 1, 100, 1024));
        assert!(!holds.take(block(1, 2), 2, 100, 1024) && holds.bytes(0) == 1024);
        assert!(!holds.take(block(1, 1), 1, 200, 1023), "no hold is longer beyond the limit");
        assert!(holds.is_held(1, 1, 99) && !holds.is_held(1, 1, 100));
        // The first holder goes, the other one has the block still.
        holds.owner_gone(0);
        assert!(holds.bytes(0) == 1024 && !holds.take(block(1, 2), 2, 100, 1024));
        assert!(holds.release(1, 0, 1) && holds.take(block(1, 2), 2, 100, 1024));
        holds.owner_gone(1);
        holds.owner_gone(2);
        assert_eq!(holds.bytes(0), 0);
    }

    #[test]
    fn a_random_life_agrees_with_a_plain_list() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut holds = Holds::new(40, 3, 20);
        let mut plain: Vec<(u16, u64, u16)> = Vec::new();
        for _ in 0..20_000 {
            let (number, lo, owner) = (random.u16(..2), random.u64(..30), random.u16(..3));
            let known = plain.iter().position(|hold| *hold == (number, lo, owner));
            match random.u8(..10) {
                0..5 => {
                    let room = plain.len() < 40
                        && plain.iter().filter(|hold| hold.2 == owner).count() < 20;
                    let taken = holds.take(block(number, lo), owner, 10, u64::MAX);
                    assert_eq!(taken, known.is_some() || room);
                    if taken && known.is_none() {
                        plain.push((number, lo, owner));
                    }
                }
                5..9 => {
                    assert_eq!(holds.release(number, lo, owner), known.is_some());
                    known.map(|at| plain.swap_remove(at));
                }
                _ => {
                    holds.owner_gone(owner);
                    plain.retain(|hold| hold.2 != owner);
                }
            }
            let held = plain.iter().any(|hold| (hold.0, hold.1) == (number, lo));
            assert_eq!((holds.is_held(number, lo, 9), holds.count() as usize), (held, plain.len()));
            let blocks: std::collections::BTreeSet<_> =
                plain.iter().map(|hold| (hold.0, hold.1)).collect();
            assert_eq!(holds.bytes(0), 512 * blocks.len() as u64);
        }
    }
}
