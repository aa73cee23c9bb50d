//! Memory and space of a store of given sizes, before it is made.

use std::fmt;

use crate::admission::seen_bytes;
use crate::config::{StoreConfig, StoreConfigError, StoreGeometry};
use crate::core::{REPLY_BYTES, TASK_BYTES};
use crate::fates::fates_bytes;
use crate::feed::FEED_BYTES;
use crate::format::{POOLS_MAX, SPACE_BYTES};
use crate::hint::ends_of;
use crate::holds::HOLD_BYTES;
use crate::index::{self, ENTRY_BYTES, LOAD_PERCENT};
use crate::ledger::Ledger;
use crate::log::LOG_BYTES;
use crate::moves::MOVE_BYTES;
use crate::payers::PAYER_BYTES;
use crate::spaces::{NUMBERS_RAM_BYTES, SPACE_RAM_BYTES};
use crate::worth::TALLIES_BYTES;
use crate::writes::{BLOCK_RAM_BYTES, WRITE_RAM_BYTES, WRITER_RAM_BYTES};

/// Entries of a bucket.
const WAYS: u64 = index::WAYS as u64;
/// Bytes of RAM of a segment, with its places in the queues.
const SEGMENT_BYTES: u64 = 72;

/// Bytes of RAM of a cell of the buffers, in the start and in recovery.
const CELL_RAM_BYTES: u64 = 48;

/// How large the tables of a store are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Bytes on the medium that blocks can take.
    pub capacity_bytes: u64,
    /// Segments.
    pub segments: u32,
    /// Blocks of the configured mean that fit, and that the index is made for.
    pub blocks: u64,
    /// Mean length of a block the index is made for.
    pub block_mean: u32,
    /// Buckets of the index.
    pub buckets: u64,
    /// Bytes of RAM of the index.
    pub index_bytes: u64,
    /// Bytes of RAM of all other tables.
    pub table_bytes: u64,
    /// Bytes of the pool that the caller must have, beside the tables.
    pub pool_bytes: u64,
}

impl Sizing {
    /// Computes the sizes.
    ///
    /// # Errors
    /// `StoreConfigError` when no store can have them.
    pub fn of(config: &StoreConfig) -> Result<Self, StoreConfigError> {
        config.check().map(|geometry| Self::with(config, &geometry))
    }

    pub(crate) fn with(config: &StoreConfig, geometry: &StoreGeometry) -> Self {
        let capacity_bytes = u64::from(geometry.segments) * geometry.segment_bytes;
        let blocks = (capacity_bytes / u64::from(config.block_mean)).max(WAYS);
        let buckets = (blocks * 100).div_ceil(WAYS * LOAD_PERCENT).max(2);
        let buffers = u64::from(config.buffers);
        let images = u64::from(config.images) * SPACE_BYTES as u64;
        let rows = [
            (u64::from(geometry.segments), SEGMENT_BYTES),
            (u64::from(geometry.spaces), SPACE_RAM_BYTES),
            (1, NUMBERS_RAM_BYTES),
            (config.puts.into(), BLOCK_RAM_BYTES + REPLY_BYTES),
            (config.writes.into(), WRITE_RAM_BYTES + TASK_BYTES + 2 * REPLY_BYTES),
            (config.transfers_max().into(), TASK_BYTES + CELL_RAM_BYTES),
            (config.holds.into(), HOLD_BYTES),
            (ends_of(blocks).into(), HOLD_BYTES),
            (config.owners.into(), 8 + PAYER_BYTES + WRITER_RAM_BYTES),
            (config.transfers_max().into(), MOVE_BYTES),
            (1, images),
            (1, FEED_BYTES),
            (1, LOG_BYTES),
            (1, TALLIES_BYTES + (POOLS_MAX * size_of::<Ledger>()) as u64),
            (1, seen_bytes(blocks) + fates_bytes(blocks)),
        ];
        Self {
            capacity_bytes,
            segments: geometry.segments,
            blocks,
            block_mean: config.block_mean,
            buckets,
            index_bytes: buckets * WAYS * ENTRY_BYTES,
            table_bytes: rows.iter().map(|(count, bytes)| count * bytes).sum(),
            pool_bytes: buffers * u64::from(config.buffer_bytes) + images,
        }
    }

    /// Bytes of RAM of all tables for each block.
    #[must_use]
    pub fn per_block(&self) -> u64 {
        (self.index_bytes + self.table_bytes).div_ceil(self.blocks)
    }
}

impl fmt::Display for Sizing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of index and {} of other tables for {} of {} blocks: {} bytes a block; \
             {} of buffers",
            ReadableBytes(self.index_bytes),
            ReadableBytes(self.table_bytes),
            ReadableBytes(self.capacity_bytes),
            Binary(self.block_mean.into()),
            self.per_block(),
            ReadableBytes(self.pool_bytes),
        )
    }
}

/// A number of bytes in the unit that fits, as every other size for people.
struct ReadableBytes(u64);

impl fmt::Display for ReadableBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.iter().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, name)) => write!(f, "{:.2} {name}", self.0 as f64 / *unit as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

/// A number of bytes in binary units, where it is one.
struct Binary(u64);

impl fmt::Display for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.iter().find(|(unit, _)| self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{} {name}", self.0 / unit),
            None => write!(f, "{} byte", self.0),
        }
    }
}
