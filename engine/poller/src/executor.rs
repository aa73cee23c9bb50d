//! The executor: tasks in flight, from their admission to their completion, each exactly once.
//!
//! A task goes to its device at once, or waits its turn. It does not know lanes: a
//! completion goes to the task's owner.

mod completions;

use std::sync::Arc;

use kvrail_device::{Device, Durability, Events, Operation, SlotId, Slots};
use kvrail_ring::{Class, Completion, Opcode, RequestSnapshot, Status};

use crate::back_ends::keys::DeviceBlocks;
use crate::block_reads::{BlockReads, ReadEnds};
use crate::completion_batch::CompletionBatch;
use crate::device_queue::DeviceQueue;
use crate::front_end::{FrontEnd, LaneContext};
use crate::inflight::Inflight;
use crate::limits::{SessionSlot, TASKS_MAX, TenantSlot};
use crate::mailbox::Mailbox;
use crate::scheduler::budget::DeviceBudget;
use crate::scheduler::fair::WaitingRequests;
use crate::scheduler::{ReadTime, SERIAL, is_serial};
use crate::stats::PollerStats;
use crate::task::{BufferRef, DeviceExtent, MemoryKind, StoreTask, Task};

/// A task of a store's that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreEnd {
    pub(crate) task: StoreTask,
    pub(crate) status: Status,
    /// When it went to its device, and when it was back.
    pub(crate) submitted_ns: u64,
    pub(crate) ended_ns: u64,
}

/// All tasks, and the devices they are for.
#[derive(Debug)]
pub(crate) struct Executor<D> {
    inflight: Inflight,
    nodes: WaitingRequests,
    queues: Vec<DeviceQueue<D>>,
    /// Tasks of stores that have ended, until their stores take them: room for all.
    ended: Vec<StoreEnd>,
    blocks: BlockReads,
    events: Events,
    mailbox: Arc<Mailbox>,
    stats: Arc<PollerStats>,
    /// Time of this tick.
    now_ns: u64,
}

impl<D: Device> Executor<D> {
    /// One budget for each device. Stores have `store_tasks` tasks at once.
    pub(crate) fn new(
        devices: Vec<D>,
        budgets: &[DeviceBudget],
        store_tasks: u32,
        mailbox: Arc<Mailbox>,
        stats: Arc<PollerStats>,
    ) -> Self {
        let tasks_max = TASKS_MAX + store_tasks;
        let devices = devices.into_iter().zip(budgets);
        let mut queues: Vec<_> =
            devices.map(|(device, budget)| DeviceQueue::new(device, *budget)).collect();
        for (queue, stats) in queues.iter_mut().zip(&stats.devices) {
            stats.counters.in_flight_bytes.set(queue.scheduler().in_flight_bytes());
            stats.counters.write_bytes.set(queue.scheduler().write_bytes(0));
            queue.count_attached(stats);
        }
        Self {
            queues,
            nodes: WaitingRequests::new(tasks_max),
            inflight: Inflight::new(tasks_max, store_tasks > 0),
            ended: Vec::with_capacity(store_tasks as usize),
            blocks: BlockReads::new(tasks_max, store_tasks > 0),
            events: Events::new(),
            mailbox,
            stats,
            now_ns: 0,
        }
    }

    /// The time of this tick.
    #[inline(always)]
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    #[inline(always)]
    pub(crate) fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// The devices, in local order.
    #[inline(always)]
    pub(crate) fn queues(&mut self) -> &mut [DeviceQueue<D>] {
        &mut self.queues
    }

    /// Adds what reads of these blocks would take if they began now, and what is before them at
    /// their device, to those of other devices.
    #[inline(always)]
    pub(crate) fn add_read_time(&mut self, all: &mut ReadTime, part: DeviceBlocks) {
        let DeviceBlocks { device, count, bytes } = part;
        let scheduler = self.queues[usize::from(device)].scheduler();
        let time = scheduler.read_time(count, bytes, self.now_ns);
        all.reads_ns = all.reads_ns.saturating_add(time.reads_ns);
        all.ahead_ns = all.ahead_ns.max(time.ahead_ns);
    }

    /// All tasks.
    #[inline(always)]
    pub(crate) fn inflight(&mut self) -> &mut Inflight {
        &mut self.inflight
    }

    /// Tasks that are claimed now.
    #[inline(always)]
    pub(crate) fn tasks(&self) -> &Slots<Task> {
        self.inflight.tasks()
    }

    /// Operations at the devices now.
    pub(crate) fn in_flight(&mut self) -> u32 {
        self.queues.iter_mut().map(|queue| queue.scheduler().in_flight()).sum()
    }

