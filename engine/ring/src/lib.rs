//! The words kvrail's processes share: ids, the status table, and the lanes between a client
//! thread and a poller.
//!
//! Owns layouts in shared memory and every memory ordering between processes. Never touches a
//! device, a socket or the bytes of a block. Invariant 1 (exactly once) and the first half of
//! invariant 4 (a client's indices and slots are hostile input, loaded once) rest here.

#[cfg(not(loom))]
mod bell;
mod geometry;
mod ids;
#[cfg(not(loom))]
mod lane;
pub mod limits;
#[cfg(not(loom))]
mod nudge;
mod odds;
#[cfg(not(loom))]
mod segment;
#[cfg(not(loom))]
mod shm;
pub mod slot;
pub mod spsc;
mod status;
mod sync;
pub mod wake;
#[cfg(not(loom))]
mod words;

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(not(loom))]
pub use bell::{Bell, hear_hangup, hush, unhear};
pub use geometry::{Extent, Geometry, Piece, RangeError};
pub use ids::{DeviceIndex, Epoch, PollerIndex, RegionId, SessionId, VolumeId};
#[cfg(not(loom))]
pub use lane::{ClientLane, ClientSleep, Ring, ServerLane};
#[cfg(not(loom))]
pub use nudge::Nudge;
pub use odds::Odds;
#[cfg(not(loom))]
pub use segment::{Segment, SegmentError};
pub use slot::{Class, Completion, Opcode, Request};
pub use spsc::LaneFault;
pub use status::Status;
#[cfg(not(loom))]
pub use words::{CompletionWords, RequestWords};
