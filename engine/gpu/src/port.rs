//! The port between a device and a GPU: jobs one way, their ends the other. One port for each
//! pair, so both queues have one producer and one consumer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_queue::ArrayQueue;
use kvrail_ring::{Status, ThreadWaker};

use crate::contract::{DirectWay, FileIndex, Way};
use crate::handle::GpuUuid;
use crate::health::Health;
use crate::region::GpuRegion;
use crate::staging::Staging;

/// Jobs of one port in flight at most; as many ends may wait to be read, so neither queue is
/// ever full.
pub const JOBS_MAX: u32 = 1024;

/// How bytes get between a device and a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyRoute {
    /// Through slots of the GPU's staging pool.
    Staged,
    /// By the GPU's direct I/O on this file.
    Direct(FileIndex),
}

/// One thing for the GPU's poller to do.
#[derive(Debug)]
pub(crate) struct Job {
    /// The bridge's name for it.
    pub(crate) id: u64,
    pub(crate) work: Work,
    /// Held until the end, and given back with it: memory is closed on the control thread only.
    pub(crate) region: Arc<GpuRegion>,
    pub(crate) block: u32,
    pub(crate) start: u64,
    pub(crate) length: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Between the region and staging memory, from this byte on.
    Move { way: Way, staged: usize },
    /// Between the region and a file, from this byte on.
    Direct { way: DirectWay, file: FileIndex, offset: u64 },
}

/// The end of a job.
#[derive(Debug)]
pub(crate) struct CopyDone {
    pub(crate) id: u64,
    pub(crate) status: Status,
    pub(crate) region: Arc<GpuRegion>,
}

impl Job {
    pub(crate) fn done(self, status: Status) -> CopyDone {
        CopyDone { id: self.id, status, region: self.region }
    }
}

/// One port.
#[derive(Debug)]
pub struct Port {
    pub(crate) jobs: ArrayQueue<Job>,
    pub(crate) done: ArrayQueue<CopyDone>,
    /// Small parts at the device, which will be jobs soon. Written by the device's poller alone.
    coming: AtomicU32,
    /// Wakes the GPU's poller.
    pub(crate) to_gpu: Arc<ThreadWaker>,
    /// Wakes the poller of the device.
    pub(crate) to_device: Arc<ThreadWaker>,
    pub(crate) gpu: GpuUuid,
    pub(crate) health: Arc<Health>,
    pub(crate) staging: Arc<Staging>,
    pub(crate) route: CopyRoute,
    /// Why this route, for people.
    pub(crate) reason: String,
}

/// The two sides of a port.
#[derive(Debug)]
pub struct PortOptions {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its health.
    pub health: Arc<Health>,
    /// Its staging pool.
    pub staging: Arc<Staging>,
    /// Wakes its poller.
    pub to_gpu: Arc<ThreadWaker>,
    /// Wakes the poller of the device.
    pub to_device: Arc<ThreadWaker>,
    /// How bytes travel.
    pub route: CopyRoute,
    /// Why, for people.
    pub reason: String,
}

impl Port {
    /// A port with empty queues.
    #[must_use]
    pub fn new(options: PortOptions) -> Arc<Self> {
        let PortOptions { gpu, health, staging, to_gpu, to_device, route, reason } = options;
        staging.introduce(&to_device);
        let (jobs, done) = (ArrayQueue::new(JOBS_MAX as usize), ArrayQueue::new(JOBS_MAX as usize));
        let coming = AtomicU32::new(0);
        Arc::new(Self {
            jobs,
            done,
            coming,
            to_gpu,
            to_device,
            gpu,
            health,
            staging,
            route,
            reason,
        })
    }

    /// Announces the number of small parts at the device.
    pub(crate) fn announce(&self, coming: u32) {
        // A hint: a late reader sleeps needlessly, or spins once more.
        self.coming.store(coming, Ordering::Relaxed);
    }

    /// Whether a job will come soon.
    pub(crate) fn expects(&self) -> bool {
        self.coming.load(Ordering::Relaxed) > 0
    }

    /// The mechanism and the reason for it, as status and benchmarks print it.
    #[must_use]
    pub fn description(&self) -> String {
        let route = match self.route {
            CopyRoute::Staged => "staged",
            CopyRoute::Direct(_) => "direct",
        };
        format!("{}: {route} ({})", self.gpu, self.reason)
    }
}
