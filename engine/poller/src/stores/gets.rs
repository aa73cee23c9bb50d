//! Gets: the store says where the block is, and the read of it is the client's own task. Only a
//! block whose end fills no logical block needs two reads, and a place in the table meanwhile.

use kvrail_device::Device;
use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::slot::FLAG_PART;
use kvrail_ring::{Class, Completion, RequestSnapshot, Status};
use kvrail_store::{Durability, Extent, Get, Got, Outcome, Reading};

use super::Stores;
use super::admit::{enter_body, enter_tail, key_of, leave, sized};
use super::pending::{BlockCommand, Entered, Errand, Pending, Wanted, get_refused, outcome};
use crate::executor::Executor;
use crate::front_end::Seat;
use crate::regions::Regions;
use crate::task::{BlockRead, ClientRequest, Owner, Task};

impl Stores {
    /// Begins a get; its answer, if it has one already.
    #[inline(always)]
    pub(super) fn get<D: Device>(
        &mut self,
        request: &RequestSnapshot,
        seat: Seat,
        regions: &mut Regions,
        executor: &mut Executor<D>,
    ) -> Result<Option<Completion>, Status> {
        let class = request.class().ok_or(Status::Invalid)?;
        let extent = extent_of(request)?;
        let key = key_of(request);
        let (number, grant) = self.find(seat.session, request.handle(), key.lo())?;
        let shard = &mut self.shards[number];
        if shard.is_gone() {
            return Err(Status::DeviceGone);
        }
        let (Extent::Whole { capacity: bytes } | Extent::Part { bytes, .. }) = extent;
        let body = enter_body(request, bytes, (seat, shard.masks()), regions)?;
        let reading = match shard.find(&Get { space: grant.space, key, extent }, class) {
            Got::Read(reading) => reading,
            Got::Done(answer) => {
                leave([body, None], regions);
                return Ok(Some(get_refused(request.user_data(), &answer)));
            }
        };
        let Some(Entered { region, place }) = body.filter(|_| shard.is_whole(reading.exact)) else {
            let wanted = (number, (class, extent), reading);
            return self.get_with_tail(request, wanted, (seat, body), regions, executor);
        };
        let (user_data, lane, session) = (request.user_data(), seat.lane, seat.session);
        let client = ClientRequest { user_data, lane, session };
        let read = BlockRead { shard: shard.number(), id: reading.id };
        let range = (shard.extent(reading.offset), place, reading.exact);
        let owner = Owner::getter(client, read);
        let task = Task::of_block(owner, (class, region), range, executor.now_ns());
        let deadline_ns = u64::from(request.deadline_us()) * 1000;
        executor.begin_of_block(&task, reading.answer.check, deadline_ns);
        Ok(None)
    }

    /// The same for a block whose end fills no logical block: its tail goes to a page of its own.
    #[cold]
    #[inline(never)]
    fn get_with_tail<D: Device>(
        &mut self,
        request: &RequestSnapshot,
        (number, (class, extent), reading): (usize, (Class, Extent), Reading),
        (seat, body): (Seat, Option<Entered>),
        regions: &mut Regions,
        executor: &mut Executor<D>,
    ) -> Result<Option<Completion>, Status> {
        let now_ns = executor.now_ns();
        let shard = &mut self.shards[number];
        let Some(tail) = enter_tail(request, (seat, body), regions) else {
            shard.read_ended(reading.id, Outcome::Done);
            leave([body, None], regions);
            return Err(Status::Invalid);
        };
        let (user_data, lane, session) = (request.user_data(), seat.lane, seat.session);
        let wanted = Wanted {
            client: ClientRequest { user_data, lane, session },
            shard: shard.number(),
            class,
            durability: Durability::Soon,
            space: kvrail_store::SpaceId::NONE,
            key: key_of(request),
            ask: BlockCommand::Get(extent),
            bytes: reading.exact,
        };
        let pending = Pending::new(&wanted, [body, Some(tail)], now_ns);
        let id = self.pending.claim(pending).expect("sessions' shares add up to the table");
        let pending = self.pending.get_mut(id).expect("just claimed");
        pending.id = id;
        let place = (reading.offset, reading.exact);
        let operations = shard.operations(pending, place, now_ns).expect("a body and a tail");
        pending.fly(Errand::Read(reading), operations.len(), now_ns);
        shard.issued(&operations);
        operations.into_iter().for_each(|task| executor.begin_of_store(task));
        self.set_deadline(request, id, now_ns);
        Ok(None)
    }

    /// Reads of blocks have ended, and their clients were told; returns how many.
    pub(super) fn take_read_ends<D: Device>(&mut self, executor: &mut Executor<D>) -> u64 {
        let mut ends = 0;
        while let Some(end) = executor.next_read_end() {
            ends += 1;
            self.shards[usize::from(end.read.shard)].read_ended(end.read.id, outcome(end.status));
        }
        ends
    }
}

/// Which bytes of its block a get asks for.
#[inline(always)]
fn extent_of(request: &RequestSnapshot) -> Result<Extent, Status> {
    let (length, check) = (request.length(), request.checksum());
    if request.depth() != 0 || request.flags() & !FLAG_PART != 0 {
        return Err(Status::Invalid);
    }
    if request.flags() & FLAG_PART != 0 {
        sized(length)?;
        let at = u32::try_from(check).map_err(|_| Status::Invalid)?;
        return Ok(Extent::Part { at, bytes: length });
    }
    let capacity = length.min(REQUEST_LENGTH_MAX);
    if check == 0 { Ok(Extent::Whole { capacity }) } else { Err(Status::Invalid) }
}
