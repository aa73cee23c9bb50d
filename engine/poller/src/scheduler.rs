//! Who is next at a device, and what it may hold.
//!
//! Each device has one queue and one budget for each kind of memory, one limit for its writes while
//! it is read, and a queue for each of the operations that go to it one at a time.

pub(crate) mod budget;
pub(crate) mod deadlines;
pub(crate) mod fair;
mod pace;
mod serial;
mod writes;

use kvrail_device::{Description, SlotId};
use kvrail_ring::{Class, Opcode, Status};

use budget::{BudgetLedger, DeviceBudget, InFlightBytes};
use fair::{Among, QueuedRequest, RequestChain, Waiting, WaitingRequests, Way};
use pace::{DevicePace, Left};
use serial::Serial;
pub(crate) use serial::{SERIAL, is_serial};
use writes::DeviceWrites;

use crate::completion_batch::CompletionBatch;
use crate::limits::{SessionSlot, TenantSlot};
use crate::task::{MemoryKind, Task};

/// What waits for a device and what it holds, of one kind of memory.
#[derive(Debug)]
pub(crate) struct Share {
    waiting: Waiting,
    ledger: BudgetLedger,
    pace: DevicePace,
    /// That of reads alone: drives write at another pace.
    reads: DevicePace,
    /// Whether the ledger's bytes follow the pace.
    follows: bool,
    /// Until when the device counts as shared by sessions.
    shared_until_ns: u64,
    /// When the device last ended something, or was given something while it had nothing.
    moved_ns: u64,
}

/// How long a device counts as shared after requests of two sessions waited for it.
const SHARED_NS: u64 = 100_000_000;

/// A device that holds these bytes works as fast as it can: the fastest move them in 300 us.
const BUSY_BYTES: u64 = 4 << 20;

impl Share {
    fn new(description: &Description, budget: DeviceBudget) -> Self {
        let pace = DevicePace::new(description.bytes_per_second);
        let (bytes, follows) = match budget.bytes {
            InFlightBytes::Fixed(bytes) => (bytes, false),
            InFlightBytes::Followed => (pace.in_flight_bytes_alone(), true),
        };
        let operations = budget.operations.min(description.depth);
        let (waiting, ledger) = (Waiting::new(), BudgetLedger::new(operations, bytes));
        Self {
            waiting,
            ledger,
            pace,
            reads: pace.guessed(),
            follows,
            shared_until_ns: 0,
            moved_ns: 0,
        }
    }

    /// Has a task wait for the device. Beside one of another session the device is shared from now
    /// on, and given less.
    fn push(&mut self, nodes: &mut WaitingRequests, id: SlotId, task: &Task, now_ns: u64) {
        let ((session, class), way, length) = (task.turn(), Way::of(task.header), task.length);
        if self.waiting.has_others(session) {
            let was_alone = self.shared_until_ns <= now_ns;
            self.shared_until_ns = now_ns.saturating_add(SHARED_NS);
            if was_alone && self.follows {
                self.ledger.resize(self.pace.in_flight_bytes());
            }
        }
        let cost_ns = self.pace.cost_ns(length);
        self.waiting.push(nodes, QueuedRequest { id, session, class, way, length, cost_ns });
    }

    /// Gives back what a batch was charged, and learns from it how fast the device is. Whether its
    /// limit has changed. Writes that wait because reads are about do not wait for the device.
    #[inline]
    fn refund(&mut self, batch: &CompletionBatch, read: bool, now_ns: u64) -> bool {
        self.ledger.refund(batch.count, batch.held_bytes());
        let since_ns = std::mem::replace(&mut self.moved_ns, now_ns);
        let waiting = if read { self.waiting.count_of(Way::Read) } else { self.waiting.count() };
        let left = match (waiting, self.ledger.in_flight() + self.waiting.count()) {
            (0, 0) => Left::Nothing,
            (0, _) => Left::Working,
            (_, _) => Left::Waiting,
        };
        let busy = left == Left::Waiting || self.ledger.held_bytes() >= BUSY_BYTES;
        if (busy || batch.header.is_long()) && Way::of(batch.header) == Way::Read {
            self.reads.worked(batch.length, now_ns.saturating_sub(since_ns));
        }
        let follow = self.pace.ended(now_ns, (batch.count, batch.length), left) && self.follows;
        if follow {
            let shared = now_ns < self.shared_until_ns;
            self.ledger.resize(match shared {
                true => self.pace.in_flight_bytes(),
                false => self.pace.in_flight_bytes_alone(),
            });
        }
        follow
    }
}

