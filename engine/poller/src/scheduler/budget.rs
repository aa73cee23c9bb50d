//! How much one device holds at once: operations and bytes.
//!
//! Beyond what saturates a drive, depth only adds waiting time inside it, where nothing can be
//! put first any more. A quarter of the budget is for demand requests alone. Of an operation that
//! is longer than its device's window only the window counts.

use kvrail_device::WINDOW_BYTES;
use kvrail_ring::Class;

/// What a device may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBudget {
    /// Operations at once.
    pub operations: u32,
    /// Bytes at once; a single operation may exceed it when it is alone.
    pub bytes: InFlightBytes,
}

/// Bytes that a device may hold at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlightBytes {
    /// This many.
    Fixed(u64),
    /// What the device moves in 2 ms, from 4 to 64 MiB: by its description at first, then as its
    /// completions tell.
    Followed,
}

/// Bytes of an operation that its device has at once.
#[inline(always)]
pub(crate) fn held_bytes(length: u32) -> u32 {
    length.min(WINDOW_BYTES)
}

/// What one class may fill.
#[derive(Clone, Copy, Debug)]
struct Limit {
    operations: u32,
    bytes: u64,
}

/// A budget and what is taken of it.
#[derive(Debug)]
pub(crate) struct BudgetLedger {
    limits: [Limit; Class::ALL.len()],
    operations: u32,
    bytes: u64,
}

impl BudgetLedger {
    pub(crate) fn new(operations: u32, bytes: u64) -> Self {
        assert!(operations > 0 && bytes > 0, "a device without budget does nothing");
        let limits = Class::ALL.map(|class| match class {
            Class::Demand => Limit { operations, bytes },
            Class::Prefetch | Class::Background => {
                Limit { operations: (operations * 3 / 4).max(1), bytes: bytes / 4 * 3 }
            }
        });
        Self { limits, operations: 0, bytes: 0 }
    }

    /// Bytes it may hold from now on. What it holds already may be more.
    pub(crate) fn resize(&mut self, bytes: u64) {
        let Limit { operations, .. } = self.limits[Class::Demand as usize];
        self.limits = Self::new(operations, bytes).limits;
    }

    /// Bytes it may hold.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limits[Class::Demand as usize].bytes
    }

    /// Bytes it holds; of long operations their windows.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether one more of this class fits.
    #[inline(always)]
    pub(crate) fn fits(&self, class: Class, length: u32) -> bool {
        let limit = &self.limits[class as usize];
        let bytes = u64::from(held_bytes(length));
        if self.bytes + bytes <= limit.bytes && self.operations < limit.operations {
            return true;
        }
        self.operations == 0
    }

    #[inline(always)]
    pub(crate) fn charge(&mut self, length: u32) {
        self.operations += 1;
        self.bytes += u64::from(held_bytes(length));
    }

    /// Gives back what operations were charged, with the sum of their `held_bytes`.
    #[inline]
    pub(crate) fn refund(&mut self, operations: u32, bytes: u64) {
        assert!(
            operations <= self.operations && bytes <= self.bytes,
            "invariant 1: a device finished more than it was given"
        );
        self.operations -= operations;
        self.bytes -= bytes;
        assert!(self.operations > 0 || self.bytes == 0, "bytes of a budget leaked");
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.operations
    }
}

#[cfg(test)]
mod tests {
    use kvrail_device::WINDOW_BYTES;
    use kvrail_ring::Class;

    use super::BudgetLedger;

    #[test]
    fn a_quarter_is_kept_for_demand() {
        let mut ledger = BudgetLedger::new(8, 8 << 20);
        for _ in 0..6 {
            assert!(ledger.fits(Class::Background, 1 << 20));
            ledger.charge(1 << 20);
        }
        assert!(!ledger.fits(Class::Background, 1 << 20));
        assert!(ledger.fits(Class::Demand, 1 << 20));
        ledger.charge(2 << 20);
        assert!(!ledger.fits(Class::Demand, 1));
    }

    #[test]
    fn one_that_is_larger_than_the_budget_goes_alone() {
        let mut ledger = BudgetLedger::new(8, 4096);
        assert!(ledger.fits(Class::Background, 1 << 20));
        ledger.charge(1 << 20);
        assert!(!ledger.fits(Class::Demand, 512));
        ledger.refund(1, 1 << 20);
        assert!(ledger.fits(Class::Demand, 512));
    }

    #[test]
    fn a_long_one_counts_by_its_window_and_a_smaller_limit_waits_for_what_is_held() {
        let window = u64::from(WINDOW_BYTES);
        let mut ledger = BudgetLedger::new(8, 4 * window);
        for _ in 0..4 {
            assert!(ledger.fits(Class::Demand, 64 << 20));
            ledger.charge(64 << 20);
        }
        assert!(!ledger.fits(Class::Demand, 512));
        ledger.resize(2 * window);
        ledger.refund(2, 2 * window);
        assert!(!ledger.fits(Class::Demand, 512) && ledger.limit_bytes() == 2 * window);
        ledger.refund(1, window);
        assert!(ledger.fits(Class::Demand, 512) && !ledger.fits(Class::Background, 64 << 20));
    }
}
