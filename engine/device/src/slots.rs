//! The fixed slot table: what is in flight, named by slot index and generation.
//!
//! A slot's generation changes with every release, so an id that outlived its use names nothing.
//! The hardware hands ids back (`user_data` of a completion); both halves are checked.

use std::ops::Range;

use thiserror::Error;

/// End of the free list, and the index no slot has.
const NONE: u32 = u32::MAX;

/// Generations count modulo 2^31, so the top bit of a packed id is free for names of another kind
/// beside slots.
const GENERATION_MASK: u32 = u32::MAX >> 1;

/// Names one use of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId {
    index: u32,
    generation: u32,
}

impl SlotId {
    /// The slot, `0..capacity`.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Packed for `user_data`: generation above, index below. Bit 63 is never set.
    #[inline]
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The inverse of `to_u64`. Any number is accepted here; `Slots` checks it.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "takes the two halves apart")]
    pub const fn from_u64(packed: u64) -> Self {
        Self { index: packed as u32, generation: (packed >> 32) as u32 }
    }
}

/// An id that names no claimed slot: never given out, or released since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "slot {} generation {} names nothing in flight (the table has {capacity} slots, that slot's \
     generation is {current:?})",
    id.index, id.generation
)]
pub struct StaleSlot {
    /// The requested id.
    pub id: SlotId,
    /// Slots of the table.
    pub capacity: u32,
    /// Generation of that slot now, if there is such a slot.
    pub current: Option<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    next_free: u32,
    value: Option<T>,
}

/// A table of at most `capacity` values. Nothing is allocated after `new`; every call is O(1).
#[derive(Debug)]
pub struct Slots<T> {
    slots: Box<[Slot<T>]>,
    first_free: u32,
    claimed: u32,
}

impl<T> Slots<T> {
    /// An empty table.
    ///
    /// # Panics
    /// If `capacity` is `u32::MAX`, which ends the free list.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        assert!(capacity < NONE, "a slot table has fewer than {NONE} slots");
        let slots = (1..=capacity)
            .map(|next| {
                let next_free = if next == capacity { NONE } else { next };
                Slot { generation: 0, next_free, value: None }
            })
            .collect();
        Self { slots, first_free: if capacity == 0 { NONE } else { 0 }, claimed: 0 }
    }

    /// Slots there are.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("checked in new")
    }

    /// Slots claimed now.
    #[inline]
    #[must_use]
    pub fn claimed(&self) -> u32 {
        self.claimed
    }

    /// Whether every slot is claimed.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.first_free == NONE
    }

    /// Puts a value into a free slot.
    ///
    /// # Errors
    /// Gives the value back when every slot is claimed.
    #[inline(always)]
    pub fn claim(&mut self, value: T) -> Result<SlotId, T> {
        let index = self.first_free;
        let Some(slot) = self.slots.get_mut(index as usize) else { return Err(value) };
        self.first_free = slot.next_free;
        slot.value = Some(value);
        self.claimed += 1;
        Ok(SlotId { index, generation: slot.generation })
    }

    /// The value of a claimed slot.
    ///
    /// # Errors
    /// `StaleSlot` when index or generation do not match; callers assert on it.
    #[inline(always)]
    pub fn get(&self, id: SlotId) -> Result<&T, StaleSlot> {
        match self.slots.get(id.index as usize) {
            Some(Slot { generation, value: Some(value), .. }) if *generation == id.generation => {
                Ok(value)
            }
            other => Err(stale(id, self.slots.len(), other)),
        }
    }

    /// The values of the claimed ones of these slots; slots that do not exist are none.
    pub fn claimed_among(&self, slots: Range<u32>) -> impl Iterator<Item = &T> {
        let end = (slots.end as usize).min(self.slots.len());
        let slots = self.slots.get(slots.start as usize..end).unwrap_or_default();
        slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// The value of a claimed slot, to be changed.
    ///
    /// # Errors
    /// As `get`.
    #[inline(always)]
    pub fn get_mut(&mut self, id: SlotId) -> Result<&mut T, StaleSlot> {
        let slot = claimed(&mut self.slots, id)?;
        Ok(slot.value.as_mut().expect("claimed"))
    }

    /// Takes the value out; the id names nothing from now on.
    ///
    /// # Errors
    /// As `get`.
    #[inline(always)]
    pub fn release(&mut self, id: SlotId) -> Result<T, StaleSlot> {
        let slot = claimed(&mut self.slots, id)?;
        let value = slot.value.take().expect("claimed");
        slot.free(id, &mut self.first_free);
        self.claimed -= 1;
        Ok(value)
    }

    /// Drops a value of which `look` makes something, and returns that; keeps it where it makes
    /// nothing. Looks the slot up once, and moves nothing.
    ///
    /// # Errors
    /// As `get`.
    #[inline(always)]
    pub fn release_if<R>(
        &mut self,
        id: SlotId,
        look: impl FnOnce(&T) -> Option<R>,
    ) -> Result<Option<R>, StaleSlot> {
        let slot = claimed(&mut self.slots, id)?;
        let made = look(slot.value.as_ref().expect("claimed"));
        if made.is_some() {
            slot.value = None;
            slot.free(id, &mut self.first_free);
            self.claimed -= 1;
        }
        Ok(made)
    }
}

