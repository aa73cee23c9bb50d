//! What a store wants done, as tasks of its device.

use arrayvec::ArrayVec;
use kvrail_device::{BufferIndex, Durability, SlotId};
use kvrail_ring::{Class, Opcode, Status};
use kvrail_store::{MemberTask, Now, Phase, TaskMemory, Urgency, Verb};

use super::super::own::{fill_read, late_of, own_task, suspect_read};
use super::super::pending::{BlockCommand, Errand, Pending, outcome};
use super::Shard;
use crate::inflight::Inflight;
use crate::limits::SessionSlot;
use crate::task::{BufferRef, DeviceExtent, StoreTask, Task, TaskOwner};

/// The operations of one task: a body and a tail at most.
pub(crate) type Operations = ArrayVec<Task, 2>;

/// The session that is an owner of the store's.
fn session_of(owner: u16) -> SessionSlot {
    SessionSlot(u8::try_from(owner).expect("owners are sessions and the sidecar"))
}

/// No memory.
const NOWHERE: BufferRef = BufferRef { buffer: BufferIndex(0), offset: 0 };

impl Shard {
    /// The operations of the next task, if there is one.
    pub(crate) fn next_task(&mut self, inflight: &mut Inflight, now: Now) -> Option<Operations> {
        if !self.life.is_running() {
            return None;
        }
        let mut operations = Operations::new();
        operations.extend(self.next_discard(now));
        if operations.is_empty() {
            operations.extend(self.next_suspect(now));
        }
        if operations.is_empty() {
            operations.extend(self.next_fill(now));
        }
        while operations.is_empty() {
            let wanted = self.store.next_task(&mut self.pool)?;
            match wanted.memory {
                TaskMemory::Client { user, exact } if let Some(entry) = late_of(user) => {
                    operations.push(self.late_write(&wanted, (entry, exact), now));
                }
                TaskMemory::Client { user, exact } => {
                    let request = inflight.request_mut(SlotId::from_u64(user));
                    let place = (wanted.offset, exact);
                    if let Some(write) = self.operations(request, place, now.ns) {
                        request.fly(Errand::Part(wanted.id), write.len(), now.ns);
                        operations = write;
                    } else {
                        // It has a tail, and no page for it.
                        self.store.finish(wanted.id, outcome(Status::Invalid), now);
                    }
                }
                _ if wanted.verb == Verb::Discard => {
                    let MemberTask { id, offset, length: left, .. } = wanted;
                    self.discarding.begin(id, offset, left);
                    operations.extend(self.next_discard(now));
                }
                _ => operations.push(self.own(&wanted, now)),
            }
        }
        self.issued(&operations);
        Some(operations)
    }

    /// These go to the device now.
    pub(crate) fn issued(&mut self, operations: &Operations) {
        self.load.begin_tasks(operations.len());
    }

    /// Where on the device a place of the store is.
    #[inline(always)]
    pub(crate) fn extent(&self, offset: u64) -> DeviceExtent {
        self.site.extent(offset)
    }

    /// A task of the store's own.
    fn own(&mut self, wanted: &MemberTask, now: Now) -> Task {
        let starting = self.store.phase() == Phase::Starting;
        let (memory, image) = match wanted.memory {
            TaskMemory::Pool { buffer, at } => {
                (self.pool.place(buffer, at), self.pool.is_image(buffer))
            }
            TaskMemory::Client { .. } | TaskMemory::None => (NOWHERE, wanted.verb == Verb::Flush),
        };
        // A client may wait for a page, and for the start.
        let class = if image || starting { Class::Demand } else { Class::Background };
        let (opcode, durability) = match wanted.verb {
            Verb::Read => (Opcode::Read, Durability::Visible),
            Verb::Write => (Opcode::Write, Durability::Visible),
            Verb::WriteDurable => (Opcode::Write, Durability::Durable),
            Verb::Flush => (Opcode::Flush, Durability::Visible),
            Verb::Discard => (Opcode::Discard, Durability::Visible),
        };
        let owner = own_task(self.number(), wanted.id);
        // A flush is of the whole device.
        let extent = match opcode {
            Opcode::Flush => DeviceExtent { device: self.device(), offset: 0 },
            _ => self.extent(wanted.offset),
        };
        let length = u32::try_from(wanted.length).expect("buffers are smaller");
        let range = (extent, memory, length);
        let task = Task::of_store(owner, (opcode, class), durability, range, (now.ns, now.ns));
        match wanted.urgency {
            Urgency::Space { owner } => task.making_space(Some(session_of(owner))),
            Urgency::Client | Urgency::Background => task,
        }
    }

