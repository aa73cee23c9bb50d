//! What each completion must be, given what the devices said and what stands where.

use kvrail_ring::slot::FLAG_NOTICE;
use kvrail_ring::{Completion, Opcode, Status};

use super::contents::{Ending, Zone};
use super::options::{Health, Temper};
use super::session::{Expect, Late, Life, Pending, Session, Taken};
use super::trace::What;
use super::world::World;

/// A notice comes within this time of its deadline, and the tick that follows.
const LATE_WITHIN_NS: u64 = 1_000_000;

impl World {
    pub(crate) fn zone(&mut self, session: &Session, pending: &Pending) -> &mut Zone {
        let volume = usize::from(pending.request.volume);
        &mut self.zones[usize::from(session.slot.0)][volume]
    }

    fn health(&self, session: &Session) -> Health {
        self.options.slots[usize::from(session.slot.0)].health
    }

    pub(crate) fn is_hostile(&self, session: &Session) -> bool {
        self.options.slots[usize::from(session.slot.0)].temper == Temper::Hostile
    }

    /// Notes which requests the poller took in the tick that just ended.
    pub(crate) fn note_taken(&mut self, session: &mut Session) {
        if self.is_hostile(session) {
            return;
        }
        let taken_now = Taken { tick: self.tick, now_ns: self.now_ns() };
        for end in &mut session.lanes {
            end.collected = 0;
            if end.life == Life::Gone {
                continue;
            }
            let taken = end.taken();
            end.outstanding += u32::try_from(taken.len()).expect("a lane's");
            if !taken.is_empty() {
                let (slot, queue, count) = (session.slot.0, end.queue, taken.len());
                self.trace.note(What::Taken { slot, queue, count });
            }
            for id in taken {
                session.pending.get_mut(&id).expect("posted").taken = Some(taken_now);
            }
        }
    }

    /// The client reads every completion of a lane.
    pub(crate) fn collect(&mut self, session: &mut Session, at: usize) {
        let hostile = self.is_hostile(session);
        loop {
            let taken = session.lanes[at].lane.take();
            if hostile && taken.is_err() {
                return;
            }
            let Some(completion) = taken.expect("the poller's laps are sound") else { break };
            if !hostile {
                self.judge(session, at, completion.fields());
            }
        }
        session.lanes[at].lane.release();
    }

    fn judge(&mut self, session: &mut Session, at: usize, completion: Completion) {
        let (slot, id) = (session.slot.0, completion.user_data);
        session.lanes[at].collected += 1;
        let pending = session.pending.get_mut(&id);
        let pending = pending.expect("invariant 1: a completion nobody waits for");
        let taken = pending.taken.expect("completed before it was taken");
        assert_eq!(pending.queue, session.lanes[at].queue, "completed in another lane");
        if completion.flags == FLAG_NOTICE {
            self.trace.note(What::Late { slot, id });
            assert_eq!(completion.status(), Status::Late, "the only notice there is");
            assert_ne!(pending.late, Late::Told, "LATE twice");
            pending.late = Late::Told;
            let due_ns = taken.now_ns + pending.request.deadline_ns;
            let in_time = pending.request.deadline_ns > 0 && due_ns <= self.now_ns();
            assert!(in_time, "LATE before {due_ns}: {pending:?}");
            self.tally.late += 1;
            return;
        }
        assert_eq!(completion.flags, 0, "{completion:?}");
        let (status, bytes) = (completion.status(), completion.bytes);
        self.trace.note(What::Done { slot, id, status, bytes });
        let pending = session.pending.remove(&id).expect("just seen");
        session.lanes[at].outstanding -= 1;
        self.tally.completed += 1;
        self.tally.statuses[usize::from(status.number())] += 1;
        let ending = self.check_status(session, &pending, taken, completion);
        self.settle(session, &pending, ending);
    }

    /// Frees the buffer and settles what the zone may hold.
    pub(crate) fn settle(&mut self, session: &mut Session, pending: &Pending, ending: Ending) {
        self.moment += 1;
        let moments = [pending.began, self.moment, session.oldest(self.moment)];
        if pending.version != 0 {
            let zone = self.zone(session, pending);
            zone.end(pending.range(), pending.version, ending, moments);
        }
        if let Some((region, buffer)) = pending.buffer {
            session.region(region).give(buffer, pending.request.length);
        }
    }

