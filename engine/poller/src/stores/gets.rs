//! Gets: the store says where the block is, and the read of it is the client's own task. Only a
//! block whose end fills no logical block needs two reads, and a place in the table meanwhile.
//!
//! A get is checked here, by `common` or by `checked`; what the first accepts the second accepts
//! with the same result.

use kvrail_device::Device;
use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::slot::FLAG_PART;
use kvrail_ring::{Class, Completion, RequestSnapshot, Status};
use kvrail_store::{Durability, Extent, Get, Got, Outcome, Reading, SpaceId};

use super::admit::{enter_body, enter_tail, key_of, leave, sized, taken};
use super::pending::{BlockCommand, Entered, Errand, Pending, Wanted, get_refused, outcome};
use super::shard::Shard;
use super::{Destination, Stores};
use crate::block_reads::ReadEnds;
use crate::executor::Executor;
use crate::front_end::{Begun as Taken, Seat};
use crate::limits::SessionSlot;
use crate::regions::{Pass, Regions};
use crate::task::{BlockRead, ClientRequest, MemoryKind, Owner, Task};

/// What a get asks for, and of whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ask {
    shard: usize,
    space: SpaceId,
    extent: Extent,
}

impl Ask {
    /// Bytes of memory that it needs.
    #[inline(always)]
    fn bytes(&self) -> u32 {
        let (Extent::Whole { capacity: bytes } | Extent::Part { bytes, .. }) = self.extent;
        bytes
    }

    /// As its store is asked.
    #[inline(always)]
    fn of_store(&self, request: &RequestSnapshot) -> Get {
        Get { space: self.space, key: key_of(request), extent: self.extent }
    }
}

impl Stores {
    /// Begins a get; an answer that it has already goes to the place given. Most are for a whole
    /// block of a store that has one member: they skip the checks of what is rare.
    #[inline(always)]
    pub(super) fn get<D: Device>(
        &mut self,
        request: &RequestSnapshot,
        (seat, kept): (Seat, &mut Completion),
        regions: &mut Regions,
        executor: &mut Executor<D>,
    ) -> Taken {
        let Some((ask, body)) = self.common(request, seat.session, regions) else {
            return taken(self.get_any(request, seat, regions, executor), kept);
        };
        let shard = &mut self.shards[ask.shard];
        let got = shard.get(&ask.of_store(request));
        if let Got::Read(reading) = &got
            && shard.is_whole(reading.exact)
        {
            let kind = MemoryKind::Host;
            read(shard, request, reading, (seat, body, kind), executor);
            return Taken::Task;
        }
        taken(self.go_on(request, (ask, got), (seat, Some(body)), regions, executor), kept)
    }

    /// What most gets ask, and their memory, which is entered; nothing of others.
    #[inline(always)]
    fn common(
        &mut self,
        request: &RequestSnapshot,
        session: SessionSlot,
        regions: &mut Regions,
    ) -> Option<(Ask, Entered)> {
        let (class, handle, capacity) = (request.class()?, request.handle(), request.length());
        let place = Self::handle_at(session, handle)?;
        let Destination::Shard(number) = self.handles[place] else { return None };
        let shard = usize::from(number);
        let space = self.shards[shard].space(session, handle)?;
        let (block_mask, memory_mask) = self.shards[shard].masks();
        let (region, offset) = (request.region_id(), request.region_offset());
        let body_bytes = capacity & !block_mask;
        // All checks run before any of the above is used: the compiler may reorder them.
        let wanted = request.is_whole_get() && class != Class::Background;
        if !wanted || capacity > REQUEST_LENGTH_MAX || body_bytes == 0 || offset & memory_mask != 0
        {
            return None;
        }
        let place = regions.enter(session, region, (0, offset, body_bytes), Pass::Common).ok()?;
        let ask = Ask { shard, space, extent: Extent::Whole { capacity } };
        Some((ask, Entered { region, place }))
    }

    /// What any get asks, its class, and the memory of its body, which is entered.
    #[inline(always)]
    fn checked(
        &mut self,
        request: &RequestSnapshot,
        seat: Seat,
        regions: &mut Regions,
    ) -> Result<(Ask, Class, Option<Entered>), Status> {
        let class = request.class().ok_or(Status::Invalid)?;
        let extent = extent_of(request)?;
        let (shard, grant) = self.find(seat.session, request.handle(), key_of(request).lo())?;
        let ask = Ask { shard, space: grant.space, extent };
        let shard = &mut self.shards[shard];
        if shard.is_gone() {
            shard.count_gone_get();
            return Err(Status::DeviceGone);
        }
        let body = enter_body(request, ask.bytes(), (seat, shard.masks()), regions)?;
        Ok((ask, class, body))
    }

