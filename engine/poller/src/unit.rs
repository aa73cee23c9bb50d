//! One device with what waits for it and what it holds.

use kvrail_device::Device;
use kvrail_ring::Class;

use crate::budget::{Budget, Ledger};
use crate::waiting::Waiting;

/// A device, its waiting requests and its budget.
#[derive(Debug)]
pub(crate) struct Unit<D> {
    pub(crate) device: D,
    pub(crate) waiting: Waiting,
    pub(crate) ledger: Ledger,
    /// Operations were prepared since the last submit.
    pub(crate) prepared: bool,
}

impl<D: Device> Unit<D> {
    pub(crate) fn new(device: D, budget: Budget) -> Self {
        let operations = budget.operations.min(device.description().depth);
        let ledger = Ledger::new(Budget { operations, ..budget });
        Self { device, waiting: Waiting::new(), ledger, prepared: false }
    }

    /// Whether a request may go to the device at once, past nobody.
    pub(crate) fn is_open(&self, class: Class, length: u32) -> bool {
        self.waiting.count() == 0 && self.ledger.fits(class, length)
    }
}
