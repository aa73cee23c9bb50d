//! Free slots of a staging pool: a bit each, the lowest taken first.
//!
//! So the slots in use are the same few again and again, and stay in the caches of the processor:
//! in a queue every slot would take its turn, and on its way in and out each byte would go to
//! memory.

use std::sync::atomic::{AtomicU64, Ordering};

/// A set of slots that several threads take from and give back to.
#[derive(Debug)]
pub(super) struct FreeSlots {
    words: Box<[AtomicU64]>,
}

impl FreeSlots {
    /// All of them free.
    pub(super) fn new(slots: u16) -> Self {
        let word = |at: u16| {
            let left = slots - at;
            AtomicU64::new(if left >= 64 { u64::MAX } else { (1 << left) - 1 })
        };
        Self { words: (0..slots).step_by(64).map(word).collect() }
    }

    /// How many there are.
    #[inline]
    pub(super) fn count(&self) -> usize {
        // A hint: what is decided by it is decided again by `take`.
        self.words.iter().map(|word| word.load(Ordering::Relaxed).count_ones() as usize).sum()
    }

    /// Takes the lowest one.
    #[inline]
    pub(super) fn take(&self) -> Option<u16> {
        for (at, word) in (0..).zip(&self.words) {
            // Only selects where to try; the exchange below decides.
            let mut seen = word.load(Ordering::Relaxed);
            while seen != 0 {
                let bit = seen & seen.wrapping_neg();
                // Pairs with the release in `give_back`: the last holder's accesses to the slot's
                // bytes are over. SeqCst, as there, for the check after `Staging` sets its mark of
                // starving.
                seen = word.fetch_and(!bit, Ordering::SeqCst);
                if seen & bit != 0 {
                    let low = u16::try_from(bit.trailing_zeros()).expect("below 64");
                    return Some(at * 64 + low);
                }
            }
        }
        None
    }

    /// Gives one back.
    ///
    /// # Panics
    /// If it was free.
    #[inline]
    pub(super) fn give_back(&self, slot: u16) {
        let bit = 1 << (slot % 64);
        // Pairs with `take`.
        let before = self.words[usize::from(slot / 64)].fetch_or(bit, Ordering::SeqCst);
        assert!(before & bit == 0, "slot {slot} came back twice");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Mutex;

    use super::FreeSlots;

    #[test]
    fn the_lowest_goes_first_and_each_once() {
        for slots in [2, 63, 64, 65, 200] {
            let free = FreeSlots::new(slots);
            assert_eq!(free.count(), usize::from(slots));
            let taken: Vec<u16> = std::iter::from_fn(|| free.take()).collect();
            assert_eq!(taken, (0..slots).collect::<Vec<_>>());
            free.give_back(slots - 1);
            free.give_back(slots / 2 - 1);
            assert_eq!(free.take(), Some(slots / 2 - 1));
        }
    }

    #[test]
    fn no_slot_is_with_two_threads_at_once() {
        let (free, held) = (FreeSlots::new(70), Mutex::new(HashSet::new()));
        let work = || {
            for _ in 0..20_000 {
                let Some(slot) = free.take() else { continue };
                assert!(held.lock().unwrap().insert(slot), "slot {slot} was given out twice");
                assert!(held.lock().unwrap().remove(&slot));
                free.give_back(slot);
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(free.count(), 70);
    }

    #[test]
    #[should_panic(expected = "came back twice")]
    fn a_slot_comes_back_once() {
        FreeSlots::new(4).give_back(2);
    }
}
