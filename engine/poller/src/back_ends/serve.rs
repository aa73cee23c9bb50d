//! A tick of the stores: what waits goes in, what has ended goes in, tasks and answers come out.

use kvrail_device::{Device, SlotId};
use kvrail_ring::{Completion, Status};
use kvrail_store::{Answer, Begun, DeclineReason, Status as Ending};

use super::BackEnds;
use super::own::OWN;
use super::parked::{Parked, Room, sessions};
use super::pending::{Errand, Pending, reason_number};
use super::shard::{Due, Shard};
use crate::executor::{Executor, StoreEnd};
use crate::front_end::FrontEnd;
use crate::inflight::Inflight;
use crate::limits::SessionSlot;
use crate::mailbox::{Mailbox, Notice};
use crate::probes;
use crate::sessions::HeldBack;
use crate::store_call::{StoreAsk, StoreCall};

/// Tasks and answers of one shard in one tick at most: 10 to 20 us of work.
const TICK_MAX: u32 = 128;
/// A put that waits longer for room is declined.
const PARKED_NS: u64 = 1_000_000_000;

impl BackEnds {
    /// Takes in what has ended at devices, and goes on with stores; returns how much there was.
    #[inline(always)]
    pub(crate) fn serve<D: Device>(
        &mut self,
        executor: &mut Executor<D>,
        front_end: &mut FrontEnd,
        mailbox: &Mailbox,
    ) -> u64 {
        if self.shards.is_empty() { 0 } else { self.serve_shards(executor, front_end, mailbox) }
    }

    #[inline(never)]
    fn serve_shards<D: Device>(
        &mut self,
        executor: &mut Executor<D>,
        front_end: &mut FrontEnd,
        mailbox: &Mailbox,
    ) -> u64 {
        let now_ns = executor.now_ns();
        let mut work = self.take_read_ends(executor) + self.take_ends(executor, front_end);
        sessions(self.waiting.sessions()).for_each(|session| self.hold_back(session, front_end));
        for number in 0..self.shards.len() {
            if !self.shards[number].is_due(now_ns) {
                continue;
            }
            self.sweep(number, executor.inflight(), front_end, now_ns);
            work += self.give_parked(number, executor.inflight(), front_end, now_ns);
            let now = self.calendar.now(now_ns);
            work += self.answer_calls(number, mailbox, now_ns);
            match self.shards[number].is_gone() {
                false => self.shards[number].step(now),
                true => self.shards[number].step_gone(now_ns),
            }
            if let Some(session) = self.shards[number].take_false_reporter() {
                self.stats.sessions[usize::from(session.0)].false_reports.add(1);
            }
            if let Some(block) = self.shards[number].take_corrupt() {
                mailbox.report_corrupt(block);
            }
            work += self.go_on_with_gets(number, executor, front_end);
            work += self.issue(number, executor, now_ns);
            work += self.answer(number, executor.inflight(), front_end, now_ns);
            self.shards[number].report_losses(mailbox);
            self.shards[number].report_gone(mailbox, now_ns);
            work += self.answer_calls(number, mailbox, now_ns);
            work += u64::from(self.shards[number].is_working());
            let device = usize::from(self.shards[number].device());
            self.shards[number].show(&self.stats.devices[device].store, now_ns);
        }
        work
    }

    /// Takes in what ended where it was begun; returns how much there was.
    #[inline(always)]
    pub(crate) fn serve_prompt<D: Device>(
        &mut self,
        executor: &mut Executor<D>,
        front_end: &mut FrontEnd,
    ) -> u64 {
        if self.shards.is_empty() { 0 } else { self.take_prompt_ends(executor, front_end) }
    }

    #[inline(never)]
    fn take_prompt_ends<D: Device>(
        &mut self,
        executor: &mut Executor<D>,
        front_end: &mut FrontEnd,
    ) -> u64 {
        let now_ns = executor.now_ns();
        let read = self.take_read_ends(executor);
        let mut work = self.take_ends(executor, front_end);
        if work > 0 {
            for number in 0..self.shards.len() {
                work += self.answer(number, executor.inflight(), front_end, now_ns);
            }
        }
        work + read
    }

    fn take_ends<D: Device>(
        &mut self,
        executor: &mut Executor<D>,
        front_end: &mut FrontEnd,
    ) -> u64 {
        let now_ns = executor.now_ns();
        let (mut ends, now) = (0, self.calendar.now(now_ns));
        while let Some(end) = executor.next_store_end() {
            ends += 1;
            let StoreEnd { task, status, submitted_ns, ended_ns } = end;
            let shard = &mut self.shards[usize::from(task.shard)];
            shard.task_ended(status, now_ns);
            if task.tag & OWN != 0 {
                shard.finish_own(task.tag, status, now);
                continue;
            }
            let id = SlotId::from_u64(task.tag);
            match executor.inflight().request_mut(id).land(status, (submitted_ns, ended_ns)) {
                None => {}
                Some((Errand::Part(part), outcome)) => shard.finish(part, outcome, now),
                Some((Errand::Read(reading), outcome)) => {
                    shard.reads_ended(reading.id, 1, outcome);
                    let answer = reading.ended(outcome);
                    self.end_by_answer(id, &answer, executor.inflight(), front_end);
                }
            }
        }
        ends
    }