    /// Begins any get.
    #[inline(never)]
    fn get_any<D: Device>(
        &mut self,
        request: &RequestSnapshot,
        seat: Seat,
        regions: &mut Regions,
        executor: &mut Executor<D>,
    ) -> Result<Option<Completion>, Status> {
        let (ask, class, body) = self.checked(request, seat, regions)?;
        let shard = &mut self.shards[ask.shard];
        let got = match class {
            Class::Background => shard.inspect(&ask.of_store(request)),
            Class::Demand | Class::Prefetch => shard.get(&ask.of_store(request)),
        };
        self.go_on(request, (ask, got), (seat, body), regions, executor)
    }

    /// Continues a get after the lookup. Arguments are passed by value, so that LLVM keeps them in
    /// registers in `get`.
    #[cold]
    #[inline(never)]
    fn go_on<D: Device>(
        &mut self,
        request: &RequestSnapshot,
        (ask, got): (Ask, Got),
        (seat, body): (Seat, Option<Entered>),
        regions: &mut Regions,
        executor: &mut Executor<D>,
    ) -> Result<Option<Completion>, Status> {
        let reading = match got {
            Got::Read(reading) => reading,
            Got::Done(answer) => {
                leave([body, None], regions);
                return Ok(Some(get_refused(request.user_data(), &answer)));
            }
        };
        let Some(whole) = body.filter(|_| self.shards[ask.shard].is_whole(reading.exact)) else {
            return self.get_with_tail(request, (&ask, &reading), (seat, body), regions, executor);
        };
        let kind = whole.place.kind();
        read(&self.shards[ask.shard], request, &reading, (seat, whole, kind), executor);
        Ok(None)
    }

    /// Reads a block whose end fills no logical block: its tail goes to a page of its own.
    #[cold]
    #[inline(never)]
    fn get_with_tail<D: Device>(
        &mut self,
        request: &RequestSnapshot,
        (ask, reading): (&Ask, &Reading),
        (seat, body): (Seat, Option<Entered>),
        regions: &mut Regions,
        executor: &mut Executor<D>,
    ) -> Result<Option<Completion>, Status> {
        let (now_ns, reading) = (executor.now_ns(), *reading);
        let (class, extent) = (request.class().ok_or(Status::Invalid)?, ask.extent);
        let shard = &mut self.shards[ask.shard];
        let Some(tail) = enter_tail(request, (seat, body), regions) else {
            shard.reads_ended(reading.id, 1, Outcome::Done);
            leave([body, None], regions);
            return Err(Status::Invalid);
        };
        let (user_data, lane, session) = (request.user_data(), seat.lane, seat.session);
        let wanted = Wanted {
            client: ClientRequest { user_data, lane, session },
            shard: shard.number(),
            class,
            durability: Durability::Soon,
            space: SpaceId::NONE,
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
        let mut ended = 0;
        while let Some(ReadEnds { read, status, count }) = executor.next_read_ends() {
            ended += u64::from(count);
            self.shards[usize::from(read.shard)].reads_ended(read.id, count, outcome(status));
        }
        ended
    }
}

/// Reads a block whose end fills a logical block: the client's own task.
#[inline(always)]
fn read<D: Device>(
    shard: &Shard,
    request: &RequestSnapshot,
    reading: &Reading,
    (seat, body, kind): (Seat, Entered, MemoryKind),
    executor: &mut Executor<D>,
) {
    let (user_data, lane, session) = (request.user_data(), seat.lane, seat.session);
    let client = ClientRequest { user_data, lane, session };
    let held = BlockRead { shard: shard.number(), id: reading.id };
    let range = (shard.extent(reading.offset), body.place, reading.exact);
    let owner = Owner::getter(client, held);
    let task = Task::of_block(owner, request, (range, kind), executor.now_ns());
    let deadline_ns = u64::from(request.deadline_us()) * 1000;
    executor.begin_of_block(&task, kind, reading.answer.check, deadline_ns);
}

/// Which bytes of its block a get asks for.
#[inline(always)]
fn extent_of(request: &RequestSnapshot) -> Result<Extent, Status> {
    let (length, check) = (request.length(), request.checksum());
    if request.chain() != 0 || request.flags() & !FLAG_PART != 0 {
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

#[cfg(test)]
mod tests;
