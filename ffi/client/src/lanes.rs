//! A queue's lanes to all pollers, each with its doorbell.

use kvrail_ring::{ClientLane, Doorbell, LaneFault, RingBell, Side};

use crate::inflight::{BogusCompletion, CompletionEffect, InflightTable};
use crate::sink::CompletionSink;

/// Bytes of puts that are summed, about 20 us, before what was staged ahead of them is published: a
/// poller that is woken for each put of 64 KiB takes a third more CPU time.
const SUMMED_BYTES: u64 = 192 << 10;

/// What is wrong with a lane. Boxed where it is returned: no error fits into a register then.
#[derive(Debug)]
pub(crate) enum LaneError {
    /// One completion cannot be true; the lane goes on.
    Bogus(String),
    /// The lane cannot be used any more.
    Poisoned(String),
}

/// How far a look at a lane goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// Until nothing more has completed.
    Empty,
    /// Until a get has ended that took a pass over many bytes, at most.
    Long,
}

/// One lane with its doorbell.
#[derive(Debug)]
struct LaneEnd {
    lane: ClientLane,
    doorbell: Doorbell,
    /// Pieces staged or published in it and not yet completed.
    outstanding: u32,
}

impl LaneEnd {
    /// Takes what has completed in this lane.
    #[inline(always)]
    fn reap(
        &mut self,
        (index, until): (u16, Until),
        inflight: &mut InflightTable,
        sink: &mut impl CompletionSink,
    ) -> Result<(), Box<LaneError>> {
        let (mut ended, mut error, mut over) = (0, Ok(()), false);
        // No more than were in flight: whoever polls gets back to its work.
        for _ in 0..self.outstanding {
            let taken =
                self.lane.take_into(|completion| match inflight.settle(index, &completion, sink) {
                    Ok(one) => {
                        ended += u32::from(one != CompletionEffect::Notice);
                        over = one == CompletionEffect::Long && until == Until::Long;
                    }
                    Err(bogus) => {
                        ended += u32::from(matches!(bogus, BogusCompletion::Short { .. }));
                        error = Err(Box::new(LaneError::Bogus(describe(index, bogus))));
                    }
                });
            match taken {
                Ok(true) if !over => {}
                Ok(_) => break,
                // Nothing is in flight after this.
                Err(fault) => return Err(Box::new(poisoned(usize::from(index), &fault))),
            }
        }
        debug_assert!(ended <= self.outstanding, "no more ends than were in flight");
        self.outstanding -= ended;
        self.lane.release();
        error
    }
}

/// A place for one request in a lane.
#[derive(Debug)]
pub(crate) struct LaneRoom<'a> {
    end: &'a mut LaneEnd,
    staged: &'a mut u64,
    bit: u64,
}

impl LaneRoom<'_> {
    /// Writes a request into it; its poller sees it after `publish`.
    #[inline(always)]
    pub(crate) fn stage(self, slot: kvrail_ring::Request) {
        self.end.lane.stage(slot);
        self.end.outstanding += 1;
        *self.staged |= self.bit;
    }

    /// As `stage`, with what stands in the slot's side area.
    pub(crate) fn stage_with(self, slot: kvrail_ring::Request, side: &Side<'_>) {
        self.end.lane.stage_with(slot, side);
        self.end.outstanding += 1;
        *self.staged |= self.bit;
    }
}

/// All lanes of a queue, by poller.
#[derive(Debug)]
pub(crate) struct QueueLanes {
    ends: Vec<LaneEnd>,
    /// Lanes with staged requests, one bit each.
    staged: u64,
    /// Bytes of puts that were summed since the last publication.
    summed: u64,
}

impl QueueLanes {
    pub(crate) fn new(lanes: impl Iterator<Item = (ClientLane, Doorbell)>) -> Self {
        let end = |(lane, doorbell)| LaneEnd { lane, doorbell, outstanding: 0 };
        let ends: Vec<_> = lanes.map(end).collect();
        debug_assert!(ends.len() <= u64::BITS as usize, "a bit for each lane");
        Self { ends, staged: 0, summed: 0 }
    }

    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// A lane that one more request fits into.
    #[inline(always)]
    pub(crate) fn room(&mut self, lane: u16) -> Option<LaneRoom<'_>> {
        let end = self.ends.get_mut(usize::from(lane))?;
        let staged = &mut self.staged;
        end.lane.has_room().then_some(LaneRoom { end, staged, bit: 1 << lane })
    }

    /// Whether so many more requests fit into a lane.
    pub(crate) fn fit(&mut self, lane: u16, wanted: u32) -> Result<bool, LaneError> {
        // The poller gives request slots back a moment after it took them.
        match self.ends[usize::from(lane)].lane.free(wanted) {
            Ok(free) => Ok(free >= wanted),
            Err(fault) => Err(LaneError::Poisoned(format!("request lane {lane}: {fault}"))),
        }
    }

    /// Publishes what is staged if it would wait for too long while so many bytes more are summed;
    /// whether it was published.
    #[inline]
    pub(crate) fn publish_before(&mut self, bytes: u64) -> bool {
        let is_long = self.summed + bytes > SUMMED_BYTES;
        if is_long {
            self.publish();
        }
        self.summed += bytes;
        is_long
    }

    /// Publishes everything staged, with one store for each lane, and wakes pollers that sleep.
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.summed = 0;
        while self.staged != 0 {
            let end = &mut self.ends[self.staged.trailing_zeros() as usize];
            self.staged &= self.staged - 1;
            if end.lane.publish() == RingBell::Now {
                end.doorbell.ring();
            }
        }
    }

    /// Takes what has completed in one lane.
    #[inline(always)]
    pub(crate) fn reap(
        &mut self,
        (index, until): (usize, Until),
        inflight: &mut InflightTable,
        sink: &mut impl CompletionSink,
    ) -> Result<(), Box<LaneError>> {
        let end = &mut self.ends[index];
        if end.outstanding == 0 {
            return Ok(());
        }
        let number = u16::try_from(index).expect("a queue has few lanes");
        end.reap((number, until), inflight, sink)
    }

    /// Looks at all lanes although nothing was known to be there: whether something was.
    pub(crate) fn look(&self) -> Result<bool, LaneError> {
        let mut found = false;
        for (index, end) in self.ends.iter().enumerate() {
            let ready = end.lane.is_ready().map_err(|fault| poisoned(index, &fault))?;
            found |= ready && end.outstanding > 0;
        }
        Ok(found)
    }

    /// Nothing more is expected from any of them, and what was staged has ended.
    pub(crate) fn forget(&mut self) {
        self.staged = 0;
        self.ends.iter_mut().for_each(|end| end.outstanding = 0);
    }
}

fn poisoned(lane: usize, fault: &LaneFault) -> LaneError {
    LaneError::Poisoned(format!("completion lane {lane}: {fault}"))
}

#[cold]
fn describe(lane: u16, bogus: BogusCompletion) -> String {
    match bogus {
        BogusCompletion::Unknown(user_data) => {
            format!("completion of {user_data:#x} in lane {lane}, where that is not in flight")
        }
        BogusCompletion::Short { asked, moved } => {
            format!("OK in lane {lane} for {moved} of {asked} bytes")
        }
    }
}
