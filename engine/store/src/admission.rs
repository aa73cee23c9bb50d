//! Which puts are taken: a write budget as a token bucket, and a memory of keys that were put.
//!
//! The store admits every put until the ring or the index has been full once, and later while the
//! bucket is well filled. Below that level a key is admitted at its second put; with an empty
//! bucket no put is admitted. The level follows from the scarcity of tokens: any token suffices for
//! a bucket that is full for as long as it is empty; a bucket that is always empty must be half
//! full for the head of a chain, and three quarters for its tail. The bucket pays every write of
//! the store. Writes in flight do not wait for the bucket: its level may be negative by one
//! segment. Each pool has its own bucket; its income follows the number of segments that the pool
//! has or may claim, whichever is larger.

use crate::config::{Budget, StoreGeometry};
use crate::format::POOLS_MAX;
use crate::index::Hash;
use crate::request::DeclineReason;

const DAY_NS: u64 = 86_400_000_000_000;
/// Parts of buckets are of this.
const WHOLE: u64 = 1 << 16;
/// Size of the bucket: the store's bytes divided by this.
const BURST_SHARE: u64 = 20;
/// Depths beyond this count alike.
const DEPTH_MAX: u16 = 15;
/// Keys in a row of the memory; one more slot of the line holds the position of the oldest key.
const KEYS: u16 = 31;
/// Keys remembered for each block that the store holds.
const MEMORY: u64 = 1;

/// Keys by 16 bits of their hashes, the oldest replaced first. One line of the cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct HashLine {
    keys: [u16; KEYS as usize],
    oldest: u16,
}

/// Keys that were put lately.
#[derive(Debug)]
struct RecentKeys(Box<[HashLine]>);

impl RecentKeys {
    fn new(blocks: u64) -> Self {
        let rows = usize::try_from(rows(blocks)).expect("tables fit into memory");
        let row = HashLine { keys: [0; KEYS as usize], oldest: 0 };
        Self(vec![row; rows].into_boxed_slice())
    }

    /// Whether a key was put before, as far as is known. It is from now on.
    fn again(&mut self, hash: Hash) -> bool {
        let (row, bits) = hash.apart(self.0.len() as u64);
        let row = &mut self.0[usize::try_from(row).expect("tables fit into memory")];
        let [.., low, high] = bits.to_le_bytes();
        // No key at all is 0.
        let key = u16::from_le_bytes([low, high]).max(1);
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

/// Bytes of RAM of the memory of a store of `blocks` blocks.
pub(crate) fn seen_bytes(blocks: u64) -> u64 {
    rows(blocks) * size_of::<HashLine>() as u64
}

/// Write tokens of one pool.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Tokens in the bucket, in bytes; negative after writes that could not wait.
    tokens: i64,
    /// Income below a whole byte.
    rest: u128,
    /// Its part of what is earned, of `WHOLE`.
    part: u64,
    /// Most bytes that it takes.
    burst: i64,
    /// How scarce tokens are, 0 to `burst`: what was earned after there were none, less what was
    /// earned beyond `burst`.
    scarcity: i64,
    /// Whether everything is taken: the pool was never full.
    filling: bool,
}

/// Write tokens: a bucket for each pool, so that no pool uses up another's tokens.
#[derive(Debug)]
pub(crate) struct WriteTokens {
    budget: Budget,
    buckets: [Bucket; POOLS_MAX],
    /// Most bytes of all buckets, and the least of one.
    burst: i64,
    least: i64,
    /// Until when they earned.
    earned_ns: u64,
    seen: RecentKeys,
}

impl WriteTokens {
    /// The buckets are empty at first: a store that is started again and again gets no more.
    pub(crate) fn new(budget: Budget, geometry: &StoreGeometry, blocks: u64) -> Self {
        let segment = geometry.segment_bytes;
        let burst = (u64::from(geometry.segments) * segment / BURST_SHARE).max(segment);
        let bucket = Bucket { tokens: 0, rest: 0, part: 0, burst: 0, scarcity: 0, filling: true };
        let mut new = Self {
            budget,
            buckets: [bucket; POOLS_MAX],
            burst: i64::try_from(burst).unwrap_or(i64::MAX),
            least: i64::try_from(segment).unwrap_or(i64::MAX),
            earned_ns: 0,
            seen: RecentKeys::new(blocks),
        };
        let mut all = [0; POOLS_MAX];
        all[0] = 1;
        new.set_shares(&all);
        new
    }

    /// The store starts: time before that earns nothing.
    pub(crate) fn start(&mut self, now_ns: u64) {
        self.earned_ns = now_ns;
    }

    /// Replaces the budget. The buckets keep their tokens.
    pub(crate) fn set_budget(&mut self, budget: Budget, now_ns: u64) {
        self.earn(now_ns);
        self.budget = budget;
    }

    pub(crate) fn budget(&self) -> Budget {
        self.budget
    }

    /// Each pool earns by the segments that it has or may claim.
    pub(crate) fn set_shares(&mut self, shares: &[u32; POOLS_MAX]) {
        let all = shares.iter().map(|share| u64::from(*share)).sum::<u64>().max(1);
        for (bucket, share) in self.buckets.iter_mut().zip(shares) {
            bucket.part = u64::from(*share) * WHOLE / all;
            let burst = i128::from(self.burst) * i128::from(bucket.part) / i128::from(WHOLE);
            let burst = i64::try_from(burst).unwrap_or(i64::MAX);
            bucket.burst = if *share == 0 { 0 } else { burst.max(self.least) };
            bucket.scarcity = bucket.scarcity.min(bucket.burst);
        }
        let parts = self.buckets.iter().map(|bucket| bucket.part).sum::<u64>();
        debug_assert!(parts <= WHOLE, "the pools earn more than the budget: {parts}");
    }

