//! Configuration of a store: fixed at its start, checked once.

use thiserror::Error;

use crate::format::{PAGE, PAGE_BYTES, SPACE_BYTES, SUPER_AT};

/// Most bytes of a block.
pub const BLOCK_BYTES_MAX: u32 = 128 << 20;
/// Most namespaces of a store.
pub const SPACES_MAX: u32 = 1024;
/// Fewest segments: one open, two ready, one being reclaimed, and something to keep.
pub const SEGMENTS_MIN: u32 = 6;
/// Most segments.
pub const SEGMENTS_MAX: u32 = 1 << 16;
/// Unit of places on the medium in bytes, and the least mean that a store is made for.
pub const UNIT_BYTES: u32 = 512;
/// Bits of a place in units: 512 TiB.
pub(crate) const PLACE_BITS: u32 = 40;

/// Most cells of a buffer. A store that starts reads into each cell by itself, so that a drive has
/// many reads at once.
const CELLS_OF_BUFFER: u32 = 8;
/// Fewest bytes of a cell.
const CELL_BYTES_MIN: u32 = 8 << 10;

/// Sizes of one member's store. Everything is allocated from them at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Bytes of the member behind its label.
    pub area_bytes: u64,
    /// Unit of the member's transfers: 512 to 4,096, a power of two.
    pub logical_block: u32,
    /// Bytes of a segment: 64 KiB to 16 GiB, a power of two. A block takes half of one at most.
    pub segment_bytes: u64,
    /// Expected mean of block lengths, in bytes: decides how many blocks the index takes.
    pub block_mean: u32,
    /// Namespaces.
    pub spaces: u32,
    /// Blocks being put at once; each takes 1 KiB for its metadata.
    pub puts: u32,
    /// Parts of blocks being put, and drops, that are not answered yet.
    pub writes: u32,
    /// Lookup holds in force.
    pub holds: u32,
    /// Owners of requests, numbered from 0.
    pub owners: u16,
    /// Holds of one owner.
    pub owner_holds: u32,
    /// Buffers of the store's own for moves and recovery, at least 2.
    pub buffers: u16,
    /// Bytes of such a buffer: a multiple of 8 KiB.
    pub buffer_bytes: u32,
    /// Images (pages, heads, supers, namespace slots) being written at once, and one page that is
    /// read for a listing; at least 4.
    pub images: u16,
    /// Times, in nanoseconds.
    pub times: Times,
    /// Whether whole segments are discarded before they are written again.
    pub discard: Discard,
    /// The write budget; `Store::set_budget` changes it.
    pub budget: Budget,
}

/// Limit of a store's writes, moves and its own pages included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// No limit.
    Unlimited,
    /// Bytes in 24 hours.
    BytesPerDay(u64),
}

/// Longest hold of a lookup, in milliseconds. Longer ones end then.
pub const HOLD_MS_MAX: u32 = 60_000;

/// How long things may take, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// From a page's first record to its write.
    pub page: u64,
    /// From a write to the flush that makes it durable.
    pub flush: u64,
    /// From one part of a block to the next, before the put is given up.
    pub part: u64,
    /// Longest hold.
    pub hold: u64,
}

impl Default for Times {
    fn default() -> Self {
        let ms = 1_000_000;
        Self { page: 50 * ms, flush: 1000 * ms, part: 5000 * ms, hold: u64::from(HOLD_MS_MAX) * ms }
    }
}

/// Whether the store discards free segments on the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// A segment at a time, right before it is written again.
    Segments,
    /// Never.
    Off,
}

/// Why a store of these sizes cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StoreConfigError {
    /// The logical block is none.
    #[error("logical block {0}: not a power of two from 512 to 4096")]
    LogicalBlock(u32),
    /// The segment size is none.
    #[error("segment of {0} bytes: not a power of two from 64 KiB to 16 GiB")]
    Segment(u64),
    /// Too few or too many segments fit.
    #[error("{0} segments fit; a store has {SEGMENTS_MIN} to {SEGMENTS_MAX}")]
    Segments(u64),
    /// A table has no or too many rows.
    #[error("{0} is out of its range")]
    Table(&'static str),
}

/// Where things lie on the medium, in bytes of the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreGeometry {
    pub(crate) logical_block: u32,
    pub(crate) segment_bytes: u64,
    pub(crate) data_at: u64,
    pub(crate) segments: u32,
    pub(crate) spaces: u32,
    pub(crate) area_bytes: u64,
}

/// Where the two tables of namespaces begin.
const SPACES_AT: u64 = 64 << 10;

