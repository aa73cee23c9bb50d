//! A trace of slow requests: which they were, and where their time went.
//!
//! The control thread lends each poller a light `Tracer` for the slow log: one comparison for each
//! batch, and waits in lanes are not measured. While a trace is asked for, the poller has a full
//! one instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use kvrail_ring::{Class, Opcode, Status};
use kvrail_store::Key;

use crate::completion_batch::CompletionBatch;
use crate::limits::{LANES_MAX, SIDECAR, SessionSlot};

/// Events of one poller that wait to be read.
const EVENTS_MAX: usize = 4096;

/// Events of one turn: what ends in one turn is some hundred batches.
const TURN_EVENTS_MAX: usize = 512;

/// Events of one poller that wait to be read, and of one turn, without a trace.
const LIGHT_EVENTS_MAX: usize = 256;
const LIGHT_TURN_EVENTS_MAX: usize = 64;

/// Waits that are remembered of one lane: of the last turns in which it was taken from.
const WAITS: usize = 8;

/// Shortest turn that is an event of its own.
const TURN_NS_MIN: u64 = 100_000;

/// Where the time of a request went, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// In its lane, at most: since the poller last looked there and took what it could, or woke.
    pub lane_ns: u64,
    /// Its session had its share in flight, so what stood behind it waited longer.
    pub held: bool,
    /// With its store, before an operation was asked of the device: for room, for a place.
    pub store_ns: u64,
    /// From there to the device: behind others of its class and session, and the device's budget.
    pub queue_ns: u64,
    /// At the device, copies of a GPU included.
    pub device_ns: u64,
    /// From there to its answer: of a durable put the write of its record.
    pub answer_ns: u64,
    /// From there until the poller published the completion.
    pub completion_ns: u64,
}

impl Spent {
    /// All of it.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        let Self { lane_ns, held: _, store_ns, queue_ns, device_ns, answer_ns, completion_ns } =
            *self;
        lane_ns + store_ns + queue_ns + device_ns + answer_ns + completion_ns
    }
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedWork {
    /// Whose; `None` where a store asked.
    pub session: Option<SessionSlot>,
    /// The poller's device, in local order.
    pub device: usize,
    /// What.
    pub opcode: Opcode,
    /// In which class.
    pub class: Class,
    /// How it ended.
    pub status: Status,
    /// Requests that came, went and ended together.
    pub count: u32,
    /// Bytes they asked for.
    pub bytes: u64,
}

/// What took long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced {
    /// Reads and writes of a raw volume, and gets of blocks that fill logical blocks.
    Batch(TracedWork),
    /// Any other request to a store.
    Keyed(TracedWork, Key),
    /// An operation of a store's own: a move, a page, a discard.
    Own(TracedWork),
    /// A turn of the poller: everything in it waited.
    Turn,
}

/// Something that took long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// What.
    pub what: Traced,
    /// Monotonic nanoseconds of its end.
    pub ended_ns: u64,
    /// Where its time went; of a turn all is in `completion_ns`.
    pub spent: Spent,
}

/// Events on their way from one poller to the control thread.
#[derive(Debug)]
pub struct TraceRing {
    /// What takes this long is an event, in nanoseconds.
    slow_ns: AtomicU64,
    events: ArrayQueue<TraceEvent>,
    lost: AtomicU64,
}

impl TraceRing {
    fn new(slow_ns: u64, events_max: usize) -> Arc<Self> {
        let (slow_ns, lost) = (AtomicU64::new(slow_ns), AtomicU64::new(0));
        Arc::new(Self { slow_ns, events: ArrayQueue::new(events_max), lost })
    }

    /// From the next turn on, what takes this long is an event.
    pub fn set_slow(&self, slow_ns: u64) {
        self.slow_ns.store(slow_ns, Ordering::Relaxed); // a threshold orders nothing
    }

    /// Takes the oldest event.
    #[must_use]
    pub fn next(&self) -> Option<TraceEvent> {
        self.events.pop()
    }

