//! Devices that were taken away, and what comes back in their place.
//!
//! From the first DEVICE_GONE on nothing is given to a device any more: its requests end with that
//! status at once. The control side looks for it and sends what came back.

use kvrail_device::{Clock, Device, Replacement};

use crate::mailbox::Notice;
use crate::poller::Poller;

/// Whether a device is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// As far as anybody knows.
    Here,
    /// It was taken away.
    Gone,
}

impl<D: Device, C: Clock> Poller<D, C> {
    /// A request ended with DEVICE_GONE.
    #[cold]
    pub(crate) fn lost(&mut self, index: usize) {
        self.units[index].presence = Presence::Gone;
        self.stats.devices[index].gone.set(1);
    }

    /// Goes on with what came back.
    #[cold]
    pub(crate) fn replace(&mut self, index: usize, mut with: Box<Replacement>) {
        let outcome = self.units[index].device.replace(&mut with);
        if outcome.is_ok() {
            self.units[index].presence = Presence::Here;
            self.stats.devices[index].gone.set(0);
        }
        self.mailbox.post(Notice::Replaced(index, with, outcome));
    }
}
