//! Puts and drops, from their admission until their store has them.

use kvrail_device::SlotId;
use kvrail_ring::{Completion, RequestSnapshot, Status};
use kvrail_store::{Begun, DeclineReason, Now, Status as Ending};

use super::BackEnds;
use super::parked::{PARKED_OF_SESSION, Room};
use super::pending::{BlockCommand, Pending, StoreRequest, reason_number};
use crate::admission::{Entered, leave};
use crate::regions::Regions;

impl BackEnds {
    /// Gives a request to its shard, or has it wait; returns its answer, if it has one already.
    pub(crate) fn change(
        &mut self,
        request: &RequestSnapshot,
        (asked, memory): (&StoreRequest, [Option<Entered>; 2]),
        metadata: &[u8],
        regions: &mut Regions,
        now: Now,
    ) -> Option<Completion> {
        let pending = Pending::new(asked, memory, now.ns);
        let id = self.pending.claim(pending).expect("sessions' shares add up to the table");
        let pending = self.pending.get_mut(id).expect("just claimed");
        pending.id = id;
        let shard = &mut self.shards[usize::from(asked.shard)];
        let room = room_of(&asked.ask);
        let of = asked.client.session;
        let session = usize::from(of.0);
        let mut line = room;
        let waits = shard.lines().has_before(room, of) || !shard.has_room(asked);
        if !waits {
            match shard.give(pending, metadata, now) {
                Begun::Taken => {
                    shard.count_request();
                    self.set_deadline(request, id, now.ns);
                    return None;
                }
                Begun::Done(answer) if answer.status == Ending::Declined(DeclineReason::Busy) => {}
                // Its first part may wait itself.
                Begun::Done(answer)
                    if room == Room::Part
                        && answer.status == Ending::Dropped
                        && self.parked_of[session] > 0 =>
                {
                    line = Room::Put;
                }
                Begun::Done(answer) => {
                    let pending = self.pending.release(id).expect("just claimed");
                    leave(memory, regions);
                    return Some(pending.end(&answer).completion);
                }
            }
        }
        if usize::from(self.parked_of[session]) >= PARKED_OF_SESSION {
            let busy = reason_number(DeclineReason::Busy);
            let ended = self.pending.release(id).expect("just claimed");
            leave(memory, regions);
            return Some(ended.refuse(Status::Declined, busy).completion);
        }
        self.parked |= 1 << session;
        let parked = self.metadata.keep((id, of), metadata);
        shard.lines().push(line, parked);
        shard.count_request();
        self.parked_of[session] += 1;
        self.set_deadline(request, id, now.ns);
        None
    }

    pub(super) fn set_deadline(&mut self, request: &RequestSnapshot, id: SlotId, now_ns: u64) {
        if request.deadline_us() != 0 {
            let after_ns = u64::from(request.deadline_us()) * 1000;
            self.deadlines.set(now_ns.saturating_add(after_ns), id);
        }
    }
}

/// The room that a request needs.
pub(super) fn room_of(ask: &BlockCommand) -> Room {
    match ask {
        BlockCommand::Put { at: 0, .. } => Room::Put,
        BlockCommand::Put { .. } => Room::Part,
        BlockCommand::Get(_) => unreachable!("gets never wait for room"),
        BlockCommand::Drop { .. } => Room::Drop,
    }
}
