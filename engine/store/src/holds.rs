//! Leases on blocks that lookups found: by namespace number and lower half of the key.

use std::num::NonZeroU64;

use crate::slab::Slab;

const NONE: u32 = u32::MAX;
/// Holds looked at for their end in one step.
const CHECKED: u32 = 32;

#[derive(Clone, Copy, Debug)]
struct Hold {
    number: u16,
    owner: u16,
    lo: u64,
    /// Not 0: a free row needs no word of its own.
    until: NonZeroU64,
    /// Next hold of the same chain.
    chain: u32,
    /// Neighbours in the owner's list.
    before: u32,
    after: u32,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    first: u32,
    count: u32,
}

/// All holds of a shard.
#[derive(Debug)]
pub(crate) struct Holds {
    slots: Slab<Hold>,
    chains: Box<[u32]>,
    owners: Box<[Owner]>,
    owner_max: u32,
    hand: u32,
}

/// Bytes of RAM for each hold there may be.
pub(crate) const HOLD_BYTES: u64 = size_of::<Option<Hold>>() as u64 + 4 + 4;

impl Holds {
    pub(crate) fn new(count: u32, owners: u16, owner_max: u32) -> Self {
        Self {
            slots: Slab::with_slots(count),
            chains: vec![NONE; count as usize].into_boxed_slice(),
            owners: vec![Owner { first: NONE, count: 0 }; usize::from(owners)].into_boxed_slice(),
            owner_max,
            hand: 0,
        }
    }

    fn chain(&self, number: u16, lo: u64) -> usize {
        let mixed = (lo ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        usize::try_from((mixed * self.chains.len() as u64) >> 32).expect("below the length")
    }

    fn find(&self, number: u16, lo: u64, is_it: impl Fn(&Hold) -> bool) -> Option<u32> {
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

    /// Holds a block until then, or longer if the owner holds it longer already. `false`: the
    /// owner or the table has no room.
    pub(crate) fn take(&mut self, number: u16, lo: u64, owner: u16, until: u64) -> bool {
        let until = NonZeroU64::new(until).unwrap_or(NonZeroU64::MIN);
        if let Some(at) = self.find(number, lo, |hold| hold.owner == owner) {
            let hold = self.slots.get_mut(at);
            hold.until = hold.until.max(until);
            return true;
        }
        let chain = self.chain(number, lo);
        let list = self.owners[usize::from(owner)];
        if list.count >= self.owner_max {
            return false;
        }
        let hold = Hold {
            number,
            owner,
            lo,
            until,
            chain: self.chains[chain],
            before: NONE,
            after: list.first,
        };
        let Some(at) = self.slots.insert(hold) else { return false };
        self.chains[chain] = at;
        if list.first != NONE {
            self.slots.get_mut(list.first).before = at;
        }
        self.owners[usize::from(owner)] = Owner { first: at, count: list.count + 1 };
        true
    }

    fn remove(&mut self, at: u32) {
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
    }

    pub(crate) fn release(&mut self, number: u16, lo: u64, owner: u16) -> bool {
        let found = self.find(number, lo, |hold| hold.owner == owner);
        found.is_some_and(|at| {
            self.remove(at);
            true
        })
    }

    /// Ends all holds of an owner.
    pub(crate) fn owner_gone(&mut self, owner: u16) {
        while self.owners[usize::from(owner)].first != NONE {
            self.remove(self.owners[usize::from(owner)].first);
        }
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

    /// Ends some of those whose time is over.
    pub(crate) fn expire(&mut self, now: u64) {
        if self.slots.used() == 0 {
            return;
        }
        for _ in 0..CHECKED.min(self.slots.slots()) {
            self.hand = if self.hand + 1 < self.slots.slots() { self.hand + 1 } else { 0 };
            if self.slots.peek(self.hand).is_some_and(|hold| hold.until.get() <= now) {
                self.remove(self.hand);
            }
        }
    }

    /// Holds in force.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.slots.used()).expect("slots are counted in u32")
    }
}

#[cfg(test)]
mod tests {
    use super::Holds;

    #[test]
    fn holds_end_by_release_time_and_death() {
        let mut holds = Holds::new(64, 4, 3);
        for lo in 0..3 {
            assert!(holds.take(1, lo, 2, 100));
        }
        assert!(!holds.take(1, 3, 2, 100), "at most 3 of one owner");
        assert!(holds.take(1, 0, 3, 50) && holds.take(2, 0, 3, 50));
        assert!(holds.is_held(1, 0, 99) && !holds.is_held(1, 0, 100));
        assert!(holds.release(1, 0, 2) && !holds.release(1, 0, 2));
        assert!(holds.is_held(1, 0, 49) && !holds.is_held(1, 0, 60));
        holds.owner_gone(2);
        assert!(!holds.is_held(1, 1, 0) && holds.count() == 2);
        for _ in 0..4 {
            holds.expire(60);
        }
        assert_eq!(holds.count(), 0);
    }

    #[test]
    fn a_random_life_agrees_with_a_plain_list() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut holds = Holds::new(40, 3, 20);
        let mut plain: Vec<(u16, u64, u16)> = Vec::new();
        for _ in 0..20_000 {
            let (number, lo, owner) = (random.u16(..2), random.u64(..30), random.u16(..3));
            let known = plain.iter().position(|it| *it == (number, lo, owner));
            match random.u8(..10) {
                0..5 => {
                    let room =
                        plain.len() < 40 && plain.iter().filter(|it| it.2 == owner).count() < 20;
                    let taken = holds.take(number, lo, owner, 10);
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
                    plain.retain(|it| it.2 != owner);
                }
            }
            let held = plain.iter().any(|it| (it.0, it.1) == (number, lo));
            assert_eq!((holds.is_held(number, lo, 9), holds.count() as usize), (held, plain.len()));
        }
    }
}
