//! Latencies: their buckets, and those that a client counts for its sidecar.
//!
//! A client counts its calls, from call to answer, in memory that its sidecar has given it, and the
//! sidecar adds up what has come. Gets without a request are counted by namespace too. Only
//! statistics rest on it: a client that writes nonsense there is shown with nonsense.

use std::sync::Arc;

use kvrail_memory::Pinned;

use crate::limits::HANDLES_MAX;
use crate::shm::ShmTable;
use crate::sync::Ordering;

/// Buckets of a latency histogram: four to each power of two from 256 ns (bucket 0 is all below)
/// to 2^36 ns, about 69 s.
pub const LATENCY_BUCKETS: usize = 4 * 28 + 1;

/// The bucket of a latency.
#[inline]
#[must_use]
pub fn latency_bucket(ns: u64) -> usize {
    if ns < 256 {
        return 0;
    }
    let power = ns.ilog2();
    let quarter = (ns >> (power - 2)) & 3;
    let bucket = 1 + (u64::from(power) - 8) * 4 + quarter;
    usize::try_from(bucket).expect("a u64 has 64 powers").min(LATENCY_BUCKETS - 1)
}

/// Upper bound of a bucket, in nanoseconds; of the last one, which has none, its lower bound and a
/// quarter.
#[must_use]
pub fn latency_upper_ns(bucket: usize) -> u64 {
    if bucket == 0 {
        return 256;
    }
    let (power, quarter) = (8 + (bucket - 1) / 4, (bucket - 1) % 4);
    (5 + quarter as u64) << (power - 2)
}

/// Size of the block of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSize {
    /// At most 64 KiB.
    Small,
    /// At most 1 MiB.
    Medium,
    /// More.
    Large,
}

impl BlockSize {
    /// The class of a block of this length.
    #[must_use]
    pub const fn of(bytes: u64) -> Self {
        match bytes {
            0..=0x1_0000 => Self::Small,
            0x1_0001..=0x10_0000 => Self::Medium,
            _ => Self::Large,
        }
    }

    /// As reports and metrics have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "<=64KiB",
            Self::Medium => "<=1MiB",
            Self::Large => ">1MiB",
        }
    }
}

/// A call of a program that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedCall {
    /// A get that ended OK.
    Get(BlockSize),
    /// A put that ended OK.
    Put(BlockSize),
    /// A lookup, whatever it found.
    Lookup,
    /// A get that a memory tier has served, without a request.
    GetFromMemory,
}

impl TimedCall {
    /// All, in the order of their counts.
    pub const ALL: [Self; 8] = [
        Self::Get(BlockSize::Small),
        Self::Get(BlockSize::Medium),
        Self::Get(BlockSize::Large),
        Self::Put(BlockSize::Small),
        Self::Put(BlockSize::Medium),
        Self::Put(BlockSize::Large),
        Self::Lookup,
        Self::GetFromMemory,
    ];

    /// Its place in `ALL`.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Get(size) => size as usize,
            Self::Put(size) => 3 + size as usize,
            Self::Lookup => 6,
            Self::GetFromMemory => 7,
        }
    }

    /// As reports and metrics have it: `get`, `put`, `lookup` or `get_from_memory`.
    #[must_use]
    pub const fn operation(self) -> &'static str {
        match self {
            Self::Get(_) => "get",
            Self::Put(_) => "put",
            Self::Lookup => "lookup",
            Self::GetFromMemory => "get_from_memory",
        }
    }

    /// The class of its block's size; `any` of a lookup.
    #[must_use]
    pub const fn size(self) -> &'static str {
        match self {
            Self::Get(size) | Self::Put(size) => size.name(),
            Self::Lookup | Self::GetFromMemory => "any",
        }
    }
}

/// Words of a call: its buckets, and the two halves of the sum of its latencies. Buckets come
/// round: a reader adds up differences.
const CALL_WORDS: usize = LATENCY_BUCKETS + 2;

/// Bytes that latencies take: all that earlier sidecars give.
const LATENCIES_BYTES: usize = 4096;
const _: () = assert!(TimedCall::ALL.len() * CALL_WORDS * 4 <= LATENCIES_BYTES);

/// The first word of the gets from memory by handle: behind the latencies.
const HITS_AT: usize = LATENCIES_BYTES / 4;
/// Bytes that all counts take.
pub const CALL_COUNTS_BYTES: usize = 8192;
const _: () = assert!(LATENCIES_BYTES + HANDLES_MAX * 4 <= CALL_COUNTS_BYTES);

