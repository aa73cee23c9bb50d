//! One thread for jobs that may take long, and the handle that others have of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use kvrail_poller::{LaneSeat, QueueDoorbell};
use kvrail_protocol::{Channel, ClientMessage, ControlRequest, GpuMemory, Packet, unspill_ask};
use kvrail_ring::{Doorbell, Status};
use rustix::io::Errno;

use crate::closers::Closers;
use crate::failure::Failure;
use crate::policy::NumaPolicy;
use crate::porter::{Porter, Received, Stuck};
use crate::region_spec::{Built, Memory, RegionKey, RegionSpec, build};

/// How often processes that close are looked after when nothing else is to do.
const LOOK: Duration = Duration::from_millis(100);

/// The context of the threads.
#[derive(Clone, Debug)]
pub(crate) struct WorkerContext {
    numa: NumaPolicy,
    porter: Porter,
    /// Rung after every event.
    to_control: Arc<Doorbell>,
    events: Sender<WorkerEvent>,
    /// Held by every thread until it ends.
    _alive: Sender<()>,
}

/// The threads' reports, and an end that closes with the last thread.
pub(crate) type WorkerEnds = (Receiver<WorkerEvent>, Receiver<()>);

impl WorkerContext {
    pub(crate) fn new(
        numa: NumaPolicy,
        porter: Porter,
        to_control: Arc<Doorbell>,
    ) -> (Self, WorkerEnds) {
        let ((events, reported), (alive, ended)) = (channel(), channel());
        (Self { numa, porter, to_control, events, _alive: alive }, (reported, ended))
    }
}

/// A message with its descriptors, or why it has none.
pub(crate) type FetchedMessage = Result<Packet<ClientMessage>, FetchError>;

/// Why a message could not be taken in with its descriptors.
#[derive(Debug)]
pub(crate) enum FetchError {
    /// The request of this number failed.
    Failed(u64, Failure),
    /// It failed, and still lies in the socket: nothing behind it can be read yet.
    Delayed(u64, Failure),
    /// It lies there no more.
    Discarded,
    /// The session cannot go on.
    Broken(String),
}

/// A worker's report.
#[derive(Debug)]
pub(crate) enum WorkerEvent {
    /// It is there, or not.
    Built(RegionKey, Built),
    /// This process no longer has it.
    Closed(RegionKey),
    /// A session's request with descriptors.
    Fetched(u64, FetchedMessage),
}

/// Resources that are no longer needed, and that a client can make slow to close.
#[derive(Debug)]
pub(crate) enum Waste {
    /// A connection. The packets in its queue go with it.
    Connection(Channel),
    /// Memory files that were looked at, but may be large.
    Files(Vec<OwnedFd>),
    /// Its bell wakes all waiters at the client's end.
    Lane(Box<LaneSeat>),
    /// The same, where the ringer had it last.
    Doorbell(QueueDoorbell),
}

#[derive(Debug)]
enum WorkerJob {
    Build(RegionKey, RegionSpec),
    Close(RegionKey, Memory),
    Fetch(u64, OwnedFd, ClientMessage),
    Discard(Waste),
}

/// Counts of a thread. A reader of an old count looks again later.
#[derive(Debug, Default)]
struct JobCounts {
    /// Things to be closed that it has not come to.
    discarded: AtomicUsize,
    /// Sockets it holds, and processes it has started that have not ended.
    open: AtomicUsize,
    /// Ended connections in the queue for closing.
    waiting: AtomicUsize,
}

/// A thread to give jobs to. It ends when all of these are gone and its jobs are done.
#[derive(Clone, Debug)]
pub(crate) struct MemoryWorker {
    jobs: Sender<WorkerJob>,
    counts: Arc<JobCounts>,
}

impl MemoryWorker {
    /// Starts the thread.
    pub(crate) fn start(name: &str, context: &WorkerContext) -> Result<Self, Errno> {
        let (jobs, queue) = channel();
        let counts = Arc::<JobCounts>::default();
        let closers = Closers::new(context.porter.clone());
        let counted = Arc::clone(&counts);
        let (context, unread) = (context.clone(), Vec::new());
        let worker = Worker { context, counts: counted, closers, unread };
        let spawned = thread::Builder::new().name(name.into()).spawn(move || worker.work(&queue));
        spawned.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Self { jobs, counts })
    }

    /// Event: `Built`.
    pub(crate) fn build(&self, key: RegionKey, spec: RegionSpec) {
        self.post(WorkerJob::Build(key, spec));
    }

    /// Closes it, if this is the last reference. Event: `Closed`.
    pub(crate) fn close(&self, key: RegionKey, memory: Memory) {
        self.post(WorkerJob::Close(key, memory));
    }

    /// Takes in what lies next in a session's socket, which is this message and its descriptors.
    /// Event: `Fetched`.
    pub(crate) fn fetch(&self, session: u64, socket: OwnedFd, message: ClientMessage) {
        self.post(WorkerJob::Fetch(session, socket, message));
    }

    /// Closes it, some time.
    pub(crate) fn discard(&self, waste: Waste) {
        // Relaxed: pairs with `handle`, which has it from the queue.
        self.counts.discarded.fetch_add(1, Ordering::Relaxed);
        // A thread that is no more leaves it to be closed here.
        let _sent = self.jobs.send(WorkerJob::Discard(waste));
    }

    fn post(&self, job: WorkerJob) {
        self.jobs.send(job).expect("a memory thread lives as long as its queue");
    }

    /// Things to be closed that it has not come to.
    pub(crate) fn discarded(&self) -> usize {
        self.counts.discarded.load(Ordering::Acquire) // pairs with Release in `handle`
    }

    /// Whether something is still to be closed.
    pub(crate) fn is_closing(&self) -> bool {
        // Relaxed: pairs with `count`, whose store is seen once `discarded` is.
        self.discarded() > 0 || self.counts.open.load(Ordering::Relaxed) > 0
    }

    /// Ended connections in the queue for closing.
    pub(crate) fn waiting(&self) -> usize {
        self.counts.waiting.load(Ordering::Relaxed) // pairs with `count`
    }
}