    /// The operations between a client's memory and this many bytes of a block; `None`: the request
    /// lacks memory for some of them.
    pub(crate) fn operations(
        &self,
        request: &Pending,
        (offset, exact): (u64, u32),
        now_ns: u64,
    ) -> Option<Operations> {
        let block = self.site.block();
        let tail_bytes = self.site.tail_of(exact);
        let body_bytes = exact - tail_bytes;
        let asked = request.asked();
        let read = matches!(asked.ask, BlockCommand::Get(_));
        let kinds = (if read { Opcode::Read } else { Opcode::Write }, asked.class);
        let task = StoreTask { shard: self.number(), tag: request.id.to_u64() };
        let owner = TaskOwner::store(task, Some(asked.client.session));
        let times = (request.accepted_ns, now_ns);
        let mut operations = Operations::new();
        let tail_at = offset + u64::from(body_bytes);
        let pieces = [
            (body_bytes > 0, request.body, (offset, body_bytes)),
            (tail_bytes > 0, request.tail, (tail_at, block)),
        ];
        for (_, memory, (offset, length)) in pieces.into_iter().filter(|(there, ..)| *there) {
            let range = (self.extent(offset), memory?.place, length);
            operations.push(Task::of_store(owner, kinds, Durability::Visible, range, times));
        }
        Some(operations)
    }

    /// The read of a piece of a reported block.
    fn next_suspect(&mut self, now: Now) -> Option<Task> {
        let reading = self.suspects.begin_read(self.site.area_at())?;
        let length = reading.exact.next_multiple_of(self.site.block());
        let range = (self.extent(reading.offset), self.pool.suspect_place(), length);
        let kinds = (Opcode::Read, Class::Background);
        let owner = suspect_read(self.number());
        Some(Task::of_store(owner, kinds, Durability::Visible, range, (now.ns, now.ns)))
    }

    /// The read of a block into the memory tier.
    fn next_fill(&mut self, now: Now) -> Option<Task> {
        let tier = self.tier.as_mut()?;
        let read = tier.next_read(&mut self.store, self.site.block(), self.load.reads())?;
        let range = (self.extent(read.offset), read.memory, read.length);
        let (owner, kinds) =
            (fill_read(self.number(), read.number), (Opcode::Read, Class::Background));
        Some(Task::of_store(owner, kinds, Durability::Visible, range, (now.ns, now.ns)))
    }

    /// The write of a late block: the memory tier's bytes, up to a whole logical block.
    fn late_write(&self, wanted: &MemberTask, (entry, exact): (usize, u32), now: Now) -> Task {
        let tier = self.tier.as_ref().expect("it has late puts");
        let length = exact.next_multiple_of(self.site.block());
        let range = (self.extent(wanted.offset), tier.late_memory(entry), length);
        let owner = own_task(self.number(), wanted.id);
        let class = if self.is_awaited(entry) { Class::Demand } else { Class::Background };
        let kinds = (Opcode::Write, class);
        Task::of_store(owner, kinds, Durability::Visible, range, (now.ns, now.ns))
    }

    /// The next piece of a discard.
    fn next_discard(&mut self, now: Now) -> Option<Task> {
        let (id, offset, length) = self.discarding.next()?;
        let range = (self.extent(offset), NOWHERE, length);
        let (owner, kinds) = (own_task(self.number(), id), (Opcode::Discard, Class::Background));
        Some(Task::of_store(owner, kinds, Durability::Visible, range, (now.ns, now.ns)))
    }
}
