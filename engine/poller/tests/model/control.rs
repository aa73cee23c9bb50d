//! The control thread's part: commands, and what the poller's notices must find.

use std::rc::Rc;
use std::sync::Arc;

use kvrail_poller::{Notice, PollerCommand, SessionSlot};
use kvrail_ring::RegionId;

use super::contents::Ending;
use super::session::{LaneEnd, Life, RegionEnd, Session};
use super::trace::What;
use super::world::World;

impl World {
    fn tell(&mut self, what: &'static str, slot: u8, number: u32, command: PollerCommand) {
        self.trace.note(What::Told { what, slot, number });
        self.rig.mailbox.send(command).expect("commands are handled each tick");
    }

    /// A client arrives, or one of them asks for a change, leaves or dies.
    pub(crate) fn manage(&mut self, slot: u8) {
        let options = self.options.slots[usize::from(slot)].clone();
        let Some(mut session) = self.sessions[usize::from(slot)].take() else {
            if self.rng.u32(..3) == 0 {
                self.sessions[usize::from(slot)] = Some(Session::new(slot));
            }
            return;
        };
        if session.closed.is_none() {
            if session.open_lanes() < options.lanes_max && self.rng.u32(..3) == 0 {
                self.add_lane(&mut session, options.lane_depth);
            }
            if session.open_regions() < options.regions_max && self.rng.u32(..3) == 0 {
                self.attach(&mut session, options.buffers);
            }
            if self.rng.u32(..self.options.calm) == 0 {
                match self.rng.u32(..8) {
                    0 => self.close(&mut session),
                    1..4 => self.close_lane(&mut session),
                    _ => self.detach(&mut session),
                }
            }
        }
        self.sessions[usize::from(slot)] = Some(session);
    }

    fn add_lane(&mut self, session: &mut Session, depth: u32) {
        let queue = u32::try_from(session.lanes.len()).expect("few");
        let (end, seat) = LaneEnd::make(queue, depth);
        session.lanes.push(end);
        self.tell("add lane", session.slot.0, queue, PollerCommand::AddLane(session.slot, seat));
    }

    fn close_lane(&mut self, session: &mut Session) {
        let live = session.lanes.iter_mut().find(|end| end.life == Life::Live);
        let Some(end) = live else { return };
        end.life = Life::Leaving(self.tick + 1);
        let (slot, queue) = (session.slot, end.queue);
        self.tell("close lane", slot.0, queue, PollerCommand::CloseLane(slot, queue));
    }

    fn attach(&mut self, session: &mut Session, buffers: u32) {
        let places = &mut self.generations;
        let free = places.iter().position(|(taken, _)| !taken).expect("more than regions");
        let (taken, generation) = &mut places[free];
        *taken = true;
        *generation += 1;
        let region = RegionId(u32::try_from(free).expect("few") | *generation << 16);
        let end = RegionEnd::make(region, buffers, 2 * self.options.stripe);
        let (buffer, memory) = (end.buffer, Arc::clone(&end.memory));
        self.watch.borrow_mut().owners.insert(buffer.0, (session.slot.0, region));
        session.regions.push(end);
        let command = PollerCommand::Attach { session: session.slot, region, buffer, memory };
        self.tell("attach", session.slot.0, region.0, command);
    }

    fn detach(&mut self, session: &mut Session) {
        let live = session.regions.iter_mut().find(|region| region.life == Life::Live);
        let Some(region) = live else { return };
        region.life = Life::Leaving(self.tick + 1);
        let (slot, id) = (session.slot, region.id);
        self.left.insert(id, self.tick + 1);
        self.tell("detach", slot.0, id.0, PollerCommand::Detach(slot, id));
    }

    /// The client of a session is dead.
    pub(crate) fn close(&mut self, session: &mut Session) {
        session.closed = Some(self.tick + 1);
        self.tell("close session", session.slot.0, 0, PollerCommand::CloseSession(session.slot));
    }

    /// The tick after which a region was named by nobody.
    pub(crate) fn left(&self, id: RegionId) -> u32 {
        self.left.get(&id).copied().unwrap_or(u32::MAX)
    }

