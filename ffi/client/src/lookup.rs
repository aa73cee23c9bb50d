//! Lookups: which of many keys a store has, from the front.

use std::time::{Duration, Instant};

use kvrail_ring::slot::LOOKUP_KEYS;
use kvrail_ring::{Opcode, Status, keys_slot};
use kvrail_store::HOLD_MS_MAX;

use crate::done::Completed;
use crate::error::ClientError;
use crate::key::BlockKey;
use crate::opened::Opened;
use crate::queue::Queue;
use crate::store::Namespace;

/// Keys handed over together: the sidecar looks at these while the next ones are prepared.
const WAVE_KEYS: usize = 64;

/// How far a lookup goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookupExtent {
    /// To the first key that is missing, because a prefix ends there, and to those behind it that
    /// were asked for before that was known.
    #[default]
    Prefix,
    /// All keys.
    All,
}

/// What a lookup is to do.
#[derive(Clone, Copy, Debug)]
pub struct Lookup {
    /// How far it goes.
    pub extent: LookupExtent,
    /// What is found is held so long: it is moved, not evicted. Zero holds nothing; a minute at
    /// most.
    pub hold: Duration,
    /// How long it may take in all.
    pub timeout: Duration,
}

impl Default for Lookup {
    fn default() -> Self {
        let (hold, timeout) = (Duration::ZERO, Duration::from_secs(10));
        Self { extent: LookupExtent::Prefix, hold, timeout }
    }
}

/// What a lookup found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Keys from the first on that are all there.
    pub prefix: usize,
    /// For each key that was asked for whether it is there. May be shorter than the keys.
    pub there: Vec<bool>,
    /// Keys that are held now.
    pub held: usize,
    /// Keys that may yet turn up: recovery has not seen everything.
    pub warming: usize,
}

/// Keys of one member, five at a time: where each stands in the question.
type Group = ([u32; LOOKUP_KEYS], usize);

/// Whether more keys are to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Further {
    Yes,
    No,
}

impl Queue {
    /// Looks which blocks are there.
    ///
    /// # Errors
    /// `Timeout`, `SidecarGone`; `Denied` with STALE once the namespace was cleared, with INVALID
    /// for a hold that is too long.
    pub fn lookup(
        &mut self,
        namespace: &Namespace,
        keys: &[BlockKey],
        how: &Lookup,
    ) -> Result<Found, ClientError> {
        let (opcode, hold_ms) = (Opcode::Lookup, hold_ms(how.hold)?);
        let ask = Question::new(namespace, opcode, hold_ms, how.timeout);
        let mut found = Found::default();
        // A prefix ends where a block is not there for certain.
        let keys = match how.extent {
            LookupExtent::Prefix => &keys[..namespace.probe_known(keys)],
            LookupExtent::All => keys,
        };
        found.there.resize(keys.len(), false);
        let asked = ask.run(self, keys, |(places, count), bits| {
            for (bit, place) in places[..count].iter().enumerate() {
                found.there[*place as usize] = bits >> bit & 1 != 0;
            }
            let ones = |bits: u64| (bits & ((1 << count) - 1)).count_ones() as usize;
            found.held += ones(bits >> 8);
            found.warming += ones(bits >> 16);
            match how.extent {
                LookupExtent::Prefix if ones(bits) < count => Further::No,
                LookupExtent::Prefix | LookupExtent::All => Further::Yes,
            }
        })?;
        found.there.truncate(asked);
        found.prefix = found.there.iter().take_while(|there| **there).count();
        Ok(found)
    }

    /// Ends this client's holds on these keys.
    ///
    /// # Errors
    /// As `lookup`.
    pub fn release(
        &mut self,
        namespace: &Namespace,
        keys: &[BlockKey],
        timeout: Duration,
    ) -> Result<(), ClientError> {
        let ask = Question::new(namespace, Opcode::Release, 0, timeout);
        ask.run(self, keys, |_, _| Further::Yes).map(|_| ())
    }
}

/// A hold on the wire: a part of a millisecond is one, since 0 holds nothing.
fn hold_ms(hold: Duration) -> Result<u32, ClientError> {
    let ms = hold.as_nanos().div_ceil(1_000_000);
    u32::try_from(ms).ok().filter(|ms| *ms <= HOLD_MS_MAX).ok_or_else(|| {
        let message = format!(
            "a hold of {ms} ms, {HOLD_MS_MAX} at most; hold for less, and look up again before it \
             ends"
        );
        ClientError::Denied { what: WHAT, status: Status::Invalid, message }
    })
}

/// What errors call it.
const WHAT: &str = "a lookup";