struct Worker {
    context: WorkerContext,
    counts: Arc<JobCounts>,
    closers: Closers,
    /// Sessions whose next packet was refused, and stays in the socket until a process removes it.
    unread: Vec<(u64, OwnedFd)>,
}

impl Worker {
    fn work(mut self, jobs: &Receiver<WorkerJob>) {
        loop {
            while let Ok(job) = jobs.try_recv() {
                self.handle(job);
            }
            self.closers.advance();
            self.discard_unread();
            let next = if self.count() > 0 {
                jobs.recv_timeout(LOOK)
            } else {
                jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            match next {
                Ok(job) => self.handle(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.unread.drain(..).for_each(|(_, socket)| self.closers.take(socket));
                    return self.closers.finish();
                }
            }
        }
    }

    fn handle(&mut self, job: WorkerJob) {
        match job {
            WorkerJob::Build(key, spec) => {
                let name = format!("kvrail-arena-{}", key.0);
                self.report(WorkerEvent::Built(key, build(&name, spec, &self.context.numa)));
            }
            WorkerJob::Close(key, memory) => {
                drop(memory);
                self.report(WorkerEvent::Closed(key));
            }
            WorkerJob::Fetch(session, socket, message) => {
                let fetched = self.fetch(&socket, message);
                if matches!(fetched, Err(FetchError::Delayed(..))) {
                    self.unread.push((session, socket));
                }
                self.report(WorkerEvent::Fetched(session, fetched));
            }
            WorkerJob::Discard(waste) => {
                match waste {
                    Waste::Connection(it) => it.close().into_iter().for_each(|socket| {
                        self.closers.take(socket);
                    }),
                    Waste::Files(fds) => drop(fds),
                    Waste::Lane(seat) => drop(seat),
                    Waste::Doorbell(bell) => drop(bell),
                }
                self.count();
                // Release pairs with Acquire in `discarded`: what is open now is seen.
                self.counts.discarded.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Updates the counts of open resources.
    fn count(&self) -> usize {
        let open = self.closers.open() + self.unread.len();
        // Relaxed: pairs with `is_closing` and `waiting`; counts.
        self.counts.open.store(open, Ordering::Relaxed);
        self.counts.waiting.store(self.closers.waiting(), Ordering::Relaxed);
        open
    }

    fn report(&self, event: WorkerEvent) {
        // At the end, the receiver is gone.
        let _sent = self.context.events.send(event);
        self.context.to_control.ring();
    }

    /// Tries again to have refused packets taken away. Only another process can do that: their
    /// descriptors may be such as must not be closed here.
    fn discard_unread(&mut self) {
        for (session, socket) in std::mem::take(&mut self.unread) {
            match self.closers.fetch(&socket) {
                Err(Stuck::NotStarted(_)) => self.unread.push((session, socket)),
                Err(Stuck::Failed(why)) => {
                    let broken = Err(FetchError::Broken(why));
                    self.report(WorkerEvent::Fetched(session, broken));
                }
                Ok(_) => {
                    let discarded = Err(FetchError::Discarded);
                    self.report(WorkerEvent::Fetched(session, discarded));
                }
            }
        }
    }

    /// Memory files may be large, so whatever is wrong is found, and closed, here.
    fn fetch(&mut self, socket: &OwnedFd, message: ClientMessage) -> FetchedMessage {
        let received = self.closers.fetch(socket).map_err(|stuck| match stuck {
            Stuck::NotStarted(why) => FetchError::Delayed(message.seq, (Status::NoSpace, why)),
            Stuck::Failed(why) => FetchError::Broken(why),
        });
        let fds = match received? {
            Received::Fit(fds) => fds,
            Received::Unfit(present, (place, what)) => {
                counted(&message.ask, present)?;
                let words = unfit(&message.ask, place, &what);
                return Err(FetchError::Failed(message.seq, (Status::Invalid, words)));
            }
        };
        let packet = unspill_ask(Packet { message, fds });
        let packet = packet.map_err(|error| FetchError::Broken(error.to_string()))?;
        counted(&packet.message.ask, packet.fds.len())?;
        Ok(packet)
    }
}

/// Checks how many descriptors came with a request.
fn counted(ask: &ControlRequest, present: usize) -> Result<(), FetchError> {
    match ask {
        // The answer names the missing ones.
        ControlRequest::AttachGpu(_) => Ok(()),
        // Its content is not known yet.
        ControlRequest::Spilled { .. } => Ok(()),
        _ if present == ask.fds() => Ok(()),
        _ => {
            let needed = ask.fds();
            let reason = format!("a message came with {present} descriptors instead of {needed}");
            Err(FetchError::Broken(reason))
        }
    }
}

/// The message about a descriptor that is not accepted.
fn unfit(ask: &ControlRequest, place: usize, what: &str) -> String {
    let ControlRequest::AttachGpu(region) = ask else {
        return format!(
            "descriptor {place} ({what}) is not a memfd; make it with \
             memfd_create(MFD_ALLOW_SEALING)"
        );
    };
    let files = region.memories.iter().enumerate();
    let mut files = files.filter(|(_, it)| matches!(it, GpuMemory::Descriptor { .. }));
    let memory = files.nth(place).map_or(place, |(memory, _)| memory);
    format!("memory {memory}: {what} is no handle of GPU memory; send what the driver exported")
}
