//! Resources of one run of the sidecar: a namespace, queues, memory.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kvbm_engine::{BlockId, SequenceHash};
use kvbm_physical::layout::PhysicalLayout;
use kvrail_client::{
    AttachOptions, BlockKey, BlockNote, BlockRequest, Class, Client, ClientError, Completed,
    Identity, Lookup, LookupExtent, Namespace, Queue, Status, SubmitErrorKind,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use crate::lock::lock;
use crate::memory::{Block, Memory};

/// Blocks of one call in flight.
const DEPTH: usize = 64;

/// Longest wait for a lookup, and the hold on the blocks it found: KVBM gets them next.
const LOOKUP: Duration = Duration::from_millis(500);
const HOLD: Duration = Duration::from_secs(5);

/// How long memory that was being filled when a sidecar died is kept from KVBM, where nothing shows
/// when its drives write there no more.
const QUARANTINE: Duration = Duration::from_secs(5);

/// Between two looks at the clock.
const LOOK: Duration = Duration::from_millis(100);

/// Where the sidecar is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its socket.
    pub socket: PathBuf,
    /// The name of its store; by default `kv`.
    pub store: String,
    /// Longest wait for puts, for gets that are copied, and for the sidecar's answers; 10 s. A get
    /// straight into KVBM's memory lasts until the drive answers.
    pub timeout: Duration,
}

impl Options {
    /// The store `kv` of the sidecar behind this socket.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), store: "kv".into(), timeout: Duration::from_secs(10) }
    }
}

fn attach(options: &Options) -> Result<Client, ClientError> {
    let how = AttachOptions { name: "kvbm".into(), timeout: options.timeout, wait: Duration::ZERO };
    Client::attach_with(&options.socket, &how)
}

fn hangs_up(pipe: &OwnedFd, within: Duration) -> bool {
    let within = Timespec::try_from(within).expect("some seconds");
    let mut ends = [PollFd::new(pipe, PollFlags::empty())];
    let seen = retry_on_intr(|| poll(&mut ends, Some(&within)));
    matches!(seen, Ok(1..)) && ends[0].revents().contains(PollFlags::HUP)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Put,
    Get,
}

fn key_of(hash: &SequenceHash) -> BlockKey {
    BlockKey::of(&hash.as_u128().to_be_bytes()) // they begin with their position: not uniform
}

/// One block of a call.
#[derive(Debug)]
pub(crate) struct Job {
    key: BlockKey,
    depth: u16,
    block: Option<Block>,
    copied: bool,
    /// Whether it is in the store, or whole in KVBM's memory.
    pub(crate) ok: bool,
}

impl Job {
    pub(crate) fn new(hash: &SequenceHash, layout: &PhysicalLayout, id: BlockId) -> Self {
        let depth = u16::try_from(hash.position()).unwrap_or(u16::MAX);
        let block = Block::of(layout, id);
        Self { key: key_of(hash), depth, block, copied: false, ok: false }
    }

    /// Whether drives write straight into KVBM's memory.
    fn is_filled(&self, work: Work) -> bool {
        work == Work::Get && !self.copied
    }
}

#[derive(Debug)]
pub(crate) struct Session {
    client: Client,
    /// Hangs up once drives write no memory for the sidecar any more; earlier releases have none.
    transfers: Option<OwnedFd>,
    space: Namespace,
    memory: Memory,
    queues: Mutex<Vec<Queue>>,
    options: Options,
}

impl Session {
    pub(crate) fn attach(
        options: &Options,
        identity: &Identity,
        copied_bytes: &Arc<AtomicU64>,
    ) -> Result<Self, ClientError> {
        let client = attach(options)?;
        let transfers = client.watch_transfers()?;
        // One for each identity, so that another configuration finds nothing.
        let name = format!("kvbm {}", BlockKey::of(identity.as_str().as_bytes()));
        let space = client.store(&options.store)?.namespace(&name, identity)?;
        let memory = Memory::new(&client, copied_bytes);
        let (queues, options) = (Mutex::default(), options.clone());
        Ok(Self { client, transfers, space, memory, queues, options })
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.client.ended().is_some()
    }

    /// A queue with nothing in flight. Puts that took too long stay in theirs until they end.
    fn queue(&self) -> Result<Queue, ClientError> {
        let mut queues = lock(&self.queues);
        let idle = queues.iter_mut().position(|queue| {
            queue.poll(&mut Vec::new());
            queue.outstanding() == 0
        });
        match idle {
            Some(at) => Ok(queues.swap_remove(at)),
            None => self.client.open_queue(DEPTH),
        }
    }

    /// Which of these are in the store.
    pub(crate) fn look(&self, hashes: &[SequenceHash]) -> Result<Vec<bool>, ClientError> {
        let keys: Vec<BlockKey> = hashes.iter().map(key_of).collect();
        let mut queue = self.queue()?;
        let how =
            Lookup { extent: LookupExtent::All, hold: HOLD, timeout: LOOKUP, ..Lookup::default() };
        let found = queue.lookup(&self.space, &keys, &how);
        lock(&self.queues).push(queue);
        found.map(|found| found.there)
    }