    /// Gives what waits for room to the store, by turns.
    fn give_parked(
        &mut self,
        number: usize,
        inflight: &mut Inflight,
        front_end: &mut FrontEnd,
        now_ns: u64,
    ) -> u64 {
        if self.shards[number].lines().count() == 0 {
            return 0;
        }
        let mut given = 0;
        for room in Room::ALL {
            let mut among = u64::MAX;
            while let Some(parked) = self.shards[number].lines().first(room, among) {
                if !self.give_one(&parked, inflight, front_end, now_ns) {
                    among &= !(1 << parked.session.0);
                    continue;
                }
                self.shards[number].lines().pop(room, parked.session);
                self.unpark(&parked, front_end);
                given += 1;
            }
        }
        given
    }

    /// Gives one of them. False: there is no room yet.
    fn give_one(
        &mut self,
        parked: &Parked,
        inflight: &mut Inflight,
        front_end: &mut FrontEnd,
        now_ns: u64,
    ) -> bool {
        let pending = inflight.request(parked.id);
        debug_assert_eq!(pending.asked().client.session, parked.session, "a line is a session's");
        let late = now_ns.saturating_sub(pending.accepted_ns) > PARKED_NS;
        let shard = &mut self.shards[usize::from(pending.asked().shard)];
        if shard.has_room(pending.asked()) {
            let metadata = self.waiting.metadata(parked);
            match shard.give(pending, metadata, front_end.regions(), self.calendar.now(now_ns)) {
                Begun::Taken | Begun::Confirms => return true,
                Begun::Done(answer) if answer.status != Ending::Declined(DeclineReason::Busy) => {
                    shard.count_answer();
                    self.end_by_answer(parked.id, &answer, inflight, front_end);
                    return true;
                }
                Begun::Done(_) => {}
            }
        }
        if late {
            let busy = reason_number(DeclineReason::Busy);
            self.end(parked.id, (Status::Declined, busy), inflight, front_end);
        }
        late
    }

    /// What waited waits no more.
    fn unpark(&mut self, parked: &Parked, front_end: &mut FrontEnd) {
        self.waiting.leave(parked);
        self.hold_back(parked.session, front_end);
    }

    /// Nothing more is taken of sessions of which something waits, unless places wait for what they
    /// have not sent yet: the rest of their blocks.
    fn hold_back(&self, session: SessionSlot, front_end: &mut FrontEnd) {
        let waits = self.waiting.has(session)
            && !self.shards.iter().any(|shard| shard.is_incomplete(session));
        front_end.hold_back(session, if waits { HeldBack::Yes } else { HeldBack::No });
    }

    /// Sends the store's tasks to the device.
    fn issue<D: Device>(&mut self, number: usize, executor: &mut Executor<D>, now_ns: u64) -> u64 {
        let (mut count, now) = (0, self.calendar.now(now_ns));
        let shard = &mut self.shards[number];
        while count < TICK_MAX
            && let Some(operations) = shard.next_task(executor.inflight(), now)
        {
            operations.into_iter().for_each(|task| executor.begin_of_store(task));
            count += 1;
        }
        if count == TICK_MAX {
            shard.touch(now_ns);
        }
        count.into()
    }

    /// Sends the store's answers to the clients.
    fn answer(
        &mut self,
        number: usize,
        inflight: &mut Inflight,
        front_end: &mut FrontEnd,
        now_ns: u64,
    ) -> u64 {
        let mut count = 0;
        while count < TICK_MAX
            && let Some(reply) = self.shards[number].next_reply()
        {
            self.shards[number].count_answer();
            let id = SlotId::from_u64(reply.user);
            self.end_by_answer(id, &reply.answer, inflight, front_end);
            count += 1;
        }
        if count > 0 {
            self.shards[number].touch(now_ns);
        }
        count.into()
    }

    /// Ends a request by its store's answer.
    pub(super) fn end_by_answer(
        &mut self,
        id: SlotId,
        answer: &Answer,
        inflight: &mut Inflight,
        front_end: &mut FrontEnd,
    ) {
        let request = inflight.release_request(id);
        complete(&request, request.end(answer), front_end);
    }

