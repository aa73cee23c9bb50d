//! The words kvrail's processes share: ids, the status table, and the lanes between a client
//! thread and a poller.
//!
//! Owns layouts in shared memory and every memory ordering between processes. Never touches a
//! device, a socket or the bytes of a block. Invariant 1 (exactly once) and the first half of
//! invariant 4 (a client's indices and slots are hostile input, loaded once) rest here.

#[cfg(not(loom))]
mod doorbell;
#[cfg(fuzzing)]
pub mod fuzzing;
mod geometry;
#[cfg(not(loom))]
mod held_block;
mod hold;
#[cfg(not(loom))]
mod hold_table;
mod ids;
#[cfg(not(loom))]
mod keyed;
#[cfg(not(loom))]
mod lane;
#[cfg(not(loom))]
mod latency;
pub mod limits;
mod presence;
#[cfg(not(loom))]
mod presence_table;
#[cfg(not(loom))]
mod segment;
#[cfg(not(loom))]
mod shm;
#[cfg(not(loom))]
mod side;
pub mod slot;
#[cfg(not(loom))]
mod snapshot;
mod spin;
pub mod spsc;
mod status;
mod sync;
#[cfg(not(loom))]
mod thread_waker;
mod tier;
#[cfg(not(loom))]
mod tier_table;
pub mod wake;

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(not(loom))]
pub use doorbell::{Doorbell, drain_doorbell, drain_doorbell_set, watch_hangup};
pub use geometry::{Geometry, MemberRange, Piece, RangeError};
#[cfg(not(loom))]
pub use held_block::HeldBlock;
pub use hold::HOLDS_MAX;
#[cfg(not(loom))]
pub use hold_table::{HOLDS_BYTES, HoldTables, Holds};
pub use ids::{DeviceIndex, Epoch, PollerIndex, RegionId, SessionId, VolumeId};
#[cfg(not(loom))]
pub use keyed::{CHAIN_BEGINS, CHAIN_DEPTH_MAX, KeyedRequest, Side, keys_slot};
#[cfg(not(loom))]
pub use kvrail_units::METADATA_BYTES_MAX;
#[cfg(not(loom))]
pub use lane::{ClientLane, ClientSleep, RingBell, ServerLane};
#[cfg(not(loom))]
pub use latency::{
    BlockSize, CALL_COUNTS_BYTES, CallCounts, CallCountsReader, LATENCY_BUCKETS, NewLatencies,
    TimedCall, latency_bucket, latency_upper_ns,
};
pub use presence::Presence;
#[cfg(not(loom))]
pub use presence_table::{PresenceReader, PresenceWriter};
#[cfg(not(loom))]
pub use segment::{QueueSegment, SegmentError};
#[cfg(not(loom))]
pub use side::{SideCopy, SideSlot};
pub use slot::{Class, Completion, Opcode, Request};
#[cfg(not(loom))]
pub use snapshot::{CompletionSnapshot, RequestSnapshot};
pub use spin::AdaptiveSpin;
pub use spsc::LaneFault;
pub use status::Status;
#[cfg(not(loom))]
pub use thread_waker::ThreadWaker;
pub use tier::{TIER_WAYS, TierBlock, TierFound};
#[cfg(not(loom))]
pub use tier_table::{TIER_PAGE_BYTES, TierReader, TierWriter};
