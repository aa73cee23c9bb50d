//! What is in flight: one table of tasks, and their deadlines.
//!
//! A task is claimed when its request is admitted, or when a store asks something of its device.
//! It waits for its device, is at it, or is with its store: parked until there is room for it, or
//! until the store answers. It is released exactly once, with its deadline (invariant 1).

use kvrail_device::{SlotId, Slots};

use crate::back_ends::pending::Pending;
use crate::scheduler::deadlines::Deadlines;
use crate::task::Task;

/// All tasks of one poller.
#[derive(Debug)]
pub(crate) struct Inflight {
    tasks: Slots<Task>,
    deadlines: Deadlines,
    /// What tasks that are with a store ask of it, by slot. As long as the highest slot that was
    /// such a task; room for all.
    requests: Vec<Option<Pending>>,
}

impl Inflight {
    /// Room for this many tasks. Stores come with requests of their own.
    pub(crate) fn new(tasks_max: u32, stores: bool) -> Self {
        let requests_max = if stores { tasks_max as usize } else { 0 };
        Self {
            tasks: Slots::new(tasks_max),
            deadlines: Deadlines::new(tasks_max),
            requests: Vec::with_capacity(requests_max),
        }
    }

    /// All tasks.
    #[inline(always)]
    pub(crate) fn tasks(&self) -> &Slots<Task> {
        &self.tasks
    }

    /// Claims a slot for a task.
    ///
    /// # Panics
    /// If all are claimed: the shares of sessions and the tasks of stores add up to the table.
    #[inline(always)]
    pub(crate) fn claim(&mut self, task: Task) -> SlotId {
        self.tasks.claim(task).expect("sessions' shares and stores' tasks add up to the table")
    }

    /// Sets the deadline of a task. 0: it has none.
    #[inline(always)]
    pub(crate) fn set_deadline(&mut self, id: SlotId, now_ns: u64, deadline_ns: u64) {
        if deadline_ns != 0 {
            self.deadlines.set(now_ns.saturating_add(deadline_ns), id);
        }
    }

    /// A task that is claimed.
    #[inline(always)]
    pub(crate) fn task(&self, id: SlotId) -> &Task {
        self.tasks.get(id).expect("invariant 1: a task in flight is claimed")
    }

    /// The same, to be changed.
    #[inline(always)]
    pub(crate) fn task_mut(&mut self, id: SlotId) -> &mut Task {
        self.tasks.get_mut(id).expect("invariant 1: a task in flight is claimed")
    }

    /// Releases a task that has ended.
    #[inline(always)]
    pub(crate) fn release(&mut self, id: SlotId) -> Task {
        let task = self.tasks.release(id);
        self.deadlines.clear(id);
        task.expect("invariant 1: finished twice, or never started")
    }

    /// Releases a task of which `end` makes something, and returns that; keeps it where `end` makes
    /// nothing.
    #[inline(always)]
    pub(crate) fn release_if<R>(
        &mut self,
        id: SlotId,
        end: impl FnOnce(&Task) -> Option<R>,
    ) -> Option<R> {
        let ended = self.tasks.release_if(id, end);
        let ended = ended.expect("invariant 1: finished twice, or never started");
        if ended.is_some() {
            self.deadlines.clear(id);
        }
        ended
    }

    /// Claims a slot for a request that is with its store from now on.
    pub(crate) fn claim_request(
        &mut self,
        task: Task,
        request: Pending,
        deadline_ns: u64,
    ) -> SlotId {
        debug_assert!(task.header.is_with_store(), "a request is with its store");
        let id = self.claim(task);
        let index = id.index() as usize;
        if index >= self.requests.len() {
            debug_assert!(index < self.requests.capacity(), "a poller allocates nothing");
            self.requests.resize(index + 1, None);
        }
        debug_assert!(self.requests[index].is_none(), "a released slot has no request");
        self.requests[index] = Some(request);
        self.set_deadline(id, task.accepted_ns, deadline_ns);
        id
    }

    /// A request that is with its store.
    pub(crate) fn request(&self, id: SlotId) -> &Pending {
        debug_assert!(self.task(id).header.is_with_store(), "a request is with its store");
        let request = self.requests[id.index() as usize].as_ref();
        request.expect("invariant 1: a request in flight keeps its place")
    }

