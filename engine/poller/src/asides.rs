//! Flushes and discards: one of each at a time at a device, beside reads and writes.
//!
//! Either locks what reads and writes of the same device need: the journal of a file system, the
//! inode of a file. Many at once also occupy a kernel thread each. Flushes that wait are answered
//! by one flush, which begins after all of them and so covers what each was to cover.

use kvrail_device::{Clock, Device, SlotId};
use kvrail_ring::{Opcode, Status};

use crate::mailbox::SessionSlot;
use crate::poller::Poller;
use crate::presence::Presence;
use crate::waiting::{Chain, Nodes};

/// One kind of them at one device.
#[derive(Debug, Default)]
struct Aside {
    waiting: Chain,
    /// Whether one is at the device.
    busy: bool,
    /// Those that end with it.
    joined: Chain,
}

/// Flushes and discards of one device.
#[derive(Debug, Default)]
pub(crate) struct Asides {
    flushes: Aside,
    discards: Aside,
}

impl Asides {
    /// Requests that wait.
    pub(crate) fn waiting(&self) -> u32 {
        self.flushes.waiting.count() + self.discards.waiting.count()
    }

    fn of(&mut self, opcode: Opcode) -> &mut Aside {
        match opcode {
            Opcode::Flush => &mut self.flushes,
            _ => &mut self.discards,
        }
    }

    /// The one whose turn it is, if none is at the device.
    fn next(&self, opcode: Opcode) -> Option<SlotId> {
        let aside = if opcode == Opcode::Flush { &self.flushes } else { &self.discards };
        if aside.busy { None } else { aside.waiting.first() }
    }

    /// It is at the device now.
    fn begin(&mut self, nodes: &Nodes, opcode: Opcode) {
        let aside = self.of(opcode);
        aside.busy = true;
        aside.waiting.pop(nodes);
        if opcode == Opcode::Flush {
            aside.joined = std::mem::take(&mut aside.waiting);
        }
    }

    /// It ended; those that end with it.
    fn end(&mut self, opcode: Opcode) -> Chain {
        let aside = self.of(opcode);
        aside.busy = false;
        std::mem::take(&mut aside.joined)
    }
}

/// Whether an operation goes beside reads and writes.
pub(crate) fn goes_aside(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Flush | Opcode::Discard)
}

impl<D: Device, C: Clock> Poller<D, C> {
    /// Takes an entered flush or discard.
    pub(crate) fn put_aside(&mut self, index: usize, id: SlotId, opcode: Opcode) {
        self.units[index].asides.of(opcode).waiting.push(&mut self.nodes, id);
        self.feed_asides(index);
    }

    /// Gives a device its next flush and its next discard, where none is at it.
    pub(crate) fn feed_asides(&mut self, index: usize) {
        for opcode in [Opcode::Flush, Opcode::Discard] {
            while let Some(id) = self.units[index].asides.next(opcode) {
                if self.units[index].presence == Presence::Gone {
                    self.units[index].asides.of(opcode).waiting.pop(&self.nodes);
                    self.stats.devices[index].errors.add(1);
                    self.finish(id, Status::DeviceGone, 0);
                    continue;
                }
                let accepted = self.requests.get_mut(id).expect("what waits is claimed");
                let unit = &mut self.units[index];
                if !unit.give_aside(accepted.operation(id.to_u64())) {
                    break;
                }
                accepted.submitted_ns = self.now_ns;
                unit.asides.begin(&self.nodes, opcode);
            }
        }
    }

    /// A flush or discard ended at its device.
    #[cold]
    pub(crate) fn aside_ended(&mut self, index: usize, opcode: Opcode, status: Status) {
        let mut joined = self.units[index].asides.end(opcode);
        while let Some(id) = joined.pop(&self.nodes) {
            self.stats.devices[index].others.add(1);
            if status != Status::Ok {
                self.failed(index, 1);
            }
            self.finish(id, status, 0);
        }
        self.feed_asides(index);
    }

    /// Ends the waiting ones of a client that is gone.
    pub(crate) fn drop_asides(&mut self, index: usize, session: SessionSlot) {
        for opcode in [Opcode::Flush, Opcode::Discard] {
            let mut all = std::mem::take(&mut self.units[index].asides.of(opcode).waiting);
            while let Some(id) = all.pop(&self.nodes) {
                if self.requests.get(id).expect("what waits is claimed").session == session {
                    self.finish(id, Status::Draining, 0);
                } else {
                    self.units[index].asides.of(opcode).waiting.push(&mut self.nodes, id);
                }
            }
        }
    }
}
