//! Puts and drops, from their admission until their store has them.

use kvrail_device::SlotId;
use kvrail_ring::{Completion, Status};
use kvrail_store::{Begun, DeclineReason, Now, Status as Ending};

use super::BackEnds;
use super::parked::Room;
use super::pending::{BlockCommand, Pending, StoreRequest, reason_number};
use crate::admission::{EnteredMemory, leave};
use crate::inflight::Inflight;
use crate::regions::Regions;
use crate::task::Task;

impl BackEnds {
    /// Gives a request to its shard, or has it wait; returns its answer, if it has one already.
    pub(crate) fn change(
        &mut self,
        (asked, memory): (&StoreRequest, [Option<EnteredMemory>; 2]),
        metadata: &[u8],
        inflight: &mut Inflight,
        regions: &mut Regions,
        now: Now,
    ) -> Option<Completion> {
        let Self { shards, waiting, .. } = self;
        let shard = &mut shards[usize::from(asked.shard)];
        let id = claim(inflight, asked, memory, now.ns);
        let session = asked.client.session;
        let room = room_of(&asked.ask);
        let mut line = room;
        let waits = shard.lines().has_before(room, session) || !shard.has_room(asked);
        if !waits
            && is_whole_put(asked)
            && shard.waits_for_late(asked)
            && let Some(parked) = waiting.enter_quiet((id, session), metadata)
        {
            shard.lines().push(Room::Written, parked);
            shard.count_request();
            return None;
        }
        if !waits {
            match shard.give(inflight.request(id), metadata, regions, now) {
                Begun::Taken | Begun::Confirms => {
                    shard.count_request();
                    return None;
                }
                Begun::Done(answer) if answer.status == Ending::Declined(DeclineReason::Busy) => {}
                // Its first part may wait itself.
                Begun::Done(answer)
                    if room == Room::Part
                        && answer.status == Ending::Dropped
                        && waiting.has(session) =>
                {
                    line = Room::Put;
                }
                Begun::Done(answer) => {
                    leave(memory, regions);
                    return Some(inflight.release_request(id).end(&answer));
                }
            }
        }
        if waiting.is_full(session) {
            let busy = reason_number(DeclineReason::Busy);
            leave(memory, regions);
            return Some(inflight.release_request(id).refuse(Status::Declined, busy));
        }
        shard.lines().push(line, waiting.enter((id, session), metadata));
        shard.count_request();
        None
    }
}

/// Claims the task of a request that its store has from now on.
pub(super) fn claim(
    inflight: &mut Inflight,
    asked: &StoreRequest,
    memory: [Option<EnteredMemory>; 2],
    now_ns: u64,
) -> SlotId {
    let kinds = (asked.ask.opcode(), asked.class);
    let task = Task::with_store(asked.client, kinds, asked.device, asked.bytes, now_ns);
    let id = inflight.claim_request(task, Pending::new(asked, memory, now_ns), asked.deadline_ns);
    inflight.request_mut(id).id = id;
    id
}

/// Whether a request has all bytes of the block that it puts.
fn is_whole_put(asked: &StoreRequest) -> bool {
    matches!(asked.ask, BlockCommand::Put { block_bytes, .. } if block_bytes == asked.bytes)
}

/// The room that a request needs.
fn room_of(ask: &BlockCommand) -> Room {
    match ask {
        BlockCommand::Put { at: 0, .. } => Room::Put,
        BlockCommand::Put { .. } => Room::Part,
        BlockCommand::Get(_) => unreachable!("gets never wait for room"),
        BlockCommand::Drop { .. } => Room::Drop,
    }
}