    fn bucket(&self, pool: u8) -> &Bucket {
        &self.buckets[usize::from(pool)]
    }

    /// Tokens in all buckets, in bytes; may be negative.
    pub(crate) fn tokens(&self) -> i64 {
        self.buckets.iter().fold(0, |sum, it| sum.saturating_add(it.tokens))
    }

    /// Those of a pool.
    pub(crate) fn tokens_of(&self, pool: u8) -> i64 {
        self.bucket(pool).tokens
    }

    /// A pool is full, its ring or the index: from now on the budget counts there.
    pub(crate) fn end_filling(&mut self, pool: u8) {
        self.buckets[usize::from(pool)].filling = false;
    }

    /// Whether a pool was never full.
    pub(crate) fn is_filling(&self, pool: u8) -> bool {
        self.bucket(pool).filling
    }

    /// Fills the buckets with what the time since then allows.
    pub(crate) fn earn(&mut self, now_ns: u64) {
        while self.earned_ns < now_ns {
            let since = (now_ns - self.earned_ns).min(DAY_NS);
            self.earned_ns += since;
            if let Budget::BytesPerDay(bytes) = self.budget {
                self.deal(bytes, since);
            }
        }
    }

    /// Fills the buckets with the income of up to a day. The excess of one goes to the others.
    fn deal(&mut self, bytes: u64, since: u64) {
        let day = u128::from(DAY_NS) * u128::from(WHOLE);
        let mut beyond: i64 = 0;
        for bucket in &mut self.buckets {
            let earned = u128::from(bytes) * u128::from(since) * u128::from(bucket.part);
            let earned = earned.saturating_add(bucket.rest);
            bucket.rest = earned % day;
            let earned = i64::try_from(earned / day).unwrap_or(i64::MAX);
            if bucket.tokens <= 0 {
                bucket.scarcity = bucket.scarcity.saturating_add(earned).min(bucket.burst);
            }
            let tokens = bucket.tokens.saturating_add(earned);
            bucket.tokens = tokens.min(bucket.burst);
            bucket.scarcity = (bucket.scarcity - (tokens - bucket.tokens)).max(0);
            beyond = tokens.saturating_sub(bucket.tokens).saturating_add(beyond);
        }
        let lacking = |bucket: &&mut Bucket| bucket.part > 0 && bucket.tokens < bucket.burst;
        let count = self.buckets.iter_mut().filter(lacking).count();
        for (nth, bucket) in self.buckets.iter_mut().filter(lacking).enumerate() {
            let left = i64::try_from(count - nth).expect("16 pools");
            let given = (beyond / left).min(bucket.burst - bucket.tokens);
            bucket.tokens += given;
            beyond -= given;
        }
        let full = |bucket: &Bucket| bucket.scarcity <= bucket.burst && bucket.scarcity >= 0;
        debug_assert!(self.buckets.iter().all(full), "{:?}", self.buckets);
    }

    /// A key was offered: it is not new any more.
    pub(crate) fn note(&mut self, hash: Hash) {
        if self.budget != Budget::Unlimited {
            self.seen.again(hash);
        }
    }

    /// Whether a block may be put into a pool; `spend` pays for it.
    pub(crate) fn admit(
        &mut self,
        pool: u8,
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
        let bucket = self.bucket(pool);
        if bucket.filling || bucket.tokens > bucket.enough(depth) {
            Ok(())
        } else if bucket.tokens <= 0 {
            Err(DeclineReason::Budget)
        } else if again {
            Ok(())
        } else {
            Err(DeclineReason::FirstSight)
        }
    }

    /// The age up to which a block moves, where it is worth a move up to `age`: half of that where
    /// blocks at first sight are not taken. While the bucket is below zero only held blocks
    /// move: segments full of hot blocks would take it lower and lower.
    pub(crate) fn age_to_move(&self, pool: u8, age: u64) -> u64 {
        let bucket = self.bucket(pool);
        let unlimited = self.budget == Budget::Unlimited || bucket.filling;
        if unlimited || bucket.tokens > bucket.enough(DEPTH_MAX) {
            age
        } else if bucket.tokens > 0 {
            age / 2
        } else {
            0
        }
    }

    /// Bytes are written into a pool.
    pub(crate) fn spend(&mut self, pool: u8, bytes: u64) {
        let bucket = &mut self.buckets[usize::from(pool)];
        if self.budget != Budget::Unlimited && !bucket.filling {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            bucket.tokens = bucket.tokens.saturating_sub(bytes);
        }
    }
}

impl Bucket {
    /// Tokens above which a block is taken at first sight. A tail without its head is worth
    /// nothing, a head without its tail is: heads may use what tails must leave.
    fn enough(&self, depth: u16) -> i64 {
        let depth = i64::from(depth.min(DEPTH_MAX));
        self.scarcity / 2 + self.scarcity / 4 * depth / i64::from(DEPTH_MAX)
    }
}
