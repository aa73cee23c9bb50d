//! Taking: requests out of lanes, in fair rounds, each checked once as a private copy.

use kvrail_device::{Clock, Device};
use kvrail_ring::{Completion, Opcode, Request, Status};

use crate::accept::{Accepted, Checksum, Origin};
use crate::mailbox::Notice;
use crate::poller::Poller;
use crate::unit::Side;

/// Requests taken from one lane before the next lane has its turn.
const LANE_QUANTUM: u32 = 32;

impl<D: Device, C: Clock> Poller<D, C> {
    /// One round over all lanes; returns how many requests were taken.
    pub(crate) fn take(&mut self) -> u64 {
        let mut taken = 0;
        for position in 0..self.lanes.count() {
            let Some(place) = self.lanes.in_round(position) else { break };
            taken += u64::from(self.take_from(place));
        }
        self.lanes.rotate();
        taken
    }

    #[inline]
    fn take_from(&mut self, place: u16) -> u32 {
        let lane = self.lanes.get(place);
        let session = lane.session;
        let ready = match lane.ready() {
            Ok(0) => return 0,
            Ok(ready) => ready,
            Err(fault) => {
                let queue = lane.seat.queue;
                self.mailbox.post(Notice::LaneFault(session, queue, fault));
                self.close_lane(place);
                self.settle_lane(place);
                return 1;
            }
        };
        let count = self.sessions.allowance(session, ready.min(LANE_QUANTUM));
        lane.held_back = count == 0;
        self.read_clock();
        let origin = Origin { session, lane: place, now_ns: self.now_ns };
        for _ in 0..count {
            let Some(request) = self.lanes.get(place).take() else { break };
            self.accept(&request, origin);
        }
        if count > 0 {
            self.lanes.get(place).seat.lane.release();
        }
        count
    }

    /// Answers for one request from now on.
    #[inline]
    fn accept(&mut self, request: &Request, origin: Origin) {
        let counters = &self.stats.sessions[usize::from(origin.session.0)];
        counters.accepted.add(1);
        let checked = match self.refusal() {
            Some(status) => Err(status),
            None => Accepted::check(request, origin, &self.placement, &self.regions),
        };
        match checked {
            Ok(accepted) if accepted.opcode == Opcode::Nop => {
                self.answer(origin, request.user_data, Status::Ok);
            }
            Ok(accepted) => self.admit(accepted),
            Err(status) => self.answer(origin, request.user_data, status),
        }
    }

    /// Completes a request that needs no device.
    fn answer(&mut self, origin: Origin, user_data: u64, status: Status) {
        let counters = &self.stats.sessions[usize::from(origin.session.0)];
        counters.completed.add(1);
        if status != Status::Ok {
            counters.failed.add(1);
        }
        self.lanes.complete(origin.lane, Completion::refused(user_data, status));
    }

    /// Enters a checked request and moves it to its device at once where nobody waits.
    #[inline(always)]
    fn admit(&mut self, accepted: Accepted) {
        self.sessions.enter(accepted.session);
        if let Some(region) = accepted.region {
            self.regions.enter(region);
        }
        let (class, length, session) = (accepted.class, accepted.length, accepted.session);
        let side = accepted.side;
        let index = usize::from(accepted.device);
        let late_at_ns = accepted.late_at_ns;
        let id = self.requests.claim(accepted).expect("sessions' shares add up to the table");
        if late_at_ns != u64::MAX {
            self.timers.set(late_at_ns, id);
        }
        let open = self.units[index].share(side).is_open(class, length);
        if !(open && self.start(index, id)) {
            let share = self.units[index].share(side);
            share.waiting.push(&mut self.nodes, id, (session, class, length));
        }
    }

    /// Moves waiting requests of one device to it, as far as its budget goes.
    pub(crate) fn feed_unit(&mut self, index: usize) {
        for side in [Side::Host, Side::Remote] {
            if self.units[index].share(side).waiting.count() > 0 {
                self.feed_share(index, side);
            }
        }
    }

    fn feed_share(&mut self, index: usize, side: Side) {
        let mut least = kvrail_ring::Class::Background;
        loop {
            let share = self.units[index].share(side);
            let Some(next) = share.waiting.peek(&self.nodes, least) else { return };
            if !share.ledger.fits(next.budget, next.length) {
                // What is kept free for demand requests may still serve one of those; but a turn
                // that is owed waits for room, or small requests would pass a large one forever.
                if next.budget == kvrail_ring::Class::Demand {
                    return;
                }
                least = kvrail_ring::Class::Demand;
                continue;
            }
            if !self.start(index, next.id) {
                return;
            }
            self.units[index].share(side).waiting.take(&self.nodes, next.class);
        }
    }

    /// Gives a request to its device, or ends it when its checksum is wrong already; false when
    /// the device takes no more now.
    #[inline]
    fn start(&mut self, index: usize, id: kvrail_device::SlotId) -> bool {
        let accepted = self.requests.get_mut(id).expect("a claimed request");
        if accepted.opcode == Opcode::Write && accepted.checksum != Checksum::Off {
            let region = accepted.region.and_then(|region| self.regions.get(region));
            let memory = &region.expect("a write under way keeps its region").memory;
            let memory = memory.host().expect("checksums are of host memory");
            let sum = self.summer.sum(memory, accepted.buffer_offset, accepted.length);
            if !accepted.settle_checksum(sum) {
                self.finish(id, Status::Corrupt, 0);
                return true;
            }
        }
        accepted.submitted_ns = self.now_ns;
        let unit = &mut self.units[index];
        if unit.device.prepare(accepted.operation(id.to_u64())).is_err() {
            return false;
        }
        unit.share(accepted.side).ledger.charge(accepted.length);
        unit.note_prepared();
        true
    }
}

impl Accepted {
    /// Notes the computed checksum; false when it is not the expected one, or could not be had.
    pub(crate) fn settle_checksum(&mut self, sum: Option<u64>) -> bool {
        self.computed = sum.unwrap_or(0);
        match self.checksum {
            Checksum::Off | Checksum::Compute => sum.is_some(),
            Checksum::Verify(expected) => sum == Some(expected),
        }
    }
}
