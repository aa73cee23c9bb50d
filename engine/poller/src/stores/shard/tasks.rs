//! What a store wants done, as tasks of its device.

use arrayvec::ArrayVec;
use kvrail_device::{BufferIndex, Durability, SlotId, Slots};
use kvrail_ring::{Class, Opcode, Status};
use kvrail_store::{Memory, Now, Phase, Task as Wanted, Verb};

use super::super::own::{OWN, own_task};
use super::super::pending::{Pending, outcome};
use super::{Shard, State};
use crate::task::{BufferRef, DeviceExtent, Owner, StoreTask, Task};

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
                    self.discarding.begin(id, offset, left);
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
        let owner = Owner::store(task, Some(request.wanted().client.session));
        let mut add = |offset: u64, memory: BufferRef, length: u32| {
            let range = (self.extent(offset), memory, length);
            let times = (request.accepted_ns, now.ns);
            let durability = Durability::Visible;
            operations.push(Task::of_store(
                owner,
                (opcode, request.wanted().class),
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
        let (id, offset, length) = self.discarding.next()?;
        let range = (self.extent(offset), NOWHERE, length);
        let (owner, kinds) = (own_task(number, id), (Opcode::Discard, Class::Background));
        Some(Task::of_store(owner, kinds, Durability::Visible, range, (now.ns, now.ns)))
    }
}
