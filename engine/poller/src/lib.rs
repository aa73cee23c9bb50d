//! Pollers: one pinned thread each, and the tick that moves requests from lanes to devices and
//! completions back.
//!
//! Owns accepted requests from the moment they are copied out of a lane until their completion is
//! posted. Never allocates, locks, logs or blocks after start (invariant 6), except to sleep in
//! one place; never reads configuration; never knows which device it drives.
#![forbid(unsafe_code)]

mod handle;
mod mailbox;
mod stats;

pub use handle::PollerHandle;
pub use mailbox::{
    Command, LANES_MAX, LaneSeat, Mailbox, Notice, REGIONS_MAX, SESSIONS_MAX, SessionSlot,
};
pub use stats::{Counter, DeviceStats, LATENCY_BUCKETS, Latencies, PollerStats, SessionStats};
