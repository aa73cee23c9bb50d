//! A client that puts, gets and drops, and records each request before and after; and one that
//! checks the content.

use std::time::{Duration, Instant};

use fastrand::Rng;
use kvrail_ring::Status;
use kvrail_ring::slot::{FLAG_PENDING, FLAG_PRESENT, FLAG_WARMING};
use kvrail_tests::{End, Gone, Op, Seat, key_of, role_seat};

use super::history::{Event, History, Horizon, What, block};
use crate::rig::{Sidecar, VOLUME};

/// Requests in flight.
const PLACES: usize = 8;
/// Bytes of the largest block.
const BLOCK_BYTES: u32 = 300 << 10;

/// A request for a key.
enum Job {
    Put { key: u64, version: u32, block: Vec<u8>, durable: bool },
    Get { key: u64, version: u32 },
    Drop { key: u64 },
}

/// Keys of a client, and the shares of its requests that wait for the medium: one durable put in
/// this number of puts, one drop in this number of visits to present keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    pub(super) first_key: u64,
    pub(super) keys: u64,
    pub(super) durable: u8,
    pub(super) drop: u8,
}

/// A client and its history.
pub(super) struct Client<N, W> {
    pub(super) history: History,
    seat: Seat,
    dice: Rng,
    habits: Habits,
    now: N,
    write: W,
    /// The version of each present key.
    there: Vec<Option<u32>>,
    pub(super) drops: u64,
    pub(super) right: u64,
    pub(super) misses: u64,
}

/// The seat of such a client.
pub(super) fn seat(sidecar: &Sidecar) -> Seat {
    let options = role_seat(sidecar.socket(), VOLUME, "power");
    Seat::attach(&options).expect("a session with a namespace")
}

impl<N: Fn() -> Duration, W: FnMut(&[Event])> Client<N, W> {
    /// A client that continues a history. `now` is its clock; `write` gets each request before it
    /// is submitted, and its result.
    pub(super) fn new(seat: Seat, history: History, habits: Habits, now: N, write: W) -> Self {
        let unknown = Duration::MAX;
        let (dropped, kept) = (unknown, Some(unknown));
        let all = Horizon { dropped, kept, flushed: kept, last: unknown };
        let keys = habits.first_key..habits.first_key + habits.keys;
        let there = keys.map(|key| history.expected(key, &all).0).collect();
        let dice = Rng::with_seed(fastrand::u64(..));
        Self { history, seat, dice, habits, now, write, there, drops: 0, right: 0, misses: 0 }
    }

    /// Works until that time, or until the session ends.
    pub(super) fn work(&mut self, until: Instant) -> Result<(), Gone> {
        while Instant::now() < until {
            let count = self.dice.usize(1..=PLACES);
            let first = self.dice.u64(..self.habits.keys);
            let keys =
                (first..).take(count).map(|key| self.habits.first_key + key % self.habits.keys);
            let keys: Vec<u64> = keys.collect();
            let jobs: Vec<Job> = keys.into_iter().map(|key| self.job(key)).collect();
            self.note(jobs.iter().filter_map(before).collect());
            let ops: Vec<Op<'_>> = jobs.iter().map(op).collect();
            let ends = self.seat.batch(&ops)?;
            drop(ops);
            let places = jobs.iter().zip(ends).enumerate();
            let done = places.filter_map(|(place, (job, end))| self.ended(place, job, &end));
            let done = done.collect();
            self.note(done);
        }
        Ok(())
    }

    fn job(&mut self, key: u64) -> Job {
        let Some(version) = *self.known(key) else {
            let version = self.history.last_version(key) + 1;
            let block = block(key, version);
            return Job::Put {
                key,
                version,
                block,
                durable: self.dice.u8(..self.habits.durable) == 0,
            };
        };
        if self.dice.u8(..self.habits.drop) == 0 {
            Job::Drop { key }
        } else {
            Job::Get { key, version }
        }
    }

    /// The key's version, if it is there.
    fn known(&mut self, key: u64) -> &mut Option<u32> {
        let place = usize::try_from(key - self.habits.first_key).expect("few keys");
        &mut self.there[place]
    }

