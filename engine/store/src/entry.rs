//! One entry of the index: 32 bytes for a block.

use crate::config::PLACE_BITS;
use crate::hint::{Priority, WorthClass};
use crate::key::Key;

/// Bits of the key's upper half that an entry holds; `Rest` has the others.
const HI_BITS: u32 = 32;
const LENGTH_BITS: u32 = 27;
const NUMBER_BITS: u32 = 12;

/// Namespace numbers there are.
pub(crate) const NUMBERS: u32 = 1 << NUMBER_BITS;

/// A run of bits in one of the words.
#[derive(Clone, Copy)]
struct BitField {
    word: usize,
    at: u32,
    bits: u32,
}

impl BitField {
    /// Its bits in the word.
    const fn mask(self) -> u64 {
        ((1 << self.bits) - 1) << self.at
    }
}

const PLACE: BitField = BitField { word: 2, at: 0, bits: PLACE_BITS };
const HI_LOW: BitField = BitField { word: 2, at: 40, bits: 24 };
const LENGTH: BitField = BitField { word: 3, at: 0, bits: LENGTH_BITS };
const NUMBER: BitField = BitField { word: 3, at: 27, bits: NUMBER_BITS };
const CLASS: BitField = BitField { word: 3, at: 39, bits: 2 };
const KIND: BitField = BitField { word: 3, at: 41, bits: 3 };
const STAMP: BitField = BitField { word: 3, at: 44, bits: 12 };
const HI_HIGH: BitField = BitField { word: 3, at: 56, bits: 8 };

/// The greatest stamp.
pub(crate) const STAMP_MASK: u16 = (1 << STAMP.bits) - 1;

const _: () = assert!(HI_LOW.bits + HI_HIGH.bits == HI_BITS && LENGTH_BITS == 27);

/// The meaning of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A put is writing the block; the place is the put's slot.
    Writing,
    /// The block is there.
    Live,
    /// A reader reported the block as corrupt.
    Suspect,
    /// Dropped; kept until recovery has read every older record.
    Dropped,
}

/// lo 64 | check 64 | place 40, hi 24 | length 27, number 12, class 2, kind 3, stamp 12, hi 8.
/// Aligned, so that none lies in two lines of the cache: half of them did, and the second line was
/// a miss of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(32))]
pub(crate) struct Entry([u64; 4]);

const _: () = assert!(size_of::<Entry>() == 32);

/// The bits of a key that its entry has no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rest([u8; 4]);

const _: () = assert!(u64::BITS - HI_BITS == 32);

impl Rest {
    #[inline(always)]
    pub(crate) fn of(key: Key) -> Self {
        let [.., a, b, c, d] = key.hi().to_le_bytes();
        Self([a, b, c, d])
    }
}

impl Entry {
    pub(crate) const EMPTY: Self = Self([0; 4]);

    pub(crate) fn new(key: Key, number: u16, kind: Kind) -> Self {
        let mut entry = Self([key.lo(), 0, 0, 0]);
        entry.set(HI_LOW, key.hi() & 0xff_ffff);
        entry.set(HI_HIGH, (key.hi() >> 24) & 0xff);
        entry.set(NUMBER, u64::from(number));
        entry.with_kind(kind)
    }

    /// A tombstone: puts of the key in segments up to epoch `bound` do not count. The place is 0,
    /// or in the segment with the drop's record.
    pub(crate) fn dropped(key: Key, number: u16, bound: u64, place: u64) -> Self {
        Self::new(key, number, Kind::Dropped).with_place(place).with_check(bound)
    }

    fn get(&self, field: BitField) -> u64 {
        (self.0[field.word] >> field.at) & ((1 << field.bits) - 1)
    }

    fn set(&mut self, field: BitField, value: u64) {
        let mask = (1 << field.bits) - 1;
        debug_assert!(value <= mask, "{value} in {} bits", field.bits);
        let word = &mut self.0[field.word];
        *word = *word & !(mask << field.at) | (value & mask) << field.at;
    }

    fn small(&self, field: BitField) -> u16 {
        let [low, high, ..] = self.get(field).to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.get(KIND) == 0
    }

    /// Whether this may be the entry of a key: one comparison of all that a key and its namespace
    /// decide. It is, if the rest of the key is the same.
    #[inline(always)]
    pub(crate) fn is_like(&self, key: Key, number: u16) -> bool {
        let same = Self::new(key, number, Kind::Live);
        let others = self.0[0] ^ same.0[0]
            | (self.0[2] ^ same.0[2]) & HI_LOW.mask()
            | (self.0[3] ^ same.0[3]) & (HI_HIGH.mask() | NUMBER.mask());
        others == 0
    }

