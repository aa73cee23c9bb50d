//! A process that puts, gets and drops until the sidecar is gone, and then checks what is left.
//!
//! Commands come as lines: `go` attaches, checks all known keys, prints `running`, works until the
//! session ends, and prints `gone`; `killed NANOSECONDS` is the time at which the sidecar was
//! killed; `check` attaches, checks, and prints `checked`; `end` prints the tally.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use fastrand::Rng;
use kvrail_ring::Status;
use kvrail_ring::slot::{FLAG_MORE, FLAG_PENDING, FLAG_PRESENT, FLAG_WARMING};
use serde::{Deserialize, Serialize};

use super::books::{Books, is_version, now};
use super::content::{LARGE, key_of};
use super::job::Job;
use super::seat::{End, Gone, Op, Seat, SeatOptions};

/// Requests in flight.
const PLACES: u32 = 8;
/// Bytes of the largest block.
const BLOCK_BYTES: u32 = 2 << 20;
/// Large blocks of a process at most.
const LARGE_KEYS: u64 = 8;
/// Keys of a process at most: all processes' puts fit into the store, so nothing is evicted.
const KEYS: u64 = 1500;
/// Highest version of another process's key that a get looks for.
const VERSIONS: u32 = 64;
/// How long the sidecar may take to come back.
const BACK_WITHIN: Duration = Duration::from_secs(30);

/// What a process does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyedPlan {
    /// The sidecar's socket.
    pub socket: PathBuf,
    /// The store.
    pub volume: String,
    /// Number of this process: its keys are its own.
    pub process: u64,
    /// How many there are.
    pub processes: u64,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Results of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyedTally {
    /// Puts that were acknowledged.
    pub puts: u64,
    /// Those of blocks in several parts.
    pub large: u64,
    /// Puts of blocks that a killed sidecar had kept without an answer.
    pub present: u64,
    /// Drops that were acknowledged.
    pub drops: u64,
    /// Gets whose bytes were right.
    pub right: u64,
    /// Gets of other processes' keys whose bytes were right.
    pub others: u64,
    /// Blocks that were too young when the sidecar was killed, and are gone.
    pub young: u64,
    /// Sessions that ended.
    pub sessions: u64,
    /// All faults.
    pub wrong: Vec<String>,
}

/// Executes the lines as commands; `print` gets the answers.
///
/// # Panics
/// When a line is no command, or the sidecar does not come back.
pub fn drive_keyed(plan: &KeyedPlan, lines: impl Iterator<Item = String>, print: impl Fn(&str)) {
    let mut process = Process {
        plan: plan.clone(),
        books: Books::default(),
        tally: KeyedTally::default(),
        dice: Rng::with_seed(plan.seed),
    };
    for line in lines {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("go", _) => {
                // A sidecar that ends during the check is one more end of a session.
                let ended = process.attach().and_then(|mut seat| {
                    process.check(&mut seat)?;
                    print("running");
                    process.work(&mut seat)
                });
                ended.expect_err("only an end ends it");
                process.tally.sessions += 1;
                print("gone");
            }
            ("killed", at) => {
                let nanoseconds = at.parse().expect("nanoseconds");
                process.books.killed(Duration::from_nanos(nanoseconds));
            }
            ("check", _) => {
                let checked = process.attach().and_then(|mut seat| process.check(&mut seat));
                checked.expect("the sidecar stays");
                print("checked");
            }
            ("end", _) => {
                return print(&serde_json::to_string(&process.tally).expect("plain figures"));
            }
            other => panic!("{other:?}"),
        }
    }
}

struct Process {
    plan: KeyedPlan,
    books: Books,
    tally: KeyedTally,
    dice: Rng,
}

