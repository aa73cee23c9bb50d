//! Places in a device's buffer table.

/// Entries of a device's buffer table, as many as io_uring takes (IORING_MAX_REG_BUFFERS); each
/// covers 64 MiB (`kvrail_ring::limits::ENTRY_BYTES`), so a larger region takes several in a row,
/// and all together are 1 TiB.
pub const BUFFERS_MAX: u16 = 1 << 14;

/// Regions of remote memory a device may know. Their entries follow those of the host's, at
/// `BUFFERS_MAX`.
pub const REMOTES_MAX: u16 = 512;

/// First table entry of an attached region. The control thread gives these out, the same for
/// every device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferIndex(pub u16);
