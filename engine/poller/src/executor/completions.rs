//! Ends of tasks: each goes to its owner once, and is counted with its batch.

use kvrail_device::{Device, Event, Finished, SlotId};
use kvrail_ring::{Opcode, Status};

use super::{Executor, StoreEnd};
use crate::completion_batch::CompletionBatch;
use crate::front_end::FrontEnd;
use crate::mailbox::DeviceFailure;
use crate::probes;
use crate::scheduler::is_serial;
use crate::stats::OperationKind;
use crate::task::Task;

/// Flushes that one flush answered which are completed in one tick: 2 to 4 us of work.
const JOINED_MAX: u64 = 64;

impl<D: Device> Executor<D> {
    /// Completes what devices finished; returns how many events there were.
    #[inline]
    pub(crate) fn reap(&mut self, front_end: &mut FrontEnd) -> u64 {
        (0..self.queues.len()).map(|device| self.reap_device(device, front_end)).sum()
    }

    #[inline]
    pub(super) fn reap_device(&mut self, device: usize, front_end: &mut FrontEnd) -> u64 {
        self.queues[device].device().reap(&mut self.events);
        if self.events.is_empty() {
            return 0;
        }
        let (mut at, mut batch) = (0, None);
        while at < self.events.len() {
            match self.events[at] {
                Event::Finished(finished) => {
                    let batch = self.complete(device, finished, &mut batch, front_end);
                    at += self.complete_alike(batch, at + 1, front_end);
                }
                Event::Detached(buffer) => {
                    self.queues[device].deregistered();
                    self.queues[device].count_attached(&self.stats.devices[device]);
                    front_end.regions().deregistered(buffer);
                    front_end.request_teardown();
                }
            }
            at += 1;
        }
        if let Some(batch) = batch {
            self.end(device, &batch, front_end);
        }
        let seen = self.events.len() as u64;
        self.events.clear();
        seen
    }

