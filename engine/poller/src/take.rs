//! Taking: requests out of lanes, in fair rounds, each checked once as a private copy.

use kvrail_device::{Clock, Device, SlotId, Slots};
use kvrail_ring::{Completion, LaneFault, Opcode, RequestWords, Status};

use crate::accept::{Accepted, Checksum, Origin, Target, Wish};
use crate::asides::goes_aside;
use crate::mailbox::{Notice, SessionSlot};
use crate::placement::Placement;
use crate::poller::Poller;
use crate::presence::Presence;
use crate::region::Regions;
use crate::unit::{Side, Unit};
use crate::waiting::Wanted;

/// Requests taken from one lane before the next lane has its turn: 2 to 4 us of work. A tick costs
/// 100 ns and more beside its requests, for fences and the clock: a tenth of a turn of 32.
const LANE_QUANTUM: u32 = 64;

/// What a simple request needs of a poller; not its lanes, which it comes from.
struct Desk<'a, D> {
    placement: &'a Placement,
    regions: &'a mut Regions,
    requests: &'a mut Slots<Accepted>,
    units: &'a mut [Unit<D>],
    now_ns: u64,
}

/// Why a request was not given to its device at once.
enum Halt {
    /// It is not simple, or not sound.
    Other(RequestWords),
    /// It has its entry, but its device takes it later or not at all.
    Entered(usize, SlotId),
}

