//! The format on the medium; `docs/store-format.md` describes it byte by byte.
//!
//! Every structure opens with a magic, names the store it belongs to, and ends with the CRC-64/NVME
//! of all bytes before. Numbers are little-endian.

#[cfg(fuzzing)]
pub mod fuzzing;
mod head;
mod page;
mod seal;
mod space;
mod superblock;

pub(crate) use head::Head;
pub use page::RECORDS_MAX;
pub(crate) use page::{Page, PageHeader, Record, RecordKind};
pub use space::{DOCUMENT_BYTES_MAX, NAME_BYTES_MAX};
pub(crate) use space::{SPACE, SPACE_BYTES, SpaceImage, SpaceState};
pub use superblock::{
    FORMAT_VERSION, POOL_NAME_BYTES_MAX, POOLS_MAX, PoolNames, SUPER_AT, Super, SuperError,
};

/// Bytes of a page, a head and a super.
pub const PAGE_BYTES: usize = PAGE as usize;

/// The same, as transfers count.
pub(crate) const PAGE: u32 = 4096;