    /// Whether this may be the entry of a key of which only the lower half is known.
    pub(crate) fn is_low(&self, lo: u64, number: u16) -> bool {
        self.0[0] == lo && self.get(NUMBER) == u64::from(number)
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.get(KIND) {
            1 => Kind::Writing,
            2 => Kind::Live,
            3 => Kind::Suspect,
            _ => Kind::Dropped,
        }
    }

    /// Whether the block can be read.
    pub(crate) fn is_there(&self) -> bool {
        matches!(self.kind(), Kind::Live | Kind::Suspect)
    }

    pub(crate) fn lo(&self) -> u64 {
        self.0[0]
    }

    /// Of a dropped key: the last epoch whose puts do not count.
    pub(crate) fn bound(&self) -> u64 {
        self.0[1]
    }

    pub(crate) fn check(&self) -> u64 {
        self.0[1]
    }

    /// Where the block begins, in units of the area; of one being written, the put's slot.
    pub(crate) fn place(&self) -> u64 {
        self.get(PLACE)
    }

    /// The slot of the put that is writing it.
    pub(crate) fn put(&self) -> u32 {
        u32::try_from(self.place()).expect("slots are u32")
    }

    pub(crate) fn length(&self) -> u32 {
        u32::try_from(self.get(LENGTH)).expect("27 bits") + 1
    }

    pub(crate) fn number(&self) -> u16 {
        self.small(NUMBER)
    }

    pub(crate) fn class(&self) -> WorthClass {
        match self.get(CLASS) {
            0 => WorthClass::Of(Priority::Normal),
            1 => WorthClass::Of(Priority::Low),
            2 => WorthClass::Of(Priority::High),
            _ => WorthClass::Over,
        }
    }

    /// When it was used last, as the clock gives stamps.
    pub(crate) fn stamp(&self) -> u16 {
        self.small(STAMP)
    }

    pub(crate) fn with_kind(mut self, kind: Kind) -> Self {
        let code = match kind {
            Kind::Writing => 1,
            Kind::Live => 2,
            Kind::Suspect => 3,
            Kind::Dropped => 4,
        };
        self.set(KIND, code);
        self
    }

    pub(crate) fn with_place(mut self, place: u64) -> Self {
        self.set(PLACE, place);
        self
    }

    pub(crate) fn with_check(mut self, check: u64) -> Self {
        self.0[1] = check;
        self
    }

    /// Bytes of the block, 1 to 128 MiB.
    pub(crate) fn with_length(mut self, length: u32) -> Self {
        self.set(LENGTH, u64::from(length - 1));
        self
    }

    pub(crate) fn with_class(mut self, class: WorthClass) -> Self {
        let code = match class {
            WorthClass::Of(Priority::Normal) => 0,
            WorthClass::Of(Priority::Low) => 1,
            WorthClass::Of(Priority::High) => 2,
            WorthClass::Over => 3,
        };
        self.set(CLASS, code);
        self
    }

    pub(crate) fn with_stamp(mut self, stamp: u16) -> Self {
        self.set(STAMP, stamp.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::{Entry, Kind, Priority, STAMP_MASK, WorthClass};
    use crate::config::BLOCK_BYTES_MAX;
    use crate::key::Key;

    #[test]
    fn fields_keep_apart() {
        let key = Key::of(u64::MAX, u64::MAX);
        let entry = Entry::new(key, 4095, Kind::Suspect)
            .with_place((1 << 40) - 1)
            .with_length(BLOCK_BYTES_MAX)
            .with_class(WorthClass::Over)
            .with_stamp(STAMP_MASK)
            .with_check(5);
        assert!(
            entry.is_like(key, 4095) && !entry.is_like(Key::of(u64::MAX >> 33, u64::MAX), 4095)
        );
        assert_eq!((entry.place(), entry.length()), ((1 << 40) - 1, BLOCK_BYTES_MAX));
        assert_eq!((entry.class(), entry.check()), (WorthClass::Over, 5));
        let normal = WorthClass::Of(Priority::Normal);
        let entry = entry.with_place(0).with_class(normal).with_kind(Kind::Live).with_length(1);
        assert_eq!((entry.place(), entry.length(), entry.class()), (0, 1, normal));
        assert_eq!((entry.stamp(), entry.with_stamp(0).stamp()), (STAMP_MASK, 0));
        assert!(entry.is_like(key, 4095) && entry.is_there() && !entry.is_empty());
    }
}
