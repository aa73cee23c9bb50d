//! Lookups: which of many keys a store has, from the front.

use std::time::{Duration, Instant};

use kvrail_ring::slot::LOOKUP_KEYS;
use kvrail_ring::{Opcode, Status, keys_slot};
use kvrail_store::HOLD_MS_MAX;

use crate::done::Done;
use crate::error::ClientError;
use crate::key::BlockKey;
use crate::opened::Opened;
use crate::queue::Queue;
use crate::store::Namespace;

/// Keys asked for before their answers are looked at: behind the first wave with a gap nothing more
/// is asked, because a prefix ends there.
const WAVE_KEYS: usize = 256;

/// How far a lookup goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookupExtent {
    /// To the first wave of 256 keys with one that is missing.
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
        for wave in keys.chunks(WAVE_KEYS) {
            let base = found.there.len();
            found.there.resize(base + wave.len(), false);
            ask.run(self, wave, |group, bits| {
                let (places, count) = group;
                for (bit, place) in places[..count].iter().enumerate() {
                    found.there[base + *place as usize] = bits >> bit & 1 != 0;
                }
                let count = |bits: u64| (bits & ((1 << count) - 1)).count_ones() as usize;
                found.held += count(bits >> 8);
                found.warming += count(bits >> 16);
            })?;
            let gap = found.there[base..].iter().any(|there| !there);
            if gap && how.extent == LookupExtent::Prefix {
                break;
            }
        }
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
        keys.chunks(WAVE_KEYS).try_for_each(|wave| ask.run(self, wave, |_, _| {}))
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

    /// Asks about all keys of a wave, and gives each answer to `take`.
    fn run(
        &self,
        queue: &mut Queue,
        keys: &[BlockKey],
        take: impl FnMut(Group, u64),
    ) -> Result<(), ClientError> {
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
        mut take: impl FnMut(Group, u64),
    ) -> Result<(), ClientError> {
        let opened = self.namespace.opened();
        let groups = self.groups(opened, keys);
        let (mut sent, mut left, mut answered) = (0, groups.len(), Vec::new());
        while left > 0 {
            while let Some((lane, group)) = groups.get(sent) {
                let mut lows = [0; LOOKUP_KEYS];
                for (low, place) in lows.iter_mut().zip(&group.0[..group.1]) {
                    *low = keys[*place as usize].lo();
                }
                let lows = &lows[..group.1];
                let slot = keys_slot(self.opcode, opened.handle, self.hold_ms, lows);
                if !queue.stage_keys(*lane, slot, u64::from(call) << 32 | sent as u64) {
                    break;
                }
                sent += 1;
            }
            queue.wait_for_keys(self.deadline, &mut answered)?;
            if answered.is_empty() {
                queue.check_alive()?;
                if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Err(ClientError::Timeout { what: WHAT, after: self.timeout });
                }
            }
            for done in answered.drain(..) {
                let place = usize::try_from(done.tag & u64::from(u32::MAX)).expect("a place");
                take(groups[place].1, self.bits(queue, &done)?);
                left -= 1;
            }
        }
        Ok(())
    }

    fn bits(&self, queue: &Queue, done: &Done) -> Result<u64, ClientError> {
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

    /// The keys by member, five at a time.
    fn groups(&self, opened: Opened, keys: &[BlockKey]) -> Vec<(u16, Group)> {
        let mut groups: Vec<(u16, Group)> = Vec::with_capacity(keys.len() / LOOKUP_KEYS + 8);
        let mut open: Vec<(u16, usize)> = Vec::new();
        for (place, key) in (0_u32..).zip(keys) {
            let (member, lane) = self.namespace.shard(opened.uid, *key);
            let at = match open.iter().position(|(other, _)| *other == member) {
                Some(at) if groups[open[at].1].1.1 < LOOKUP_KEYS => open[at].1,
                found => {
                    groups.push((lane, ([0; LOOKUP_KEYS], 0)));
                    let last = groups.len() - 1;
                    match found {
                        Some(at) => open[at].1 = last,
                        None => open.push((member, last)),
                    }
                    last
                }
            };
            let (places, count) = &mut groups[at].1;
            places[*count] = place;
            *count += 1;
        }
        groups
    }
}
