//! The arm `raw`: a bare io_uring loop on the volume's own files, in this process. The ceiling.
//!
//! Same files, same offsets, same buffers, same ring mode as the sidecar; no lanes, no second
//! process. What `kvrail` costs is the difference.

mod mode;
mod ring;
mod target;
mod wire;

pub(crate) use self::ring::PortBuffers;
pub use self::target::{RawTarget, memory_in_use};
