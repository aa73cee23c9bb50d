//! What pollers and the memory threads answer.

use kvrail_poller::{DeviceFailure, Notice, PollerHandle};
use kvrail_ring::{Status, hush};
use rustix::fd::AsFd;

use crate::leaving::Ending;
use crate::maker::Made;
use crate::server::Server;

impl Server {
    /// Reads everything there is. The bell is silenced first, so that what comes meanwhile rings
    /// again.
    pub(crate) fn read_notices(&mut self) {
        hush(self.to_control.as_fd());
        while let Some(made) = self.maker.receive() {
            match made {
                Made::Opened((id, region), outcome) => self.made(id, region, outcome),
                Made::Closed((id, region)) => self.closed(id, region),
                Made::Fetched(id, fetched) => self.fetched(id, fetched),
            }
        }
        while let Some((poller, notice)) = self.pollers.receive() {
            self.notice(poller, notice);
        }
        self.pollers.handles().iter().for_each(log_failures);
    }

    fn notice(&mut self, poller: usize, notice: Notice) {
        match notice {
            Notice::LaneAdded(slot, queue) => self.lane_added(poller, slot, queue),
            Notice::LaneClosed(slot, seat) => self.lane_closed(poller, slot, seat),
            Notice::Attached(slot, region, outcome) => {
                let outcome = outcome.map_err(|error| (Status::IoError, error.to_string()));
                self.attached(poller, slot, region, outcome);
            }
            Notice::Detached(slot, region) => self.detached(poller, slot, region),
            Notice::SessionClosed(slot) => self.session_closed(poller, slot),
            Notice::LaneFault(slot, queue, fault) => {
                let Some(session) = self.session_at(slot) else { return };
                let id = session.id;
                let reason = format!("the indices of queue {queue} are impossible: {fault}");
                self.end(id, Ending::Expelled(reason));
            }
            Notice::Replaced(device, _closed_here, outcome) => {
                let name = &self.pollers.handles()[poller].devices[device].1.name;
                match outcome {
                    Ok(()) => tracing::warn!("{name} is back and served again"),
                    Err(error) => tracing::warn!("{name} is not served again yet: {error}"),
                }
            }
            Notice::DearBell(slot) => self.dear_bell(slot),
            Notice::Drained => self.stage.drained(poller),
        }
    }
}

/// Logs what a poller's devices failed.
fn log_failures(poller: &PollerHandle) {
    while let Some(DeviceFailure { device, failure, errors }) = poller.mailbox.next_failure() {
        let name = poller.devices.get(device).map_or("unknown", |(_, device)| device.name.as_str());
        tracing::error!(device = name, errors, "{failure}");
    }
}
