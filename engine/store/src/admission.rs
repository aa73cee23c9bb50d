//! Which puts are taken: a write budget as a token bucket, and a memory of keys that were put.
//!
//! Everything is taken until the ring has been full once, and while the bucket is well filled: half
//! for the head of a chain, three quarters for its tail. Below that a key has to be put twice, and
//! when the bucket is empty nothing is taken. All that the store writes is paid from the bucket.
//! What is in flight does not wait for it: the bucket may owe what a segment takes.

use crate::config::{Budget, Geometry};
use crate::entry::{DEPTH_MAX, HITS_MAX};
use crate::index::Hash;
use crate::request::DeclineReason;

const DAY_NS: u128 = 86_400_000_000_000;
/// The bucket takes one in so many bytes of the store.
const BURST_SHARE: u64 = 20;
/// Keys of a row of the memory; one place says which of them is the oldest.
const KEYS: u16 = 31;
/// Keys remembered for each block that the store holds.
const MEMORY: u64 = 2;

/// Keys by 16 bits of their hashes, the oldest replaced first. One line of the cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Row {
    keys: [u16; KEYS as usize],
    oldest: u16,
}

/// Keys that were put lately.
#[derive(Debug)]
struct Seen(Box<[Row]>);

impl Seen {
    fn new(blocks: u64) -> Self {
        let rows = usize::try_from(rows(blocks)).expect("tables fit into memory");
        let row = Row { keys: [0; KEYS as usize], oldest: 0 };
        Self(vec![row; rows].into_boxed_slice())
    }

    /// Whether a key was put before, as far as is known. It is from now on.
    fn again(&mut self, hash: Hash) -> bool {
        let (row, key) = hash.apart(self.0.len());
        let row = &mut self.0[row];
        // No key at all is 0.
        let key = key.max(1);
        if row.keys.contains(&key) {
            return true;
        }
        row.keys[usize::from(row.oldest)] = key;
        row.oldest = (row.oldest + 1) % KEYS;
        false
    }
}

fn rows(blocks: u64) -> u64 {
    (MEMORY * blocks).div_ceil(KEYS.into()).max(1)
}

/// Bytes of RAM of the memory of a store for so many blocks.
pub(crate) fn seen_bytes(blocks: u64) -> u64 {
    rows(blocks) * size_of::<Row>() as u64
}

/// What may be written.
#[derive(Debug)]
pub(crate) struct Admission {
    budget: Budget,
    /// Bytes that the bucket has; below 0 they are owed.
    tokens: i64,
    burst: i64,
    /// Until when that was earned, and what was less than a byte then.
    earned_ns: u64,
    rest: u128,
    /// Whether everything is taken: the ring was never full.
    filling: bool,
    seen: Seen,
}

impl Admission {
    /// The bucket is empty at first: a store that is started again and again gets no more.
    pub(crate) fn new(budget: Budget, geometry: &Geometry, blocks: u64) -> Self {
        let segment = geometry.segment_bytes;
        let burst = (u64::from(geometry.segments) * segment / BURST_SHARE).max(segment);
        Self {
            budget,
            tokens: 0,
            burst: i64::try_from(burst).unwrap_or(i64::MAX),
            earned_ns: 0,
            rest: 0,
            filling: true,
            seen: Seen::new(blocks),
        }
    }

    /// The store starts: time before that earns nothing.
    pub(crate) fn start(&mut self, now_ns: u64) {
        self.earned_ns = now_ns;
    }

    /// From now on another budget holds. What the bucket has stays.
    pub(crate) fn set_budget(&mut self, budget: Budget, now_ns: u64) {
        self.earn(now_ns);
        self.budget = budget;
    }

    pub(crate) fn budget(&self) -> Budget {
        self.budget
    }

    /// Bytes that the bucket has; below 0 they are owed.
    pub(crate) fn tokens(&self) -> i64 {
        self.tokens
    }

    /// The ring is full: from now on the budget counts.
    pub(crate) fn ring_is_full(&mut self) {
        self.filling = false;
    }

    /// Fills the bucket with what the time since then allows.
    pub(crate) fn earn(&mut self, now_ns: u64) {
        let since = now_ns.saturating_sub(self.earned_ns);
        self.earned_ns += since;
        let Budget::BytesPerDay(bytes) = self.budget else { return };
        let earned = u128::from(bytes) * u128::from(since) + self.rest;
        self.rest = earned % DAY_NS;
        let earned = i64::try_from(earned / DAY_NS).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_add(earned).min(self.burst);
    }

    /// Whether a block may be put; `spend` pays for it.
    pub(crate) fn admit(
        &mut self,
        hash: Hash,
        depth: u16,
        now_ns: u64,
    ) -> Result<(), DeclineReason> {
        if self.budget == Budget::Unlimited {
            return Ok(());
        }
        self.earn(now_ns);
        // Keys that are taken are remembered too: their blocks may be evicted soon.
        let again = self.seen.again(hash);
        if self.filling || self.tokens > self.enough(depth) {
            Ok(())
        } else if self.tokens <= 0 {
            Err(DeclineReason::Budget)
        } else if again {
            Ok(())
        } else {
            Err(DeclineReason::FirstSight)
        }
    }

    /// Tokens above which a block is taken at first sight. A tail without its head is worth
    /// nothing, a head without its tail is: heads may use what tails must leave.
    fn enough(&self, depth: u16) -> i64 {
        let depth = i64::from(depth.min(DEPTH_MAX.into()));
        self.burst / 2 + self.burst / 4 * depth / i64::from(DEPTH_MAX)
    }

    /// Hits that a block needs to be moved. One is enough where blocks at first sight are taken;
    /// else it must be worth more than a key at second sight. When the bucket owes something only
    /// held blocks move: segments full of hot blocks would owe more and more.
    pub(crate) fn hits_to_move(&self) -> u8 {
        let unlimited = self.budget == Budget::Unlimited || self.filling;
        if unlimited || self.tokens > self.enough(DEPTH_MAX.into()) {
            1
        } else if self.tokens > 0 {
            2
        } else {
            HITS_MAX + 1
        }
    }

    /// Bytes are written.
    pub(crate) fn spend(&mut self, bytes: u64) {
        if self.budget != Budget::Unlimited && !self.filling {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            self.tokens = self.tokens.saturating_sub(bytes);
        }
    }
}