    /// Begins the task of a request of the common pass.
    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        request: &RequestSnapshot,
        seat: LaneContext,
        (extent, memory): (DeviceExtent, BufferRef),
    ) {
        debug_assert_eq!(memory.kind(), MemoryKind::Host, "the common pass accepts no other");
        let from = (seat.session, seat.lane);
        let task = Task::new(request, from, (extent, memory, MemoryKind::Host), self.now_ns);
        let id = self.inflight.claim(task);
        let operation = task.operation(id.to_u64());
        let operation = Operation { durability: Durability::Visible, ..operation };
        if !self.queues[task.device()].begin(&task, MemoryKind::Host, operation) {
            self.wait(id);
        }
    }

    /// Begins the task of any request for a range.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin_any(
        &mut self,
        request: &RequestSnapshot,
        seat: LaneContext,
        (extent, memory): (DeviceExtent, BufferRef),
    ) {
        let from = (seat.session, seat.lane);
        let task = Task::new(request, from, (extent, memory, memory.kind()), self.now_ns);
        let id = self.inflight.claim(task);
        self.inflight.set_deadline(id, self.now_ns, request.deadline_ns());
        self.start_or_wait(id);
    }

    /// Begins the read of a block with this check, which is the client's task. A deadline of 0 is
    /// none.
    #[inline(always)]
    pub(crate) fn begin_of_block(
        &mut self,
        task: &Task,
        kind: MemoryKind,
        check: u64,
        deadline_ns: u64,
    ) {
        debug_assert!(task.header.is_of_block(), "the store is notified of its end");
        let id = self.inflight.claim(*task);
        self.blocks.begin(id, check);
        self.inflight.set_deadline(id, self.now_ns, deadline_ns);
        let operation = task.operation(id.to_u64());
        if !self.queues[task.device()].begin(task, kind, operation) {
            self.wait(id);
        }
    }

    /// The next reads of blocks that have ended.
    #[inline(always)]
    pub(crate) fn next_read_ends(&mut self) -> Option<ReadEnds> {
        self.blocks.next_ends()
    }

    /// Begins a task of a store's. Records wait for no other task and have no limit: blocks
    /// are acknowledged before their records are written, and a kill takes what waits here.
    pub(crate) fn begin_of_store(&mut self, task: Task) {
        debug_assert!(task.owner.as_store().is_some(), "its end goes to its store");
        let id = self.inflight.claim(task);
        let (operation, kind) = (task.operation(id.to_u64()), task.header.kind());
        let begun = task.is_record() && self.queues[task.device()].start(&task, kind, operation);
        if !begun {
            self.start_or_wait(id);
        }
    }

    /// The next task of a store's that has ended.
    #[inline(always)]
    pub(crate) fn next_store_end(&mut self) -> Option<StoreEnd> {
        self.ended.pop()
    }

    #[inline(never)]
    fn wait(&mut self, id: SlotId) {
        let task = self.inflight.task(id);
        debug_assert!(!task.header.is_with_store(), "only operations wait for a device");
        self.queues[task.device()].scheduler().push(&mut self.nodes, id, task, self.now_ns);
    }

    /// Gives a task to its device at once where none waits; else it waits.
    fn start_or_wait(&mut self, id: SlotId) {
        let task = self.inflight.task_mut(id);
        let (operation, kind) = (task.operation(id.to_u64()), task.header.kind());
        let serial = is_serial(task.header.opcode());
        task.submitted_ns = self.now_ns;
        if serial || !self.queues[task.device()].begin(task, kind, operation) {
            self.wait(id);
        }
    }

    /// Moves waiting tasks to their devices, as far as budgets go, and submits. What a device
    /// finishes at once (page cache, null) is completed in the same tick; returns how many.
    pub(crate) fn dispatch(&mut self, front_end: &mut FrontEnd) -> u64 {
        let mut finished = 0;
        for device in 0..self.queues.len() {
            if self.queues[device].scheduler().waiting() > 0 {
                finished += self.dispatch_waiting(device, front_end);
            }
            if self.queues[device].submit_rest() {
                finished += self.reap_device(device, front_end);
            }
        }
        finished
    }

    /// Returns how many tasks were completed.
    #[inline(never)]
    fn dispatch_waiting(&mut self, device: usize, front_end: &mut FrontEnd) -> u64 {
        let joined = self.complete_joined(device, front_end);
        for opcode in SERIAL {
            self.dispatch_serial(device, opcode, front_end);
        }
        for kind in MemoryKind::ALL {
            let mut least = Class::Background;
            loop {
                let Self { queues, nodes, inflight, .. } = self;
                let queue = &mut queues[device];
                let Some(pick) = queue.scheduler().next(nodes, kind, &mut least, self.now_ns)
                else {
                    break;
                };
                if queue.is_online() {
                    let task = inflight.task_mut(pick.id);
                    task.submitted_ns = self.now_ns; // its device counts from here
                    if !queue.start(task, kind, task.operation(pick.id.to_u64())) {
                        break;
                    }
                } else {
                    self.stats.devices[device].counters.errors.add(1);
                    self.finish(pick.id, (Status::DeviceGone, 0), front_end);
                }
                self.queues[device].scheduler().take(&self.nodes, kind, pick);
            }
        }
        joined
    }

    /// Gives a device its next flush or discard, if none is in flight.
    fn dispatch_serial(&mut self, device: usize, opcode: Opcode, front_end: &mut FrontEnd) {
        loop {
            let Self { queues, nodes, inflight, .. } = self;
            let queue = &mut queues[device];
            let Some(id) = queue.scheduler().next_serial(nodes, opcode) else { return };
            if queue.is_online() {
                let task = inflight.task_mut(id);
                // Taken first: the others that wait join it.
                queue.scheduler().take_serial(nodes, opcode);
                if !queue.start_serial(opcode, task.operation(id.to_u64())) {
                    return queue.scheduler().push(nodes, id, task, self.now_ns);
                }
                task.submitted_ns = self.now_ns;
                return;
            }
            queue.scheduler().take_serial(nodes, opcode);
            self.stats.devices[device].counters.errors.add(1);
            self.finish(id, (Status::DeviceGone, 0), front_end);
        }
    }

    /// Has a session take part in a tenant's share of each device's time.
    pub(crate) fn seat(&mut self, session: SessionSlot, tenant: TenantSlot) {
        self.queues.iter_mut().for_each(|queue| queue.scheduler().seat(session, tenant));
    }

    /// Ends everything of a session that is at no device, for a client that is gone.
    pub(crate) fn cancel(&mut self, session: SessionSlot, front_end: &mut FrontEnd) {
        while let Some(id) = self.take_of(session) {
            let task = self.inflight.task_mut(id);
            if task.header.is_for_space() {
                *task = task.making_space(None);
                self.wait(id);
            } else {
                self.finish(id, (Status::Draining, 0), front_end);
            }
        }
        for device in 0..self.queues.len() {
            let Self { queues, nodes, inflight, .. } = self;
            let is_theirs = |id| inflight.task(id).owner.session() == session;
            let mut flushes = queues[device].scheduler().take_flushes(nodes, is_theirs);
            while let Some(id) = flushes.pop(&self.nodes) {
                self.finish(id, (Status::Draining, 0), front_end);
            }
        }
    }

    fn take_of(&mut self, session: SessionSlot) -> Option<SlotId> {
        let mut queues = self.queues.iter_mut();
        queues.find_map(|queue| queue.scheduler().take_of(&self.nodes, session))
    }

    /// Reports tasks whose deadline has passed.
    #[inline]
    pub(crate) fn report_late(&mut self, front_end: &mut FrontEnd) {
        while let Some(task) = self.inflight.next_due(self.now_ns) {
            self.stats.devices[task.device()].counters.late.add(1);
            let client = task.owner.as_client().expect("stores' tasks have no deadline");
            let late = match task.header.is_with_store() {
                true => Completion::refused(client.user_data, Status::Late),
                false => CompletionBatch::of(task, Status::Late, self.now_ns).completion(client, 0),
            };
            front_end.report_late(client.lane, late);
        }
    }

    /// Shows what devices hold, and what waits for them.
    #[inline]
    pub(crate) fn show_depths(&mut self) {
        for (queue, stats) in self.queues.iter_mut().zip(&self.stats.devices) {
            stats.counters.in_flight.set(u64::from(queue.scheduler().in_flight()));
            stats.counters.waiting.set(u64::from(queue.scheduler().waiting()));
        }
    }

    /// How long a sleep may last without missing a deadline, or writes that may go on.
    pub(crate) fn sleep_ns(&mut self, longest_ns: u64) -> u64 {
        let pauses = self.queues.iter_mut().map(|queue| queue.scheduler().pause_ns(self.now_ns));
        let longest_ns = pauses.filter(|&pause_ns| pause_ns > 0).fold(longest_ns, u64::min);
        self.inflight.sleep_ns(self.now_ns, longest_ns)
    }
}
