//! The client that does everything but data, over and over: attach, status, an arena, a queue.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvrail_client::{AttachOptions, Client, ClientError, Pages};
use serde::{Deserialize, Serialize};

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Pause between two operations: a client without a pause is an abuser.
const PAUSE: Duration = Duration::from_millis(1);

/// Bytes of the arena that is made and freed.
const ARENA_BYTES: usize = 1 << 20;

/// One kind of operation in one round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlOp {
    /// How often it was done or tried.
    pub count: u64,
    /// The longest one, failed ones included, in nanoseconds.
    pub worst_ns: u64,
    /// Operations that were refused or not answered.
    pub failed: u64,
    /// The first failure, in words.
    pub first: Option<String>,
}

impl ControlOp {
    /// Adds another round's.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.worst_ns = self.worst_ns.max(other.worst_ns);
        self.failed += other.failed;
        self.first = self.first.take().or_else(|| other.first.clone());
    }
}

/// All kinds, by name.
pub type ControlRound = BTreeMap<String, ControlOp>;

type Operation = fn(&mut Control) -> Result<(), ClientError>;

/// Every operation with its name.
const OPERATIONS: [(&str, Operation); 4] = [
    ("attach", Control::attach_again),
    ("status", Control::status),
    ("arena", Control::arena),
    ("queue", Control::queue),
];

/// A client with a session that it keeps while it can.
#[derive(Debug)]
pub struct Control {
    socket: PathBuf,
    options: AttachOptions,
    client: Option<Client>,
}

impl Control {
    /// Attaches.
    ///
    /// # Errors
    /// When it cannot.
    pub fn attach(socket: &Path) -> Result<Self, ClientError> {
        let options =
            AttachOptions { name: "control".into(), timeout: PATIENCE, ..AttachOptions::default() };
        let mut control = Self { socket: socket.to_owned(), options, client: None };
        control.client()?;
        Ok(control)
    }

    /// All operations in turn, for this time; attached at the end, if the sidecar accepts the
    /// client.
    pub fn round(&mut self, time: Duration) -> ControlRound {
        let (mut round, start) = (ControlRound::new(), Instant::now());
        for (name, operation) in OPERATIONS.iter().cycle() {
            if start.elapsed() >= time {
                break;
            }
            let begin = Instant::now();
            let outcome = operation(self);
            let worst_ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let first = outcome.err().map(|error| error.to_string());
            if first.is_some() {
                self.client = None; // it may be gone
            }
            let one = ControlOp { count: 1, worst_ns, failed: first.iter().len() as u64, first };
            round.entry((*name).to_owned()).or_default().add(&one);
            std::thread::sleep(PAUSE);
        }
        let _in_again = self.client(); // or at the next round
        round
    }

    fn client(&mut self) -> Result<&Client, ClientError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => Client::attach_with(&self.socket, &self.options)?,
        };
        Ok(self.client.insert(client))
    }

    fn attach_again(&mut self) -> Result<(), ClientError> {
        Client::attach_with(&self.socket, &self.options).map(drop)
    }

    fn status(&mut self) -> Result<(), ClientError> {
        self.client()?.status().map(drop)
    }

    fn arena(&mut self) -> Result<(), ClientError> {
        self.client()?.create_arena(ARENA_BYTES, Pages::Base)?.detach()
    }

    fn queue(&mut self) -> Result<(), ClientError> {
        self.client()?.open_queue(64)?.close(PATIENCE)
    }
}
