//! One thread for jobs that may take long, and what others have of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use kvrail_protocol::{Ask, ClientMessage, GpuMemory, Packet, unspill_ask};
use kvrail_ring::{Bell, Status};
use rustix::io::Errno;

use crate::closers::Closers;
use crate::config::Home;
use crate::kept::Waste;
use crate::maker::{Fetched, Made, Memory, Recipe, Unfetched, Whose, cook};
use crate::porter::{Cargo, Porter};

/// How often processes that close are looked after when nothing else is to do.
const LOOK: Duration = Duration::from_millis(100);

/// What the threads need.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub(crate) home: Home,
    pub(crate) porter: Porter,
    /// Rung after every answer.
    pub(crate) to_control: Arc<Bell>,
    pub(crate) answers: Sender<Made>,
    /// Held by every thread until it ends.
    pub(crate) _living: Sender<()>,
}

#[derive(Debug)]
enum Job {
    Make(Whose, Recipe),
    Close(Whose, Memory),
    Fetch(u64, OwnedFd, ClientMessage),
    Discard(Waste),
}

/// What is counted of a thread. Whoever reads an old count looks again later.
#[derive(Debug, Default)]
struct Counts {
    /// Things to be closed that it has not come to.
    discarded: AtomicUsize,
    /// Sockets it holds, and processes it has started that have not ended.
    open: AtomicUsize,
    /// Connections that have ended, and whose close waits.
    waiting: AtomicUsize,
}

/// A thread to give jobs to. It ends when all of these are gone and its jobs are done.
#[derive(Clone, Debug)]
pub(crate) struct Hand {
    jobs: Sender<Job>,
    counts: Arc<Counts>,
}

impl Hand {
    /// Starts the thread.
    pub(crate) fn start(name: &str, tools: &Tools) -> Result<Self, Errno> {
        let (jobs, queue) = channel();
        let counts = Arc::<Counts>::default();
        let closers = Closers::new(tools.porter.clone());
        let worker = Worker { tools: tools.clone(), counts: Arc::clone(&counts), closers };
        let spawned = thread::Builder::new().name(name.into()).spawn(move || worker.work(&queue));
        spawned.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Self { jobs, counts })
    }

    /// Answer: `Opened`.
    pub(crate) fn make(&self, whose: Whose, recipe: Recipe) {
        self.post(Job::Make(whose, recipe));
    }

    /// Closes it, if this is the last reference. Answer: `Closed`.
    pub(crate) fn close(&self, whose: Whose, memory: Memory) {
        self.post(Job::Close(whose, memory));
    }

    /// Takes in what lies next in a session's socket, which is this message and its descriptors.
    /// Answer: `Fetched`.
    pub(crate) fn fetch(&self, session: u64, socket: OwnedFd, message: ClientMessage) {
        self.post(Job::Fetch(session, socket, message));
    }

    /// Closes it, some time.
    pub(crate) fn discard(&self, waste: Waste) {
        // Relaxed: pairs with `obey`, which has it from the queue.
        self.counts.discarded.fetch_add(1, Ordering::Relaxed);
        // A thread that is no more leaves it to be closed here.
        let _sent = self.jobs.send(Job::Discard(waste));
    }

    fn post(&self, job: Job) {
        self.jobs.send(job).expect("a memory thread lives as long as its queue");
    }

    /// Things to be closed that it has not come to.
    pub(crate) fn discarded(&self) -> usize {
        self.counts.discarded.load(Ordering::Acquire) // pairs with Release in `obey`
    }

    /// Whether something is still to be closed.
    pub(crate) fn is_closing(&self) -> bool {
        // Relaxed: pairs with `count`, whose store is seen once `discarded` is.
        self.discarded() > 0 || self.counts.open.load(Ordering::Relaxed) > 0
    }

    /// Connections that have ended, and whose close waits.
    pub(crate) fn waiting(&self) -> usize {
        self.counts.waiting.load(Ordering::Relaxed) // pairs with `count`
    }
}

struct Worker {
    tools: Tools,
    counts: Arc<Counts>,
    closers: Closers,
}

impl Worker {
    fn work(mut self, jobs: &Receiver<Job>) {
        loop {
            while let Ok(job) = jobs.try_recv() {
                self.obey(job);
            }
            self.closers.advance();
            let next = if self.count() > 0 {
                jobs.recv_timeout(LOOK)
            } else {
                jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            match next {
                Ok(job) => self.obey(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.closers.finish(),
            }
        }
    }

    fn obey(&mut self, job: Job) {
        match job {
            Job::Make(whose, recipe) => {
                let name = format!("kvrail-arena-{}", whose.0);
                self.answer(Made::Opened(whose, cook(&name, recipe, &self.tools.home)));
            }
            Job::Close(whose, memory) => {
                drop(memory);
                self.answer(Made::Closed(whose));
            }
            Job::Fetch(session, socket, message) => {
                let fetched = self.fetch(socket, message);
                self.answer(Made::Fetched(session, fetched));
            }
            Job::Discard(waste) => {
                match waste {
                    Waste::Any(it) => drop(it),
                    Waste::Connection(it) => it.close().into_iter().for_each(|socket| {
                        self.closers.take(socket);
                    }),
                }
                self.count();
                // Release pairs with Acquire in `discarded`: what is open now is seen.
                self.counts.discarded.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Tells how much is open.
    fn count(&self) -> usize {
        let open = self.closers.open();
        // Relaxed: pairs with `is_closing` and `waiting`; counts.
        self.counts.open.store(open, Ordering::Relaxed);
        self.counts.waiting.store(self.closers.waiting(), Ordering::Relaxed);
        open
    }

    fn answer(&self, made: Made) {
        // Nobody wants it any more at the end.
        let _heard = self.tools.answers.send(made);
        self.tools.to_control.ring();
    }

    /// Memory files may be large, so whatever is wrong is found, and closed, here.
    fn fetch(&mut self, socket: OwnedFd, message: ClientMessage) -> Fetched {
        let fds = match self.closers.fetch(socket).map_err(Unfetched::Broken)? {
            Cargo::Fit(fds) => fds,
            Cargo::Unfit(present, (place, what)) => {
                counted(&message.ask, present)?;
                let words = unfit(&message.ask, place, &what);
                return Err(Unfetched::Failed(message.seq, (Status::Invalid, words)));
            }
        };
        let packet = unspill_ask(Packet { message, fds });
        let packet = packet.map_err(|error| Unfetched::Broken(error.to_string()))?;
        counted(&packet.message.ask, packet.fds.len())?;
        Ok(packet)
    }
}

/// Checks how many descriptors came with an ask.
fn counted(ask: &Ask, present: usize) -> Result<(), Unfetched> {
    match ask {
        // The answer says what is missing.
        Ask::AttachGpu(_) => Ok(()),
        // What it says is not known yet.
        Ask::Spilled { .. } => Ok(()),
        _ if present == ask.fds() => Ok(()),
        _ => {
            let needed = ask.fds();
            let reason = format!("a message came with {present} descriptors instead of {needed}");
            Err(Unfetched::Broken(reason))
        }
    }
}

/// What is said of a descriptor that is not taken.
fn unfit(ask: &Ask, place: usize, what: &str) -> String {
    let Ask::AttachGpu(region) = ask else {
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
