//! What the control thread does with the notices of pollers and the events of workers.

use kvrail_device::DeviceError;
use kvrail_poller::{DeviceFailure, LaneSeat, Notice, PollerHandle, SessionSlot};
use kvrail_protocol::Hardware;
use kvrail_ring::{Status, drain_doorbell};
use rustix::fd::AsFd;
use rustix::io::Errno;

use super::Server;
use crate::failure::Failure;
use crate::kept::Kept;
use crate::memory_worker::WorkerEvent;
use crate::report;
use crate::session::{EndReason, Session};
use crate::wakers::REMEMBERED;

impl Server {
    /// Reads what pollers and workers report. The bell is silenced first, so that what comes
    /// meanwhile rings again.
    pub(super) fn read_notices(&mut self) {
        drain_doorbell(self.to_control.as_fd());
        while let Some(event) = self.workers.receive() {
            match event {
                WorkerEvent::Built(key, built) => {
                    let has_ended = !self.sessions.lives(key.0);
                    let reply = self.regions.built(key, built, has_ended, &mut self.pollers);
                    self.reply_if(reply);
                    self.reclaim(key.0);
                }
                WorkerEvent::Closed(key) => {
                    let reply = self.regions.closed(key);
                    self.reply_if(reply);
                    self.reclaim(key.0);
                }
                WorkerEvent::Fetched(id, fetched) => self.fetched(id, fetched),
            }
        }
        while let Some((poller, notice)) = self.pollers.receive() {
            self.notice(poller, notice);
        }
        self.pollers.handles().iter().for_each(log_failures);
        self.say_unregistered();
        self.stores.hear_all_gone(self.pollers.handles());
        self.stores.log_corrupt(self.pollers.handles());
        self.stores.take_losses(self.pollers.handles());
    }

    /// Logs once that memory is not registered with the rings.
    fn say_unregistered(&mut self) {
        if self.unregistered.is_none() {
            self.unregistered = report::unregistered(self.pollers.handles());
            self.unregistered.iter().for_each(|why| tracing::warn!("{why}"));
        }
    }

    /// The session in a slot, if it has not ended.
    fn living(&self, slot: SessionSlot) -> Option<u64> {
        self.sessions.at(slot).filter(|session| !session.is_reclaiming()).map(Session::id)
    }

    fn notice(&mut self, poller: usize, notice: Notice) {
        match notice {
            Notice::Store(_, call) => {
                let replies = self.stores.called(poller, call, &mut self.pollers);
                replies.into_iter().for_each(|reply| self.reply(reply));
            }
            Notice::LaneAdded(slot, queue) => {
                let Some(id) = self.living(slot) else { return };
                let reply = self.queues.lane_added(poller, (id, queue));
                self.reply_if(reply);
            }
            Notice::LaneClosed(slot, seat) => self.lane_closed(poller, slot, seat),
            Notice::Attached(slot, region, outcome) => {
                let Some(id) = self.living(slot) else { return };
                let outcome = outcome.map_err(|error| attach_failure(&error));
                let pollers = &mut self.pollers;
                match self.regions.attached(poller, (id, region), outcome, pollers) {
                    Ok(reply) => self.reply_if(reply),
                    Err(what) => {
                        let reason =
                            format!("poller {poller} turns again after it was stalled, and {what}");
                        self.end(id, EndReason::Dismissed(reason, Hardware::MayBeActive));
                    }
                }
            }
            Notice::Detached(slot, region) => {
                let Some(id) = self.living(slot) else { return };
                let reply = self.regions.detached(poller, (id, region));
                self.reply_if(reply);
            }
            Notice::SessionClosed(slot) => {
                let Some(id) = self.sessions.at(slot).map(Session::id) else { return };
                self.sessions.closed_in(id, poller);
                self.reclaim(id);
            }
            Notice::LaneFault(slot, queue, fault) => {
                let Some(id) = self.sessions.at(slot).map(Session::id) else { return };
                let reason = format!("the indices of queue {queue} are impossible: {fault}");
                self.end(id, EndReason::Violation(reason));
            }
            Notice::Replaced(device, _closed_here, outcome) => {
                let name = &self.pollers.handles()[poller].devices[device].1.name;
                match outcome {
                    Ok(()) => {
                        tracing::warn!("{name} is back and served again");
                        self.stores.replaced(poller, device, &mut self.pollers);
                    }
                    Err(error) => tracing::warn!("{name} is not served again yet: {error}"),
                }
            }
            Notice::Released(device, _closed_here, outcome) => {
                let name = &self.pollers.handles()[poller].devices[device].1.name;
                match outcome {
                    Ok(()) => tracing::info!("{name} is retired, and closed"),
                    Err(error) => tracing::debug!("{name} is not closed yet: {error}"),
                }
            }
            Notice::Traced(tracer) => self.trace.returned(poller, &tracer),
            Notice::DearBell(slot) => self.expensive_bell(slot),
            Notice::Drained => self.shutdown.drained(poller),
        }
    }

    /// A poller gave a lane back.
    fn lane_closed(&mut self, poller: usize, slot: SessionSlot, seat: Box<LaneSeat>) {
        let queue = seat.queue;
        let session = self.sessions.at(slot);
        let worker = session.map_or(self.workers.unattached(), Session::worker);
        drop(Kept::new(seat, worker));
        let Some(id) = self.living(slot) else { return };
        match self.queues.lane_closed(poller, (id, queue)) {
            Ok(reply) => self.reply_if(reply),
            Err(reason) => self.end(id, EndReason::Dismissed(reason, Hardware::MayBeActive)),
        }
    }

    /// A poller gave a session's bells to the ringer.
    fn expensive_bell(&mut self, slot: SessionSlot) {
        let Some(session) = self.sessions.at(slot) else { return };
        let (pid, uid) = (session.peer().pid, session.peer().uid);
        tracing::warn!(
            session = session.id(),
            pid,
            uid,
            name = session.name(),
            "too much watches this client's bells, and to wake it takes a poller too long: another \
             thread does that for the next {} minutes, later than a poller would",
            REMEMBERED.as_secs() / 60
        );
        self.wakers.remember(uid);
    }
}

/// The failure of a request whose memory a device does not take. The limit of pinned memory is the
/// user's, and no fault of the device.
fn attach_failure(error: &DeviceError) -> Failure {
    let status = match error {
        DeviceError::Register { errno: Errno::NOMEM, .. } => Status::Quota,
        _ => Status::IoError,
    };
    (status, error.to_string())
}

/// Logs what a poller's devices failed.
fn log_failures(poller: &PollerHandle) {
    while let Some(DeviceFailure { device, failure, errors }) = poller.mailbox.next_failure() {
        let name = poller.devices.get(device).map_or("unknown", |(_, device)| device.name.as_str());
        tracing::error!(device = name, errors, "{failure}");
    }
}
