//! The GPU poller's turn: take, reap, launch, feed, wake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvrail_ring::wake::Waker;
use kvrail_ring::{Status, ThreadWaker};

use super::batches::BatchPool;
use super::launches::{LAUNCHES_MAX, Launches, OwnedJob};
use crate::contract::{Fault, Gpu};
use crate::error::GpuError;
use crate::health::Health;
use crate::port::{Job, Port, Work};
use crate::staging::Staging;

/// The parts of a GPU poller.
#[derive(Debug)]
pub struct GpuSetup {
    /// Its ports, one for each device.
    pub ports: Vec<Arc<Port>>,
    /// The staging pool all of them name.
    pub staging: Arc<Staging>,
    /// Batches for direct I/O, where a port has it.
    pub batches: Option<BatchPool>,
    /// The GPU's health.
    pub health: Arc<Health>,
    /// The waker of this poller.
    pub nudge: Arc<ThreadWaker>,
    /// Set when it is to end once nothing is in flight.
    pub stop: Arc<AtomicBool>,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuTurn {
    /// Something moved.
    Busy,
    /// Nothing did; something is in flight.
    Waiting,
    /// Nothing is in flight.
    Idle,
    /// Stopped by request, and nothing is in flight.
    Stopped,
}

/// One GPU's poller.
#[derive(Debug)]
pub struct GpuPoller {
    ports: Ports,
    launches: Launches,
    batches: Option<BatchPool>,
    health: Arc<Health>,
    stop: Arc<AtomicBool>,
}

/// Ports with what their ends need.
#[derive(Debug)]
struct Ports {
    list: Vec<(Arc<Port>, Waker)>,
    /// Ports that were handed an end in this turn, one bit each.
    touched: u64,
}

impl Ports {
    /// Hands an end back.
    fn end(&mut self, (port, job): OwnedJob, status: Status) {
        let pushed = self.list[usize::from(port)].0.done.push(job.done(status));
        assert!(pushed.is_ok(), "a port has room for the end of every job");
        self.touched |= 1 << port;
    }

    /// Takes the next job of a port.
    fn take(&self, port: usize) -> Option<Job> {
        let jobs = &self.list[port].0.jobs;
        // `pop` passes a full fence even when it finds nothing.
        if jobs.is_empty() { None } else { jobs.pop() }
    }

    fn wake(&mut self) {
        while self.touched != 0 {
            let port = self.touched.trailing_zeros() as usize;
            self.touched &= self.touched - 1;
            let (port, waker) = &mut self.list[port];
            port.to_device.wake(waker);
        }
    }
}

impl GpuPoller {
    /// A poller over these ports. Everything it ever needs is allocated here.
    ///
    /// # Errors
    /// `GpuError` when the GPU cannot take the staging memory.
    ///
    /// # Panics
    /// If there are more than 64 ports: one for each device of a sidecar.
    pub fn new(gpu: &dyn Gpu, setup: GpuSetup) -> Result<Self, GpuError> {
        let GpuSetup { ports, staging, batches, health, nudge: _, stop } = setup;
        assert!(ports.len() <= 64, "{} ports", ports.len());
        let mover = gpu.mover(&staging, LAUNCHES_MAX)?;
        let launches = Launches::new(mover, ports.len());
        let list = ports.into_iter().map(|port| (port, Waker::default())).collect();
        Ok(Self { ports: Ports { list, touched: 0 }, launches, batches, health, stop })
    }

    /// The means of copying, for people.
    #[must_use]
    pub fn description(&self) -> String {
        self.launches.description()
    }

    /// Makes the GPU usable on the calling thread, which makes all other calls.
    pub fn begin(&mut self) {
        if let Err(fault) = self.launches.begin() {
            self.fail(&fault);
        }
    }

    /// One turn. Never blocks.
    pub fn tick(&mut self) -> GpuTurn {
        let work = self.take() + self.copies() + self.direct();
        self.ports.wake();
        if work > 0 {
            return GpuTurn::Busy;
        }
        let direct_idle = self.batches.as_ref().is_none_or(BatchPool::is_idle);
        match self.launches.is_idle() && direct_idle {
            false => GpuTurn::Waiting,
            // Pairs with the store of the stopping thread; a late look costs one turn.
            true if self.stop.load(Ordering::Relaxed) => GpuTurn::Stopped,
            true => GpuTurn::Idle,
        }
    }

    /// Whether a port has a job: the second look before sleeping.
    #[must_use]
    pub fn has_jobs(&self) -> bool {
        self.ports.list.iter().any(|(port, _)| !port.jobs.is_empty())
    }

    /// Whether a job will come soon: a device reads a small part.
    #[must_use]
    pub fn expects_jobs(&self) -> bool {
        self.ports.list.iter().any(|(port, _)| port.expects())
    }

    /// Takes every job there is.
    fn take(&mut self) -> u64 {
        let mut taken = 0;
        for port in 0..self.ports.list.len() {
            let number = u16::try_from(port).expect("at most 64");
            while let Some(job) = self.ports.take(port) {
                taken += 1;
                self.accept((number, job));
            }
        }
        taken
    }

    fn accept(&mut self, owned: OwnedJob) {
        if !self.health.works() {
            self.refuse(owned, Status::GpuError);
            return;
        }
        match owned.1.work {
            Work::Move { way, .. } => self.launches.push(way, owned),
            Work::Direct { .. } => {
                let works = self.health.direct_failure().is_none();
                let batches = self.batches.as_mut().filter(|_| works);
                let refused = match batches {
                    Some(batches) => batches.push(owned).err(),
                    None => Some(owned),
                };
                if let Some(owned) = refused {
                    self.refuse(owned, Status::GpuError);
                }
            }
        }
    }

    fn refuse(&mut self, owned: OwnedJob, status: Status) {
        self.health.counters().failed();
        self.ports.end(owned, status);
    }

    /// Ends and starts copies.
    fn copies(&mut self) -> u64 {
        let Self { ports, launches, health, .. } = self;
        let counters = health.counters();
        let ended = launches.reap(counters, |owned, status| ports.end(owned, status));
        let both = ended.and_then(|ended| Ok(ended + launches.launch(counters)?));
        both.unwrap_or_else(|fault| {
            self.fail(&fault);
            1
        })
    }

    /// Ends and starts direct I/O.
    fn direct(&mut self) -> u64 {
        let Self { ports, batches: Some(batches), health, .. } = self else { return 0 };
        let counters = health.counters();
        let mut end = |owned: OwnedJob, status: Status| {
            if status != Status::Ok {
                counters.failed();
            }
            ports.end(owned, status);
        };
        let (reaped, broken) = batches.reap(counters, &mut end);
        let (fed, refused) = batches.feed(&mut end);
        if let Some(fault) = broken.or(refused) {
            // Other handles go on; without any left, direct I/O is over.
            if !batches.is_usable() {
                batches.abandon(&mut end);
                self.health.fail_direct(fault.0);
            }
            return reaped + fed + 1;
        }
        reaped + fed
    }

    /// The GPU failed: everything of it that copies ends, and nothing is taken any more.
    fn fail(&mut self, fault: &Fault) {
        self.health.fail(fault.0.clone());
        let Self { ports, launches, health, .. } = self;
        launches.abandon(|owned, status| {
            health.counters().failed();
            ports.end(owned, status);
        });
    }
}