    /// Events for which there was no room, so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed) // a statistic orders nothing
    }

    fn push(&self, event: TraceEvent) {
        if self.events.push(event).is_err() {
            self.lose();
        }
    }

    fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed); // a statistic orders nothing
    }
}

/// A wait in a lane: when requests were taken, how long they may have stood, and whether their
/// session was held back.
type LaneWait = (u64, u64, bool);

/// What is known of one lane.
#[derive(Clone, Copy, Debug, Default)]
struct LaneWaits {
    /// When something was last taken, and more was left.
    left_ns: u64,
    /// The turn in which that was so.
    turn: u64,
    held: bool,
    waits: [LaneWait; WAITS],
    at: usize,
}

/// What a poller traces with. Lent by the control thread, because a poller allocates nothing.
#[derive(Debug)]
pub struct Tracer {
    slow_ns: u64,
    ring: Arc<TraceRing>,
    /// Empty in a light tracer.
    lanes: Vec<LaneWaits>,
    /// Ended in this turn, and not published.
    ended: Vec<TraceEvent>,
    turn: u64,
    /// Times of this turn and of the one before.
    now_ns: u64,
    before_ns: u64,
}

impl Tracer {
    /// A tracer of what takes this long, and the ring of its events.
    #[must_use]
    pub fn new(slow_ns: u64) -> (Self, Arc<TraceRing>) {
        let ring = TraceRing::new(slow_ns, EVENTS_MAX);
        let lanes = vec![LaneWaits::default(); LANES_MAX];
        (Self::of(Arc::clone(&ring), lanes, TURN_EVENTS_MAX), ring)
    }

    /// The ring of light tracers, one after the other.
    #[must_use]
    pub fn light_ring(slow_ns: u64) -> Arc<TraceRing> {
        TraceRing::new(slow_ns, LIGHT_EVENTS_MAX)
    }

    /// A light tracer: it measures no waits in lanes.
    #[must_use]
    pub fn light(ring: Arc<TraceRing>) -> Self {
        Self::of(ring, Vec::new(), LIGHT_TURN_EVENTS_MAX)
    }

    fn of(ring: Arc<TraceRing>, lanes: Vec<LaneWaits>, turn_events_max: usize) -> Self {
        Self {
            slow_ns: ring.slow_ns.load(Ordering::Relaxed), // a threshold orders nothing
            ring,
            lanes,
            ended: Vec::with_capacity(turn_events_max),
            turn: 0,
            now_ns: 0,
            before_ns: 0,
        }
    }

    /// Whether it measures no waits in lanes.
    #[must_use]
    pub fn is_light(&self) -> bool {
        self.lanes.is_empty()
    }

    /// A turn begins.
    pub(crate) fn begin_turn(&mut self, now_ns: u64) {
        self.slow_ns = self.ring.slow_ns.load(Ordering::Relaxed); // a threshold orders nothing
        let lasted_ns = now_ns.saturating_sub(self.now_ns);
        if self.now_ns != 0 && lasted_ns >= self.slow_ns.max(TURN_NS_MIN) {
            let spent = Spent { completion_ns: lasted_ns, ..Spent::default() };
            self.ring.push(TraceEvent { what: Traced::Turn, ended_ns: now_ns, spent });
        }
        self.turn += 1;
        self.before_ns = if self.now_ns == 0 { now_ns } else { self.now_ns };
        self.now_ns = now_ns;
    }

