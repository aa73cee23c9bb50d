//! The client that stays: puts, gets and drops verified blocks of a store, attaches again by itself
//! when its session ends, and measures how long it had none.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fastrand::Rng;
use kvrail_client::{
    Arena, AttachOptions, BlockKey, BlockNote, BlockRequest, Client, ClientError, Completed,
    Identity, Namespace, Pages, Queue, Status, SubmitErrorKind,
};
use serde::{Deserialize, Serialize};

use crate::keyed::{bytes_of, length_of};
use crate::worker::PATIENCE;

/// Requests in flight.
const DEPTH: usize = 8;
/// Blocks at most: some 20 MB, which no store evicts.
const BLOCKS: u64 = 1024;
/// Bytes of the largest block, in whole pages.
const BLOCK_BYTES: usize = 304 << 10;
/// Between two tries to attach.
const PAUSE: Duration = Duration::from_millis(2);

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteadyTally {
    /// Puts that were acknowledged.
    pub puts: u64,
    /// Drops that were acknowledged.
    pub drops: u64,
    /// Gets whose bytes were right.
    pub right: u64,
    /// Statuses of requests that the end of a session cut off, with their numbers.
    pub cut_off: BTreeMap<String, u64>,
    /// For each session that ended: milliseconds from its last completed request to the first one
    /// of the next session.
    pub interruptions_ms: Vec<u64>,
    /// All faults.
    pub wrong: Vec<String>,
}

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Not there; the version it had last.
    Absent(u32),
    There(u32),
    /// A put or drop of this version was cut off, and may have happened.
    Doubt(u32),
}

/// Where its blocks are.
#[derive(Debug)]
struct Seat {
    socket: PathBuf,
    volume: String,
    space: String,
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    Put,
    Get,
    Drop,
}

/// A session, with what is in flight in it.
struct Session {
    /// Holds the session; the rest works without it.
    _client: Client,
    space: Namespace,
    arena: Arena,
    queue: Queue,
    flying: BTreeMap<u64, (Verb, u32)>,
    /// The sidecar takes no more requests.
    over: bool,
}

impl Session {
    fn attach(seat: &Seat) -> Result<Self, ClientError> {
        let options = AttachOptions { name: "steady".into(), ..AttachOptions::default() };
        let client = Client::attach_with(&seat.socket, &options)?;
        let identity = Identity::new([("model", "steady")])?;
        Ok(Self {
            space: client.store(&seat.volume)?.namespace(&seat.space, &identity)?,
            arena: client.create_arena(DEPTH * BLOCK_BYTES, Pages::Base)?,
            queue: client.open_queue(DEPTH)?,
            flying: BTreeMap::new(),
            over: false,
            _client: client,
        })
    }

    /// Submits a request; false when the session has ended.
    fn begin(&mut self, number: u64, verb: Verb, version: u32) -> Result<bool, String> {
        let key = BlockKey::of(&number.to_le_bytes());
        let lease = || self.arena.lease(BLOCK_BYTES).map_err(|error| error.to_string());
        let request = match verb {
            Verb::Put => {
                let block = bytes_of(number, version, length_of(number, version));
                let mut lease = lease()?;
                lease[..block.len()].copy_from_slice(&block);
                BlockRequest::put(&self.space, key, lease).length(block.len() as u64)
            }
            Verb::Get => {
                let mut lease = lease()?;
                lease.fill(0xee); // stale bytes cannot pass for the read ones
                BlockRequest::get(&self.space, key, lease)
            }
            Verb::Drop => BlockRequest::drop_block(&self.space, key),
        };
        match self.queue.submit(request.tag(number)) {
            Ok(_) => {
                self.flying.insert(number, (verb, version));
                Ok(true)
            }
            Err(refused) if matches!(refused.reason, SubmitErrorKind::SidecarGone) => Ok(false),
            Err(refused) => Err(refused.reason.to_string()),
        }
    }
}

/// A client of a store, by itself in its namespace.
#[derive(Debug)]
pub struct Steady {
    seat: Seat,
    known: Vec<Known>,
    tally: SteadyTally,
    dice: Rng,
    /// When the last request was done.
    done: Instant,
}

impl Steady {
    /// A client of that store; the namespace is its own.
    #[must_use]
    pub fn new(socket: &Path, volume: &str, space: &str) -> Self {
        Self {
            seat: Seat { socket: socket.into(), volume: volume.into(), space: space.into() },
            known: vec![Known::Absent(0); usize::try_from(BLOCKS).expect("few")],
            tally: SteadyTally::default(),
            dice: Rng::with_seed(1),
            done: Instant::now(),
        }
    }