/// When reads of a device would have ended, if they began now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadTime {
    /// Device time of the reads themselves; 0 as long as the device was not measured.
    pub(crate) reads_ns: u64,
    /// Device time of the reads that wait or are at the device.
    pub(crate) ahead_ns: u64,
}

/// The task whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    pub(crate) id: SlotId,
    class: Class,
    among: Among,
}

/// What waits for one device, and what it may hold.
#[derive(Debug)]
pub(crate) struct Scheduler {
    shares: [Share; 2],
    writes: DeviceWrites,
    serial: Serial,
}

impl Scheduler {
    pub(crate) fn new(description: &Description, budget: DeviceBudget) -> Self {
        let share = || Share::new(description, budget);
        let writes = DeviceWrites::new(match budget.bytes {
            InFlightBytes::Fixed(bytes) => Some(bytes),
            InFlightBytes::Followed => None,
        });
        Self { shares: [share(), share()], writes, serial: Serial::new() }
    }

    /// One kind of memory.
    #[inline(always)]
    fn share(&mut self, kind: MemoryKind) -> &mut Share {
        &mut self.shares[kind as usize]
    }

    /// Whether a task that has come now may go to the device at once, past no other.
    #[inline(always)]
    pub(crate) fn is_open(&self, task: &Task, kind: MemoryKind) -> bool {
        let Share { waiting, ledger, .. } = &self.shares[kind as usize];
        waiting.count() == 0
            && ledger.fits(task.header.class(), task.length)
            && (Way::of(task.header) == Way::Read
                || self.writes.fits(task.length, task.submitted_ns))
    }

    /// A task went to the device.
    #[inline(always)]
    pub(crate) fn charge(&mut self, task: &Task, kind: MemoryKind) {
        let Share { ledger, moved_ns, .. } = self.share(kind);
        if ledger.held_bytes() == 0 {
            *moved_ns = task.submitted_ns;
        }
        ledger.charge(task.length);
        if Way::of(task.header) == Way::Write {
            self.writes.charge(task.length);
        }
    }