impl StoreGeometry {
    /// # Errors
    /// `StoreConfigError` when no store fits.
    pub(crate) fn of(config: &StoreConfig) -> Result<Self, StoreConfigError> {
        let (block, segment) = (config.logical_block, config.segment_bytes);
        if !block.is_power_of_two() || !(512..=4096).contains(&block) {
            return Err(StoreConfigError::LogicalBlock(block));
        }
        if !segment.is_power_of_two() || !(64 << 10..=16 << 30).contains(&segment) {
            return Err(StoreConfigError::Segment(segment));
        }
        if !(1..=SPACES_MAX).contains(&config.spaces) {
            return Err(StoreConfigError::Table("spaces"));
        }
        let front = SPACES_AT + 2 * u64::from(config.spaces) * SPACE_BYTES as u64;
        let data_at = front.next_multiple_of(segment.min(1 << 20));
        let count = config.area_bytes.saturating_sub(data_at) / segment;
        let segments = u32::try_from(count).map_err(|_| StoreConfigError::Segments(count))?;
        if !(SEGMENTS_MIN..=SEGMENTS_MAX).contains(&segments)
            || (config.area_bytes / u64::from(UNIT_BYTES)) >> PLACE_BITS != 0
        {
            return Err(StoreConfigError::Segments(count));
        }
        Ok(Self {
            logical_block: block,
            segment_bytes: segment,
            data_at,
            segments,
            spaces: config.spaces,
            area_bytes: config.area_bytes,
        })
    }

    /// First byte of a segment.
    pub(crate) fn segment_at(&self, segment: u32) -> u64 {
        self.data_at + u64::from(segment) * self.segment_bytes
    }

    /// First byte of a segment's head: its last page. A copy is its first page.
    pub(crate) fn head_at(&self, segment: u32) -> u64 {
        self.segment_at(segment) + self.segment_bytes - PAGE_BYTES as u64
    }

    /// First byte of one copy of a segment's head.
    pub(crate) fn head_copy_at(&self, segment: u32, copy: u32) -> u64 {
        if copy == 0 { self.head_at(segment) } else { self.segment_at(segment) }
    }

    /// First byte of a page of a segment's summary.
    pub(crate) fn page_at(&self, segment: u32, index: u32) -> u64 {
        self.head_at(segment) - (u64::from(index) + 1) * PAGE_BYTES as u64
    }

    /// First byte of one copy of a namespace's slot.
    pub(crate) fn space_at(&self, slot: u32, copy: u32) -> u64 {
        let slots = u64::from(copy) * u64::from(self.spaces) + u64::from(slot);
        SPACES_AT + slots * SPACE_BYTES as u64
    }

    /// Pages that a segment can have.
    pub(crate) fn pages_max(&self) -> u32 {
        u32::try_from(self.segment_bytes / PAGE_BYTES as u64).expect("at most 16 GiB") - 2
    }

    /// Most bytes of a block.
    pub(crate) fn block_max(&self) -> u32 {
        let half = self.segment_bytes / 2;
        u32::try_from(half).map_or(BLOCK_BYTES_MAX, |half| half.min(BLOCK_BYTES_MAX))
    }

    /// Bytes on the medium of a transfer of `length` bytes.
    pub(crate) fn padded(&self, length: u32) -> u32 {
        length.next_multiple_of(self.logical_block)
    }

    /// The segment that a place (in units from the area's begin) lies in.
    #[inline(always)]
    pub(crate) fn segment_of(&self, place: u64) -> u32 {
        let at = place * u64::from(UNIT_BYTES) - self.data_at;
        u32::try_from(at >> self.segment_bytes.trailing_zeros()).expect("places lie in segments")
    }

    /// The place of a block in units from the area's begin.
    pub(crate) fn place(&self, segment: u32, offset: u32) -> u64 {
        self.segment_at(segment) / u64::from(UNIT_BYTES) + u64::from(offset)
    }

    /// First byte of a place.
    pub(crate) fn place_at(place: u64) -> u64 {
        place * u64::from(UNIT_BYTES)
    }
}

impl StoreConfig {
    /// Transfers at once with the store's own buffers.
    #[must_use]
    pub fn transfers_max(&self) -> u32 {
        u32::from(self.buffers) * self.cells()
    }

    /// Cells of a buffer.
    pub(crate) fn cells(&self) -> u32 {
        (self.buffer_bytes / CELL_BYTES_MIN).clamp(1, CELLS_OF_BUFFER)
    }

    /// Bytes of a cell: whole pages.
    pub(crate) fn cell_bytes(&self) -> u32 {
        self.buffer_bytes / self.cells() / PAGE * PAGE
    }

    /// Checks the tables' sizes; the geometry checks the rest.
    pub(crate) fn check(&self) -> Result<StoreGeometry, StoreConfigError> {
        let geometry = StoreGeometry::of(self)?;
        let buffer = self.buffer_bytes as usize;
        let rows = [
            ("block_mean", self.block_mean >= UNIT_BYTES),
            ("puts", (1..=1 << 16).contains(&self.puts)),
            ("writes", (1..=1 << 20).contains(&self.writes)),
            ("holds", (1..=1 << 24).contains(&self.holds)),
            ("owners", self.owners > 0),
            ("buffers", (2..=1024).contains(&self.buffers)),
            ("buffer_bytes", buffer > 0 && buffer.is_multiple_of(SPACE_BYTES)),
            ("images", (4..=4096).contains(&self.images)),
        ];
        let wrong = rows.iter().find(|(_, right)| !right);
        wrong.map_or(Ok(geometry), |(name, _)| Err(StoreConfigError::Table(name)))
    }
}

const _: () = assert!(SUPER_AT[1] + PAGE_BYTES as u64 <= SPACES_AT);