    /// The poller has slept: no request waited for its turn.
    pub(crate) fn woke(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// `count` requests were taken from a lane, of `max` that might be.
    pub(crate) fn taken(&mut self, lane: u16, count: u32, max: u32) {
        let Self { now_ns, before_ns, turn, .. } = *self;
        let Some(lane) = self.lanes.get_mut(usize::from(lane)) else { return };
        let was_left = lane.left_ns != 0 && lane.turn + 1 == turn;
        if !was_left {
            (lane.left_ns, lane.held) = (before_ns, false);
        }
        lane.held |= max == 0;
        lane.turn = turn;
        if count > 0 {
            lane.waits[lane.at % WAITS] = (now_ns, now_ns.saturating_sub(lane.left_ns), lane.held);
            lane.at += 1;
            (lane.left_ns, lane.held) = (now_ns, false);
        }
        if count < max {
            lane.left_ns = 0;
        }
    }

    /// How long what was taken from a lane at this time may have stood there.
    fn wait(&self, lane: u16, taken_ns: u64) -> (u64, bool) {
        let lane = self.lanes.get(usize::from(lane));
        let wait = lane.and_then(|lane| lane.waits.iter().find(|(at_ns, ..)| *at_ns == taken_ns));
        wait.map_or((0, false), |(_, ns, held)| (*ns, *held))
    }

    /// Whether what took this long, without its wait in a lane, may be an event.
    #[inline]
    pub(crate) fn may_be_slow(&self, known_ns: u64) -> bool {
        known_ns >= self.slow_ns || !self.is_light()
    }

    /// A batch has ended at its device.
    #[cold]
    pub(crate) fn ended(&mut self, device: usize, batch: &CompletionBatch) {
        let (queue_ns, device_ns) = (batch.queue_ns, batch.device_ns);
        let work = TracedWork {
            session: None,
            device,
            opcode: batch.opcode(),
            class: batch.header.class(),
            status: batch.status,
            count: batch.count,
            bytes: batch.length,
        };
        let spent = Spent { queue_ns, device_ns, ..Spent::default() };
        if let Some(client) = batch.owner.as_client() {
            let (lane_ns, held) = self.wait(client.lane, batch.accepted_ns());
            let what = Traced::Batch(TracedWork { session: Some(client.session), ..work });
            self.stage(what, Spent { lane_ns, held, ..spent });
        } else if batch.owner.session() == SIDECAR || batch.header.is_for_space() {
            self.stage(Traced::Own(work), spent);
        }
    }

    /// A request to a store has its answer; it was taken from this lane at this time.
    #[cold]
    pub(crate) fn answered(
        &mut self,
        (lane, taken_ns): (u16, u64),
        (work, key): (TracedWork, Key),
        spent: Spent,
    ) {
        let (lane_ns, held) = self.wait(lane, taken_ns);
        self.stage(Traced::Keyed(work, key), Spent { lane_ns, held, ..spent });
    }

    /// The time of this turn.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn stage(&mut self, what: Traced, spent: Spent) {
        if spent.total_ns() < self.slow_ns {
            return;
        }
        if self.ended.len() == self.ended.capacity() {
            return self.ring.lose();
        }
        self.ended.push(TraceEvent { what, ended_ns: self.now_ns, spent });
    }

    /// What ended in this turn was published before this time.
    pub(crate) fn published(&mut self, now_ns: u64) {
        for mut event in self.ended.drain(..) {
            event.spent.completion_ns = now_ns.saturating_sub(event.ended_ns);
            event.ended_ns = now_ns;
            self.ring.push(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Tracer;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_lane_s_wait_is_the_time_since_all_of_it_was_taken() {
        let mut tracer = Tracer::new(0).0;
        let mut turn = |at_ms: u64, count: u32, max: u32| {
            tracer.begin_turn(at_ms * MS);
            tracer.taken(9, count, max);
            tracer.wait(9, at_ms * MS)
        };
        assert_eq!(turn(1, 3, 64), (0, false), "the first turn");
        assert_eq!(turn(3, 3, 64), (2 * MS, false), "since the turn before");
        // Its session has its share in flight.
        turn(4, 0, 0);
        turn(6, 0, 0);
        assert_eq!(turn(9, 2, 2), (6 * MS, true), "since the turn before it was held back");
        assert_eq!(turn(11, 1, 64), (2 * MS, false), "more was left; then all was taken");
        assert_eq!(turn(12, 1, 64), (MS, false));
        tracer.begin_turn(13 * MS);
        assert_eq!(tracer.wait(9, 9 * MS), (6 * MS, true), "it is remembered");
        assert_eq!(tracer.wait(9, 8 * MS), (0, false));
        tracer.begin_turn(14 * MS);
        tracer.taken(9, 1, 64);
        assert_eq!(tracer.wait(9, 14 * MS), (MS, false), "not ready in the turn before");
    }
}
