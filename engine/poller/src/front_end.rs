//! The front end: everything clients hold at this poller. Requests come in here, and completions
//! of clients' requests go out.

use std::sync::Arc;

use kvrail_counters::SessionCounters;
use kvrail_ring::slot::FLAG_NOTICE;
use kvrail_ring::{Completion, LaneFault, RegionId, RequestSnapshot, SideSlot, Status};

use crate::counter::Counter;
use crate::lanes::{Lane, Lanes};
use crate::limits::SessionSlot;
use crate::probes;
use crate::regions::Regions;
use crate::sessions::{HeldBack, SessionSlots};
use crate::stats::PollerStats;
use crate::task::{ClientRequest, EndedRequests};
use crate::trace::Tracer;

/// Requests taken from one lane before the next lane has its turn: 2 to 4 us of work. A tick costs
/// 100 ns and more beside its requests, for fences and the clock: a tenth of a turn of 32.
const LANE_QUANTUM: u32 = 64;

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneContext {
    pub(crate) session: SessionSlot,
    /// Index in the lane table.
    pub(crate) lane: u16,
    /// The arena that takes the tails of blocks.
    pub(crate) tails: Option<RegionId>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BegunRequest {
    /// It is completed later.
    Task,
    /// It is answered so.
    Answer(Status),
    /// It is answered, with more than a status: in the place beside its seat.
    Kept,
    /// The same, and it goes on with a request that was counted when its first slot came.
    Continued,
}

/// Lanes, sessions and regions.
#[derive(Debug)]
pub(crate) struct FrontEnd {
    lanes: Lanes,
    sessions: SessionSlots,
    regions: Regions,
    stats: Arc<PollerStats>,
    /// Something that is leaving may have had its last request completed.
    teardown_due: bool,
    /// Of slow requests; none before the control thread lends one.
    tracer: Option<Box<Tracer>>,
}

/// What was found in one lane.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// Requests that were taken.
    pub(crate) count: u32,
    /// What the client wrote that cannot be: nothing more is taken.
    pub(crate) fault: Option<(SessionSlot, u32, LaneFault)>,
}

impl FrontEnd {
    pub(crate) fn new(stats: Arc<PollerStats>) -> Self {
        let (lanes, sessions, regions) = (Lanes::new(), SessionSlots::new(), Regions::new());
        Self { lanes, sessions, regions, stats, teardown_due: false, tracer: None }
    }

    /// The tracer of slow requests.
    #[inline(always)]
    pub(crate) fn tracer(&mut self) -> Option<&mut Tracer> {
        self.tracer.as_deref_mut()
    }

    /// Traces with this from now on; gives back what was traced with before.
    pub(crate) fn trace(&mut self, with: Box<Tracer>) -> Option<Box<Tracer>> {
        self.tracer.replace(with)
    }

    /// Takes nothing more from a queue's lane.
    pub(crate) fn close_lane(&mut self, session: SessionSlot, queue: u32) {
        self.lanes.close(session, Some(queue));
        self.teardown_due = true;
    }

    /// Takes nothing more of a session.
    pub(crate) fn close_session(&mut self, session: SessionSlot) {
        self.sessions.close(session);
        self.lanes.close(session, None);
        self.regions.close_all(session);
        self.teardown_due = true;
    }

    /// The clients' lanes.
    #[inline(always)]
    pub(crate) fn lanes(&mut self) -> &mut Lanes {
        &mut self.lanes
    }

    /// The clients' memory.
    #[inline(always)]
    pub(crate) fn regions(&mut self) -> &mut Regions {
        &mut self.regions
    }

    /// Has the next teardown look at everything.
    pub(crate) fn request_teardown(&mut self) {
        self.teardown_due = true;
    }

    /// Whether there may be something to tear down; once.
    #[inline(always)]
    pub(crate) fn take_teardown(&mut self) -> bool {
        std::mem::take(&mut self.teardown_due)
    }

    /// Whether there may be something to tear down.
    pub(crate) fn is_teardown_due(&self) -> bool {
        self.teardown_due
    }

    /// A session that was closed and of which nothing is left. Its slot may be given out anew.
    pub(crate) fn take_closed_session(&mut self) -> Option<SessionSlot> {
        let gone =
            |session: &SessionSlot| !self.lanes.any_of(*session) && !self.regions.any_of(*session);
        let session = self.sessions.leaving().find(gone)?;
        self.sessions.forget(session);
        Some(session)
    }