    /// Moves blocks that have not been moved yet.
    pub(crate) fn run(
        &self,
        work: Work,
        jobs: &mut [Job],
        deadline: Instant,
    ) -> Result<(), ClientError> {
        let mut queue = self.queue()?;
        let outcome = self.drive(&mut queue, work, jobs, deadline);
        lock(&self.queues).push(queue);
        outcome
    }

    fn drive(
        &self,
        queue: &mut Queue,
        work: Work,
        jobs: &mut [Job],
        deadline: Instant,
    ) -> Result<(), ClientError> {
        let (mut next, mut flying, mut filling) = (0, 0, 0);
        let mut lost = None;
        loop {
            let late = Instant::now() >= deadline;
            while !late && lost.is_none() && flying < DEPTH && next < jobs.len() {
                match self.stage(queue, work, next, &mut jobs[next]) {
                    Ok(Staged::NoRoom) => break,
                    Ok(Staged::Nothing) => {}
                    Ok(Staged::Flies) => {
                        flying += 1;
                        filling += usize::from(jobs[next].is_filled(work));
                    }
                    Err(reason) => lost = Some(reason.to_string()),
                }
                next += 1;
            }
            if flying == 0 && (late || lost.is_some() || next == jobs.len()) {
                break;
            }
            // Memory that a drive may still write into stays out of KVBM's reach.
            if late && filling == 0 {
                break;
            }
            queue.publish();
            let left = deadline.saturating_duration_since(Instant::now());
            match queue.wait(if late { LOOK } else { left.min(LOOK) }) {
                Ok(Some(done)) if !done.is_notice() => {
                    flying -= 1;
                    let at = usize::try_from(done.tag);
                    let Some(job) = at.ok().and_then(|at| jobs.get_mut(at)) else { continue };
                    // Memory that does not come back may still be written to.
                    filling -= usize::from(job.is_filled(work) && done.lease.is_some());
                    if matches!(done.status, Status::Restarted | Status::Internal) {
                        lost = Some(done.status.meaning().to_owned());
                    }
                    self.end(work, job, &done);
                }
                Ok(_) if flying > 0 && queue.outstanding() == 0 => break,
                Ok(_) if flying == 0 => sleep(Duration::from_millis(1)), // others have the room
                Ok(_) => {}
                Err(error) => lost = Some(error.to_string()),
            }
        }
        if filling > 0 {
            self.wait_for_drives();
        }
        match lost {
            Some(reason) => Err(ClientError::SidecarGone { reason }),
            None if next < jobs.len() || flying > 0 => {
                let (what, after) = ("moving blocks", self.options.timeout);
                Err(ClientError::Timeout { what, after })
            }
            None => Ok(()),
        }
    }

    /// Waits until no drive writes what the sidecar was filling when the session ended. A drive of
    /// a sidecar that has ended may answer whenever it can: no time is long enough then.
    fn wait_for_drives(&self) {
        let Some(pipe) = &self.transfers else { return sleep(QUARANTINE) };
        while !hangs_up(pipe, QUARANTINE) {
            let now = attach(&self.options);
            let lives = now.is_ok_and(|now| now.epoch() == self.client.epoch());
            if lives || !self.has_ended() {
                return;
            }
            tracing::warn!("drives of a sidecar that has ended do not answer: memory is kept");
        }
    }

    fn stage(
        &self,
        queue: &mut Queue,
        work: Work,
        at: usize,
        job: &mut Job,
    ) -> Result<Staged, SubmitErrorKind> {
        let Some(block) = job.block.as_ref().filter(|_| !job.ok) else {
            return Ok(Staged::Nothing);
        };
        let (lease, copied) = match self.memory.lease(block, work == Work::Put) {
            Ok(Some(lent)) => lent,
            Ok(None) => return Ok(Staged::NoRoom),
            Err(error) => {
                tracing::warn!(%error, "no memory for a block");
                return Ok(Staged::Nothing);
            }
        };
        job.copied = copied;
        let request = match work {
            Work::Put => BlockRequest::put(&self.space, job.key, lease)
                .replacing()
                .depth(job.depth)
                .class(Class::Background),
            Work::Get => BlockRequest::get(&self.space, job.key, lease),
        };
        match queue.stage(request.tag(at as u64)) {
            Ok(_) => Ok(Staged::Flies),
            Err(refused) => match refused.reason {
                reason @ (SubmitErrorKind::SidecarGone | SubmitErrorKind::Broken) => Err(reason),
                SubmitErrorKind::Full { .. } => Ok(Staged::NoRoom),
                reason => {
                    tracing::warn!(%reason, "a block was not taken");
                    Ok(Staged::Nothing)
                }
            },
        }
    }

    fn end(&self, work: Work, job: &mut Job, done: &Completed) {
        if done.status == Status::Stale || done.note == BlockNote::Stale {
            let refreshed = self.space.refresh();
            tracing::warn!(?refreshed, "the namespace was cleared");
        }
        let Some(block) = &job.block else { return };
        // A block of another length is another block.
        job.ok = done.status == Status::Ok && (work == Work::Put || done.bytes == block.bytes());
        if let (true, true, Work::Get, Some(lease)) = (job.ok, job.copied, work, &done.lease) {
            self.memory.fill(block, lease);
        }
    }
}

enum Staged {
    Flies,
    /// It is there already, or cannot be moved.
    Nothing,
    /// Not before another one has ended.
    NoRoom,
}
