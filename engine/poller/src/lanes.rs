//! The lanes one poller serves: whose they are, whose turn it is, which have something to publish.

use kvrail_ring::{Completion, LaneFault, Ring};

use crate::bells::Rung;
use crate::mailbox::{LANES_MAX, LaneSeat, SESSIONS_MAX, SessionSlot};

/// Life of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Requests are taken.
    Serving,
    /// None are taken any more; it goes back when the last is completed.
    Closing,
}

/// One lane.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) session: SessionSlot,
    pub(crate) seat: Box<LaneSeat>,
    pub(crate) life: Life,
    /// Requests are there, but the session has its share under way; no reason to stay awake.
    pub(crate) held_back: bool,
}

const WORDS: usize = LANES_MAX / 64;
const _: () = assert!(SESSIONS_MAX <= u64::BITS as usize);
const _: () = assert!(WORDS <= u64::BITS as usize);

/// What publishing brought.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Published {
    /// Bells that were rung.
    pub(crate) bells: u64,
    /// Sessions whose bells were too dear once too often, one bit each.
    pub(crate) dear: u64,
}

/// All lanes by place. A place stays the same while the lane lives.
#[derive(Debug)]
pub(crate) struct Lanes {
    seats: Vec<Option<Lane>>,
    /// Places in use, the order of the rounds.
    order: Vec<u16>,
    start: usize,
    /// Lanes with unpublished completions, one bit each.
    staged: [u64; WORDS],
    /// Words of `staged` that may not be zero, one bit each.
    staged_words: u64,
}

impl Lanes {
    pub(crate) fn new() -> Self {
        let seats = (0..LANES_MAX).map(|_| None).collect();
        Self {
            seats,
            order: Vec::with_capacity(LANES_MAX),
            start: 0,
            staged: [0; WORDS],
            staged_words: 0,
        }
    }

    /// Seats a lane; gives it back when all places are taken.
    pub(crate) fn insert(&mut self, lane: Lane) -> Result<u16, Lane> {
        let Some(place) = self.seats.iter().position(Option::is_none) else { return Err(lane) };
        self.seats[place] = Some(lane);
        let place = u16::try_from(place).expect("LANES_MAX fits");
        self.order.push(place);
        Ok(place)
    }

    /// Takes a lane out.
    pub(crate) fn remove(&mut self, place: u16) -> Lane {
        self.order.retain(|&other| other != place);
        self.staged[usize::from(place) / 64] &= !(1 << (place % 64));
        self.seats[usize::from(place)].take().expect("a lane is removed once")
    }

    #[inline(always)]
    pub(crate) fn get(&mut self, place: u16) -> &mut Lane {
        self.seats[usize::from(place)].as_mut().expect("a request under way keeps its lane")
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

    /// The place of a session's queue.
    pub(crate) fn find(&self, session: SessionSlot, queue: u32) -> Option<u16> {
        self.find_where(|lane| lane.session == session && lane.seat.queue == queue)
    }

    /// Any lane of a session.
    pub(crate) fn find_any(&self, session: SessionSlot) -> Option<u16> {
        self.find_where(|lane| lane.session == session)
    }

    /// Any lane of a session that is not closing.
    pub(crate) fn find_serving(&self, session: SessionSlot) -> Option<u16> {
        self.find_where(|lane| lane.session == session && lane.life == Life::Serving)
    }

    fn find_where(&self, wanted: impl Fn(&Lane) -> bool) -> Option<u16> {
        let fits = |place: &&u16| self.seats[usize::from(**place)].as_ref().is_some_and(&wanted);
        self.order.iter().find(fits).copied()
    }

    /// Stages a completion; it is published at the end of the tick, after `mark_staged`. A lane
    /// that is closing may be empty now.
    #[inline(always)]
    pub(crate) fn complete(&mut self, place: u16, completion: Completion) {
        self.get(place).seat.lane.complete(completion);
    }

    /// Notes that a lane has something to publish.
    #[inline(always)]
    pub(crate) fn mark_staged(&mut self, place: u16) {
        self.staged[usize::from(place) / 64] |= 1 << (place % 64);
        self.staged_words |= 1 << (place / 64);
    }

    /// Stages a LATE notice if there is room.
    pub(crate) fn notify(&mut self, place: u16, notice: Completion) -> Result<(), LaneFault> {
        self.get(place).seat.lane.notify(notice)?;
        self.mark_staged(place);
        Ok(())
    }

    /// Publishes what is staged and rings sleeping clients.
    #[inline]
    pub(crate) fn publish(&mut self) -> Published {
        let mut published = Published::default();
        while self.staged_words != 0 {
            let word = self.staged_words.trailing_zeros() as usize;
            self.staged_words &= self.staged_words - 1;
            while self.staged[word] != 0 {
                let bit = self.staged[word].trailing_zeros();
                self.staged[word] &= self.staged[word] - 1;
                let lane = self.seats[word * 64 + bit as usize].as_mut();
                let Lane { seat, session, .. } = lane.expect("staged lanes are seated");
                if seat.lane.publish() == Ring::Now {
                    published.bells += 1;
                    if seat.bell.ring() == Rung::LastTime {
                        published.dear |= 1 << session.0;
                    }
                }
            }
        }
        published
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
        self.each(|lane| {
            let serving = lane.life == Life::Serving && !lane.held_back;
            ready |= serving && lane.seat.lane.is_ready() != Ok(false);
        });
        ready
    }

    fn each(&mut self, mut visit: impl FnMut(&mut Lane)) {
        for &place in &self.order {
            visit(self.seats[usize::from(place)].as_mut().expect("places in order are seated"));
        }
    }
}

impl Lane {
    /// Whether a request may be taken now.
    #[inline(always)]
    pub(crate) fn is_ready(&mut self) -> Result<bool, LaneFault> {
        match self.life {
            Life::Serving => self.seat.lane.is_ready(),
            Life::Closing => Ok(false),
        }
    }
}
