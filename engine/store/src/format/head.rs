//! The head of a segment: which life of the segment the pages before it belong to.

use std::mem::{offset_of, size_of};

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::PAGE_BYTES;
use super::seal::{is_whole, seal};
use super::superblock::POOLS_MAX;
use crate::ledger::{LEDGER_MAX, Ledger};

const MAGIC: [u8; 8] = *b"kvr-head";

const LEDGERS_BYTES: usize = 2 * 16 * LEDGER_MAX;
const RESERVED: usize = PAGE_BYTES - 72 - 16 * (POOLS_MAX - 1) - 8 - LEDGERS_BYTES;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct HeadLayout {
    magic: [u8; 8],
    instance: [u8; 16],
    epoch: U64,
    floor: U64,
    drops: U64,
    segment: U32,
    time: U32,
    pool: U32,
    spare: U32,
    floors: [U64; POOLS_MAX - 1],
    drops_of: [U64; POOLS_MAX - 1],
    second: U32,
    ranges: [U16; 2],
    ledgers: [[[U64; 2]; LEDGER_MAX]; 2],
    reserved: [u8; RESERVED],
    crc: U64,
}

const _: () =
    assert!(size_of::<HeadLayout>() == PAGE_BYTES && offset_of!(HeadLayout, segment) == 48);
const _: () =
    assert!(offset_of!(HeadLayout, floors) == 64 && offset_of!(HeadLayout, drops_of) == 184);
const _: () =
    assert!(offset_of!(HeadLayout, second) == 304 && offset_of!(HeadLayout, ledgers) == 312);

/// Fields of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Which life of the segment: grows by one with each opening of any segment.
    pub(crate) epoch: u64,
    /// The pool that the segment belongs to in this life.
    pub(crate) pool: u8,
    /// Of each pool: segments of a lower epoch are not part of its ring any more.
    pub(crate) floors: [u64; POOLS_MAX],
    /// Of each pool: drops (counted over its life) that were durable when the head was written.
    pub(crate) drops: [u64; POOLS_MAX],
    /// Seconds since 1970 when it was written.
    pub(crate) time: u32,
    /// The pool of the second ledger.
    pub(crate) second: u8,
    /// Numbers of drops without a record: of `pool`, and of `second`.
    pub(crate) ledgers: [Ledger; 2],
}

impl Head {
    pub(crate) fn encode(&self, instance: u128, segment: u32, page: &mut [u8]) {
        let mut image = HeadLayout {
            magic: MAGIC,
            instance: instance.to_le_bytes(),
            epoch: self.epoch.into(),
            floor: self.floors[0].into(),
            drops: self.drops[0].into(),
            segment: segment.into(),
            time: self.time.into(),
            pool: u32::from(self.pool).into(),
            spare: 0.into(),
            floors: behind(&self.floors),
            drops_of: behind(&self.drops),
            second: u32::from(self.second).into(),
            ranges: self.ledgers.each_ref().map(|ledger| count(ledger).into()),
            ledgers: self.ledgers.each_ref().map(ranges),
            reserved: [0; RESERVED],
            crc: 0.into(),
        };
        seal(image.as_mut_bytes());
        page.copy_from_slice(image.as_bytes());
    }

    /// The head of this segment of this store, if the page holds one.
    pub(crate) fn decode(page: &[u8], instance: u128, segment: u32) -> Option<Self> {
        let image = HeadLayout::ref_from_bytes(page).ok()?;
        let ours = image.magic == MAGIC
            && image.instance == instance.to_le_bytes()
            && image.segment.get() == segment
            && is_whole(page);
        let known = |pool: U32| {
            let pool = u8::try_from(pool.get()).ok();
            pool.filter(|pool| ours && usize::from(*pool) < POOLS_MAX)
        };
        let (pool, second) = (known(image.pool)?, known(image.second)?);
        let ledger = |of: usize| {
            let used = image.ledgers[of].get(..image.ranges[of].get().into())?;
            Ledger::of(used.iter().map(|[from, to]| (from.get(), to.get())))
        };
        Some(Self {
            epoch: image.epoch.get(),
            pool,
            floors: with_first(image.floor, &image.floors),
            drops: with_first(image.drops, &image.drops_of),
            time: image.time.get(),
            second,
            ledgers: [ledger(0)?, ledger(1)?],
        })
    }
}

fn count(ledger: &Ledger) -> u16 {
    u16::try_from(ledger.ranges().len()).expect("at most LEDGER_MAX")
}

fn ranges(ledger: &Ledger) -> [[U64; 2]; LEDGER_MAX] {
    let known = ledger.ranges();
    let range = |at: usize| known.get(at).copied().unwrap_or_default();
    std::array::from_fn(|at| [range(at).0.into(), range(at).1.into()])
}

/// The numbers of the pools behind the first one.
fn behind(all: &[u64; POOLS_MAX]) -> [U64; POOLS_MAX - 1] {
    std::array::from_fn(|at| all[at + 1].into())
}

fn with_first(first: U64, others: &[U64; POOLS_MAX - 1]) -> [u64; POOLS_MAX] {
    std::array::from_fn(|at| at.checked_sub(1).map_or(first, |at| others[at]).get())
}

#[cfg(test)]
mod tests {
    use super::{Head, Ledger, PAGE_BYTES, POOLS_MAX};

    fn head() -> Head {
        let numbers = |first: u64| std::array::from_fn(|at| first + at as u64);
        let (floors, drops): ([u64; POOLS_MAX], _) = (numbers(3), numbers(90));
        let ledgers =
            [Ledger::of([(5, 9), (20, 21)].into_iter()), Ledger::of([(1, 2)].into_iter())];
        let ledgers = ledgers.map(|ledger| ledger.expect("ranges in order"));
        Head { epoch: u64::MAX - 1, pool: 15, floors, drops, time: 77, second: 3, ledgers }
    }

    #[test]
    fn a_head_is_taken_by_its_own_segment_and_store_only() {
        let head = head();
        let mut page = [0xee; PAGE_BYTES];
        head.encode(5, 8, &mut page);
        assert_eq!(Head::decode(&page, 5, 8), Some(head));
        assert_eq!(Head::decode(&page, 4, 8), None);
        assert_eq!(Head::decode(&page, 5, 9), None);
    }

    #[test]
    fn a_pool_that_cannot_be_is_no_head() {
        let mut page = [0; PAGE_BYTES];
        for wrong in [Head { pool: 16, ..head() }, Head { second: 16, ..head() }] {
            wrong.encode(5, 8, &mut page);
            assert_eq!(Head::decode(&page, 5, 8), None);
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut page = [0; PAGE_BYTES];
        head().encode(5, 8, &mut page);
        for bit in 0..PAGE_BYTES * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Head::decode(&page, 5, 8), None, "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
