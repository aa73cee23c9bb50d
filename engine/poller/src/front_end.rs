//! The front end: everything clients hold at this poller. Requests come in here, and completions
//! of clients' requests go out.

use std::sync::Arc;

use kvrail_ring::slot::FLAG_NOTICE;
use kvrail_ring::{Completion, LaneFault, RequestSnapshot, Status};

use crate::completion_batch::CompletionBatch;
use crate::lanes::{Lane, Lanes};
use crate::limits::SessionSlot;
use crate::regions::Regions;
use crate::sessions::Sessions;
use crate::stats::{PollerStats, SessionStats};
use crate::task::{ClientRequest, Task};

/// Requests taken from one lane before the next lane has its turn: 2 to 4 us of work. A tick costs
/// 100 ns and more beside its requests, for fences and the clock: a tenth of a turn of 32.
const LANE_QUANTUM: u32 = 64;

/// Lanes, sessions and regions.
#[derive(Debug)]
pub(crate) struct FrontEnd {
    lanes: Lanes,
    sessions: Sessions,
    regions: Regions,
    stats: Arc<PollerStats>,
    /// Something that is leaving may have had its last request completed.
    teardown_due: bool,
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
        let (lanes, sessions, regions) = (Lanes::new(), Sessions::new(), Regions::new());
        Self { lanes, sessions, regions, stats, teardown_due: false }
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
    /// last; nothing once lanes left during the round. A request for which `admit` returns a status
    /// is answered with that at once; all others are completed later.
    #[inline(always)]
    pub(crate) fn fetch(
        &mut self,
        position: usize,
        mut admit: impl FnMut(&RequestSnapshot, (SessionSlot, u16), &mut Regions) -> Option<Status>,
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
        let counters = &stats.sessions[usize::from(session.0)];
        let before = lane.server().outstanding();
        let (count, outcome) = lane.server().serve(max, |request, _side| {
            let status = admit(&request, (session, index), regions)?;
            Some(answer(counters, request.user_data(), status))
        });
        lane.server().release();
        let entered = lane.server().outstanding() - before;
        self.sessions.enter(session, entered);
        counters.accepted.add(u64::from(count));
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
    pub(crate) fn report_late(&mut self, task: &Task, client: ClientRequest, now_ns: u64) {
        let late = CompletionBatch::of(task, Status::Late, now_ns).completion(task, client, 0);
        let notice = Completion { flags: FLAG_NOTICE, ..late };
        // A notice may be dropped; a lane fault shows again at the next fetch.
        if self.lanes.get(client.lane).server().notify(notice).is_ok() {
            self.lanes.mark_staged(client.lane);
        }
    }

    /// Counts a batch out of its session, region and lane; its completions are staged.
    #[inline]
    pub(crate) fn retire(&mut self, batch: &CompletionBatch, client: ClientRequest) {
        let counters = &self.stats.sessions[usize::from(client.session.0)];
        let count = batch.count;
        counters.completed.add(u64::from(count));
        if batch.status == Status::Ok {
            counters.bytes.add(batch.bytes());
        } else {
            counters.failed.add(u64::from(count));
        }
        self.sessions.leave(client.session, count);
        if let Some(region) = batch.header.region() {
            self.teardown_due |= self.regions.leave(region, count);
        }
        self.lanes.mark_staged(client.lane);
        self.teardown_due |= self.lanes.get(client.lane).is_closed();
    }
}

/// Answers a request that needs no task, or gets none.
#[cold]
fn answer(counters: &SessionStats, user_data: u64, status: Status) -> Completion {
    counters.completed.add(1);
    if status != Status::Ok {
        counters.failed.add(1);
    }
    Completion::refused(user_data, status)
}
