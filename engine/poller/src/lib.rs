//! Pollers: one pinned thread each, and the tick that moves requests from lanes to devices and
//! completions back.
//!
//! Owns accepted requests from the moment they are copied out of a lane until their completion is
//! posted. Never allocates, locks, logs or blocks after start (invariant 6), except to sleep in
//! one place; never reads configuration; never knows which device it drives.
#![forbid(unsafe_code)]

mod accept;
mod ages;
mod asides;
mod attaching;
mod bells;
mod budget;
mod finish;
mod handle;
mod ladder;
mod lanes;
mod mailbox;
mod obey;
mod pace;
mod placement;
mod poller;
mod presence;
mod region;
mod ringer;
mod run;
mod sessions;
mod sleep;
mod stats;
mod summing;
mod sums;
mod take;
mod thread;
mod timers;
mod unit;
mod waiting;

pub use bells::{QueueBell, Rung, Waking, WokenBy};
pub use budget::{Budget, InFlightBytes};
pub use handle::PollerHandle;
pub use mailbox::{
    Command, DeviceFailure, LANES_MAX, LaneSeat, Mailbox, Notice, REGIONS_MAX, SESSIONS_MAX,
    SessionSlot,
};
pub use placement::Route;
pub use poller::{Poller, Setup, Turn};
pub use ringer::{Ringer, RingerThread};
pub use stats::{Counter, DeviceStats, LATENCY_BUCKETS, Latencies, PollerStats, SessionStats};
pub use thread::{Seat, Sleep, StartError, start};
