//! Gets: the store says where the block is, and the read of it is the client's own task. Only a
//! block whose end fills no logical block needs two reads, and a place in the table meanwhile.

use kvrail_device::Device;
use kvrail_ring::{Class, Completion, RequestSnapshot, Status};
use kvrail_store::{Durability, Get, Got, Outcome, Reading, Status as Ending};

use super::BackEnds;
use super::changes::claim;
use super::pending::{BlockCommand, Errand, StoreRequest, get_refused, outcome};
use super::shard::Shard;
use crate::admission::{EnteredMemory, GetAsk, enter_tail, key_of, leave};
use crate::block_reads::ReadEnds;
use crate::executor::Executor;
use crate::front_end::{FrontEnd, LaneContext};
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
        let got = match got {
            Got::Done(answer) if matches!(answer.status, Ending::Pending | Ending::Miss) => {
                if self.wait_for_write(request, (&ask, body), seat, regions, executor) {
                    return Ok(None);
                }
                match answer.status {
                    // It cannot wait, and counts as what the store has.
                    Ending::Pending => self.shards[ask.shard].get_stored(&ask.of_store(request)),
                    _ => got,
                }
            }
            _ => got,
        };
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
        let asked = self.asked_get(request, ask, seat, reading.exact);
        let id = claim(executor.inflight(), &asked, [body, Some(tail)], now_ns);
        let request = executor.inflight().request_mut(id);
        let (shard, place) = (&mut self.shards[ask.shard], (reading.offset, reading.exact));
        let operations = shard.operations(request, place, now_ns).expect("a body and a tail");
        request.fly(Errand::Read(reading), operations.len(), now_ns);
        shard.issued(&operations);
        operations.into_iter().for_each(|task| executor.begin_of_store(task));
        Ok(None)
    }

    /// Has a get wait for its block, which is in memory and not on the device. False: it does not.
    #[cold]
    #[inline(never)]
    fn wait_for_write<D: Device>(
        &mut self,
        request: &RequestSnapshot,
        (ask, body): (&GetAsk, Option<EnteredMemory>),
        seat: LaneContext,
        regions: &mut Regions,
        executor: &mut Executor<D>,
    ) -> bool {
        let now_ns = executor.now_ns();
        let shard = &mut self.shards[ask.shard];
        let key = key_of(request);
        let Some(length) = shard.awaited_length(ask.space, key) else { return false };
        let tail = match shard.is_whole(length) {
            true => None,
            false => match enter_tail(request, body, seat, regions) {
                None => return false,
                tail => tail,
            },
        };
        let asked = self.asked_get(request, ask, seat, request.length());
        let id = claim(executor.inflight(), &asked, [body, tail], now_ns);
        self.shards[ask.shard].wait_for_write(ask.space, key, id);
        true
    }

    /// Goes on with gets whose blocks are written, or gone; returns how many there were.
    pub(super) fn go_on_with_gets<D: Device>(
        &mut self,
        number: usize,
        executor: &mut Executor<D>,
        front_end: &mut FrontEnd,
    ) -> u64 {
        let (mut count, now_ns) = (0, executor.now_ns());
        while let Some(id) = self.shards[number].next_woken() {
            count += 1;
            let request = executor.inflight().request(id);
            let StoreRequest { space, key, ask, class, .. } = *request.asked();
            let BlockCommand::Get(extent) = ask else { unreachable!("only gets wait for writes") };
            let shard = &mut self.shards[number];
            shard.count_answer();
            let get = Get { space, key, extent };
            let got = match class {
                Class::Background => shard.inspect(&get),
                Class::Demand | Class::Prefetch => shard.get_stored(&get),
            };
            let operations = match got {
                Got::Done(answer) => {
                    self.end_by_answer(id, &answer, executor.inflight(), front_end);
                    continue;
                }
                Got::Read(reading) => {
                    let place = (reading.offset, reading.exact);
                    let operations = shard.operations(request, place, now_ns);
                    let Some(operations) = operations else {
                        // Another block has the key since, whose tail has no page.
                        shard.reads_ended(reading.id, 1, Outcome::Done);
                        let miss = Ending::Miss.into();
                        self.end_by_answer(id, &miss, executor.inflight(), front_end);
                        continue;
                    };
                    let request = executor.inflight().request_mut(id);
                    request.fly(Errand::Read(reading), operations.len(), now_ns);
                    operations
                }
            };
            self.shards[number].issued(&operations);
            operations.into_iter().for_each(|task| executor.begin_of_store(task));
        }
        count
    }

    /// A get that has a place in the table.
    fn asked_get(
        &self,
        request: &RequestSnapshot,
        ask: &GetAsk,
        seat: LaneContext,
        bytes: u32,
    ) -> StoreRequest {
        let shard = &self.shards[ask.shard];
        let (user_data, lane, session) = (request.user_data(), seat.lane, seat.session);
        StoreRequest {
            client: ClientRequest { user_data, lane, session },
            shard: shard.number(),
            device: shard.device(),
            class: ask.class,
            durability: Durability::Soon,
            space: ask.space,
            key: key_of(request),
            ask: BlockCommand::Get(ask.extent),
            bytes,
            deadline_ns: u64::from(request.deadline_us()) * 1000,
            is_late: false,
        }
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
