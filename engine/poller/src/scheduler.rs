//! Who is next at a device, and what it may hold.
//!
//! Each device has one queue and one budget for each kind of memory.

pub(crate) mod budget;
pub(crate) mod deadlines;
mod drr;

use kvrail_device::SlotId;
use kvrail_ring::Class;

use budget::{Budget, Ledger};
use drr::{Nodes, Waiting};

use crate::completion_batch::CompletionBatch;
use crate::limits::{SessionSlot, TASKS_MAX};
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

/// The tasks that wait, and what devices may hold.
#[derive(Debug)]
pub(crate) struct Scheduler {
    devices: Vec<[Share; 2]>,
    nodes: Nodes,
}

impl Scheduler {
    /// One device for each budget.
    pub(crate) fn new(budgets: impl Iterator<Item = Budget>) -> Self {
        let share = |budget| Share { waiting: Waiting::new(), ledger: Ledger::new(budget) };
        Self {
            devices: budgets.map(|budget| [share(budget), share(budget)]).collect(),
            nodes: Nodes::new(TASKS_MAX),
        }
    }

    /// What is known of one device.
    #[inline(always)]
    pub(crate) fn share(&mut self, device: usize, kind: MemoryKind) -> &mut Share {
        &mut self.devices[device][kind as usize]
    }

    /// A batch ended at a device.
    #[inline]
    pub(crate) fn refund(&mut self, device: usize, batch: &CompletionBatch) {
        self.share(device, batch.header.kind()).ledger.refund(batch.count, batch.length);
    }

    /// Has a task wait for its device.
    pub(crate) fn push(&mut self, id: SlotId, task: &Task) {
        let share = &mut self.devices[task.device()][task.header.kind() as usize];
        let entry = (task.owner.session(), task.header.class(), task.length);
        share.waiting.push(&mut self.nodes, id, entry);
    }

    /// The task whose turn it is, if the budget has room for it. `least` is the least urgent class
    /// that is looked at; a round begins with the least urgent of all.
    pub(crate) fn next(
        &mut self,
        device: usize,
        kind: MemoryKind,
        least: &mut Class,
    ) -> Option<Pick> {
        let Share { waiting, ledger } = &mut self.devices[device][kind as usize];
        loop {
            let next = waiting.peek(&self.nodes, *least)?;
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
    pub(crate) fn take(&mut self, device: usize, kind: MemoryKind, pick: Pick) {
        self.devices[device][kind as usize].waiting.take(&self.nodes, pick.class);
    }

    /// Takes any waiting task of one session, for a client that is gone.
    pub(crate) fn take_of(&mut self, session: SessionSlot) -> Option<SlotId> {
        let nodes = &self.nodes;
        let mut shares = self.devices.iter_mut().flatten();
        shares.find_map(|share| share.waiting.take_of(nodes, session))
    }

    /// Tasks waiting for a device.
    #[inline]
    pub(crate) fn waiting(&self, device: usize) -> u32 {
        self.devices[device].iter().map(|share| share.waiting.count()).sum()
    }

    /// Tasks a device holds.
    pub(crate) fn in_flight(&self, device: usize) -> u32 {
        self.devices[device].iter().map(|share| share.ledger.in_flight()).sum()
    }
}
