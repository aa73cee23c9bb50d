//! A page of the summary: records of variable length, each with its metadata.

use std::mem::{offset_of, size_of};

use kvrail_units::METADATA_BYTES_MAX;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::PAGE_BYTES;
use super::seal::{SEAL_BYTES, is_whole, seal};
use crate::hint::{Hint, Priority};
use crate::key::Key;

const MAGIC: [u8; 8] = *b"kvr-page";
const HEADER_BYTES: usize = 72;
const RECORD_BYTES: usize = 56;
/// Records and their metadata begin at multiples of this.
const GRAIN: usize = 8;

/// Bytes of a page that no record has.
const PAGE_OVERHEAD: usize = HEADER_BYTES + SEAL_BYTES;

/// Most records of a page.
pub const RECORDS_MAX: usize = (PAGE_BYTES - PAGE_OVERHEAD) / RECORD_BYTES;

// A page takes any record.
const _: () = assert!(RECORD_BYTES + METADATA_BYTES_MAX <= PAGE_BYTES - PAGE_OVERHEAD);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct HeaderImage {
    magic: [u8; 8],
    instance: [u8; 16],
    epoch: U64,
    sequence: U64,
    drops_before: U64,
    drops_durable: U64,
    segment: U32,
    index: U32,
    count: U16,
    used: U16,
    drops: U16,
    pool: U16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RecordImage {
    key: [u8; 16],
    uid: U64,
    check: U64,
    offset: U32,
    length: U32,
    time: U32,
    depth: U16,
    kind: u8,
    priority: u8,
    metadata: U16,
    reserved: [u8; 2],
    until: U32,
}

const _: () = assert!(size_of::<HeaderImage>() == HEADER_BYTES);
const _: () = assert!(offset_of!(HeaderImage, segment) == 56);
const _: () = assert!(size_of::<RecordImage>() == RECORD_BYTES);
const _: () =
    assert!(offset_of!(RecordImage, offset) == 32 && offset_of!(RecordImage, until) == 52);

/// The meaning of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// A block was put, or moved here.
    Put,
    /// A key was dropped: puts of it in segments of an epoch up to `check` do not count, nor do
    /// those before this record in its own segment.
    Drop,
    /// Drops numbered `key.lo .. key.hi` were lost before they were durable: their absence is no
    /// damage. A record with key 0 has no meaning.
    Gap,
}

/// One record, without its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: Key,
    pub(crate) uid: u64,
    /// Of a block; of a drop the epoch of the segment that the drop was made in.
    pub(crate) check: u64,
    /// Where the block begins, in 512-byte units from the segment's first byte.
    pub(crate) offset: u32,
    /// Exact bytes of the block.
    pub(crate) length: u32,
    /// Seconds since 1970 when it was put.
    pub(crate) time: u32,
    /// 16 bits, as a word: a narrow field that is written here and read as a part of a wider load
    /// there halves the speed of recovery.
    pub(crate) depth: u32,
    pub(crate) kind: RecordKind,
    pub(crate) hint: Hint,
}

impl Record {
    /// The record of a drop, or another that belongs to no block.
    pub(crate) fn plain(kind: RecordKind, key: Key, uid: u64, time: u32) -> Self {
        let (check, offset, length, depth, hint) = (0, 0, 0, 0, Hint::default());
        Self { key, uid, check, offset, length, time, depth, kind, hint }
    }

    /// A record without meaning: it only causes its page to be written.
    pub(crate) fn mark(time: u32) -> Self {
        Self::plain(RecordKind::Gap, Key::default(), 0, time)
    }
}

/// Fields at the front of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageHeader {
    pub(crate) epoch: u64,
    /// Records of the store's life before this page was begun.
    pub(crate) sequence: u64,
    /// Drops of the pool's life in all its pages before this one.
    pub(crate) drops_before: u64,
    /// Drops of the pool's life that were durable when the page was written.
    pub(crate) drops_durable: u64,
    pub(crate) segment: u32,
    /// 0 is the page right before the head; pages grow towards lower addresses.
    pub(crate) index: u32,
    /// That of the segment's head.
    pub(crate) pool: u8,
}

/// One page in memory, filled record by record or read back.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    bytes: Box<[u8]>,
    count: u16,
    used: u16,
    drops: u16,
    gaps: u16,
}

impl Page {
    pub(crate) fn new() -> Self {
        let bytes = vec![0; PAGE_BYTES].into_boxed_slice();
        Self { bytes, count: 0, used: 0, drops: 0, gaps: 0 }
    }

