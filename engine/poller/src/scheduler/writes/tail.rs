//! The slowest of a hundred reads, whatever their lengths.

/// Bytes that a read's fixed time counts as: 4 KiB and 1 MiB are compared by what they take for
/// each byte and this.
const FIXED_BYTES: u64 = 64 << 10;
/// Buckets: eight to each power of two, from 2^10 ns to 2^34 ns.
const BUCKETS: usize = 8 * 24;
const POWER_FIRST: u32 = 10;
/// Reads after which all that were seen count half.
const SEEN_MAX: u32 = 1024;

/// What reads took, for each `FIXED_BYTES`.
#[derive(Debug)]
pub(super) struct Tail {
    buckets: [u32; BUCKETS],
    seen: u32,
    /// Upper bound of what all but one in a hundred took; none until somebody asks again. Finding
    /// it takes longer than counting a read.
    p99_ns: Option<u64>,
}

impl Default for Tail {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], seen: 0, p99_ns: None }
    }
}

impl Tail {
    /// Counts reads of so many bytes each.
    pub(super) fn count(&mut self, took_ns: u64, bytes: u64, count: u32) {
        let each_ns = took_ns.saturating_mul(FIXED_BYTES) / (bytes + FIXED_BYTES);
        self.buckets[bucket(each_ns)] += count;
        self.seen += count;
        if self.seen >= SEEN_MAX {
            self.buckets.iter_mut().for_each(|bucket| *bucket /= 2);
            self.seen = self.buckets.iter().sum();
        }
        self.p99_ns = None;
    }

    /// How many count.
    pub(super) fn seen(&self) -> u32 {
        self.seen
    }

    /// What all but one in a hundred reads of so many bytes take.
    pub(super) fn p99_ns(&mut self, bytes: u64) -> u64 {
        let each_ns = self.p99_ns.unwrap_or_else(|| self.find());
        self.p99_ns = Some(each_ns);
        each_ns.saturating_mul(bytes + FIXED_BYTES) / FIXED_BYTES
    }

    fn find(&self) -> u64 {
        let mut above = self.seen / 100;
        let slowest = (0..BUCKETS).rev().find(|&bucket| {
            let here = self.buckets[bucket];
            let found = here > above;
            above = above.saturating_sub(here);
            found
        });
        slowest.map_or(0, upper_ns)
    }
}

fn bucket(ns: u64) -> usize {
    let power = ns.max(1 << POWER_FIRST).ilog2();
    let eighth = (ns.max(1 << POWER_FIRST) >> (power - 3)) & 7;
    let bucket = u64::from(power - POWER_FIRST) * 8 + eighth;
    usize::try_from(bucket).expect("a u64 has 64 powers").min(BUCKETS - 1)
}

fn upper_ns(bucket: usize) -> u64 {
    let (power, eighth) = (bucket / 8 + POWER_FIRST as usize, bucket as u64 % 8);
    (9 + eighth) << (power - 3)
}
