//! One client thread's side of every driver: start an operation, take in its end.

use anyhow::Result;
use kvrail_device::{Clock, MonotonicClock};

use crate::drive::Window;
use crate::drive::tally::Tally;
use crate::pattern::Pattern;
use crate::port::{Direction, Done, Fault, Operation, Port};
use crate::versions::ClientShare;

/// How a block that was read is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockCheck {
    /// A few headers: for timed runs.
    Headers,
    /// Every byte: for passes that are not timed.
    All,
}

/// The operation a slot runs.
#[derive(Clone, Copy, Debug)]
struct RunningOperation {
    operation: Operation,
    version: u32,
    from_ns: u64,
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedOperation {
    pub(super) slot: u32,
    /// From its start, or its planned start.
    pub(super) from_ns: u64,
    pub(super) bytes: u32,
    pub(super) well: bool,
}

/// A port, the share of the volume it works on, and what it counted.
pub(super) struct Client<'a, 'm> {
    pub(super) port: &'a mut dyn Port,
    pub(super) tally: Tally,
    share: &'a mut ClientShare<'m>,
    pattern: Pattern,
    slots: Vec<Option<RunningOperation>>,
    in_flight: u32,
}

impl<'a, 'm> Client<'a, 'm> {
    pub(super) fn new(
        port: &'a mut dyn Port,
        share: &'a mut ClientShare<'m>,
        pattern: Pattern,
        slots: u32,
    ) -> Self {
        let (slots, tally) = (vec![None; slots as usize], Tally::default());
        Self { port, tally, share, pattern, slots, in_flight: 0 }
    }

    /// Slots it has, numbered from 0.
    pub(super) fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("made from a u32")
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Starts an operation. Its latency runs from `planned_ns`, or from here, behind the filling of
    /// a write's buffer.
    pub(super) fn start(
        &mut self,
        slot: u32,
        operation: Operation,
        planned_ns: Option<u64>,
        window: Window,
    ) -> Result<()> {
        let version = self.fill(slot, operation, window);
        let from_ns = planned_ns.unwrap_or_else(|| MonotonicClock.now_ns());
        self.slots[slot as usize] = Some(RunningOperation { operation, version, from_ns });
        self.in_flight += 1;
        self.port.stage(slot, operation)
    }

    fn fill(&mut self, slot: u32, operation: Operation, window: Window) -> u32 {
        let Operation { direction, offset, bytes } = operation;
        if direction == Direction::Read {
            return 0;
        }
        let begun_ns = MonotonicClock.now_ns();
        let version = self.share.next_version(offset, bytes);
        let buffer = &mut self.port.buffer(slot)[..bytes as usize];
        self.pattern.fill(buffer, offset, version);
        if window.holds(begun_ns) {
            self.tally.pattern_ns += MonotonicClock.now_ns() - begun_ns;
        }
        version
    }

    /// Takes in an end: versions, comparison, errors. Counting is the driver's.
    pub(super) fn finish(&mut self, done: Done, check: BlockCheck) -> EndedOperation {
        let running = self.slots[done.slot as usize].take().expect("a slot ends what it runs");
        self.in_flight -= 1;
        let RunningOperation { operation, version, from_ns } = running;
        let Operation { direction, offset, bytes } = operation;
        match (direction, done.outcome) {
            (Direction::Read, Ok(())) => self.compare(done.slot, operation, check),
            (Direction::Read, Err(Fault::Evicted)) => {
                self.tally.evicted += 1;
                self.share.lost(offset, bytes);
            }
            (Direction::Read, Err(fault)) => self.tally.failed("read", offset, fault),
            (Direction::Write, Ok(())) => self.share.written(offset, bytes, version),
            // A cache that takes a put only when it likes to did not take this one.
            (Direction::Write, Err(Fault::Evicted)) => {
                self.tally.evicted += 1;
                self.share.lost(offset, bytes);
            }
            (Direction::Write, Err(fault)) => {
                self.share.lost(offset, bytes);
                self.tally.failed("write", offset, fault);
            }
        }
        EndedOperation { slot: done.slot, from_ns, bytes, well: done.outcome.is_ok() }
    }

    fn compare(&mut self, slot: u32, operation: Operation, check: BlockCheck) {
        let Operation { offset, bytes, .. } = operation;
        let buffer = &self.port.buffer(slot)[..bytes as usize];
        let (wrong, first) = match check {
            BlockCheck::Headers => {
                self.tally.sampled_blocks += 1;
                let first = self.share.sample(&self.pattern, buffer, offset);
                (u64::from(first.is_some()), first)
            }
            BlockCheck::All => {
                self.tally.verified_bytes += u64::from(bytes);
                self.share.verify(&self.pattern, buffer, offset)
            }
        };
        if let Some(first) = first {
            self.tally.mismatched(wrong, first);
        }
    }

    /// First byte and length of the share.
    pub(super) fn extent(&self) -> (u64, u64) {
        (self.share.base(), self.share.bytes())
    }
}