    /// Bytes of host memory's tasks that the device may hold at once now.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.shares[MemoryKind::Host as usize].ledger.limit_bytes()
    }

    /// Bytes of writes that the device may hold at once now.
    pub(crate) fn write_bytes(&self, now_ns: u64) -> u64 {
        let all = self.in_flight_bytes();
        self.writes.limit(now_ns).map_or(all, |writes| writes.min(all))
    }

    /// Time of these reads, of these bytes in all, into host memory. A device that has been
    /// silent for some time is expected to be for as long again.
    #[inline(always)]
    pub(crate) fn read_time(&self, count: u32, bytes: u64, now_ns: u64) -> ReadTime {
        let Share { waiting, ledger, reads, moved_ns, .. } =
            &self.shares[MemoryKind::Host as usize];
        let held_ns = reads.time_ns(ledger.in_flight(), ledger.held_bytes());
        // A flush moves no bytes, and may take long without any silence.
        let silent_ns = if ledger.held_bytes() == 0 { 0 } else { now_ns.saturating_sub(*moved_ns) };
        let ahead_ns = waiting.costs_ns(Way::Read).saturating_add(held_ns.max(silent_ns));
        let reads_ns = if reads.is_guessed() { 0 } else { reads.time_ns(count, bytes) };
        ReadTime { reads_ns, ahead_ns }
    }

    /// How long writes wait whatever ends meanwhile; 0: they do not.
    pub(crate) fn pause_ns(&self, now_ns: u64) -> u64 {
        let waiting = self.shares.iter().any(|share| share.waiting.count_of(Way::Write) > 0);
        if waiting { self.writes.pause_ns(now_ns) } else { 0 }
    }

    /// Reads or writes ended at the device. Whether it may hold more or less than before.
    #[inline]
    pub(crate) fn refund(&mut self, batch: &CompletionBatch, now_ns: u64) -> bool {
        let read = self.writes.limit(now_ns).is_some();
        let share = self.share(batch.header.kind());
        let (rated, wait) =
            (share.refund(batch, read, now_ns), share.waiting.count_of(Way::Write) > 0);
        self.writes.ended(batch, wait, now_ns) | rated
    }

    /// Has a task wait for the device.
    pub(crate) fn push(
        &mut self,
        nodes: &mut WaitingRequests,
        id: SlotId,
        task: &Task,
        now_ns: u64,
    ) {
        if is_serial(task.header.opcode()) {
            return self.serial.push(nodes, id, task);
        }
        self.share(task.header.kind()).push(nodes, id, task, now_ns);
    }

    /// The task whose turn it is, if the budget has room for it. `least` is the least urgent class
    /// that is looked at; a round begins with the least urgent of all.
    pub(crate) fn next(
        &mut self,
        nodes: &WaitingRequests,
        kind: MemoryKind,
        least: &mut Class,
        now_ns: u64,
    ) -> Option<Pick> {
        let Self { shares, writes, .. } = self;
        let Share { waiting, ledger, .. } = &mut shares[kind as usize];
        let mut among = Among::All;
        loop {
            let next = waiting.peek(nodes, *least, among)?;
            if next.way == Way::Write && !writes.fits(next.length, now_ns) {
                among = Among::Reads;
                continue;
            }
            if ledger.fits(next.budget, next.length) {
                return Some(Pick { id: next.id, class: next.class, among });
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
    pub(crate) fn take(&mut self, nodes: &WaitingRequests, kind: MemoryKind, pick: Pick) {
        self.share(kind).waiting.take(nodes, pick.class, pick.among);
    }

    /// The flush or discard whose turn it is, if none is in flight and the budget has room.
    pub(crate) fn next_serial(
        &mut self,
        nodes: &WaitingRequests,
        opcode: Opcode,
    ) -> Option<SlotId> {
        let next = self.serial.next(nodes, opcode)?;
        self.share(MemoryKind::Host).ledger.fits(Class::Demand, 0).then_some(next)
    }

    /// Takes what `next_serial` returned, with no change in between.
    pub(crate) fn take_serial(&mut self, nodes: &WaitingRequests, opcode: Opcode) {
        self.serial.take(nodes, opcode);
    }

    /// What was taken went to the device.
    pub(crate) fn begin_serial(&mut self, opcode: Opcode) {
        self.share(MemoryKind::Host).ledger.charge(0);
        self.serial.begin(opcode);
    }

    /// The flush or discard in flight ended.
    pub(crate) fn end_serial(&mut self, opcode: Opcode, status: Status) {
        self.share(MemoryKind::Host).ledger.refund(1, 0);
        self.serial.end(opcode, status);
    }

    /// The next flush that completes with one that has ended.
    pub(crate) fn next_joined(&mut self, nodes: &WaitingRequests) -> Option<(SlotId, Status)> {
        self.serial.next_joined(nodes)
    }

    /// Has a session of which nothing waits take part in a tenant's share.
    pub(crate) fn seat(&mut self, session: SessionSlot, tenant: TenantSlot) {
        self.shares.iter_mut().for_each(|share| share.waiting.seat(session, tenant));
        self.serial.seat(session, tenant);
    }

    /// Takes any waiting task of one session but its flushes, for a client that is gone.
    pub(crate) fn take_of(
        &mut self,
        nodes: &WaitingRequests,
        session: SessionSlot,
    ) -> Option<SlotId> {
        let mut shares = self.shares.iter_mut();
        let moves = shares.find_map(|share| share.waiting.take_of(nodes, session));
        moves.or_else(|| self.serial.take_of(nodes, session))
    }

    /// Takes the waiting flushes that are some client's, for a client that is gone.
    pub(crate) fn take_flushes(
        &mut self,
        nodes: &mut WaitingRequests,
        is_theirs: impl Fn(SlotId) -> bool,
    ) -> RequestChain {
        self.serial.take_flushes(nodes, is_theirs)
    }

    /// Tasks waiting for the device.
    #[inline]
    pub(crate) fn waiting(&self) -> u32 {
        self.serial.waiting() + self.shares.iter().map(|share| share.waiting.count()).sum::<u32>()
    }

    /// Tasks the device holds.
    pub(crate) fn in_flight(&self) -> u32 {
        self.shares.iter().map(|share| share.ledger.in_flight()).sum()
    }
}