    /// Hears what the poller has to say.
    pub(crate) fn hear(&mut self) {
        while let Some(notice) = self.rig.mailbox.receive() {
            let slot = match &notice {
                Notice::LaneAdded(slot, _)
                | Notice::LaneClosed(slot, _)
                | Notice::Attached(slot, _, _)
                | Notice::Detached(slot, _)
                | Notice::SessionClosed(slot)
                | Notice::LaneFault(slot, _, _) => *slot,
                Notice::Drained => {
                    self.hear_drained();
                    continue;
                }
                Notice::Replaced(..)
                | Notice::Released(..)
                | Notice::Store(..)
                | Notice::DearBell(_)
                | Notice::Traced(_) => {
                    unreachable!("no device comes back here, no store is asked, nobody traces")
                }
            };
            let session = self.sessions[usize::from(slot.0)].take();
            let mut session = session.expect("a notice for a session that is there");
            if self.heard(&mut session, notice) == Life::Live {
                self.sessions[usize::from(slot.0)] = Some(session);
            }
        }
    }

    fn hear_drained(&mut self) {
        self.trace.note(What::Heard { what: "drained", slot: 0, number: 0 });
        assert!(self.drained_at.is_some() && !self.heard_drained, "drained unasked or twice");
        assert_eq!(self.watch.borrow().in_flight(), 0, "drained with operations in flight");
        self.heard_drained = true;
    }

    /// Says whether the session is still there.
    fn heard(&mut self, session: &mut Session, notice: Notice) -> Life {
        let SessionSlot(slot) = session.slot;
        let trace = Rc::clone(&self.trace);
        let heard = |what, number| trace.note(What::Heard { what, slot, number });
        match notice {
            Notice::LaneAdded(_, queue) => {
                heard("lane added", queue);
                session.lanes[queue as usize].life = Life::Live;
            }
            Notice::LaneClosed(_, seat) => {
                heard("lane closed", seat.queue);
                self.lane_closed(session, seat.queue as usize);
            }
            Notice::Attached(_, id, outcome) => {
                heard("attached", id.0);
                outcome.expect("a simulated device takes every region");
                session.region(id).life = Life::Live;
            }
            Notice::Detached(_, id) => {
                heard("detached", id.0);
                self.detached(session, id);
            }
            Notice::LaneFault(_, queue, _) => {
                heard("lane fault", queue);
                assert!(self.is_hostile(session), "a fault of an honest client's lane");
                self.tally.lane_faults += 1;
                session.lanes[queue as usize].life = Life::Leaving(self.tick);
                if session.closed.is_none() {
                    self.close(session);
                }
            }
            Notice::SessionClosed(_) => {
                heard("session closed", 0);
                self.session_closed(session);
                return Life::Gone;
            }
            Notice::Drained
            | Notice::Replaced(..)
            | Notice::Released(..)
            | Notice::Store(..)
            | Notice::DearBell(_)
            | Notice::Traced(_) => unreachable!("heard elsewhere"),
        }
        Life::Live
    }

    /// Everything taken from the lane is completed; what was not taken never happens.
    fn lane_closed(&mut self, session: &mut Session, at: usize) {
        let left = session.closed.is_some() || matches!(session.lanes[at].life, Life::Leaving(_));
        assert!(left, "a lane closed unasked");
        self.collect(session, at);
        session.lanes[at].life = Life::Gone;
        if self.is_hostile(session) {
            return;
        }
        let queue = session.lanes[at].queue;
        for id in std::mem::take(&mut session.lanes[at].posted) {
            let pending = session.pending.remove(&id).expect("posted and not taken");
            self.settle(session, &pending, Ending::NeverStarted);
        }
        let lost = session.pending.values().find(|pending| pending.queue == queue);
        assert!(lost.is_none(), "invariant 1: taken and never completed: {lost:?}");
    }

    fn detached(&mut self, session: &mut Session, id: RegionId) {
        let closed = session.closed;
        let region = session.region(id);
        let asked = closed.is_some() || matches!(region.life, Life::Leaving(_));
        assert!(asked && region.life != Life::Gone, "a region detached unasked or twice");
        let holders = Arc::strong_count(&region.memory);
        assert_eq!(holders, 1, "invariant 2: detached, and somebody holds its memory");
        if region.life == Life::Live {
            self.left.insert(id, closed.expect("just seen"));
        }
        let region = session.region(id);
        region.life = Life::Gone;
        self.generations[usize::from(region.buffer.0)].0 = false;
    }

    fn session_closed(&mut self, session: &mut Session) {
        assert!(session.closed.is_some(), "a session closed unasked");
        let remains = session.open_lanes() + session.open_regions();
        assert_eq!(remains, 0, "a session closed before its lanes and regions");
        self.tally.deaths += 1;
        if !self.is_hostile(session) {
            assert!(session.pending.is_empty(), "invariant 1: {:?}", session.pending);
            session.regions.iter().for_each(RegionEnd::check_all);
        }
    }
}
