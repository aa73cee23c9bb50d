//! Lookups: which of many keys a store has, from the front.

use std::time::{Duration, Instant};

use kvrail_ring::slot::{FLAG_CONTINUED, FLAG_DEMOTE, FLAG_FETCH, FLAG_TOUCH, LOOKUP_KEYS};
use kvrail_ring::{Opcode, Status, keys_slot};
use kvrail_store::{Chain, HOLD_MS_MAX};

use crate::answers::{KeysAnswer, KeysName};
use crate::error::ClientError;
use crate::key::BlockKey;
use crate::opened::OpenedNamespace;
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

/// What a lookup does for the blocks that it finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recency {
    /// They age as before.
    #[default]
    Kept,
    /// They count as used, as by a get, and are evicted later. Not together with a hold. Sidecars
    /// of earlier releases only look.
    Renewed,
    /// They go first, until they are used again: the session that they belong to has ended. Not
    /// together with a hold, and of writers of the namespace alone. Sidecars of earlier releases
    /// only look.
    Ended,
    /// They are to come into the sidecar's memory tier, in the background: they are needed soon.
    /// Of each member 64 blocks wait at once, further ones are left where they are; without a tier
    /// they count as used. Not together with a hold.
    Expected,
}

/// What a lookup is to do.
#[derive(Clone, Copy, Debug)]
pub struct Lookup {
    /// How far it goes.
    pub extent: LookupExtent,
    /// What is found is held so long: it is moved, not evicted. Zero holds nothing; a minute at
    /// most.
    pub hold: Duration,
    /// Whether what is found counts as used, or goes first.
    pub recency: Recency,
    /// How long it may take in all.
    pub timeout: Duration,
}

impl Default for Lookup {
    fn default() -> Self {
        let (hold, timeout) = (Duration::ZERO, Duration::from_secs(10));
        Self { extent: LookupExtent::Prefix, hold, recency: Recency::Kept, timeout }
    }
}

/// What a lookup found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Keys of the lookup.
    pub keys: usize,
    /// Keys from the first on that are all there.
    pub prefix: usize,
    /// For each key that was asked for whether it is there. May be shorter than the keys.
    pub there: Vec<bool>,
    /// Keys that are held now.
    pub held: usize,
    /// Keys that may yet turn up: recovery has not seen everything.
    pub warming: usize,
    /// For each key of the prefix the nanoseconds until it and all before it would be read; see
    /// [`Found::load_time`].
    pub load_ns: Vec<u64>,
}

impl Found {
    /// How long gets of the first `count` keys of the prefix would take if they began now: reads
    /// that are ahead of them at each drive, then their own bytes at the rate at which the drive
    /// has read lately. Drives work side by side, and beside them a core copies blocks of the
    /// memory tier. `None` as long as a drive was not measured, and from a sidecar of an earlier
    /// release.
    #[must_use]
    pub fn load_time(&self, count: usize) -> Option<Duration> {
        let Some(last) = count.min(self.prefix).checked_sub(1) else {
            return Some(Duration::ZERO);
        };
        let ns = self.load_ns.get(last).copied().filter(|ns| *ns > 0)?;
        Some(Duration::from_nanos(ns))
    }

    /// Adds what was found of the keys that follow.
    pub fn append(&mut self, next: Self) {
        if self.prefix == self.there.len() {
            self.prefix += next.prefix;
            let before_ns = self.load_ns.last().copied().unwrap_or(0);
            self.load_ns.extend(next.load_ns.iter().map(|ns| before_ns + ns));
        }
        self.keys += next.keys;
        self.there.extend(next.there);
        self.held += next.held;
        self.warming += next.warming;
    }

    /// What the store has of the chain that the lookup's keys are, for puts of what is missing.
    /// While recovery goes on nobody knows.
    #[must_use]
    pub fn chain(&self) -> Chain {
        if self.warming > 0 { Chain::Extends } else { Chain::of(self.prefix, self.keys) }
    }
}

