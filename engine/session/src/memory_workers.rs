//! The threads that make, open and close memory, and receive and close clients' descriptors:
//! touching the pages of a large arena takes seconds, a GPU's driver may not answer at all, and
//! other clients must not wait for either. There is one thread for each user, so that a user's slow
//! work delays that user alone, one for all refused clients, and one for each GPU.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use kvrail_ring::Doorbell;
use rustix::io::Errno;

use crate::error::ServerError;
use crate::memory_worker::{MemoryWorker, WorkerContext, WorkerEvent};
use crate::policy::NumaPolicy;
use crate::porter::Porter;

/// Time that the end of the sidecar allows to the remaining jobs.
const PATIENCE: Duration = Duration::from_secs(1);

/// All threads. They end when this and what is kept for them are dropped, and their jobs are done.
#[derive(Debug)]
pub(crate) struct MemoryWorkers {
    context: WorkerContext,
    gpus: Vec<MemoryWorker>,
    users: BTreeMap<u32, MemoryWorker>,
    /// For users without a session.
    unattached: MemoryWorker,
    events: Receiver<WorkerEvent>,
    /// Last: dropped when all that keeps a thread is.
    _ended: Ended,
}

/// Never spoken through: it ends with the last thread.
#[derive(Debug)]
struct Ended(Receiver<()>);

impl Drop for Ended {
    /// Lets them finish: what clients sent must not be left to be closed by the end of the process.
    fn drop(&mut self) {
        let _ended = self.0.recv_timeout(PATIENCE);
    }
}

impl MemoryWorkers {
    /// Starts those of GPUs and unattached. `to_control` is rung after each of their events.
    pub(crate) fn start(
        numa: NumaPolicy,
        porter: Porter,
        to_control: Arc<Doorbell>,
        gpus: usize,
    ) -> Result<Self, ServerError> {
        let (context, (events, ended)) = WorkerContext::new(numa, porter, to_control);
        let failed = |errno| ServerError::Thread { thread: "a memory thread", errno };
        let gpu = |at: usize| MemoryWorker::start(&format!("kvrail-import-{at}"), &context);
        let gpus = (0..gpus).map(gpu).collect::<Result<_, _>>().map_err(failed)?;
        let unattached = MemoryWorker::start("kvrail-close", &context).map_err(failed)?;
        let (users, ended) = (BTreeMap::new(), Ended(ended));
        Ok(Self { context, gpus, users, unattached, events, _ended: ended })
    }

    /// The thread of this user, from now until nothing is kept for it.
    pub(crate) fn hire(&mut self, uid: u32) -> Result<MemoryWorker, Errno> {
        if let Some(worker) = self.users.get(&uid) {
            return Ok(worker.clone());
        }
        let worker = MemoryWorker::start(&format!("kvrail-u{uid}"), &self.context)?;
        self.users.insert(uid, worker.clone());
        Ok(worker)
    }

    /// Lets threads end whose users have no session, and that have nothing to close.
    pub(crate) fn retain(&mut self, has_session: impl Fn(u32) -> bool) {
        self.users.retain(|uid, worker| has_session(*uid) || worker.is_closing());
    }

    pub(crate) fn unattached(&self) -> &MemoryWorker {
        &self.unattached
    }

    /// Ended connections of this user in the queue for closing.
    pub(crate) fn waiting_of(&self, uid: u32) -> usize {
        self.users.get(&uid).map_or(0, MemoryWorker::waiting)
    }

    /// The same of all.
    pub(crate) fn waiting(&self) -> usize {
        self.users.values().map(MemoryWorker::waiting).sum::<usize>() + self.unattached.waiting()
    }

    /// The thread of this GPU.
    pub(crate) fn of_gpu(&self, at: usize) -> &MemoryWorker {
        &self.gpus[at]
    }

    pub(crate) fn receive(&self) -> Option<WorkerEvent> {
        self.events.try_recv().ok()
    }
}
