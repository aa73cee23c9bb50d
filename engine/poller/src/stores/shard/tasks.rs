//! What a store wants done, as tasks of its device.

use arrayvec::ArrayVec;
use kvrail_device::{BufferIndex, Durability, SlotId, Slots};
use kvrail_ring::{Class, Opcode, Status};
use kvrail_store::{Memory, Now, Phase, Task as Wanted, TaskId, Verb};

use super::super::pending::{Pending, outcome};
use super::{OWN, Shard, State};
use crate::limits::SIDECAR;
use crate::task::{BufferRef, DeviceExtent, Owner, StoreTask, Task};

/// Bytes of one discard at the device.
const DISCARD_BYTES: u64 = 1 << 30;

/// A discard that is longer than one operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Discarding {
    id: TaskId,
    offset: u64,
    left: u64,
    /// A piece of it is at the device.
    going: bool,
}

/// The operations of one task: a body and a tail at most.
pub(in super::super) type Operations = ArrayVec<Task, 2>;

/// No memory.
const NOWHERE: BufferRef = BufferRef { buffer: BufferIndex(0), offset: 0 };

impl Shard {
    /// The operations of the next task, if there is one.
    pub(in super::super) fn next_task(
        &mut self,
        number: u8,
        pending: &mut Slots<Pending>,
        now: Now,
    ) -> Option<Operations> {
        if self.state != State::Running {
            return None;
        }
        let mut operations = Operations::new();
        if let Some(piece) = self.next_discard(number, now) {
            operations.push(piece);
        }
        while operations.is_empty() {
            let wanted = self.store.next_task(&mut self.pool)?;
            match wanted.memory {
                Memory::Client { user, exact } if user & OWN == 0 => {
                    let request = pending.get_mut(SlotId::from_u64(user));
                    let request = request.expect("a request in the store keeps its place");
                    self.transfer(number, &wanted, (request, exact), now, &mut operations);
                }
                _ if wanted.verb == Verb::Discard => {
                    let Wanted { id, offset, length: left, .. } = wanted;
                    self.discarding = Some(Discarding { id, offset, left, going: false });
                    operations.extend(self.next_discard(number, now));
                }
                _ => operations.push(self.own(number, &wanted, now)),
            }
        }
        self.in_flight += u32::try_from(operations.len()).expect("two at most");
        Some(operations)
    }

    fn extent(&self, offset: u64) -> DeviceExtent {
        DeviceExtent { device: self.device, offset: self.area_at + offset }
    }

    /// A task of the store's own.
    fn own(&mut self, number: u8, wanted: &Wanted, now: Now) -> Task {
        let starting = self.store.phase() == Phase::Starting;
        let (memory, image) = match wanted.memory {
            Memory::Pool { buffer, at } => {
                (self.pool.place(buffer, at), self.pool.is_image(buffer))
            }
            Memory::Client { .. } => {
                self.suspects.placed(self.area_at + wanted.offset);
                (self.pool.suspect_place(), false)
            }
            Memory::None => (NOWHERE, wanted.verb == Verb::Flush),
        };
        // Somebody may wait for a page, and for what begins.
        let class = if image || starting { Class::Demand } else { Class::Background };
        let (opcode, durability) = match wanted.verb {
            Verb::Read => (Opcode::Read, Durability::Visible),
            Verb::Write => (Opcode::Write, Durability::Visible),
            Verb::WriteDurable => (Opcode::Write, Durability::Durable),
            Verb::Flush => (Opcode::Flush, Durability::Visible),
            Verb::Discard => (Opcode::Discard, Durability::Visible),
        };
        let owner = own_task(number, wanted.id);
        // A flush is of the whole device.
        let offset = if opcode == Opcode::Flush { 0 } else { self.area_at + wanted.offset };
        let extent = DeviceExtent { device: self.device, offset };
        let length = u32::try_from(wanted.length).expect("buffers are smaller");
        let range = (extent, memory, length);
        Task::of_store(owner, (opcode, class), durability, range, (now.ns, now.ns))
    }

    /// The operations between a client's memory and the device.
    fn transfer(
        &mut self,
        number: u8,
        wanted: &Wanted,
        (request, exact): (&mut Pending, u32),
        now: Now,
        operations: &mut Operations,
    ) {
        let block = self.block_mask + 1;
        let tail_bytes = exact & self.block_mask;
        let body_bytes = exact - tail_bytes;
        let lacks =
            body_bytes > 0 && request.body.is_none() || tail_bytes > 0 && request.tail.is_none();
        if lacks {
            // The block has a tail, and the request has no page for it.
            return self.store.finish(wanted.id, outcome(Status::Invalid), now);
        }
        let opcode = if wanted.verb == Verb::Read { Opcode::Read } else { Opcode::Write };
        let task = StoreTask { shard: number, tag: request.id.to_u64() };
        let owner = Owner::store(task, Some(request.client.session));
        let mut add = |offset: u64, memory: BufferRef, length: u32| {
            let range = (self.extent(offset), memory, length);
            let times = (request.accepted_ns, now.ns);
            let durability = Durability::Visible;
            operations.push(Task::of_store(
                owner,
                (opcode, request.class),
                durability,
                range,
                times,
            ));
        };
        if let Some(body) = request.body.filter(|_| body_bytes > 0) {
            add(wanted.offset, body.place, body_bytes);
        }
        if let Some(tail) = request.tail.filter(|_| tail_bytes > 0) {
            add(wanted.offset + u64::from(body_bytes), tail.place, block);
        }
        request.fly(wanted.id, u8::try_from(operations.len()).expect("two at most"));
    }

    /// The next piece of a discard.
    fn next_discard(&mut self, number: u8, now: Now) -> Option<Task> {
        let Discarding { id, offset, left, .. } =
            *self.discarding.as_ref().filter(|it| !it.going)?;
        let bytes = left.min(DISCARD_BYTES);
        self.discarding =
            Some(Discarding { id, offset: offset + bytes, left: left - bytes, going: true });
        let kinds = (Opcode::Discard, Class::Background);
        let length = u32::try_from(bytes).expect("1 GiB at most");
        let range = (self.extent(offset), NOWHERE, length);
        let owner = own_task(number, id);
        Some(Task::of_store(owner, kinds, Durability::Visible, range, (now.ns, now.ns)))
    }

    /// Whether the task that has ended is a piece of a discard, and others follow.
    pub(super) fn goes_on_discarding(&mut self, id: TaskId, status: Status) -> bool {
        let Some(discarding) = self.discarding.as_mut().filter(|it| it.id == id) else {
            return false;
        };
        discarding.going = false;
        let more = status == Status::Ok && discarding.left > 0;
        if !more {
            self.discarding = None;
        }
        more
    }
}

/// Who hears of a task of the store's own.
fn own_task(number: u8, id: TaskId) -> Owner {
    let task = StoreTask { shard: number, tag: OWN | u64::from(id.number()) };
    Owner::store(task, Some(SIDECAR))
}