    /// Works until `stop` returns true; calls `running` once, when the first request is done.
    ///
    /// # Errors
    /// When the sidecar is gone for longer than a minute.
    pub fn run(
        mut self,
        running: impl FnOnce(),
        stop: impl Fn() -> bool,
    ) -> Result<SteadyTally, ClientError> {
        let mut running = Some(running);
        let mut again = false;
        while !stop() && self.tally.wrong.is_empty() {
            let mut session = self.attach()?;
            let (ended, mut first) = (self.done, true);
            while !stop() && self.turn(&mut session) {
                if !first || self.done == ended {
                    continue;
                }
                first = false;
                if again {
                    let gap = self.done.duration_since(ended).as_millis();
                    self.tally.interruptions_ms.push(u64::try_from(gap).unwrap_or(u64::MAX));
                }
                running.take().into_iter().for_each(|running| running());
            }
            again = true;
        }
        Ok(self.tally)
    }

    /// The next session, as soon as a sidecar runs.
    fn attach(&self) -> Result<Session, ClientError> {
        let start = Instant::now();
        loop {
            match Session::attach(&self.seat) {
                Err(_) if start.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
                outcome => return outcome,
            }
        }
    }

    /// Keeps requests in flight and takes completions; false once the session has ended.
    fn turn(&mut self, session: &mut Session) -> bool {
        while !session.over && session.flying.len() < DEPTH && self.tally.wrong.is_empty() {
            let number = self.dice.u64(..BLOCKS);
            if session.flying.contains_key(&number) {
                continue;
            }
            let (verb, version) = match self.known[index(number)] {
                Known::Absent(last) => (Verb::Put, last + 1),
                Known::There(version) if self.dice.u8(..8) == 0 => (Verb::Drop, version),
                Known::There(version) | Known::Doubt(version) => (Verb::Get, version),
            };
            match session.begin(number, verb, version) {
                Ok(true) => {}
                Ok(false) => session.over = true,
                Err(why) => self.blame(format!("{verb:?} of {number} was refused: {why}")),
            }
        }
        let done = session.queue.wait(PATIENCE);
        match done {
            Ok(Some(done)) => self.ended(session, &done),
            Ok(None) if session.flying.is_empty() => {}
            Ok(None) => self.blame(format!("no end within {PATIENCE:?}: {:?}", session.flying)),
            Err(ClientError::SidecarGone { .. }) => session.over = true,
            Err(error) => self.blame(error.to_string()),
        }
        self.tally.wrong.is_empty() && !(session.over && session.flying.is_empty())
    }

    fn ended(&mut self, session: &mut Session, done: &Completed) {
        let number = done.tag;
        let Some((verb, version)) = session.flying.remove(&number) else {
            return self.blame(format!("{number} ended twice: {done:?}"));
        };
        let known = &mut self.known[index(number)];
        match (verb, done.status, done.note) {
            (_, Status::Draining | Status::Restarted, _) => {
                if done.status == Status::Restarted && !matches!(verb, Verb::Get) {
                    *known = Known::Doubt(version);
                }
                let name = done.status.name().to_owned();
                *self.tally.cut_off.entry(name).or_default() += 1;
                session.over = true;
                return;
            }
            (Verb::Put, Status::Ok, BlockNote::None) => {
                *known = Known::There(version);
                self.tally.puts += 1;
            }
            // Too much at once, or recovery still goes on: later.
            (Verb::Put | Verb::Drop, Status::Declined, _) => {}
            (Verb::Get, Status::Miss, BlockNote::Warming) => {}
            // MISS: recovery has not come to the block, which is dropped all the same.
            (Verb::Drop, Status::Ok | Status::Miss, _) => {
                *known = Known::Absent(version);
                self.tally.drops += 1;
            }
            (Verb::Get, Status::Miss, BlockNote::None) if *known == Known::Doubt(version) => {
                *known = Known::Absent(version);
            }
            (Verb::Get, Status::Ok, _) => {
                let bytes = usize::try_from(done.bytes).expect("as long as its lease");
                let right = bytes_of(number, version, length_of(number, version));
                if done.lease.as_ref().is_none_or(|lease| lease[..bytes] != right) {
                    return self.blame(format!("{number} v{version} has other bytes"));
                }
                *known = Known::There(version);
                self.tally.right += 1;
            }
            _ => return self.blame(format!("{verb:?} of {number} v{version}: {done:?}")),
        }
        self.done = Instant::now();
    }

    fn blame(&mut self, what: String) {
        if self.tally.wrong.len() < 20 {
            self.tally.wrong.push(what);
        }
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("below the number of blocks")
}
