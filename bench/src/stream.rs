//! Which block next, and when: seeded, so that every arm and every round sees the same.

use fastrand::Rng;

use crate::plan::{Arrivals, Case, Op};
use crate::port::{Direction, Operation};

/// The operations of one slot of one client.
///
/// The blocks of a share are dealt out to the slots, block `slot + depth * k` to slot `slot`. So
/// no two operations in flight ever meet, the version of every block is known when it is read, and
/// the order of a slot does not depend on how fast the others are.
#[derive(Clone, Debug)]
pub struct SlotStream {
    rng: Rng,
    first_offset: u64,
    stride_bytes: u64,
    blocks: u64,
    block_bytes: u32,
    op: Op,
    read_percent: u8,
}

impl SlotStream {
    /// The stream of a slot over a share of `share_bytes` bytes from `base` on.
    ///
    /// # Panics
    /// If the share has no block for the slot; the plan sees to it (`Case::span_bytes_min`).
    #[must_use]
    pub fn new(case: &Case, origin: StreamOrigin, slot: u32) -> Self {
        let block = u64::from(case.block_bytes);
        let blocks = origin.share_bytes / block / u64::from(case.depth);
        assert!(blocks > 0, "every slot owns at least one block");
        let identity = origin.base ^ (u64::from(slot) << 48);
        Self {
            rng: Rng::with_seed(origin.seed ^ identity.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            first_offset: origin.base + block * u64::from(slot),
            stride_bytes: block * u64::from(case.depth),
            blocks,
            block_bytes: case.block_bytes,
            op: case.op,
            read_percent: origin.read_percent,
        }
    }

    /// The next operation.
    pub fn next_operation(&mut self) -> Operation {
        let direction = match self.op {
            Op::Read | Op::Lookup => Direction::Read,
            Op::Write => Direction::Write,
            Op::Mixed if self.rng.u8(0..100) < self.read_percent => Direction::Read,
            Op::Mixed => Direction::Write,
        };
        let offset = self.first_offset + self.rng.u64(0..self.blocks) * self.stride_bytes;
        Operation { direction, offset, bytes: self.block_bytes }
    }
}

/// Where a client's streams come from.
#[derive(Clone, Copy, Debug)]
pub struct StreamOrigin {
    /// The seed of the whole run.
    pub seed: u64,
    /// First byte of the client's share.
    pub base: u64,
    /// Bytes of the share.
    pub share_bytes: u64,
    /// Of 100 mixed operations, how many read.
    pub read_percent: u8,
}

/// The planned starts of an open loop, in nanoseconds from its beginning.
#[derive(Clone, Debug)]
pub struct Schedule {
    rng: Rng,
    arrivals: Arrivals,
    gap_ns: f64,
    at_ns: f64,
}

impl Schedule {
    /// Starts at `per_second` on average.
    #[must_use]
    pub fn new(seed: u64, arrivals: Arrivals, per_second: f64) -> Self {
        Self { rng: Rng::with_seed(seed), arrivals, gap_ns: 1e9 / per_second, at_ns: 0.0 }
    }

    /// The next planned start.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "`as` saturates: a run would have to last 584 years"
    )]
    pub fn next_ns(&mut self) -> u64 {
        let gap = match self.arrivals {
            Arrivals::Fixed => self.gap_ns,
            // 1 - f64() is in (0, 1], so the logarithm is finite.
            Arrivals::Poisson => -(1.0 - self.rng.f64()).ln() * self.gap_ns,
        };
        self.at_ns += gap;
        self.at_ns as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{Schedule, SlotStream, StreamOrigin};
    use crate::plan::{Arrivals, Case, Op};
    use crate::port::Direction;

    const ORIGIN: StreamOrigin =
        StreamOrigin { seed: 1, base: 1 << 20, share_bytes: 101 * 4096, read_percent: 70 };

    #[test]
    fn slots_never_meet_and_stay_in_their_share() {
        let case = Case::closed(Op::Read, 4096, 8);
        let mut seen = HashSet::new();
        for slot in 0..8 {
            let mut stream = SlotStream::new(&case, ORIGIN, slot);
            let mine: HashSet<u64> = (0..500).map(|_| stream.next_operation().offset).collect();
            assert_eq!(mine.len(), 12, "all blocks of the slot come up");
            for offset in mine {
                assert!(seen.insert(offset), "offset {offset} belongs to two slots");
                assert!(offset >= ORIGIN.base && offset % 4096 == 0);
                assert!(offset + 4096 <= ORIGIN.base + ORIGIN.share_bytes);
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_operations() {
        let case = Case::closed(Op::Mixed, 4096, 4);
        let take = |seed, slot| {
            let mut stream = SlotStream::new(&case, StreamOrigin { seed, ..ORIGIN }, slot);
            (0..100).map(|_| stream.next_operation()).collect::<Vec<_>>()
        };
        assert_eq!(take(1, 2), take(1, 2));
        assert_ne!(take(1, 2), take(2, 2));
    }

    #[test]
    fn mixed_keeps_its_share_of_reads() {
        let case = Case::closed(Op::Mixed, 4096, 1);
        let mut stream = SlotStream::new(&case, ORIGIN, 0);
        let read = |_: &u32| stream.next_operation().direction == Direction::Read;
        let reads = (0..10_000).filter(read).count();
        assert!((6700..7300).contains(&reads), "{reads} of 10000");
    }

    #[test]
    fn schedules_keep_their_rate() {
        for arrivals in [Arrivals::Fixed, Arrivals::Poisson] {
            let mut schedule = Schedule::new(7, arrivals, 10_000.0);
            let times: Vec<u64> = (0..20_000).map(|_| schedule.next_ns()).collect();
            assert!(times.is_sorted());
            let seconds = *times.last().unwrap() as f64 / 1e9;
            assert!((1.9..2.1).contains(&seconds), "{arrivals:?}: {seconds} s");
        }
    }
}