    /// The one status that is right. Commands are handled before requests are taken, so each tick
    /// is on one side of each of them.
    fn check_status(
        &mut self,
        session: &mut Session,
        pending: &Pending,
        taken: Taken,
        completion: Completion,
    ) -> Ending {
        let status = completion.status();
        let draining = self.drained_at.is_some_and(|tick| tick <= taken.tick);
        let leaving = pending.buffer.is_some_and(|(id, _)| self.left(id) <= taken.tick);
        let refused = if draining {
            Some(Status::Draining)
        } else if pending.expect == Expect::Malformed || leaving {
            Some(Status::Invalid)
        } else {
            None
        };
        if let Some(refusal) = refused {
            assert_eq!(status, refusal, "{pending:?} {completion:?}");
            self.check_unasked(pending);
            return Ending::NeverStarted;
        }
        let Some(asked) = pending.asked else {
            assert_eq!(status, Status::Ok, "a nop: {completion:?}");
            return Ending::Done;
        };
        if status == Status::Draining {
            assert!(session.closed.is_some(), "nobody is leaving: {pending:?}");
            self.check_unasked(pending);
            return Ending::NeverStarted;
        }
        let ended = self.watch.borrow_mut().take_end(asked, status);
        if !ended && status == Status::DeviceGone {
            // Nothing is given to a device that is known to be gone.
            self.check_cause(session, pending, status);
            self.check_unasked(pending);
            return Ending::NeverStarted;
        }
        assert!(ended, "completed with {status}, but no device has ended it so: {pending:?}");
        self.check_cause(session, pending, status);
        if status != Status::Ok {
            return Ending::Failed;
        }
        self.check_bytes(session, pending, completion);
        Ending::Done
    }

    /// No device may have been asked for it.
    fn check_unasked(&self, pending: &Pending) {
        let Some(asked) = pending.asked.filter(|asked| asked.region.is_some()) else { return };
        let was = self.watch.borrow().was_asked(asked);
        assert!(!was, "refused, and done all the same: {pending:?}");
    }

    /// A status other than OK has a fault that explains it; isolation: nobody else's.
    fn check_cause(&self, session: &Session, pending: &Pending, status: Status) {
        let flush = pending.request.opcode == Opcode::Flush as u8;
        let explained = match status {
            Status::Ok => true,
            Status::DeviceGone => self.options.gone.is_some_and(|(device, _)| {
                pending.asked.is_some_and(|asked| u16::from(asked.device) == device)
            }),
            Status::IoError if flush => self.options.flush_errors > 0,
            Status::IoError | Status::NoSpace => self.health(session) != Health::Clean,
            _ => false,
        };
        assert!(explained, "{status} without a cause: {pending:?}");
    }

    /// Invariant 3: all bytes, and the right ones.
    fn check_bytes(&mut self, session: &mut Session, pending: &Pending, completion: Completion) {
        let length = pending.request.length;
        assert_eq!(completion.bytes, length, "{pending:?} {completion:?}");
        let Some((region, buffer)) = pending.buffer else { return };
        let bytes = session.region(region).bytes(buffer, length);
        assert_eq!(completion.checksum, 0, "{pending:?} {completion:?}");
        let (offset, began) = (pending.request.volume_offset, pending.began);
        if pending.request.opcode == Opcode::Read as u8 && self.health(session) != Health::Rotten {
            self.zone(session, pending).check(offset, &bytes, began);
            self.tally.read_right += 1;
        }
    }

    /// After a tick of a client that reads everything: who is late was told so.
    pub(crate) fn check_late(&mut self, session: &mut Session) {
        let now_ns = self.now_ns();
        for pending in session.pending.values_mut() {
            let (Some(taken), deadline_ns) = (pending.taken, pending.request.deadline_ns) else {
                continue;
            };
            let due_ns = taken.now_ns + deadline_ns;
            if deadline_ns == 0 || pending.late != Late::No || now_ns < due_ns {
                continue;
            }
            let mut lanes = session.lanes.iter();
            let end = lanes.find(|end| end.queue == pending.queue).expect("its lane");
            if end.outstanding + end.collected >= 2 * end.depth {
                pending.late = Late::Excused;
                continue;
            }
            let told_by = due_ns + LATE_WITHIN_NS;
            assert!(now_ns < told_by, "no LATE by {told_by}: {pending:?}");
        }
    }
}
