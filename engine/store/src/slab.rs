//! A table of slots that is allocated once.

/// Slots with a free list.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Box<[Option<T>]>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn with_slots(count: u32) -> Self {
        Self { slots: (0..count).map(|_| None).collect(), free: (0..count).rev().collect() }
    }

    /// The slot, or nothing when all are taken.
    pub(crate) fn insert(&mut self, value: T) -> Option<u32> {
        let slot = self.free.pop()?;
        let before = self.slots[slot as usize].replace(value);
        assert!(before.is_none(), "slot {slot} was given out twice");
        Some(slot)
    }

    /// # Panics
    /// When the slot is free.
    pub(crate) fn get(&self, slot: u32) -> &T {
        self.slots[slot as usize].as_ref().expect("the slot is taken")
    }

    /// # Panics
    /// When the slot is free.
    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut T {
        self.slots[slot as usize].as_mut().expect("the slot is taken")
    }

    /// # Panics
    /// When the slot is free.
    pub(crate) fn remove(&mut self, slot: u32) -> T {
        let value = self.slots[slot as usize].take().expect("the slot is taken");
        self.free.push(slot);
        value
    }

    /// The value of a slot, if it is taken.
    pub(crate) fn peek(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// Free slots.
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("made of a u32")
    }

    /// Taken slots.
    pub(crate) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
