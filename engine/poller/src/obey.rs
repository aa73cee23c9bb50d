//! Obeying: commands of the control thread, and what follows when the last request is done.

use kvrail_device::{Clock, Device};
use kvrail_ring::{RegionId, Status};

use crate::bells::Rung;
use crate::lanes::{Lane, Life};
use crate::mailbox::{Command, LaneSeat, Notice, SessionSlot};
use crate::poller::{Poller, Service};
use crate::region::{Farewell, Memory, Region};
use crate::unit::Side;

/// Commands of one tick: each takes up to a few microseconds.
const COMMANDS_MAX: u64 = 16;

impl<D: Device, C: Clock> Poller<D, C> {
    /// Carries out what the control thread sent, up to a turn's worth; returns how many commands
    /// there were.
    pub(crate) fn obey(&mut self) -> u64 {
        let mut seen = 0;
        while seen < COMMANDS_MAX
            && let Some(command) = self.mailbox.next_command()
        {
            seen += 1;
            match command {
                Command::AddLane(session, seat) => self.add_lane(session, seat),
                Command::CloseLane(session, queue) => {
                    if let Some(place) = self.lanes.find(session, queue) {
                        self.close_lane(place);
                        self.settle_lane(place);
                    }
                }
                Command::Attach { session, region, buffer, memory } => {
                    self.begin_attach(session, region, buffer, Memory::Host(memory));
                }
                Command::AttachRemote { session, region, buffer, memory } => {
                    self.begin_attach(session, region, buffer, Memory::Remote(memory));
                }
                Command::Detach(_, region) => {
                    // One that failed here may be detached by a client that was told of it before.
                    if self.regions.get(region).is_some() && self.regions.retire(region) {
                        self.let_go(region);
                    }
                }
                Command::CloseSession(session) => self.close_session(session),
                Command::Replace(device, with) => self.replace(device, with),
                Command::Drain => self.service = Service::Draining { told: false },
                Command::Stop => self.stopping = true,
            }
        }
        seen
    }

    fn add_lane(&mut self, session: SessionSlot, seat: Box<LaneSeat>) {
        let queue = seat.queue;
        let watched = self.bed.watch_bell(rustix::fd::AsFd::as_fd(&seat.doorbell));
        let lane = Lane { session, seat, life: Life::Serving, held_back: false };
        if watched.is_err() {
            self.mailbox.post(Notice::LaneClosed(session, lane.seat));
            return;
        }
        match self.lanes.insert(lane) {
            Ok(_) => self.mailbox.post(Notice::LaneAdded(session, queue)),
            Err(lane) => {
                self.bed.forget(rustix::fd::AsFd::as_fd(&lane.seat.doorbell));
                self.mailbox.post(Notice::LaneClosed(session, lane.seat));
            }
        }
    }

    /// Takes nothing more from a lane.
    pub(crate) fn close_lane(&mut self, place: u16) {
        self.lanes.get(place).life = Life::Closing;
    }

    /// Gives a closing lane back once nothing of it is under way.
    pub(crate) fn settle_lane(&mut self, place: u16) {
        let lane = self.lanes.get(place);
        let session = lane.session;
        if lane.life == Life::Closing && lane.seat.lane.outstanding() == 0 {
            let mut lane = self.lanes.remove(place);
            let _nobody_waits = lane.seat.lane.publish();
            if lane.seat.bell.ring() == Rung::LastTime {
                self.mailbox.post(Notice::DearBell(session));
            }
            self.bed.forget(rustix::fd::AsFd::as_fd(&lane.seat.doorbell));
            self.mailbox.post(Notice::LaneClosed(session, lane.seat));
            self.settle_session(session);
        }
    }

    /// Tells every device to forget a region.
    pub(crate) fn let_go(&mut self, id: RegionId) {
        self.let_go_of(id, self.units.len(), Farewell::Detached);
    }

    /// Tells the first `devices` devices to forget a region.
    pub(crate) fn let_go_of(&mut self, id: RegionId, devices: usize, farewell: Farewell) {
        let buffer = self.regions.get(id).expect("it is in the table").buffer;
        let devices_left = u8::try_from(devices).expect("a poller has few devices");
        self.regions.let_go(id, devices_left, farewell);
        if devices == 0 {
            let (region, farewell) = self.regions.remove(id).expect("just seen");
            self.region_gone(region, farewell);
            return;
        }
        for unit in &mut self.units[..devices] {
            unit.device.detach(buffer).expect("what was attached can be detached");
            unit.forgetting += 1;
            unit.prepared += 1;
        }
    }

    /// No device holds the region any more.
    pub(crate) fn region_gone(&mut self, region: Region, farewell: Farewell) {
        let (session, id) = (region.session, region.id);
        drop(region); // before the notice: the control thread may unmap right after it
        let notice = match farewell {
            Farewell::Detached => Notice::Detached(session, id),
            Farewell::Failed(error) => Notice::Attached(session, id, Err(error)),
        };
        self.mailbox.post(notice);
        self.settle_session(session);
    }

    /// The client is gone: nothing of it is started any more.
    fn close_session(&mut self, session: SessionSlot) {
        self.sessions.close(session);
        for index in 0..self.units.len() {
            self.drop_asides(index, session);
            for side in [Side::Host, Side::Remote] {
                while let Some(id) =
                    self.units[index].share(side).waiting.take_of(&self.nodes, session)
                {
                    self.finish(id, Status::Draining, 0);
                }
            }
        }
        while let Some(id) = self.summing.take_of(session) {
            self.finish(id, Status::Draining, 0);
        }
        while let Some(place) = self.lanes.find_serving(session) {
            self.close_lane(place);
            self.settle_lane(place);
        }
        self.stop_attaching(session);
        while let Some(region) = self.regions.live_of(session) {
            if self.regions.retire(region) {
                self.let_go(region);
            }
        }
        self.settle_session(session);
    }

    /// Says so when nothing of a closed session is left.
    fn settle_session(&mut self, session: SessionSlot) {
        let gone = self.sessions.is_leaving(session)
            && self.lanes.find_any(session).is_none()
            && !self.regions.any_of(session);
        if gone {
            self.sessions.forget(session);
            self.mailbox.post(Notice::SessionClosed(session));
        }
    }
}
