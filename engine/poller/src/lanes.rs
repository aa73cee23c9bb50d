//! The lanes one poller serves: whose they are, whose turn it is, which have something to publish.

use kvrail_ring::{LaneFault, RegionId, RingBell, ServerLane};

use crate::bells::Rung;
use crate::limits::{LANES_MAX, SESSIONS_MAX, SessionSlot};
use crate::mailbox::LaneSeat;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneState {
    /// Requests are taken.
    Serving,
    /// None are taken any more; it goes back when the last is completed.
    Closing,
}

/// One lane.
#[derive(Debug)]
pub(crate) struct Lane {
    session: SessionSlot,
    seat: Box<LaneSeat>,
    state: LaneState,
    /// Requests are there, but the session has its share in flight; no reason to stay awake.
    throttled: bool,
}

const WORDS: usize = LANES_MAX / 64;
const _: () = assert!(SESSIONS_MAX <= u64::BITS as usize);
const _: () = assert!(WORDS <= u64::BITS as usize);

/// All lanes by index. An index stays the same while the lane lives.
#[derive(Debug)]
pub(crate) struct Lanes {
    table: Vec<Option<Lane>>,
    /// Indices in use, the order of the rounds.
    order: Vec<u16>,
    start: usize,
    /// Lanes with unpublished completions, one bit each.
    staged: [u64; WORDS],
    /// Words of `staged` that may not be zero, one bit each.
    staged_words: u64,
}

impl Lanes {
    pub(crate) fn new() -> Self {
        Self {
            table: (0..LANES_MAX).map(|_| None).collect(),
            order: Vec::with_capacity(LANES_MAX),
            start: 0,
            staged: [0; WORDS],
            staged_words: 0,
        }
    }

    /// Enters a lane.
    ///
    /// # Errors
    /// Gives it back when all are taken.
    pub(crate) fn insert(
        &mut self,
        session: SessionSlot,
        seat: Box<LaneSeat>,
    ) -> Result<(), Box<LaneSeat>> {
        let Some(index) = self.table.iter().position(Option::is_none) else { return Err(seat) };
        let lane = Lane { session, seat, state: LaneState::Serving, throttled: false };
        self.table[index] = Some(lane);
        self.order.push(u16::try_from(index).expect("LANES_MAX fits"));
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn get(&mut self, index: u16) -> &mut Lane {
        self.table[usize::from(index)].as_mut().expect("a request in flight keeps its lane")
    }

    /// Lanes in use.
    pub(crate) fn count(&self) -> usize {
        self.order.len()
    }

    /// The lane at this position of the present round; nothing once lanes left during the round.
    #[inline]
    pub(crate) fn in_round(&self, position: usize) -> Option<u16> {
        let at = self.start + position;
        let wrapped = at.checked_sub(self.order.len()).unwrap_or(at);
        self.order.get(wrapped).copied()
    }

    /// Lets the next round begin one lane later.
    pub(crate) fn rotate(&mut self) {
        self.start += 1;
        if self.start >= self.order.len() {
            self.start = 0;
        }
    }

    /// Closes the lanes of a session: one queue's, or all.
    pub(crate) fn close(&mut self, session: SessionSlot, queue: Option<u32>) {
        self.each(|lane| {
            if lane.session == session && queue.is_none_or(|queue| queue == lane.seat.queue) {
                lane.close();
            }
        });
    }

    /// Takes out a closing lane of which nothing is in flight, with what it did not publish yet.
    pub(crate) fn take_closed(&mut self) -> Option<Lane> {
        let lane = |index: &u16| self.table[usize::from(*index)].as_ref();
        let closed = |index: &u16| lane(index).is_some_and(Lane::is_closed);
        let index = self.order.iter().copied().find(closed)?;
        self.order.retain(|&other| other != index);
        self.staged[usize::from(index) / 64] &= !(1 << (index % 64));
        self.table[usize::from(index)].take()
    }

    /// Whether a session has any lane left, closing ones included.
    pub(crate) fn any_of(&self, session: SessionSlot) -> bool {
        self.table.iter().flatten().any(|lane| lane.session == session)
    }

    /// Notes that a lane has something to publish.
    #[inline(always)]
    pub(crate) fn mark_staged(&mut self, index: u16) {
        self.staged[usize::from(index) / 64] |= 1 << (index % 64);
        self.staged_words |= 1 << (index / 64);
    }

    /// Publishes what is staged and rings sleeping clients. Returns how many bells were rung, and
    /// the sessions whose bells were too dear once too often, one bit each.
    #[inline]
    pub(crate) fn publish(&mut self) -> (u64, u64) {
        let (mut bells, mut dear) = (0, 0);
        while self.staged_words != 0 {
            let word = self.staged_words.trailing_zeros() as usize;
            self.staged_words &= self.staged_words - 1;
            while self.staged[word] != 0 {
                let bit = self.staged[word].trailing_zeros();
                self.staged[word] &= self.staged[word] - 1;
                let lane = self.table[word * 64 + bit as usize].as_mut();
                let Lane { seat, session, .. } = lane.expect("a staged lane is in the table");
                if seat.lane.publish() == RingBell::Now {
                    bells += 1;
                    if seat.bell.ring() == Rung::LastTime {
                        dear |= 1 << session.0;
                    }
                }
            }
        }
        (bells, dear)
    }

    /// Tells all clients that the poller is about to sleep.
    pub(crate) fn announce_sleep(&mut self) {
        self.each(|lane| lane.seat.lane.announce_sleep());
    }

    /// Tells all clients that the poller is awake.
    pub(crate) fn retract_sleep(&mut self) {
        self.each(|lane| lane.seat.lane.retract_sleep());
    }

    /// The second look before sleeping: is there anything to take, or a fault to report?
    pub(crate) fn any_ready(&mut self) -> bool {
        let mut ready = false;
        self.each(|lane| ready |= !lane.throttled && lane.is_ready() != Ok(false));
        ready
    }

    fn each(&mut self, mut visit: impl FnMut(&mut Lane)) {
        for &index in &self.order {
            visit(self.table[usize::from(index)].as_mut().expect("indices in order are in use"));
        }
    }
}

impl Lane {
    /// Whether a request may be taken now.
    #[inline(always)]
    pub(crate) fn is_ready(&mut self) -> Result<bool, LaneFault> {
        match self.state {
            LaneState::Serving => self.seat.lane.is_ready(),
            LaneState::Closing => Ok(false),
        }
    }

    /// Takes nothing more from it.
    pub(crate) fn close(&mut self) {
        self.state = LaneState::Closing;
    }

    /// Whether it goes back when the last request is completed, and that was the last.
    #[inline(always)]
    pub(crate) fn is_closed(&self) -> bool {
        self.state == LaneState::Closing && self.seat.lane.outstanding() == 0
    }

    #[inline(always)]
    pub(crate) fn session(&self) -> SessionSlot {
        self.session
    }

    /// Requests may be there that its session may not have taken now.
    #[inline(always)]
    pub(crate) fn set_throttled(&mut self, throttled: bool) {
        self.throttled = throttled;
    }

    /// The sidecar's half of the lane.
    #[inline(always)]
    pub(crate) fn server(&mut self) -> &mut ServerLane {
        &mut self.seat.lane
    }

    /// The arena that takes the tails of blocks.
    pub(crate) fn tails(&self) -> Option<RegionId> {
        self.seat.tails
    }

    pub(crate) fn queue(&self) -> u32 {
        self.seat.queue
    }

    pub(crate) fn into_seat(self) -> Box<LaneSeat> {
        self.seat
    }
}
