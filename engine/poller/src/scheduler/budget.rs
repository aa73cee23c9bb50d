//! How much one device holds at once: operations and bytes.
//!
//! Beyond what saturates a drive, depth only adds waiting time inside it, where nothing can be
//! put first any more. A quarter of the budget is for demand requests alone.

use kvrail_ring::Class;

/// What a device may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Operations at once.
    pub operations: u32,
    /// Bytes at once; a single operation may exceed it when it is alone.
    pub bytes: u64,
}

/// A budget and what is taken of it.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// What each class may fill.
    limits: [Budget; Class::ALL.len()],
    operations: u32,
    bytes: u64,
}

impl Ledger {
    pub(crate) fn new(budget: Budget) -> Self {
        assert!(budget.operations > 0 && budget.bytes > 0, "a device without budget does nothing");
        let kept_back =
            Budget { operations: (budget.operations * 3 / 4).max(1), bytes: budget.bytes / 4 * 3 };
        let limits = Class::ALL.map(|class| match class {
            Class::Demand => budget,
            Class::Prefetch | Class::Background => kept_back,
        });
        Self { limits, operations: 0, bytes: 0 }
    }

    /// Whether one more of this class fits.
    #[inline(always)]
    pub(crate) fn fits(&self, class: Class, length: u32) -> bool {
        let limit = &self.limits[class as usize];
        if self.bytes + u64::from(length) <= limit.bytes && self.operations < limit.operations {
            return true;
        }
        self.operations == 0
    }

    #[inline(always)]
    pub(crate) fn charge(&mut self, length: u32) {
        self.operations += 1;
        self.bytes += u64::from(length);
    }

    /// Gives back what so many operations of so many bytes in all were charged.
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
    use kvrail_ring::Class;

    use super::{Budget, Ledger};

    #[test]
    fn a_quarter_is_kept_for_demand() {
        let mut ledger = Ledger::new(Budget { operations: 8, bytes: 8 << 20 });
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
        let mut ledger = Ledger::new(Budget { operations: 8, bytes: 4096 });
        assert!(ledger.fits(Class::Background, 1 << 20));
        ledger.charge(1 << 20);
        assert!(!ledger.fits(Class::Demand, 512));
        ledger.refund(1, 1 << 20);
        assert!(ledger.fits(Class::Demand, 512));
    }
}