    /// An operation ended at its device. Returns the batch its task belongs to.
    #[inline(never)]
    fn complete<'a>(
        &mut self,
        device: usize,
        finished: Finished,
        batch: &'a mut Option<CompletionBatch>,
        front_end: &mut FrontEnd,
    ) -> &'a mut CompletionBatch {
        let Finished { tag, status, bytes } = finished;
        let id = SlotId::from_u64(tag);
        let task = self.inflight.release(id);
        let whole = bytes == task.length || task.header.opcode() == Opcode::Discard;
        assert!(
            status != Status::Ok || whole,
            "invariant 3: OK with {bytes} of {} bytes",
            task.length
        );
        if let Some(ended) = batch.take_if(|batch| !batch.continues(&task, status)) {
            self.end(device, &ended, front_end);
        }
        let batch = batch.get_or_insert_with(|| CompletionBatch::of(&task, status, self.now_ns));
        self.hand_back((id, &task), bytes, batch, front_end);
        batch
    }

    /// Hands a task that has ended, as its batch did, back to its owner.
    #[inline(always)]
    fn hand_back(
        &mut self,
        (id, task): (SlotId, &Task),
        bytes: u32,
        batch: &mut CompletionBatch,
        front_end: &mut FrontEnd,
    ) {
        if let Some(client) = task.owner.as_client() {
            let completion = self.blocks.completion((id, task, client), bytes, batch);
            return front_end.lane(client).server().complete(completion);
        }
        batch.count(task, bytes);
        debug_assert!(self.ended.len() < self.ended.capacity(), "a poller allocates nothing");
        let store = task.owner.as_store().expect("a store's, if no client's");
        let (submitted_ns, ended_ns) = (task.submitted_ns, self.now_ns);
        self.ended.push(StoreEnd { task: store, status: batch.status, submitted_ns, ended_ns });
    }

    /// Completes what most events are: one more task of the batch, and all of its bytes. Begins
    /// with the event at `from`; returns how many were like that.
    #[inline(always)]
    fn complete_alike(
        &mut self,
        batch: &mut CompletionBatch,
        from: usize,
        front_end: &mut FrontEnd,
    ) -> usize {
        if batch.status != Status::Ok {
            return 0;
        }
        let Some(client) = batch.owner.as_client() else { return 0 };
        let Self { events, inflight, blocks, .. } = self;
        // One lane for all of them, and a batch of this function's own: they stay in registers.
        let (lane, mut own) = (front_end.lane(client).server(), *batch);
        for event in &events[from..] {
            let &Event::Finished(Finished { tag, status: Status::Ok, bytes }) = event else {
                break;
            };
            let id = SlotId::from_u64(tag);
            let completed = inflight.release_if(id, |task| {
                let alike = own.continues(task, Status::Ok) && bytes == task.length;
                let client = task.owner.beside_client();
                let mut end = || blocks.completion((id, task, client), bytes, &mut own);
                alike.then(|| lane.complete(end()))
            });
            if completed.is_none() {
                break;
            }
        }
        let joined = own.count - batch.count;
        *batch = own;
        joined as usize
    }

    /// All tasks of a batch have ended at their device.
    #[inline(never)]
    fn end(&mut self, device: usize, batch: &CompletionBatch, front_end: &mut FrontEnd) {
        self.account(device, batch);
        probes::batch_ended(device, batch);
        if let Some(tracer) = front_end.tracer()
            && tracer.may_be_slow(batch.queue_ns + batch.device_ns)
        {
            tracer.ended(device, batch);
        }
        retire(batch, front_end);
    }

    /// Counts a batch that ended at its device.
    fn account(&mut self, device: usize, batch: &CompletionBatch) {
        let scheduler = self.queues[device].scheduler();
        let (counters, count) = (&self.stats.devices[device], u64::from(batch.count));
        let opcode = batch.header.opcode();
        let latencies = counters.latencies(OperationKind::of(opcode), batch.header.class());
        latencies.device.record(batch.device_ns, count);
        latencies.queue.record(batch.queue_ns, count);
        if is_serial(opcode) {
            scheduler.end_serial(opcode, batch.status);
            counters.others.add(count);
        } else {
            let (operations, bytes) = match opcode {
                Opcode::Read => (&counters.reads, &counters.read_bytes),
                _ => (&counters.writes, &counters.write_bytes),
            };
            operations.add(count);
            bytes.add(batch.bytes());
            if scheduler.refund(batch, self.now_ns) {
                counters.counters.in_flight_bytes.set(scheduler.in_flight_bytes());
                counters.counters.write_bytes.set(scheduler.write_bytes(self.now_ns));
            }
        }
        if batch.status != Status::Ok {
            self.count_failures(device, count);
        }
        if batch.status == Status::DeviceGone {
            self.queues[device].mark_removed();
            self.stats.devices[device].gone.set(1);
        }
    }

    /// Counts operations that did not end OK, and has the control thread log why.
    #[cold]
    fn count_failures(&mut self, device: usize, count: u64) {
        let errors = &self.stats.devices[device].counters.errors;
        errors.add(count);
        let errors = errors.get();
        if let Some(failure) = self.queues[device].failure_to_report(self.now_ns) {
            self.mailbox.report(DeviceFailure { device, failure, errors });
        }
    }

    /// Ends a task that is at no device.
    #[inline(never)]
    pub(super) fn finish(
        &mut self,
        id: SlotId,
        (status, bytes): (Status, u32),
        front_end: &mut FrontEnd,
    ) {
        let task = self.inflight.release(id);
        let mut batch = CompletionBatch::of(&task, status, self.now_ns);
        self.hand_back((id, &task), bytes, &mut batch, front_end);
        retire(&batch, front_end);
    }

    /// Completes flushes that one flush answered; returns how many.
    pub(super) fn complete_joined(&mut self, device: usize, front_end: &mut FrontEnd) -> u64 {
        let mut completed = 0;
        while completed < JOINED_MAX
            && let Some((id, status)) = self.queues[device].scheduler().next_joined(&self.nodes)
        {
            self.stats.devices[device].others.add(1);
            if status != Status::Ok {
                self.count_failures(device, 1);
            }
            self.finish(id, (status, 0), front_end);
            completed += 1;
        }
        completed
    }
}

/// Counts a batch out at its owner.
#[inline(always)]
fn retire(batch: &CompletionBatch, front_end: &mut FrontEnd) {
    if let Some(client) = batch.owner.as_client() {
        front_end.retire(&batch.ended(client));
    }
}