/// Bytes that a core copies out of a memory tier in a nanosecond, and verifies. A GPU reads them
/// faster.
const COPIED_IN_A_NS: u64 = 10;

/// Keys of one member, five at a time: where each stands in the question.
type MemberKeys = ([u32; LOOKUP_KEYS], usize);

/// A lookup that goes on while its thread does something else. [`Queue::poll`], or waiting, fetches
/// its answers; [`Queue::poll_lookup`] takes them.
#[derive(Debug)]
#[must_use = "end it with `Queue::end_lookup`"]
pub struct PendingLookup {
    namespace: Namespace,
    begun: Instant,
    keys: Vec<BlockKey>,
    opcode: Opcode,
    extent: LookupExtent,
    hold_ms: u32,
    /// Of its requests.
    flags: u8,
    /// What its answers are known by.
    number: u32,
    /// With their lanes, in the order in which they are asked for.
    groups: Vec<(u16, MemberKeys)>,
    /// Keys that are in groups.
    grouped: usize,
    /// Groups that were asked for.
    sent: usize,
    /// Those that were not answered.
    left: usize,
    /// Whether a key is missing behind which nothing counts.
    is_cut: bool,
    found: Found,
    /// Of each group that was answered the device time of a read.
    reads: Vec<u32>,
    /// Of each lane the device time of what is before the first read.
    ahead: Vec<(u16, u64)>,
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
        let pending = self.begin_lookup(namespace, keys, how)?;
        self.wait_lookup(pending, how.timeout)
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
        let how = (Opcode::Release, LookupExtent::All);
        let pending = self.ask(namespace, keys, how, (0, 0))?;
        self.wait_lookup(pending, timeout).map(drop)
    }

    /// Begins a lookup, without waiting. Its timeout is the caller's to watch.
    ///
    /// # Errors
    /// As `lookup`, without `Timeout`.
    pub fn begin_lookup(
        &mut self,
        namespace: &Namespace,
        keys: &[BlockKey],
        how: &Lookup,
    ) -> Result<PendingLookup, ClientError> {
        let begun = Instant::now();
        // A prefix ends where a block is not there for certain.
        let known = match how.extent {
            LookupExtent::Prefix => &keys[..namespace.probe_known(keys)],
            LookupExtent::All => keys,
        };
        let flags = match how.recency {
            Recency::Renewed if self.touches() => FLAG_TOUCH,
            Recency::Ended if self.takes_hint() => FLAG_DEMOTE,
            Recency::Expected if self.shows_tiers() => FLAG_FETCH,
            Recency::Expected if self.touches() => FLAG_TOUCH,
            Recency::Kept | Recency::Renewed | Recency::Ended | Recency::Expected => 0,
        };
        let hold_ms = hold_ms(how.hold)?;
        if hold_ms > 0 && how.recency != Recency::Kept {
            let message = "a hold and another recency: what is held is not evicted; ask for one";
            let (status, message) = (Status::Invalid, message.to_owned());
            return Err(ClientError::Denied { what: WHAT, status, message });
        }
        let mut pending =
            self.ask(namespace, known, (Opcode::Lookup, how.extent), (hold_ms, flags))?;
        (pending.begun, pending.found.keys) = (begun, keys.len());
        Ok(pending)
    }

    fn ask(
        &mut self,
        namespace: &Namespace,
        keys: &[BlockKey],
        (opcode, extent): (Opcode, LookupExtent),
        (hold_ms, flags): (u32, u8),
    ) -> Result<PendingLookup, ClientError> {
        let number = self.open_lookup(namespace)?;
        let mut pending = PendingLookup {
            namespace: namespace.clone(),
            begun: Instant::now(),
            keys: keys.to_vec(),
            opcode,
            extent,
            hold_ms,
            flags,
            number,
            groups: Vec::with_capacity(keys.len() / LOOKUP_KEYS + 8),
            grouped: 0,
            sent: 0,
            left: 0,
            is_cut: false,
            found: Found { there: vec![false; keys.len()], ..Found::default() },
            reads: Vec::with_capacity(keys.len() / LOOKUP_KEYS + 8),
            ahead: Vec::new(),
        };
        let staged = pending.stage(self);
        self.publish();
        if let Err(error) = staged {
            self.close_lookup(number);
            return Err(error);
        }
        Ok(pending)
    }

    /// Takes the answers that were fetched, and asks for more keys, wave after wave without waiting
    /// in between. What was found, once nothing is left; it is not to be polled again then.
    ///
    /// # Errors
    /// As `lookup`, without `Timeout`.
    pub fn poll_lookup(
        &mut self,
        pending: &mut PendingLookup,
    ) -> Result<Option<Found>, ClientError> {
        while let Some(answer) = self.take_answer(pending.number) {
            pending.take(self, answer)?;
        }
        if !pending.stage(self)? {
            self.check_alive()?;
            self.publish();
            return Ok(None);
        }
        if pending.opcode == Opcode::Lookup {
            self.count_lookup(pending.begun.elapsed());
        }
        Ok(Some(pending.finish()))
    }

    /// Ends a lookup: answers that are missing are passed over. Blocks that were held meanwhile
    /// stay held.
    pub fn end_lookup(&mut self, pending: PendingLookup) {
        self.close_lookup(pending.number);
    }

    fn wait_lookup(
        &mut self,
        mut pending: PendingLookup,
        timeout: Duration,
    ) -> Result<Found, ClientError> {
        let deadline = Instant::now().checked_add(timeout); // `None` is never
        let outcome = loop {
            match self.poll_lookup(&mut pending) {
                Ok(Some(found)) => break Ok(found),
                Err(error) => break Err(error),
                Ok(None) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    break Err(ClientError::Timeout { what: WHAT, after: timeout });
                }
                Ok(None) => {}
            }
            if let Err(error) = self.wait_for_answers(deadline) {
                break Err(error);
            }
        };
        self.end_lookup(pending);
        outcome
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

