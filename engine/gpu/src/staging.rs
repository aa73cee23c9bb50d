//! The staging pool of one GPU: hugepages that devices, the GPU and this process see at once, cut
//! into slots.
//!
//! A slot is with one transfer from before the request for its bytes until their last access; the
//! pool is shared by the pollers of all devices.

mod free;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use kvrail_memory::{MemoryError, Region};
use kvrail_ring::ThreadWaker;
use kvrail_ring::limits::{ENTRY_BYTES, POLLERS_MAX};
use kvrail_ring::wake::Waker;

use self::free::FreeSlots;

/// Bytes of a pool at most.
const BYTES_MAX: u64 = 1 << 30;

/// Entries of a device's buffer table that are kept for a pool.
pub const STAGING_ENTRIES: u16 = 16;

const _: () = assert!(STAGING_ENTRIES as u64 * ENTRY_BYTES == BYTES_MAX);

/// Size and number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingOptions {
    /// Bytes of a slot, a multiple of 4096. Longer transfers take several.
    pub slot_bytes: u32,
    /// Slots.
    pub slots: u16,
}

impl Default for StagingOptions {
    /// 64 slots of 2 MiB: at 55 GB/s of a PCIe 5 link 2.4 ms of traffic, and most KV blocks in one
    /// piece.
    fn default() -> Self {
        Self { slot_bytes: 2 << 20, slots: 64 }
    }
}

/// A slot that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotIndex(pub u16);

/// The pool.
#[derive(Debug)]
pub struct Staging {
    region: Arc<Region>,
    options: StagingOptions,
    free: FreeSlots,
    /// A request found no slot since the last one came back.
    starving: AtomicBool,
    /// Pollers to wake then.
    sleepers: Box<[OnceLock<Arc<ThreadWaker>>]>,
    remark: Option<String>,
}

impl Staging {
    /// Takes the memory, in hugepages where there are any; `remark` has the reason where there are
    /// none.
    ///
    /// # Errors
    /// `MemoryError` with the remedy when there is not that much.
    ///
    /// # Panics
    /// If the options are empty, misaligned, or beyond 1 GiB.
    pub fn new(options: StagingOptions) -> Result<Self, MemoryError> {
        let bytes = u64::from(options.slot_bytes) * u64::from(options.slots);
        let sound = options.slot_bytes.is_multiple_of(4096) && bytes > 0;
        assert!(sound && bytes <= BYTES_MAX, "{options:?}");
        let bytes = usize::try_from(bytes).expect("at most 1 GiB");
        let (region, remark) = Region::create_best("kvrail-staging", bytes)?;
        let free = FreeSlots::new(options.slots);
        let remark = remark.map(|why| why.to_string());
        let sleepers = (0..POLLERS_MAX).map(|_| OnceLock::new()).collect();
        let (region, starving) = (Arc::new(region), AtomicBool::new(false));
        Ok(Self { region, options, free, starving, sleepers, remark })
    }

    /// Has a poller woken when slots come back after there were none.
    pub fn introduce(&self, sleeper: &Arc<ThreadWaker>) {
        for place in &self.sleepers {
            let known = place.get_or_init(|| Arc::clone(sleeper));
            if Arc::ptr_eq(known, sleeper) {
                return;
            }
        }
    }

    /// The memory, to be registered with devices and the GPU.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Why there are no hugepages behind it.
    #[must_use]
    pub fn remark(&self) -> Option<&str> {
        self.remark.as_deref()
    }

    /// Size and number of slots.
    #[must_use]
    pub fn options(&self) -> StagingOptions {
        self.options
    }

    /// Free slots.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.count()
    }

    /// Takes a slot, while at least `reserve` others stay free.
    #[inline]
    #[must_use]
    pub fn take(&self, reserve: u16) -> Option<SlotIndex> {
        self.try_take(reserve).or_else(|| {
            // Pairs with the swap in `give_back`: either it sees this, or we see its slot.
            self.starving.store(true, Ordering::SeqCst);
            self.try_take(reserve)
        })
    }

    #[inline]
    fn try_take(&self, reserve: u16) -> Option<SlotIndex> {
        if reserve > 0 && self.free.count() <= usize::from(reserve) {
            return None;
        }
        self.free.take().map(SlotIndex)
    }

    /// Gives a slot back.
    ///
    /// # Panics
    /// If it was not taken.
    #[inline]
    pub fn give_back(&self, slot: SlotIndex) {
        self.free.give_back(slot.0);
        // Pairs with the store in `take`.
        if self.starving.swap(false, Ordering::SeqCst) {
            for sleeper in self.sleepers.iter().map_while(OnceLock::get) {
                sleeper.wake(&mut Waker::default());
            }
        }
    }

    /// First byte of a slot in the region.
    #[inline]
    #[must_use]
    pub fn offset(&self, slot: SlotIndex) -> usize {
        usize::from(slot.0) * self.options.slot_bytes as usize
    }
}

#[cfg(test)]
mod tests {
    use super::{Staging, StagingOptions};

    #[test]
    fn slots_are_taken_once_and_a_reserve_stays() {
        let pool = Staging::new(StagingOptions { slot_bytes: 4096, slots: 4 }).unwrap();
        let first = pool.take(2).unwrap();
        let second = pool.take(2).unwrap();
        assert_eq!((pool.take(2), pool.free()), (None, 2));
        let third = pool.take(0).unwrap();
        assert!(pool.offset(first) != pool.offset(second) && third != second);
        pool.give_back(first);
        assert_eq!((pool.take(2), pool.free()), (None, 2));
        pool.give_back(third);
        assert!(pool.take(2).is_some());
    }
}
