//! A table of slots that users share.
//!
//! A user may take a slot while it has fewer than three times the number of free slots. A single
//! user gets three quarters of the table. Each further user reduces the share of all, and some
//! slots stay free for the next user, so that no user has to return slots first.

use std::ops::Deref;

use crate::slab::Slab;

/// A user's limit, in free slots.
const TIMES_FREE: usize = 3;

/// Bytes of RAM for each slot, beside those of the slab, and for each user.
pub(crate) const SHARED_SLOT_BYTES: u64 = size_of::<u16>() as u64;
pub(crate) const SHARED_USER_BYTES: u64 = size_of::<u32>() as u64;

/// Slots, and which user has how many.
#[derive(Debug)]
pub(crate) struct SharedSlots<T> {
    slab: Slab<T>,
    whose: Box<[u16]>,
    held: Box<[u32]>,
}

impl<T> SharedSlots<T> {
    pub(crate) fn new(slots: u32, users: u16) -> Self {
        Self {
            slab: Slab::with_slots(slots),
            whose: vec![0; slots as usize].into_boxed_slice(),
            held: vec![0; usize::from(users)].into_boxed_slice(),
        }
    }

    /// Whether a user may take one more.
    pub(crate) fn has_room(&self, user: u16) -> bool {
        (self.held[usize::from(user)] as usize) < TIMES_FREE * self.slab.room()
    }

    /// # Panics
    /// When there is no free slot: check `has_room` first.
    pub(crate) fn insert(&mut self, user: u16, value: T) -> u32 {
        let slot = self.slab.insert(value).expect("the caller checked for room");
        self.whose[slot as usize] = user;
        self.held[usize::from(user)] += 1;
        slot
    }

    /// # Panics
    /// When the slot is free.
    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut T {
        self.slab.get_mut(slot)
    }

    /// # Panics
    /// When the slot is free.
    pub(crate) fn remove(&mut self, slot: u32) -> T {
        self.held[usize::from(self.whose[slot as usize])] -= 1;
        self.slab.remove(slot)
    }
}

impl<T> Deref for SharedSlots<T> {
    type Target = Slab<T>;

    fn deref(&self) -> &Slab<T> {
        &self.slab
    }
}

#[cfg(test)]
mod tests {
    use super::SharedSlots;

    #[test]
    fn something_is_free_for_whoever_comes_next() {
        let mut table = SharedSlots::new(512, 9);
        let take_all = |table: &mut SharedSlots<()>, user| {
            let mut taken = 0;
            while table.has_room(user) {
                table.insert(user, ());
                taken += 1;
            }
            taken
        };
        let taken: Vec<u32> = (0..4).map(|user| take_all(&mut table, user)).collect();
        assert_eq!(taken, [384, 96, 24, 6], "three quarters of what is free");
        assert_eq!(table.room(), 2);
        // Slots that the first gives back are for those with less, too.
        (0..200).for_each(|slot| table.remove(slot));
        assert_eq!(take_all(&mut table, 8), 152);
        assert!(!table.has_room(0));
    }
}