impl PendingLookup {
    /// Asks for what there is room for. Whether everything was asked for and answered.
    fn stage(&mut self, queue: &mut Queue) -> Result<bool, ClientError> {
        let opened = self.namespace.opened();
        let mut room = true;
        while room
            && !self.is_cut
            && (self.sent < self.groups.len() || self.grouped < self.keys.len())
        {
            if self.sent == self.groups.len() {
                queue.publish();
                self.group(opened);
            }
            let (lane, group) = &self.groups[self.sent];
            let asked = u32::try_from(self.sent).expect("fewer keys than 2^32");
            let keys = KeysName { lookup: self.number, group: asked };
            let mut slot = self.slot(opened, group);
            if self.sent > 0 && queue.marks_continued_lookups() {
                slot.flags |= FLAG_CONTINUED;
            }
            room = queue.stage_keys(keys, *lane, slot)?;
            (self.sent, self.left) = (self.sent + usize::from(room), self.left + usize::from(room));
        }
        Ok(self.left == 0 && (room || self.is_cut))
    }

    fn take(&mut self, queue: &Queue, answer: KeysAnswer) -> Result<(), ClientError> {
        debug_assert!(self.left > 0, "each group is answered once");
        debug_assert_eq!(answer.keys.lookup, self.number, "the answer is for this lookup");
        self.left -= 1;
        let bits = self.bits(queue, answer)?;
        let (lane, (places, count)) = &self.groups[answer.keys.group as usize];
        let ones = |bits: u32| (bits & ((1 << count) - 1)).count_ones() as usize;
        let each_ns = answer.reads_ns / u32::try_from(ones(bits).max(1)).expect("a few keys");
        for (bit, place) in places[..*count].iter().enumerate() {
            self.found.there[*place as usize] = bits >> bit & 1 != 0;
        }
        self.reads.resize(self.groups.len(), 0);
        self.reads[answer.keys.group as usize] = each_ns;
        match self.ahead.iter_mut().find(|(other, _)| other == lane) {
            Some((_, ns)) => *ns = (*ns).max(u64::from(answer.ahead_ns)),
            None => self.ahead.push((*lane, u64::from(answer.ahead_ns))),
        }
        self.found.held += ones(bits >> 8);
        self.found.warming += ones(bits >> 16);
        self.is_cut |= self.extent == LookupExtent::Prefix && ones(bits) < *count;
        Ok(())
    }