impl<D: Device> Desk<'_, D> {
    /// Enters a simple and sound request, and gives it to its device where nobody waits.
    #[inline(always)]
    fn admit(
        &mut self,
        request: &RequestWords,
        (session, lane): (SessionSlot, u16),
    ) -> Option<Halt> {
        let target = Target::simple(request, session, self.placement, self.regions);
        let Some(target) = target else { return Some(Halt::Other(*request)) };
        let origin = Origin { session, lane, now_ns: self.now_ns };
        let accepted = Accepted::simple(request, origin, target);
        let id = self.requests.claim(accepted).expect("sessions' shares add up to the table");
        let index = usize::from(accepted.device);
        let unit = &mut self.units[index];
        let open = unit.shares[Side::Host as usize].is_open(accepted.kin.class(), accepted.length);
        let given = open
            && unit.presence == Presence::Here
            && unit.give(Side::Host, accepted.simple_operation(id.to_u64()));
        (!given).then_some(Halt::Entered(index, id))
    }
}

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
        match lane.is_ready() {
            Ok(true) => {}
            Ok(false) => return 0,
            Err(fault) => {
                self.break_lane(place, fault);
                return 1;
            }
        }
        let most = self.sessions.allowance(session, LANE_QUANTUM);
        lane.held_back = most == 0;
        let refusal = self.refusal();
        let (mut taken, mut broken) = (0, None);
        while taken < most && broken.is_none() {
            let (count, outcome, halt) = self.take_simple((session, place), most - taken);
            self.sessions.enter(session, count);
            taken += count;
            broken = outcome.err();
            match halt {
                Some(Halt::Other(request)) => {
                    let origin = Origin { session, lane: place, now_ns: self.now_ns };
                    self.accept(&request, origin, refusal);
                }
                Some(Halt::Entered(index, id)) => self.start_or_wait(index, id),
                None => break,
            }
        }
        self.lanes.get(place).seat.lane.release();
        self.stats.sessions[usize::from(session.0)].accepted.add(u64::from(taken));
        match broken {
            None => taken,
            Some(fault) => {
                self.break_lane(place, fault);
                taken + 1
            }
        }
    }

    /// The client wrote into its lane what cannot be: nothing more is taken from it.
    #[cold]
    fn break_lane(&mut self, place: u16, fault: LaneFault) {
        let lane = self.lanes.get(place);
        let (session, queue) = (lane.session, lane.seat.queue);
        self.mailbox.post(Notice::LaneFault(session, queue, fault));
        self.close_lane(place);
        self.settle_lane(place);
    }

    /// Takes requests as long as they are simple and go to their device at once. Returns how many
    /// it took, and what became of the last one if it was not like that.
    #[inline(always)]
    fn take_simple(
        &mut self,
        whose: (SessionSlot, u16),
        most: u32,
    ) -> (u32, Result<(), LaneFault>, Option<Halt>) {
        let refuses = self.refusal().is_some();
        let Self { lanes, placement, regions, requests, units, now_ns, .. } = self;
        let mut desk = Desk { placement, regions, requests, units, now_ns: *now_ns };
        let mut halt = None;
        let (count, outcome) = lanes.get(whose.1).seat.lane.take_while(most, |request| {
            halt = if refuses { Some(Halt::Other(request)) } else { desk.admit(&request, whose) };
            halt.is_none()
        });
        (count, outcome, halt)
    }

    /// Answers for one request from now on.
    #[inline(never)]
    fn accept(&mut self, request: &RequestWords, origin: Origin, refusal: Option<Status>) {
        let wish = match refusal {
            Some(status) => Err(status),
            None => Wish::check(request, origin.session, &self.placement, &mut self.regions),
        };
        match wish {
            Ok(Wish::Operation(target)) => {
                let accepted = Accepted::new(request, origin, target);
                self.enter(accepted, request.deadline_ns());
            }
            Ok(Wish::Nop) => self.answer(origin, request.user_data(), Status::Ok),
            Err(status) => self.answer(origin, request.user_data(), status),
        }
    }

    /// Completes a request that needs no device.
    #[inline(never)]
    fn answer(&mut self, origin: Origin, user_data: u64, status: Status) {
        let counters = &self.stats.sessions[usize::from(origin.session.0)];
        counters.completed.add(1);
        if status != Status::Ok {
            counters.failed.add(1);
        }
        self.sessions.leave(origin.session, 1);
        // The lane is being taken from, so it is not closing.
        self.lanes.complete(origin.lane, Completion::refused(user_data, status));
        self.lanes.mark_staged(origin.lane);
    }

    /// Enters a checked request.
    fn enter(&mut self, accepted: Accepted, deadline_ns: u64) {
        let id = self.requests.claim(accepted).expect("sessions' shares add up to the table");
        if deadline_ns != 0 {
            self.timers.set(accepted.accepted_ns.saturating_add(deadline_ns), id);
        }
        if accepted.kin.opcode() == Opcode::Write && accepted.kin.checksum() != Checksum::Off {
            self.summing.push(id, accepted.session, self.now_ns);
        } else {
            self.start_or_wait(usize::from(accepted.device), id);
        }
    }

    /// Moves an entered request to its device at once where nobody waits; else it waits.
    #[inline(never)]
    pub(crate) fn start_or_wait(&mut self, index: usize, id: SlotId) {
        let accepted = *self.requests.get(id).expect("just claimed");
        let Accepted { kin, length, session, .. } = accepted;
        if goes_aside(kin.opcode()) {
            return self.put_aside(index, id, kin.opcode());
        }
        let (side, class) = (kin.side(), kin.class());
        let open = self.units[index].share(side).is_open(class, length);
        if !(open && self.start(index, id, accepted)) {
            let share = self.units[index].share(side);
            let cost_ns = share.pace.cost_ns(kin.opcode(), length);
            share.waiting.push(&mut self.nodes, Wanted { id, session, class, length, cost_ns });
        }
    }

    /// Moves waiting requests of one device to it, as far as its budget goes.
    pub(crate) fn feed_unit(&mut self, index: usize) {
        if self.units[index].asides.waiting() > 0 {
            self.feed_asides(index);
        }
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
            let accepted = *self.requests.get(next.id).expect("what waits is claimed");
            if !self.start(index, next.id, accepted) {
                return;
            }
            self.units[index].share(side).waiting.take(&self.nodes, next.class);
        }
    }

    /// Gives a request to its device, or ends it when the device is gone; false when the device
    /// takes no more now.
    #[inline]
    pub(crate) fn start(&mut self, index: usize, id: SlotId, accepted: Accepted) -> bool {
        let unit = &mut self.units[index];
        if unit.presence == Presence::Gone {
            self.stats.devices[index].errors.add(1);
            self.finish(id, Status::DeviceGone, 0);
            return true;
        }
        if !unit.give(accepted.kin.side(), accepted.operation(id.to_u64())) {
            return false;
        }
        if accepted.submitted_ns != self.now_ns {
            let waited = self.requests.get_mut(id).expect("a claimed request");
            waited.submitted_ns = self.now_ns;
        }
        true
    }
}
