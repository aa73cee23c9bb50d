//! Copies in flight: jobs wait by way, leave together as launches, and end together.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use kvrail_ring::Status;

use crate::contract::{Fault, LaunchId, LaunchProgress, MOVES_MAX, Move, Mover, Way};
use crate::health::Counters;
use crate::port::{JOBS_MAX, Job, Work};

/// Launches at once. Few: while some run, what comes is gathered into the next.
pub(super) const LAUNCHES_MAX: u16 = 16;

/// Bytes that leave in one launch, unless one job alone is larger. A launch ends as a whole, so a
/// large one delays its first job; 4 MiB are 80 us of a PCIe 5 link.
const LAUNCH_BYTES_MAX: u64 = 4 << 20;

/// A job and the port it is from.
pub(super) type OwnedJob = (u16, Job);

/// Everything between taking a copy job and its end.
#[derive(Debug)]
pub(super) struct Launches {
    mover: Box<dyn Mover>,
    waiting: [VecDeque<OwnedJob>; 2],
    running: Vec<(LaunchId, Way, ArrayVec<OwnedJob, MOVES_MAX>)>,
    /// Lists of ended launches, to be filled again.
    spare: Vec<ArrayVec<OwnedJob, MOVES_MAX>>,
}

impl Launches {
    pub(super) fn new(mover: Box<dyn Mover>, ports: usize) -> Self {
        let places = ports * JOBS_MAX as usize;
        let many = usize::from(LAUNCHES_MAX);
        Self {
            mover,
            waiting: [VecDeque::with_capacity(places), VecDeque::with_capacity(places)],
            running: Vec::with_capacity(many),
            spare: (0..many).map(|_| ArrayVec::new()).collect(),
        }
    }

    /// The means of copying, for people.
    pub(super) fn description(&self) -> String {
        self.mover.description()
    }

    /// Makes the GPU usable on this thread.
    pub(super) fn begin(&mut self) -> Result<(), Fault> {
        self.mover.begin()
    }

    /// Jobs waiting or running.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.iter().all(VecDeque::is_empty)
    }

    /// Takes a job.
    pub(super) fn push(&mut self, way: Way, owned: OwnedJob) {
        self.waiting[way as usize].push_back(owned);
    }

    /// Gives out the jobs of launches that ended; returns how many launches.
    pub(super) fn reap(
        &mut self,
        counters: &Counters,
        mut ended: impl FnMut(OwnedJob, Status),
    ) -> Result<u64, Fault> {
        let (mut at, mut count) = (0, 0);
        while at < self.running.len() {
            if self.mover.progress(self.running[at].0)? == LaunchProgress::Running {
                at += 1;
                continue;
            }
            let (_, way, mut jobs) = self.running.swap_remove(at);
            for owned in jobs.drain(..) {
                match way {
                    Way::Gather => counters.gathered(owned.1.length),
                    Way::Scatter => counters.scattered(owned.1.length),
                }
                ended(owned, Status::Ok);
            }
            self.spare.push(jobs);
            count += 1;
        }
        Ok(count)
    }

    /// Launches what waits, reads first; returns how many launches.
    pub(super) fn launch(&mut self, counters: &Counters) -> Result<u64, Fault> {
        let mut count = 0;
        for way in [Way::Scatter, Way::Gather] {
            while !self.waiting[way as usize].is_empty() && !self.spare.is_empty() {
                if !self.launch_one(way, counters)? {
                    return Ok(count);
                }
                count += 1;
            }
        }
        Ok(count)
    }

    /// One launch of as many jobs as go together; false when the GPU takes no more now.
    fn launch_one(&mut self, way: Way, counters: &Counters) -> Result<bool, Fault> {
        let waiting = &mut self.waiting[way as usize];
        let mut moves: ArrayVec<Move<'_>, MOVES_MAX> = ArrayVec::new();
        let mut bytes = 0;
        for (_, job) in waiting.iter() {
            let Work::Move { staged, .. } = job.work else {
                panic!("only moves wait here");
            };
            let (region, block, start, length) = (&*job.region, job.block, job.start, job.length);
            bytes += u64::from(length);
            if moves.is_full() || (!moves.is_empty() && bytes > LAUNCH_BYTES_MAX) {
                break;
            }
            moves.push(Move { region, block, start, length, staged });
        }
        let count = moves.len();
        let Some(id) = self.mover.launch(way, &moves)? else { return Ok(false) };
        drop(moves);
        let mut jobs = self.spare.pop().expect("seen by the caller");
        jobs.extend(waiting.drain(..count));
        self.running.push((id, way, jobs));
        counters.launched(count);
        Ok(true)
    }

    /// Gives out every job: the GPU failed, and nothing of it runs any more.
    pub(super) fn abandon(&mut self, mut ended: impl FnMut(OwnedJob, Status)) {
        for waiting in &mut self.waiting {
            waiting.drain(..).for_each(|owned| ended(owned, Status::GpuError));
        }
        for (_, _, mut jobs) in self.running.drain(..) {
            jobs.drain(..).for_each(|owned| ended(owned, Status::GpuError));
            self.spare.push(jobs);
        }
    }
}