    /// Records events of this moment.
    fn note(&mut self, happened: Vec<(u64, What)>) {
        let at = (self.now)();
        let events = happened.into_iter().map(|(key, what)| Event { at, key, what });
        let events: Vec<Event> = events.collect();
        (self.write)(&events);
        for event in events {
            self.history.add(event);
        }
    }

    fn ended(&mut self, place: usize, job: &Job, end: &End) -> Option<(u64, What)> {
        match (job, end.status) {
            (Job::Put { key, version, durable, .. }, Status::Ok) => {
                let odd = end.flags & (FLAG_PRESENT | FLAG_PENDING);
                assert_eq!(odd, 0, "{key} v{version}: an older one is there");
                *self.known(*key) = Some(*version);
                Some((*key, if *durable { What::Kept(*version) } else { What::Put(*version) }))
            }
            (Job::Put { .. } | Job::Drop { .. }, Status::Declined) => None,
            (Job::Drop { key }, Status::Ok | Status::Miss) => {
                self.drops += 1;
                *self.known(*key) = None;
                Some((*key, What::Gone))
            }
            (Job::Get { key, version }, Status::Ok) => {
                let found = self.seat.verified(place, BLOCK_BYTES, key_of(*key), end);
                let right = found == Some(block(*key, *version));
                assert!(right, "{key} v{version} has other bytes");
                self.right += 1;
                None
            }
            (Job::Get { key, .. }, Status::Miss) => {
                // Evicted, or not recovered yet.
                if end.flags & FLAG_WARMING == 0 {
                    self.misses += 1;
                    *self.known(*key) = None;
                }
                None
            }
            (Job::Put { key, .. } | Job::Get { key, .. } | Job::Drop { key }, status) => {
                panic!("{key} ended {status}")
            }
        }
    }
}

fn before(job: &Job) -> Option<(u64, What)> {
    match job {
        Job::Put { key, version, .. } => Some((*key, What::Putting(*version))),
        Job::Drop { key } => Some((*key, What::Dropping)),
        Job::Get { .. } => None,
    }
}

fn op(job: &Job) -> Op<'_> {
    match job {
        Job::Put { key, block, durable: true, .. } => Op::put_durable(key_of(*key), block),
        Job::Put { key, block, .. } => Op::put(key_of(*key), block),
        Job::Get { key, .. } => Op::Get { key: key_of(*key), capacity: BLOCK_BYTES },
        Job::Drop { key } => Op::Drop { key: key_of(*key) },
    }
}

/// Result of a check.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// Keys and the version of each, if it is there.
    pub(super) found: Vec<(u64, Option<u32>)>,
    /// Keys that had to be there, and were.
    pub(super) required: u64,
    /// All faults.
    pub(super) wrong: Vec<String>,
}

/// Gets every key of the history, and compares.
pub(super) fn look(sidecar: &Sidecar, history: &History, horizon: &Horizon) -> Look {
    let mut seat = seat(sidecar);
    let mut look = Look::default();
    for keys in history.keys().chunks(PLACES) {
        let mut open = keys.to_vec();
        while !open.is_empty() {
            let ops: Vec<Op<'_>> = open
                .iter()
                .map(|key| Op::Get { key: key_of(*key), capacity: BLOCK_BYTES })
                .collect();
            let ends = seat.batch(&ops).expect("the sidecar stays");
            let mut again = Vec::new();
            for (place, (key, end)) in open.iter().zip(ends).enumerate() {
                let found = match end.status {
                    Status::Miss if end.flags & FLAG_WARMING != 0 => {
                        again.push(*key);
                        continue;
                    }
                    Status::Miss => None,
                    // Bytes whose check fails are a miss too, for a client.
                    Status::Ok => seat.verified(place, BLOCK_BYTES, key_of(*key), &end),
                    other => panic!("{key} ended {other}: {}", sidecar.stderr()),
                };
                look.required += u64::from(history.expected(*key, horizon).0.is_some());
                match history.judge(*key, found.as_deref(), horizon) {
                    Ok(version) => look.found.push((*key, version)),
                    Err(what) => look.wrong.push(what),
                }
            }
            open = again;
        }
    }
    look
}
