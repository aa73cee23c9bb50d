//! Sockets with unrequested descriptors in their queues: short-lived processes close them.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::porter::{Porter, Received, Stuck};
use crate::rate::RateLimit;

/// Processes that may be started for a few sockets each. Once this many are stuck, each further one
/// takes many sockets, so that the number of stuck processes stays small.
const FEW: usize = 4;

/// Sockets of one process.
const MANY: usize = 64;

/// A process that runs longer than this is stuck in the close of a client's descriptor.
const LONG: Duration = Duration::from_secs(1);

/// One user's.
#[derive(Debug)]
pub(crate) struct Closers {
    porter: Porter,
    held: Vec<OwnedFd>,
    /// Started and not known to have ended.
    running: Vec<(Instant, Child)>,
    looked: Instant,
    log: RateLimit,
}

impl Closers {
    pub(crate) fn new(porter: Porter) -> Self {
        let (held, running) = (Vec::new(), Vec::new());
        Self { porter, held, running, looked: Instant::now(), log: RateLimit::default() }
    }

    /// Has this socket closed elsewhere.
    pub(crate) fn take(&mut self, socket: OwnedFd) {
        self.held.push(socket);
        if self.held.len() >= MANY {
            self.advance();
        }
    }

    /// Takes the descriptors of a message in.
    pub(crate) fn fetch(&mut self, socket: &OwnedFd) -> Result<Received, Stuck> {
        let mut children = Vec::new();
        let outcome = self.porter.fetch(socket, &mut children);
        self.running.extend(children.into_iter().map(|child| (Instant::now(), child)));
        outcome
    }

    /// Starts a process for what is held, if it is time.
    pub(crate) fn advance(&mut self) {
        self.reap();
        let due = self.running.len() < FEW || self.held.len() >= MANY;
        if due && !self.held.is_empty() {
            self.start();
        }
    }

    /// Sockets held, and processes that have not ended.
    pub(crate) fn open(&self) -> usize {
        self.held.len() + self.running.len()
    }

    /// Starts a process for all held sockets. The last act: its end is not awaited.
    pub(crate) fn finish(&mut self) {
        if !self.held.is_empty() {
            self.start();
        }
    }

    /// Sockets and processes that have waited for long.
    pub(crate) fn waiting(&self) -> usize {
        let long = |process: &&(Instant, Child)| process.0.elapsed() >= LONG;
        let stuck = self.running.iter().filter(long).count();
        if stuck < FEW { stuck } else { stuck + self.held.len() }
    }

    fn start(&mut self) {
        match self.porter.close(std::mem::take(&mut self.held)) {
            Ok(child) => self.running.push((Instant::now(), child)),
            Err((held, error)) => {
                self.held = held;
                if let Some(suppressed) = self.log.admit(Instant::now()) {
                    tracing::error!(
                        suppressed,
                        "connections of clients that sent descriptors cannot be closed: the \
                         process for it does not start: {error}; raise the limit of processes \
                         (ulimit -u, TasksMax=)"
                    );
                }
            }
        }
    }

    fn reap(&mut self) {
        // Each child needs a system call; in a flood that is too expensive for each socket.
        if self.looked.elapsed() >= Duration::from_millis(2) {
            self.looked = Instant::now();
            self.running.retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
        }
    }
}