impl Process {
    fn attach(&self) -> Result<Seat, Gone> {
        let options = SeatOptions {
            socket: self.plan.socket.clone(),
            volume: self.plan.volume.clone(),
            space: "kill".into(),
            identity: r#"{"model":"kill"}"#.into(),
            places: PLACES,
            place_bytes: BLOCK_BYTES as usize,
        };
        let start = Instant::now();
        loop {
            match Seat::attach(&options) {
                Ok(seat) => return Ok(seat),
                Err(gone) if start.elapsed() > BACK_WITHIN => return Err(gone),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// A number of that process's; one in 16 is a large block's.
    fn number_of(&mut self, process: u64) -> u64 {
        let large = self.dice.u8(..16) == 0;
        let (first, count) = if large { (LARGE, LARGE_KEYS) } else { (0, KEYS) };
        first + self.dice.u64(..count) * self.plan.processes + process
    }

    fn blame(&mut self, what: String) {
        if self.tally.wrong.len() < 20 {
            self.tally.wrong.push(what);
        }
    }

    /// Gets every key that was ever put.
    fn check(&mut self, seat: &mut Seat) -> Result<(), Gone> {
        for numbers in self.books.keys().chunks(PLACES as usize) {
            let mut jobs: Vec<Job> = numbers.iter().map(|&number| Job::Get { number }).collect();
            while !jobs.is_empty() {
                jobs = self.round(seat, jobs)?;
            }
        }
        Ok(())
    }

    /// Works until the session ends.
    fn work(&mut self, seat: &mut Seat) -> Result<(), Gone> {
        loop {
            let count = self.dice.usize(1..=PLACES as usize);
            let mut jobs: Vec<Job> = Vec::new();
            let mut taken = Vec::new();
            while jobs.len() < count {
                let number = self.number_of(self.plan.process);
                if taken.contains(&number) {
                    continue;
                }
                taken.push(number);
                jobs.push(self.job(number));
            }
            let mut again = self.round(seat, jobs)?;
            // Puts that were begun are finished; declined ones are left.
            while again.iter().any(Job::is_begun) {
                let (begun, left) = again.into_iter().partition(Job::is_begun);
                self.leave(left);
                again = self.round(seat, begun)?;
            }
            self.leave(again);
        }
    }

    fn leave(&mut self, jobs: Vec<Job>) {
        for job in jobs {
            if let Job::Put { number, version, .. } = job {
                self.books.declined(number, version);
            }
        }
    }

    /// A request for a key of its own, or a get of another process's key. A key has one job at a
    /// time: a get during its put or drop may find the block or miss it.
    fn job(&mut self, number: u64) -> Job {
        if self.dice.u8(..8) == 0 {
            let process = self.dice.u64(..self.plan.processes);
            if process == self.plan.process {
                return Job::Get { number };
            }
            return Job::Other { number: self.number_of(process) };
        }
        if self.books.is_free(number) {
            return Job::put(number, self.books.put_begins(number));
        }
        if self.dice.u8(..8) == 0 {
            self.books.drop_begins(number);
            return Job::Drop { number };
        }
        Job::Get { number }
    }

    /// Runs jobs at once. Returns those to repeat: declined, or still warming.
    fn round(&mut self, seat: &mut Seat, jobs: Vec<Job>) -> Result<Vec<Job>, Gone> {
        let ops: Vec<Op<'_>> = jobs.iter().map(Job::op).collect();
        let ends = seat.batch(&ops)?;
        drop(ops);
        let mut again = Vec::new();
        for (place, (job, end)) in jobs.into_iter().zip(ends).enumerate() {
            if let Some(job) = self.ended(seat, place, job, &end) {
                again.push(job);
            }
        }
        if !again.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(again)
    }

    fn ended(&mut self, seat: &Seat, place: usize, job: Job, end: &End) -> Option<Job> {
        match (&job, end.status) {
            (Job::Put { .. }, Status::Ok) if end.flags & FLAG_MORE != 0 => return Some(job.next()),
            (Job::Put { number, version, .. }, Status::Ok) => self.put(*number, *version, end),
            (Job::Put { .. } | Job::Drop { .. }, Status::Declined) => return Some(job),
            (Job::Drop { number }, Status::Ok | Status::Miss) => {
                self.tally.drops += 1;
                self.books.dropped(*number);
            }
            (Job::Get { number }, Status::Ok) => {
                match seat.verified(place, job.capacity(), key_of(*number), end) {
                    Some(bytes) => match self.books.got(*number, &bytes, now()) {
                        Ok(()) => self.tally.right += 1,
                        Err(what) => self.blame(what),
                    },
                    None => self.blame(format!("{number}: the check is not that of the bytes")),
                }
            }
            (Job::Get { .. }, Status::Miss) if end.flags & FLAG_WARMING != 0 => return Some(job),
            (Job::Get { number }, Status::Miss) => match self.books.missed(*number) {
                Ok(young) => self.tally.young += u64::from(young),
                Err(what) => self.blame(what),
            },
            (Job::Other { number }, Status::Ok) => {
                let bytes = seat.verified(place, job.capacity(), key_of(*number), end);
                let right = bytes.is_some_and(|bytes| {
                    (1..VERSIONS).any(|version| is_version(*number, version, &bytes))
                });
                if right {
                    self.tally.others += 1;
                } else {
                    self.blame(format!("{number}, another's: wrong bytes"));
                }
            }
            (Job::Other { .. }, Status::Miss) => {}
            (job, status) => self.blame(format!("{job:?} ended {status}")),
        }
        None
    }

    fn put(&mut self, number: u64, version: u32, end: &End) {
        if end.flags & FLAG_PENDING != 0 {
            return self.blame(format!("{number}: another put of it"));
        }
        if end.flags & FLAG_PRESENT == 0 {
            self.tally.puts += 1;
            self.tally.large += u64::from(number >= LARGE);
            self.books.put(number, version, now());
        } else {
            // Nothing was written: an older version is there.
            self.tally.present += 1;
            self.books.declined(number, version);
            self.blame(format!("{number} v{version} is reported as present"));
        }
    }
}