    /// What was found among the keys that were asked for.
    fn finish(&mut self) -> Found {
        debug_assert_eq!(self.left, 0, "all that was asked for was answered");
        debug_assert!(self.sent <= self.groups.len(), "only groups are asked for");
        let unsent = self.groups[self.sent..].iter().map(|(_, (places, _))| places[0] as usize);
        let mut found = std::mem::take(&mut self.found);
        found.there.truncate(unsent.min().unwrap_or(self.grouped));
        found.prefix = found.there.iter().take_while(|there| **there).count();
        found.load_ns = self.load_ns(found.prefix);
        found
    }

    /// For each key of the prefix when it and all before it are read: the lanes and the memory tier
    /// work side by side. Nothing, as long as the time of a read is not known.
    fn load_ns(&mut self, prefix: usize) -> Vec<u64> {
        let Self { groups, reads, ahead, keys, namespace, .. } = self;
        let (store, uid, mut copied_bytes) = (namespace.store(), namespace.opened().uid, 0);
        // Groups of a lane are in the order of their keys, and so are the keys of a group.
        let mut ends = vec![0; prefix];
        for ((lane, (places, count)), each_ns) in groups.iter().zip(reads) {
            let done = ahead.iter_mut().find(|(other, _)| other == lane);
            let Some((_, done_ns)) = done else { continue };
            for place in places[..*count].iter().map(|place| *place as usize) {
                let Some(end) = ends.get_mut(place) else { break };
                if let Some(hot) = store.in_memory(uid, keys[place]) {
                    copied_bytes += u64::from(hot.bytes());
                    *end = copied_bytes.div_ceil(COPIED_IN_A_NS);
                    continue;
                }
                if *each_ns == 0 {
                    return Vec::new();
                }
                *done_ns += u64::from(*each_ns);
                *end = *done_ns;
            }
        }
        let mut last_ns = 0;
        for end in &mut ends {
            last_ns = last_ns.max(*end);
            *end = last_ns;
        }
        ends
    }

    /// The request for a group of keys.
    fn slot(&self, opened: OpenedNamespace, group: &MemberKeys) -> kvrail_ring::Request {
        let (places, count) = group;
        let mut lows = [0; LOOKUP_KEYS];
        for (low, place) in lows.iter_mut().zip(places) {
            *low = self.keys[*place as usize].lo();
        }
        let slot = keys_slot(self.opcode, opened.handle, self.hold_ms, &lows[..*count]);
        kvrail_ring::Request { flags: self.flags, ..slot }
    }

    fn bits(&self, queue: &Queue, answer: KeysAnswer) -> Result<u32, ClientError> {
        match answer.status {
            Status::Ok => Ok(answer.bits),
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

    /// Groups the keys of one more wave by member, five at a time.
    fn group(&mut self, opened: OpenedNamespace) {
        let (from, first) = (self.grouped, self.groups.len());
        debug_assert_eq!(self.sent, first, "waves follow each other");
        debug_assert!(from < self.keys.len(), "there are keys for one more wave");
        self.grouped = self.keys.len().min(from + WAVE_KEYS);
        for (place, key) in (from..self.grouped).zip(&self.keys[from..self.grouped]) {
            let lane = self.namespace.lane_of(opened.uid, *key);
            let open = self.groups[first..].iter_mut().rev().find(|(other, _)| *other == lane);
            let place = u32::try_from(place).expect("fewer keys than 2^32");
            match open {
                Some((_, (places, count))) if *count < LOOKUP_KEYS => {
                    places[*count] = place;
                    *count += 1;
                }
                _ => self.groups.push((lane, ([place; LOOKUP_KEYS], 1))),
            }
        }
    }
}