/// The client's end of the counts.
#[derive(Debug)]
pub struct CallCounts {
    words: ShmTable,
    /// The sidecar is of a release that has room for them.
    counts_hits: bool,
}

impl CallCounts {
    /// Counts in memory that is zero; nothing where it is too small for latencies.
    #[must_use]
    pub fn new(memory: &Arc<dyn Pinned>) -> Option<Self> {
        let counts_hits = memory.bytes() >= CALL_COUNTS_BYTES;
        let has_room = memory.bytes() >= LATENCIES_BYTES;
        has_room.then(|| Self { words: ShmTable::at(memory), counts_hits })
    }

    /// Counts a get from memory, of the namespace with this handle.
    #[inline]
    pub fn count_hit(&self, handle: u16) {
        if self.counts_hits && usize::from(handle) < HANDLES_MAX {
            // As for buckets.
            self.words.word(HITS_AT + usize::from(handle)).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a call that took `ns` nanoseconds.
    #[inline]
    pub fn count(&self, call: TimedCall, ns: u64) {
        let first = call.index() * CALL_WORDS;
        // Statistics order nothing; several threads of the client count.
        self.words.word(first + latency_bucket(ns)).fetch_add(1, Ordering::Relaxed);
        let [low, high] =
            [LATENCY_BUCKETS, LATENCY_BUCKETS + 1].map(|half| self.words.word(first + half));
        let (more, whole) = halves(ns);
        let carry = low.fetch_add(more, Ordering::Relaxed).checked_add(more).is_none();
        let more = whole.wrapping_add(carry.into());
        if more > 0 {
            high.fetch_add(more, Ordering::Relaxed);
        }
    }
}

/// The sidecar's end of the counts.
#[derive(Debug)]
pub struct CallCountsReader {
    counts: ShmTable,
    seen: Vec<u32>,
    seen_hits: Vec<u32>,
    seen_ns: [u64; TimedCall::ALL.len()],
}

/// Latencies of one call that have come since the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLatencies {
    /// The call.
    pub call: TimedCall,
    /// How many, by bucket.
    pub counts: Vec<u32>,
    /// All of them together, in nanoseconds.
    pub sum_ns: u64,
}

impl CallCountsReader {
    /// Counts in memory that is zero and no client has yet.
    ///
    /// # Panics
    /// If the memory has fewer than [`CALL_COUNTS_BYTES`].
    #[must_use]
    pub fn new(memory: &Arc<dyn Pinned>) -> Self {
        assert!(memory.bytes() >= CALL_COUNTS_BYTES, "room for all counts");
        let seen = vec![0; TimedCall::ALL.len() * CALL_WORDS];
        let seen_ns = [0; TimedCall::ALL.len()];
        let seen_hits = vec![0; HANDLES_MAX];
        Self { counts: ShmTable::at(memory), seen, seen_hits, seen_ns }
    }

    /// Gets from memory that have come since the last time, by the handles of their namespaces:
    /// those that have some.
    pub fn take_hits(&mut self) -> impl Iterator<Item = (u16, u32)> {
        (0_u16..).zip(&mut self.seen_hits).filter_map(|(handle, seen)| {
            let now = new_of(&self.counts, HITS_AT + usize::from(handle), seen);
            (now > 0).then_some((handle, now))
        })
    }

    /// What has come since the last time: the calls that have something.
    pub fn take(&mut self) -> impl Iterator<Item = NewLatencies> {
        TimedCall::ALL.into_iter().filter_map(|call| {
            let first = call.index() * CALL_WORDS;
            let buckets = first..first + LATENCY_BUCKETS;
            let new = |word| new_of(&self.counts, word, &mut self.seen[word]);
            let counts = buckets.map(new).collect();
            let news = NewLatencies { call, counts, sum_ns: self.come_ns(call) };
            (news.sum_ns > 0 || news.counts.iter().any(|count| *count > 0)).then_some(news)
        })
    }