    /// Whether the page's numbers of drops count.
    pub(crate) fn has_drops(&self) -> bool {
        self.drops + self.gaps > 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn drops(&self) -> u16 {
        self.drops
    }

    /// Records in the page.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    pub(crate) fn clear(&mut self) {
        (self.count, self.used, self.drops, self.gaps) = (0, 0, 0, 0);
    }

    /// Whether a record with that much metadata still fits.
    pub(crate) fn fits(&self, metadata: usize) -> bool {
        usize::from(self.used) + record_bytes(metadata) <= PAGE_BYTES - PAGE_OVERHEAD
    }

    /// Appends a record that `fits`.
    pub(crate) fn append(&mut self, record: &Record, metadata: &[u8]) {
        let image = RecordImage {
            key: record.key.bits().to_le_bytes(),
            uid: record.uid.into(),
            check: record.check.into(),
            offset: record.offset.into(),
            length: record.length.into(),
            time: record.time.into(),
            depth: u16::try_from(record.depth).unwrap_or(u16::MAX).into(),
            kind: match record.kind {
                RecordKind::Put => 1,
                RecordKind::Drop => 2,
                RecordKind::Gap => 3,
            },
            priority: record.hint.priority.number(),
            metadata: short(metadata.len()),
            reserved: [0; 2],
            until: record.hint.until.into(),
        };
        assert!(self.fits(metadata.len()), "the caller checked that it fits");
        let begin = HEADER_BYTES + usize::from(self.used);
        let body = begin + RECORD_BYTES;
        let end = begin + record_bytes(metadata.len());
        self.bytes[begin..body].copy_from_slice(image.as_bytes());
        self.bytes[body..body + metadata.len()].copy_from_slice(metadata);
        self.bytes[body + metadata.len()..end].fill(0);
        self.used = short(end - HEADER_BYTES).get();
        self.count += 1;
        self.drops += u16::from(record.kind == RecordKind::Drop);
        let gap = record.kind == RecordKind::Gap && record.key != Key::default();
        self.gaps += u16::from(gap);
    }

    /// The page as it goes to the medium.
    pub(crate) fn encode(&mut self, header: &PageHeader, instance: u128) -> &[u8] {
        let image = HeaderImage {
            magic: MAGIC,
            instance: instance.to_le_bytes(),
            epoch: header.epoch.into(),
            sequence: header.sequence.into(),
            drops_before: header.drops_before.into(),
            drops_durable: header.drops_durable.into(),
            segment: header.segment.into(),
            index: header.index.into(),
            count: self.count.into(),
            used: self.used.into(),
            drops: self.drops.into(),
            pool: u16::from(header.pool).into(),
        };
        self.bytes[..HEADER_BYTES].copy_from_slice(image.as_bytes());
        self.bytes[HEADER_BYTES + usize::from(self.used)..].fill(0);
        seal(&mut self.bytes);
        &self.bytes
    }

    /// Buffer for a page that is read back; `decode` checks the bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.clear();
        &mut self.bytes
    }

    /// Becomes what another page is now, as far as its records.
    pub(crate) fn copy(&mut self, other: &Self) {
        let end = HEADER_BYTES + usize::from(other.used);
        self.bytes[..end].copy_from_slice(&other.bytes[..end]);
        (self.count, self.used) = (other.count, other.used);
        (self.drops, self.gaps) = (other.drops, other.gaps);
    }

    /// The page in the bytes, if they are page `index` of that segment's life.
    pub(crate) fn decode(
        &mut self,
        instance: u128,
        epoch: u64,
        segment: u32,
        index: u32,
    ) -> Option<PageHeader> {
        self.clear();
        let (image, _) = HeaderImage::ref_from_prefix(&self.bytes).ok()?;
        let ours = image.magic == MAGIC
            && image.instance == instance.to_le_bytes()
            && image.epoch.get() == epoch
            && image.segment.get() == segment
            && image.index.get() == index
            && usize::from(image.used.get()) <= PAGE_BYTES - PAGE_OVERHEAD
            && is_whole(&self.bytes);
        if !ours {
            return None;
        }
        let header = PageHeader {
            epoch,
            sequence: image.sequence.get(),
            drops_before: image.drops_before.get(),
            drops_durable: image.drops_durable.get(),
            segment,
            index,
            pool: u8::try_from(image.pool.get()).ok()?,
        };
        (self.count, self.used, self.drops) =
            (image.count.get(), image.used.get(), image.drops.get());
        Some(header)
    }

    /// The record at a position in bytes, its metadata, and the position of the next one. Nothing
    /// behind the last one, and where the bytes make no record.
    #[inline(always)]
    pub(crate) fn record(&self, at: u16) -> Option<(Record, &[u8], u16)> {
        if at >= self.used {
            return None;
        }
        let all = &self.bytes[HEADER_BYTES..HEADER_BYTES + usize::from(self.used)];
        let (image, rest) = RecordImage::ref_from_prefix(all.get(usize::from(at)..)?).ok()?;
        let metadata = rest.get(..usize::from(image.metadata.get()))?;
        let kind = match image.kind {
            1 => RecordKind::Put,
            2 => RecordKind::Drop,
            3 => RecordKind::Gap,
            _ => return None,
        };
        let record = Record {
            key: Key::new(u128::from_le_bytes(image.key)),
            uid: image.uid.get(),
            check: image.check.get(),
            offset: image.offset.get(),
            length: image.length.get(),
            time: image.time.get(),
            depth: image.depth.get().into(),
            kind,
            hint: Hint { priority: Priority::of(image.priority), until: image.until.get() },
        };
        Some((record, metadata, at + short(record_bytes(metadata.len())).get()))
    }
}