    /// The same, to be changed.
    pub(crate) fn request_mut(&mut self, id: SlotId) -> &mut Pending {
        debug_assert!(self.task(id).header.is_with_store(), "a request is with its store");
        let request = self.requests[id.index() as usize].as_mut();
        request.expect("invariant 1: a request in flight keeps its place")
    }

    /// Releases a request that was with its store.
    pub(crate) fn release_request(&mut self, id: SlotId) -> Pending {
        let task = self.release(id);
        debug_assert!(task.header.is_with_store(), "a request is with its store");
        let request = self.requests[id.index() as usize].take();
        request.expect("invariant 1: a request is answered once")
    }

    /// The first request with this shard in this slot or a later one, and its slot.
    pub(crate) fn request_of(&self, shard: u8, from: usize) -> Option<(SlotId, usize)> {
        let later = self.requests.iter().enumerate().skip(from);
        let mut theirs = later.filter_map(|(index, request)| Some((request.as_ref()?, index)));
        theirs
            .find(|(request, _)| request.asked().shard == shard)
            .map(|(request, index)| (request.id, index))
    }

    /// The next task whose deadline has passed.
    #[inline]
    pub(crate) fn next_due(&mut self, now_ns: u64) -> Option<&Task> {
        let id = self.deadlines.next_due(now_ns)?;
        Some(self.tasks.get(id).expect("a deadline goes with its task"))
    }

    /// How long a sleep may last without missing a deadline.
    pub(crate) fn sleep_ns(&self, now_ns: u64, longest_ns: u64) -> u64 {
        self.deadlines.sleep_ns(now_ns, longest_ns)
    }
}

#[cfg(test)]
mod tests {
    use kvrail_ring::{Class, Opcode};
    use kvrail_store::{Durability, Key, SpaceId};

    use super::Inflight;
    use crate::back_ends::pending::{BlockCommand, Pending, StoreRequest};
    use crate::limits::SessionSlot;
    use crate::task::{ClientRequest, Task};

    const CLIENT: ClientRequest = ClientRequest { user_data: 7, lane: 3, session: SessionSlot(2) };

    fn claim(inflight: &mut Inflight, shard: u8, deadline_ns: u64) -> kvrail_device::SlotId {
        let asked = StoreRequest {
            client: CLIENT,
            shard,
            device: 1,
            class: Class::Demand,
            durability: Durability::Soon,
            space: SpaceId::NONE,
            key: Key::of(1, 2),
            ask: BlockCommand::Drop { only: None },
            bytes: 0,
            deadline_ns,
            is_late: false,
        };
        let task = Task::with_store(CLIENT, (Opcode::Drop, Class::Demand), 1, 0, 1_000);
        let id = inflight.claim_request(task, Pending::new(&asked, [None; 2], 1_000), deadline_ns);
        inflight.request_mut(id).id = id;
        id
    }

    #[test]
    fn a_request_and_its_deadline_end_together() {
        let mut inflight = Inflight::new(8, true);
        let answered = claim(&mut inflight, 0, 5_000_000);
        let late = claim(&mut inflight, 1, 5_000_000);
        assert_eq!(inflight.tasks().claimed(), 2);
        inflight.release_request(answered);
        let due = inflight.next_due(9_000_000).expect("one of both is in flight");
        assert!(due.header.is_with_store());
        assert_eq!(due.owner.as_client().map(|client| client.user_data), Some(7));
        assert!(inflight.next_due(9_000_000).is_none(), "no notice of what has ended");
        inflight.release_request(late);
        assert_eq!(inflight.tasks().claimed(), 0);
    }

    #[test]
    fn requests_of_a_shard_are_found_whatever_slots_they_have() {
        let mut inflight = Inflight::new(8, true);
        let ids: Vec<_> = (0..6).map(|at| claim(&mut inflight, at % 2, 0)).collect();
        inflight.release_request(ids[3]);
        let mut found = Vec::new();
        let mut from = 0;
        while let Some((id, index)) = inflight.request_of(1, from) {
            found.push(id);
            from = index + 1;
        }
        assert_eq!(found, [ids[1], ids[5]]);
    }

    #[test]
    #[should_panic(expected = "invariant 1: finished twice, or never started")]
    fn a_request_ends_once() {
        let mut inflight = Inflight::new(8, true);
        let id = claim(&mut inflight, 0, 0);
        inflight.release_request(id);
        inflight.release_request(id);
    }
}
