//! Flushes and discards: one of each in flight at a device, beside reads and writes.
//!
//! Either locks what reads and writes of the same device need: the journal of a file system, the
//! inode of a file. Many at once also occupy a kernel thread each. Flushes that wait are answered
//! by one flush, which begins after all of them and so covers what each was to cover. Discards take
//! turns as reads and writes do.

use kvrail_device::SlotId;
use kvrail_ring::{Class, Opcode, Status};

use super::fair::{Among, QueuedRequest, RequestChain, Waiting, WaitingRequests, Way};
use crate::limits::{SessionSlot, TenantSlot};
use crate::task::Task;

/// Operations of which one is in flight at a time.
pub(crate) const SERIAL: [Opcode; 2] = [Opcode::Flush, Opcode::Discard];

/// What a discard counts as beside others: each the same, whatever its length.
const DISCARD_NS: u64 = 100_000;

/// Whether only one operation of this opcode is in flight at a time.
#[inline(always)]
pub(crate) fn is_serial(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Flush | Opcode::Discard)
}

#[derive(Debug, Default)]
struct Flushes {
    waiting: RequestChain,
    in_flight: bool,
    /// Those that complete with the one in flight.
    joined: RequestChain,
    /// How it ended, while those that joined it are being completed.
    ended: Option<Status>,
}

#[derive(Debug)]
struct Discards {
    waiting: Waiting,
    in_flight: bool,
}

/// Flushes and discards of one device.
#[derive(Debug)]
pub(super) struct Serial {
    flushes: Flushes,
    discards: Discards,
}

impl Serial {
    pub(super) fn new() -> Self {
        let discards = Discards { waiting: Waiting::new(), in_flight: false };
        Self { flushes: Flushes::default(), discards }
    }

    /// Has a session of which nothing waits take part in a tenant's share.
    pub(super) fn seat(&mut self, session: SessionSlot, tenant: TenantSlot) {
        self.discards.waiting.seat(session, tenant);
    }

    /// Tasks that wait, those that joined another included.
    pub(super) fn waiting(&self) -> u32 {
        let Flushes { waiting, joined, .. } = &self.flushes;
        waiting.count() + joined.count() + self.discards.waiting.count()
    }

    pub(super) fn push(&mut self, nodes: &mut WaitingRequests, id: SlotId, task: &Task) {
        if task.header.opcode() == Opcode::Flush {
            return self.flushes.waiting.push(nodes, id);
        }
        let (session, class) = (task.owner.session(), task.header.class());
        let way = Way::Write;
        let wanted = QueuedRequest { id, session, class, way, length: 0, cost_ns: DISCARD_NS };
        self.discards.waiting.push(nodes, wanted);
    }

    /// The one whose turn it is, if none is in flight.
    pub(super) fn next(&mut self, nodes: &WaitingRequests, opcode: Opcode) -> Option<SlotId> {
        match opcode {
            Opcode::Flush if self.flushes.in_flight => None,
            Opcode::Flush => self.flushes.waiting.first(),
            _ if self.discards.in_flight => None,
            _ => Some(self.discards.waiting.peek(nodes, Class::Background, Among::All)?.id),
        }
    }

    /// Takes what `next` returned, with no change in between.
    pub(super) fn take(&mut self, nodes: &WaitingRequests, opcode: Opcode) {
        if opcode == Opcode::Flush {
            self.flushes.waiting.pop(nodes);
        } else if let Some(next) = self.discards.waiting.peek(nodes, Class::Background, Among::All)
        {
            self.discards.waiting.take(nodes, next.class, Among::All);
        }
    }

    /// What was taken is in flight now. Flushes that wait complete with it.
    pub(super) fn begin(&mut self, opcode: Opcode) {
        debug_assert!(is_serial(opcode), "only flushes and discards go one at a time");
        if opcode == Opcode::Flush {
            assert!(!self.flushes.in_flight, "one flush is in flight at a time");
            self.flushes.in_flight = true;
            self.flushes.joined = std::mem::take(&mut self.flushes.waiting);
        } else {
            assert!(!self.discards.in_flight, "one discard is in flight at a time");
            self.discards.in_flight = true;
        }
    }

    /// The one in flight ended.
    pub(super) fn end(&mut self, opcode: Opcode, status: Status) {
        if opcode == Opcode::Discard {
            assert!(self.discards.in_flight, "invariant 1: a discard ended that was not begun");
            self.discards.in_flight = false;
            return;
        }
        assert!(self.flushes.in_flight, "invariant 1: a flush ended that was not begun");
        if self.flushes.joined.count() > 0 {
            self.flushes.ended = Some(status);
        } else {
            self.flushes.in_flight = false;
        }
    }

    /// The next of those that complete with a flush that has ended.
    pub(super) fn next_joined(&mut self, nodes: &WaitingRequests) -> Option<(SlotId, Status)> {
        let status = self.flushes.ended?;
        let id =
            self.flushes.joined.pop(nodes).expect("an ended flush is kept for those behind it");
        if self.flushes.joined.count() == 0 {
            (self.flushes.ended, self.flushes.in_flight) = (None, false);
        }
        Some((id, status))
    }

    /// Takes any waiting discard of a session, for a client that is gone.
    pub(super) fn take_of(
        &mut self,
        nodes: &WaitingRequests,
        session: SessionSlot,
    ) -> Option<SlotId> {
        self.discards.waiting.take_of(nodes, session)
    }

    /// Takes the waiting flushes that are some client's, for a client that is gone.
    pub(super) fn take_flushes(
        &mut self,
        nodes: &mut WaitingRequests,
        is_theirs: impl Fn(SlotId) -> bool,
    ) -> RequestChain {
        let (mut all, mut theirs) =
            (std::mem::take(&mut self.flushes.waiting), RequestChain::default());
        while let Some(id) = all.pop(nodes) {
            let into = if is_theirs(id) { &mut theirs } else { &mut self.flushes.waiting };
            into.push(nodes, id);
        }
        theirs
    }
}