fn record_bytes(metadata: usize) -> usize {
    RECORD_BYTES + metadata.next_multiple_of(GRAIN)
}

fn short(length: usize) -> U16 {
    U16::new(u16::try_from(length).expect("a page has 4096 bytes"))
}

#[cfg(test)]
mod tests {
    use super::{Hint, PAGE_BYTES, Page, PageHeader, Priority, Record, RecordKind};
    use crate::key::Key;

    fn record(lo: u64, kind: RecordKind) -> Record {
        Record {
            key: Key::of(7, lo),
            uid: 5,
            check: !lo,
            offset: 8,
            length: 1 << 27,
            time: 3,
            depth: 9,
            kind,
            hint: Hint { priority: Priority::High, until: 7 },
        }
    }

    fn header() -> PageHeader {
        PageHeader {
            epoch: 1 << 60,
            sequence: 1,
            drops_before: 2,
            drops_durable: 1,
            segment: 3,
            index: 4,
            pool: 7,
        }
    }

    #[test]
    fn records_come_back_with_their_metadata() {
        let mut page = Page::new();
        let lengths = [0, 1, 8, 1024, 1000, 63];
        for (lo, length) in (0..).zip(lengths) {
            assert!(page.fits(length));
            page.append(&record(lo, RecordKind::Put), &vec![b'm'; length]);
        }
        page.append(&record(99, RecordKind::Drop), &[]);
        let bytes = page.encode(&header(), 11).to_vec();
        let mut back = Page::new();
        back.bytes_mut().copy_from_slice(&bytes);
        assert_eq!(back.decode(11, 1 << 60, 3, 4), Some(header()));
        let (mut at, mut seen) = (0, Vec::new());
        while let Some((found, metadata, next)) = back.record(at) {
            seen.push((found.key.lo(), metadata.len()));
            at = next;
        }
        assert_eq!(seen, [(0, 0), (1, 1), (2, 8), (3, 1024), (4, 1000), (5, 63), (99, 0)]);
        assert_eq!((back.count(), back.drops()), (7, 1));
        for (instance, epoch, segment, index) in
            [(10, 1 << 60, 3, 4), (11, 1, 3, 4), (11, 1 << 60, 2, 4), (11, 1 << 60, 3, 5)]
        {
            back.bytes_mut().copy_from_slice(&bytes);
            assert_eq!(back.decode(instance, epoch, segment, index), None);
        }
    }

    #[test]
    fn a_page_takes_71_records_without_metadata_and_3_with_most() {
        let mut page = Page::new();
        while page.fits(0) {
            page.append(&record(1, RecordKind::Put), &[]);
        }
        assert_eq!(page.count(), 71);
        page.clear();
        while page.fits(1024) {
            page.append(&record(1, RecordKind::Put), &[1; 1024]);
        }
        assert_eq!(page.count(), 3);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut page = Page::new();
        page.append(&record(1, RecordKind::Put), &[1; 9]);
        let mut bytes = page.encode(&header(), 11).to_vec();
        for bit in 0..PAGE_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            page.bytes_mut().copy_from_slice(&bytes);
            assert_eq!(page.decode(11, 1 << 60, 3, 4), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