    /// Ends a request without its store's answer.
    fn end(
        &mut self,
        id: SlotId,
        (status, bytes): (Status, u32),
        inflight: &mut Inflight,
        front_end: &mut FrontEnd,
    ) {
        let request = inflight.release_request(id);
        self.shards[usize::from(request.asked().shard)].count_answer();
        complete(&request, request.refuse(status, bytes), front_end);
    }

    /// The device is gone: ends what waits for a store that will not answer.
    fn sweep(
        &mut self,
        number: usize,
        inflight: &mut Inflight,
        front_end: &mut FrontEnd,
        now_ns: u64,
    ) {
        if self.shards[number].take_sweep() == Due::No {
            return;
        }
        // What the store has answered by then ends with its word, and only once.
        while self.answer(number, inflight, front_end, now_ns) > 0 {}
        self.shards[number].lose_late();
        for room in Room::ALL {
            while let Some(first) = self.shards[number].lines().first(room, u64::MAX) {
                self.shards[number].lines().pop(room, first.session);
                self.unpark(&first, front_end);
            }
        }
        let (shard, mut from) = (self.shards[number].number(), 0);
        while let Some((id, index)) = inflight.request_of(shard, from) {
            self.end(id, (Status::DeviceGone, 0), inflight, front_end);
            from = index + 1;
        }
    }

    /// A call of the control thread.
    pub(crate) fn call(&mut self, device: usize, call: Box<StoreCall>, now_ns: u64) {
        let shard = self.of_device.get(device).copied().flatten();
        let shard = shard.expect("calls go to devices with stores");
        self.shards[usize::from(shard)].call(call, now_ns);
    }

    fn answer_calls(&mut self, number: usize, mailbox: &Mailbox, now_ns: u64) -> u64 {
        let (mut answered, now) = (0, self.calendar.now(now_ns));
        while let Some(call) = {
            let shard = &mut self.shards[number];
            let called = shard.take_answered().or_else(|| shard.next_call(now));
            called.or_else(|| shard.next_listed(now))
        } {
            self.note_grant(number, &call);
            let device = usize::from(self.shards[number].device());
            mailbox.post(Notice::Store(device, call));
            answered += 1;
        }
        answered
    }

    /// Requests find their way with a handle that was granted.
    fn note_grant(&mut self, number: usize, call: &StoreCall) {
        if let StoreAsk::Grant { session, handle, .. } = call.ask
            && call.status == Ending::Ok
        {
            self.handles.grant(session, handle, number);
        }
    }

    /// A session is gone: what waits of it ends, what is with its store is answered.
    pub(crate) fn close_session(
        &mut self,
        session: SessionSlot,
        inflight: &mut Inflight,
        front_end: &mut FrontEnd,
        now_ns: u64,
    ) {
        for number in 0..self.shards.len() {
            for room in Room::ALL {
                while let Some(parked) = self.shards[number].lines().pop(room, session) {
                    self.end(parked.id, (Status::Draining, 0), inflight, front_end);
                    self.unpark(&parked, front_end);
                }
            }
            self.shards[number].forget(session, now_ns);
        }
        self.handles.forget(session);
    }

    /// Whether no client's request is in flight, with this many tasks claimed: stores' own are.
    #[inline]
    pub(crate) fn are_quiet(&self, claimed: u32) -> bool {
        let own: u32 = self.shards.iter().map(Shard::in_flight).sum();
        claimed == own && self.shards.iter().all(|shard| shard.requests() == 0)
    }

    /// How long a sleep may last.
    pub(crate) fn sleep_ns(&self, now_ns: u64, longest_ns: u64) -> u64 {
        let shards = self.shards.iter().map(|shard| shard.sleep_ns(now_ns));
        shards.fold(longest_ns, u64::min)
    }

    /// Told to stop: whether stores have written what they keep in memory.
    pub(crate) fn may_stop(&mut self) -> bool {
        let settle = |settled, shard: &mut Shard| shard.settle() && settled;
        if self.shards.iter_mut().fold(true, settle) {
            self.shards.iter_mut().for_each(Shard::stop);
        }
        self.shards.iter().all(Shard::is_stopped)
    }
}

/// Completes a request that a store had, and counts it out.
fn complete(request: &Pending, completion: Completion, front_end: &mut FrontEnd) {
    let asked = request.asked();
    probes::block_ended(asked.key, &completion, || request.work(&completion));
    if let Some(tracer) = front_end.tracer() {
        let spent = request.spent(tracer.now_ns());
        if tracer.may_be_slow(spent.total_ns()) {
            let taken = (asked.client.lane, request.accepted_ns);
            tracer.answered(taken, (request.work(&completion), asked.key), spent);
        }
    }
    front_end.lane(asked.client).server().complete(completion);
    front_end.retire(&request.ended(&completion));
}