impl<T> Slot<T> {
    /// Puts itself, emptied, first in the free list; no id names it until it is claimed again.
    #[inline(always)]
    fn free(&mut self, id: SlotId, first_free: &mut u32) {
        self.generation = id.generation.wrapping_add(1) & GENERATION_MASK;
        self.next_free = std::mem::replace(first_free, id.index);
    }
}

/// The slot of an id that names something claimed.
#[inline(always)]
fn claimed<T>(slots: &mut [Slot<T>], id: SlotId) -> Result<&mut Slot<T>, StaleSlot> {
    let capacity = slots.len();
    match slots.get_mut(id.index as usize) {
        Some(slot) if slot.generation == id.generation && slot.value.is_some() => Ok(slot),
        other => Err(stale(id, capacity, other.as_deref())),
    }
}

#[cold]
fn stale<T>(id: SlotId, capacity: usize, slot: Option<&Slot<T>>) -> StaleSlot {
    let capacity = u32::try_from(capacity).expect("checked in new");
    StaleSlot { id, capacity, current: slot.map(|slot| slot.generation) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::{SlotId, Slots};

    #[test]
    fn a_released_id_names_nothing_even_when_its_slot_is_claimed_again() {
        let mut slots = Slots::new(1);
        let first = slots.claim("first").unwrap();
        assert_eq!(slots.claim("too many"), Err("too many"));
        assert_eq!(slots.release(first), Ok("first"));
        let second = slots.claim("second").unwrap();
        assert_eq!(second.index(), first.index());
        let stale = slots.get(first).unwrap_err();
        assert_eq!((stale.id, stale.current), (first, Some(1)));
        assert!(slots.get_mut(first).is_err() && slots.release(first).is_err());
        assert_eq!(slots.get(second), Ok(&"second"));
    }

    #[test]
    fn ids_from_nowhere_name_nothing() {
        let mut slots = Slots::new(2);
        let id = slots.claim(7).unwrap();
        for packed in [u64::MAX, 2, id.to_u64() | 1 << 32, id.to_u64() | 1 << 63] {
            let text = slots.get(SlotId::from_u64(packed)).unwrap_err().to_string();
            assert!(text.contains("names nothing in flight"), "{text}");
        }
    }

    #[test]
    fn generations_wrap_without_touching_the_top_bit() {
        let mut slots = Slots::new(1);
        slots.slots[0].generation = super::GENERATION_MASK;
        let last = slots.claim(()).unwrap();
        assert_eq!(last.to_u64() >> 63, 0);
        slots.release(last).unwrap();
        assert_eq!(slots.claim(()).unwrap().to_u64(), 0);
    }

    proptest! {
        /// Against a map: every claim, lookup and release agrees, whatever the order.
        #[test]
        fn agrees_with_a_map(
            capacity in 0_u32..6,
            steps in prop::collection::vec(0_u8..=255, 200),
        ) {
            let mut slots = Slots::new(capacity);
            let mut model: HashMap<u64, u8> = HashMap::new();
            let mut dead: Vec<SlotId> = Vec::new();
            for step in steps {
                if step % 2 == 0 {
                    match slots.claim(step) {
                        Ok(id) => prop_assert_eq!(model.insert(id.to_u64(), step), None),
                        Err(_) => prop_assert_eq!(model.len(), capacity as usize),
                    }
                } else if let Some(packed) = model.keys().nth(usize::from(step) % 7).copied() {
                    let id = SlotId::from_u64(packed);
                    prop_assert_eq!(slots.release_if(id, |_| None::<u8>), Ok(None));
                    if step % 4 == 1 {
                        prop_assert_eq!(slots.release(id).ok(), model.remove(&packed));
                    } else {
                        let released = slots.release_if(id, |value| Some(*value));
                        prop_assert_eq!(released, Ok(model.remove(&packed)));
                    }
                    dead.push(id);
                }
                prop_assert_eq!(slots.claimed() as usize, model.len());
                for (packed, value) in &model {
                    prop_assert_eq!(slots.get(SlotId::from_u64(*packed)), Ok(value));
                }
                prop_assert!(dead.iter().all(|id| slots.get(*id).is_err()));
                prop_assert!(dead.iter().all(|id| slots.release_if(*id, |_| Some(())).is_err()));
            }
        }
    }
}