    /// Takes requests from the lane at this position of the round, and ends the round behind the
    /// last; nothing once lanes left during the round. A request that `admit`
    /// answers is answered at once; all others are completed later.
    #[inline(always)]
    pub(crate) fn fetch(
        &mut self,
        position: usize,
        mut admit: impl FnMut(
            (&RequestSnapshot, SideSlot<'_>),
            (LaneContext, &mut Completion),
            &mut Regions,
        ) -> BegunRequest,
    ) -> Option<Fetched> {
        let index = self.lanes.in_round(position)?;
        let lane = self.lanes.get(index);
        match lane.is_ready() {
            Ok(true) => {}
            Ok(false) => return Some(Fetched { count: 0, fault: None }),
            Err(fault) => return Some(self.fail(index, 1, fault)),
        }
        let session = lane.session();
        let max = self.sessions.allowance(session, LANE_QUANTUM);
        lane.set_throttled(max == 0);
        let Self { regions, stats, .. } = self;
        let counters = &stats.sessions[usize::from(session.0)].counters;
        let before = lane.server().outstanding();
        let seat = LaneContext { session, lane: index, tails: lane.tails() };
        let (mut kept, mut continued) = (Completion::default(), 0);
        let (count, outcome) = lane.server().serve(max, |request, side| {
            match admit((&request, side), (seat, &mut kept), regions) {
                BegunRequest::Task => None,
                BegunRequest::Kept => Some(count_answer(counters, &kept)),
                BegunRequest::Continued => {
                    continued += 1;
                    Some(kept)
                }
                BegunRequest::Answer(status) => Some(answer(counters, request.user_data(), status)),
            }
        });
        lane.server().release();
        let entered = lane.server().outstanding() - before;
        self.sessions.enter(session, entered);
        counters.accepted.add(u64::from(count) - continued);
        probes::requests_taken(session, index, count);
        if let Some(tracer) = &mut self.tracer {
            tracer.taken(index, count, max);
        }
        if entered < count {
            self.lanes.mark_staged(index);
        }
        match outcome {
            Ok(()) => Some(Fetched { count, fault: None }),
            Err(fault) => Some(self.fail(index, count + 1, fault)),
        }
    }

    /// The client wrote into its lane what cannot be: nothing more is taken from it.
    #[cold]
    fn fail(&mut self, index: u16, count: u32, fault: LaneFault) -> Fetched {
        let lane = self.lanes.get(index);
        lane.close();
        let fault = Some((lane.session(), lane.queue(), fault));
        self.teardown_due = true;
        Fetched { count, fault }
    }

    /// The lane of a request in flight, for its completion.
    #[inline(always)]
    pub(crate) fn lane(&mut self, client: ClientRequest) -> &mut Lane {
        self.lanes.get(client.lane)
    }

    /// Stages a LATE notice if there is room.
    pub(crate) fn report_late(&mut self, lane: u16, late: Completion) {
        let notice = Completion { flags: FLAG_NOTICE, ..late };
        // A notice may be dropped; a lane fault shows again at the next fetch.
        if self.lanes.get(lane).server().notify(notice).is_ok() {
            self.lanes.mark_staged(lane);
        }
    }

    /// Takes nothing of a session for now, or goes on: it has requests that wait for room.
    pub(crate) fn hold_back(&mut self, session: SessionSlot, held: HeldBack) {
        self.sessions.hold_back(session, held);
    }

    /// Counts requests that have ended out of their session, regions and lane.
    #[inline]
    pub(crate) fn retire(&mut self, ended: &EndedRequests) {
        let EndedRequests { client, status, count, bytes, regions } = *ended;
        debug_assert!(count > 0, "something has ended");
        let counters = &self.stats.sessions[usize::from(client.session.0)].counters;
        counters.completed.add(u64::from(count));
        if status == Status::Ok {
            counters.bytes.add(bytes);
        } else if status.is_failure() {
            counters.failed.add(u64::from(count));
        }
        self.sessions.leave(client.session, count);
        for region in regions.into_iter().flatten() {
            self.teardown_due |= self.regions.leave(region, count);
        }
        self.lanes.mark_staged(client.lane);
        self.teardown_due |= self.lanes.get(client.lane).is_closed();
    }
}

/// Answers a request that needs no task, or gets none.
#[cold]
fn answer(counters: &SessionCounters<Counter>, user_data: u64, status: Status) -> Completion {
    count_answer(counters, &Completion::refused(user_data, status))
}

/// Counts one that is answered where it was taken.
#[cold]
fn count_answer(counters: &SessionCounters<Counter>, completion: &Completion) -> Completion {
    counters.completed.add(1);
    if completion.status().is_failure() {
        counters.failed.add(1);
    }
    *completion
}
