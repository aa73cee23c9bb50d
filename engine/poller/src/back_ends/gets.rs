//! Gets: the store says where the block is, and the read of it is the client's own task. Only a
//! block whose end fills no logical block needs two reads, and a place in the table meanwhile.

use kvrail_device::Device;
use kvrail_ring::{Class, Completion, RequestSnapshot, Status};
use kvrail_store::{Durability, Got, Outcome, Reading, SpaceId};

use super::BackEnds;
use super::changes::claim;
use super::pending::{BlockCommand, Errand, StoreRequest, get_refused, outcome};
use super::shard::Shard;
use crate::admission::{EnteredMemory, GetAsk, enter_tail, key_of, leave};
use crate::block_reads::ReadEnds;
use crate::executor::Executor;
use crate::front_end::LaneContext;
use crate::regions::Regions;
use crate::task::{BlockRead, ClientRequest, MemoryKind, Task, TaskOwner};

impl BackEnds {
    /// Begins a get that the common pass has accepted, and whose body is entered.
    #[inline(always)]
    pub(crate) fn get<D: Device>(
        &mut self,
        request: &RequestSnapshot,
        (ask, body): (GetAsk, EnteredMemory),
        seat: LaneContext,
        regions: &mut Regions,
        executor: &mut Executor<D>,
    ) -> Result<Option<Completion>, Status> {
        let shard = &mut self.shards[ask.shard];
        let got = shard.get(&ask.of_store(request));
        if let Got::Read(reading) = &got
            && shard.is_whole(reading.exact)
        {
            let kind = MemoryKind::Host;
            read(shard, request, reading, (seat, body, kind), executor);
            return Ok(None);
        }
        self.go_on(request, (ask, got), (seat, Some(body)), regions, executor)
    }

    /// Begins any get; returns its answer, if it has one already.
    #[inline(always)]
    pub(crate) fn get_any<D: Device>(
        &mut self,
        request: &RequestSnapshot,
        (ask, body): (GetAsk, Option<EnteredMemory>),
        seat: LaneContext,
        regions: &mut Regions,
        executor: &mut Executor<D>,
    ) -> Result<Option<Completion>, Status> {
        let shard = &mut self.shards[ask.shard];
        let got = match ask.class {
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
        (ask, got): (GetAsk, Got),
        (seat, body): (LaneContext, Option<EnteredMemory>),
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
        (ask, reading): (&GetAsk, &Reading),
        (seat, body): (LaneContext, Option<EnteredMemory>),
        regions: &mut Regions,
        executor: &mut Executor<D>,
    ) -> Result<Option<Completion>, Status> {
        let (now_ns, reading) = (executor.now_ns(), *reading);
        let shard = &mut self.shards[ask.shard];
        let Some(tail) = enter_tail(request, body, seat, regions) else {
            shard.reads_ended(reading.id, 1, Outcome::Done);
            leave([body, None], regions);
            return Err(Status::Invalid);
        };
        let (user_data, lane, session) = (request.user_data(), seat.lane, seat.session);
        let asked = StoreRequest {
            client: ClientRequest { user_data, lane, session },
            shard: shard.number(),
            device: shard.device(),
            class: ask.class,
            durability: Durability::Soon,
            space: SpaceId::NONE,
            key: key_of(request),
            ask: BlockCommand::Get(ask.extent),
            bytes: reading.exact,
            deadline_ns: u64::from(request.deadline_us()) * 1000,
        };
        let id = claim(executor.inflight(), &asked, [body, Some(tail)], now_ns);
        let request = executor.inflight().request_mut(id);
        let place = (reading.offset, reading.exact);
        let operations = shard.operations(request, place, now_ns).expect("a body and a tail");
        request.fly(Errand::Read(reading), operations.len(), now_ns);
        shard.issued(&operations);
        operations.into_iter().for_each(|task| executor.begin_of_store(task));
        Ok(None)
    }

    /// Counts reads of blocks out that have ended, and whose clients have their completions;
    /// returns how many there were.
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
    (seat, body, kind): (LaneContext, EnteredMemory, MemoryKind),
    executor: &mut Executor<D>,
) {
    debug_assert!(shard.is_whole(reading.exact), "the end fills a logical block");
    let (user_data, lane, session) = (request.user_data(), seat.lane, seat.session);
    let client = ClientRequest { user_data, lane, session };
    let held = BlockRead { shard: shard.number(), id: reading.id };
    let range = (shard.extent(reading.offset), body.place, reading.exact);
    let owner = TaskOwner::getter(client, held);
    let task = Task::of_block(owner, request, (range, kind), executor.now_ns());
    let deadline_ns = u64::from(request.deadline_us()) * 1000;
    executor.begin_of_block(&task, kind, reading.answer.check, deadline_ns);
}