    /// A sum that is smaller than before is seen between the writes of its halves, or is nonsense:
    /// the next look decides.
    fn come_ns(&mut self, call: TimedCall) -> u64 {
        let first = call.index() * CALL_WORDS + LATENCY_BUCKETS;
        // As for buckets.
        let [low, high] =
            [first, first + 1].map(|word| self.counts.word(word).load(Ordering::Relaxed));
        let (now_ns, seen_ns) =
            (u64::from(high) << 32 | u64::from(low), &mut self.seen_ns[call.index()]);
        let Some(come_ns) = now_ns.checked_sub(*seen_ns) else { return 0 };
        *seen_ns = now_ns;
        come_ns
    }
}

/// By how much a word has risen since it was `seen`.
fn new_of(counts: &ShmTable, word: usize, seen: &mut u32) -> u32 {
    let now = counts.word(word).load(Ordering::Relaxed); // a statistic orders nothing
    now.wrapping_sub(std::mem::replace(seen, now))
}

/// The low and the high half of a number.
fn halves(number: u64) -> (u32, u32) {
    let [low, high] = [number, number >> 32]
        .map(|half| u32::try_from(half & u64::from(u32::MAX)).expect("32 bits"));
    (low, high)
}

#[cfg(test)]
mod tests {
    use kvrail_memory::HeapBlock;

    use super::*;

    fn shared() -> (CallCounts, CallCountsReader) {
        let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(CALL_COUNTS_BYTES));
        (CallCounts::new(&memory).unwrap(), CallCountsReader::new(&memory))
    }

    #[test]
    fn gets_from_memory_are_taken_once_by_namespace() {
        let (counts, mut reader) = shared();
        [0, 255, 255, 256, u16::MAX].into_iter().for_each(|handle| counts.count_hit(handle));
        assert_eq!(reader.take_hits().collect::<Vec<_>>(), [(0, 1), (255, 2)]);
        assert_eq!(reader.take().count(), 0, "latencies lie elsewhere");
        counts.count_hit(255);
        assert_eq!(reader.take_hits().collect::<Vec<_>>(), [(255, 1)]);
        assert_eq!(reader.take_hits().count(), 0);
    }

    #[test]
    fn memory_of_an_earlier_sidecar_has_latencies_alone() {
        let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(LATENCIES_BYTES));
        let counts = CallCounts::new(&memory).unwrap();
        assert!(!counts.counts_hits);
        counts.count(TimedCall::Lookup, 1);
        counts.count_hit(0); // it would lie behind the memory
    }

    #[test]
    fn a_bucket_holds_what_its_bounds_say() {
        for ns in [0, 1, 255, 256, 319, 320, 1000, 4095, 4096, 1 << 30, (1 << 36) - 1] {
            let bucket = latency_bucket(ns);
            assert!(ns < latency_upper_ns(bucket), "{ns}");
            assert!(bucket == 0 || ns >= latency_upper_ns(bucket - 1), "{ns}");
        }
        assert_eq!(latency_bucket(u64::MAX), LATENCY_BUCKETS - 1);
    }

    #[test]
    fn calls_stand_where_their_index_says() {
        for (index, call) in TimedCall::ALL.into_iter().enumerate() {
            assert_eq!(call.index(), index);
        }
        let sizes = [0, 64 << 10, (64 << 10) + 1, 1 << 20, (1 << 20) + 1].map(BlockSize::of);
        let [small, medium, large] = [BlockSize::Small, BlockSize::Medium, BlockSize::Large];
        assert_eq!(sizes, [small, small, medium, medium, large]);
    }

    #[test]
    fn what_a_client_counts_is_taken_once() {
        let (counts, mut reader) = shared();
        let get = TimedCall::Get(BlockSize::Medium);
        counts.count(get, 100_000);
        counts.count(get, 100_000);
        counts.count(TimedCall::Lookup, u64::MAX);
        let taken: Vec<_> = reader.take().collect();
        assert_eq!(taken.len(), 2);
        assert_eq!((taken[0].call, taken[0].counts[latency_bucket(100_000)]), (get, 2));
        assert_eq!(taken[0].sum_ns, 200_000);
        assert_eq!((taken[1].call, taken[1].counts[LATENCY_BUCKETS - 1]), (TimedCall::Lookup, 1));
        assert_eq!(reader.take().count(), 0);
        counts.count(get, 0);
        assert_eq!(reader.take().map(|news| news.counts[0]).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_sum_of_hours_within_one_look_is_whole() {
        let (counts, mut reader) = shared();
        let hour_ns = 3_600_000_000_000;
        (0..5).for_each(|_| counts.count(TimedCall::Lookup, hour_ns));
        assert_eq!(reader.take().map(|news| news.sum_ns).collect::<Vec<_>>(), [5 * hour_ns]);
        counts.count(TimedCall::Lookup, (1 << 32) - 1);
        counts.count(TimedCall::Lookup, 1);
        assert_eq!(reader.take().map(|news| news.sum_ns).collect::<Vec<_>>(), [1 << 32]);
    }
}