/// What is asked about keys.
#[derive(Debug)]
struct Question<'a> {
    namespace: &'a Namespace,
    opcode: Opcode,
    hold_ms: u32,
    /// `None` is never.
    deadline: Option<Instant>,
    timeout: Duration,
}

impl<'a> Question<'a> {
    fn new(namespace: &'a Namespace, opcode: Opcode, hold_ms: u32, timeout: Duration) -> Self {
        let deadline = Instant::now().checked_add(timeout);
        Self { namespace, opcode, hold_ms, deadline, timeout }
    }

    /// Asks about keys from the front, wave after wave without waiting in between, until an answer
    /// that `take` is given ends it. Returns how many were asked for.
    fn run(
        &self,
        queue: &mut Queue,
        keys: &[BlockKey],
        take: impl FnMut(Group, u64) -> Further,
    ) -> Result<usize, ClientError> {
        let call = queue.begin_lookup(self.namespace)?;
        let outcome = self.ask(queue, keys, call, take);
        queue.end_lookup();
        outcome
    }

    fn ask(
        &self,
        queue: &mut Queue,
        keys: &[BlockKey],
        call: u32,
        mut take: impl FnMut(Group, u64) -> Further,
    ) -> Result<usize, ClientError> {
        let opened = self.namespace.opened();
        let mut groups = Vec::with_capacity(keys.len() / LOOKUP_KEYS + 8);
        let (mut grouped, mut sent, mut left) = (0, 0, 0);
        let (mut further, mut answered) = (Further::Yes, Vec::new());
        loop {
            let mut more = further == Further::Yes;
            while more && (sent < groups.len() || grouped < keys.len()) {
                if sent == groups.len() {
                    queue.publish();
                    grouped = self.group(opened, keys, grouped, &mut groups);
                }
                let (lane, group) = &groups[sent];
                more = queue.stage_keys(*lane, self.slot(opened, keys, group), tag(call, sent));
                (sent, left) = (sent + usize::from(more), left + usize::from(more));
            }
            if left == 0 && (more || further == Further::No) {
                break;
            }
            self.wait(queue, &mut answered)?;
            for done in answered.drain(..) {
                let place = usize::try_from(done.tag & u64::from(u32::MAX)).expect("a place");
                if take(groups[place].1, self.bits(queue, &done)?) == Further::No {
                    further = Further::No;
                }
                left -= 1;
            }
        }
        let unsent = groups[sent..].iter().map(|(_, (places, _))| places[0] as usize);
        Ok(unsent.min().unwrap_or(grouped))
    }

    fn wait(&self, queue: &mut Queue, answered: &mut Vec<Completed>) -> Result<(), ClientError> {
        queue.wait_for_keys(self.deadline, answered)?;
        if answered.is_empty() {
            queue.check_alive()?;
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(ClientError::Timeout { what: WHAT, after: self.timeout });
            }
        }
        Ok(())
    }

    /// The request for a group of keys.
    fn slot(&self, opened: Opened, keys: &[BlockKey], group: &Group) -> kvrail_ring::Request {
        let (places, count) = group;
        let mut lows = [0; LOOKUP_KEYS];
        for (low, place) in lows.iter_mut().zip(places) {
            *low = keys[*place as usize].lo();
        }
        keys_slot(self.opcode, opened.handle, self.hold_ms, &lows[..*count])
    }

    fn bits(&self, queue: &Queue, done: &Completed) -> Result<u64, ClientError> {
        match done.status {
            Status::Ok => Ok(done.bytes),
            // The member is away: none of its keys is there.
            Status::DeviceGone => Ok(0),
            status => {
                queue.check_alive()?;
                let name = self.namespace.name();
                let message = format!("namespace {name:?}: {}", status.meaning());
                Err(ClientError::Denied { what: WHAT, status, message })
            }
        }
    }

    /// Groups the keys of one more wave by member, five at a time; returns where the next begins.
    fn group(
        &self,
        opened: Opened,
        keys: &[BlockKey],
        from: usize,
        groups: &mut Vec<(u16, Group)>,
    ) -> usize {
        let end = keys.len().min(from + WAVE_KEYS);
        let first = groups.len();
        for (place, key) in (from..end).zip(&keys[from..end]) {
            let lane = self.namespace.lane_of(opened.uid, *key);
            let open = groups[first..].iter_mut().rev().find(|(other, _)| *other == lane);
            let place = u32::try_from(place).expect("fewer keys than 2^32");
            match open {
                Some((_, (places, count))) if *count < LOOKUP_KEYS => {
                    places[*count] = place;
                    *count += 1;
                }
                _ => groups.push((lane, ([place; LOOKUP_KEYS], 1))),
            }
        }
        end
    }
}

/// What the answer for a group is known by.
fn tag(call: u32, group: usize) -> u64 {
    u64::from(call) << 32 | group as u64
}
