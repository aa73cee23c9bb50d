//! Who is next at a device, and what it may hold.
//!
//! Each device has one queue and one budget for each kind of memory.

pub(crate) mod budget;
pub(crate) mod deadlines;
pub(crate) mod drr;

use kvrail_device::SlotId;
use kvrail_ring::Class;

use budget::{Budget, Ledger};
use drr::{Nodes, Waiting};

use crate::completion_batch::CompletionBatch;
use crate::limits::SessionSlot;
use crate::task::{MemoryKind, Task};

/// What waits for a device and what it holds, of one kind of memory.
#[derive(Debug)]
pub(crate) struct Share {
    waiting: Waiting,
    ledger: Ledger,
}

impl Share {
    /// Whether a task may go to the device at once, past nobody.
    #[inline(always)]
    pub(crate) fn is_open(&self, task: &Task) -> bool {
        self.waiting.count() == 0 && self.ledger.fits(task.header.class(), task.length)
    }

    /// A task went to the device.
    #[inline(always)]
    pub(crate) fn charge(&mut self, task: &Task) {
        self.ledger.charge(task.length);
    }
}

/// The task whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    pub(crate) id: SlotId,
    class: Class,
}

/// What waits for one device, and what it may hold.
#[derive(Debug)]
pub(crate) struct Scheduler([Share; 2]);

impl Scheduler {
    pub(crate) fn new(budget: Budget) -> Self {
        let share = || Share { waiting: Waiting::new(), ledger: Ledger::new(budget) };
        Self([share(), share()])
    }

    /// One kind of memory.
    #[inline(always)]
    pub(crate) fn share(&mut self, kind: MemoryKind) -> &mut Share {
        &mut self.0[kind as usize]
    }

    /// A batch ended at the device.
    #[inline]
    pub(crate) fn refund(&mut self, batch: &CompletionBatch) {
        self.share(batch.header.kind()).ledger.refund(batch.count, batch.length);
    }

    /// Has a task wait for the device.
    pub(crate) fn push(&mut self, nodes: &mut Nodes, id: SlotId, task: &Task) {
        let entry = (task.owner.session(), task.header.class(), task.length);
        self.share(task.header.kind()).waiting.push(nodes, id, entry);
    }

    /// The task whose turn it is, if the budget has room for it. `least` is the least urgent class
    /// that is looked at; a round begins with the least urgent of all.
    pub(crate) fn next(
        &mut self,
        nodes: &Nodes,
        kind: MemoryKind,
        least: &mut Class,
    ) -> Option<Pick> {
        let Share { waiting, ledger } = self.share(kind);
        loop {
            let next = waiting.peek(nodes, *least)?;
            if ledger.fits(next.budget, next.length) {
                return Some(Pick { id: next.id, class: next.class });
            }
            // What is kept free for demand requests may still serve one of those; but a turn that
            // is owed waits for room, or small requests would pass a large one forever.
            if next.budget == Class::Demand {
                return None;
            }
            *least = Class::Demand;
        }
    }

    /// Takes what `next` returned, with no change in between.
    pub(crate) fn take(&mut self, nodes: &Nodes, kind: MemoryKind, pick: Pick) {
        self.share(kind).waiting.take(nodes, pick.class);
    }

    /// Takes any waiting task of one session, for a client that is gone.
    pub(crate) fn take_of(&mut self, nodes: &Nodes, session: SessionSlot) -> Option<SlotId> {
        self.0.iter_mut().find_map(|share| share.waiting.take_of(nodes, session))
    }

    /// Tasks waiting for the device.
    #[inline]
    pub(crate) fn waiting(&self) -> u32 {
        self.0.iter().map(|share| share.waiting.count()).sum()
    }

    /// Tasks the device holds.
    pub(crate) fn in_flight(&self) -> u32 {
        self.0.iter().map(|share| share.ledger.in_flight()).sum()
    }
}
