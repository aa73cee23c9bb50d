//! Pollers: one pinned thread each, and the tick that moves requests from lanes to devices and
//! completions back.
//!
//! Owns accepted requests from the moment they are copied out of a lane until their completion is
//! posted. Never allocates, locks, logs or blocks after start (invariant 6), except to sleep in
//! one place; never reads configuration; never knows which device it drives.
#![forbid(unsafe_code)]

mod ages;
mod attaching;
mod backend;
mod bells;
mod checksummer;
mod completion_batch;
mod device_queue;
mod epoll;
mod finish;
mod handle;
mod idle;
mod lanes;
mod mailbox;
mod obey;
mod poller;
mod presence;
mod regions;
mod ringer;
mod scheduler;
mod sessions;
mod stats;
mod sums;
mod take;
mod task;
mod thread;

pub use backend::Route;
pub use bells::{QueueBell, Rung, Waking, WokenBy};
pub use handle::PollerHandle;
pub use mailbox::{
    Command, DeviceFailure, LANES_MAX, LaneSeat, Mailbox, Notice, REGIONS_MAX, SESSIONS_MAX,
    SessionSlot,
};
pub use poller::{Poller, Setup, Turn};
pub use ringer::{Ringer, RingerThread};
pub use scheduler::budget::Budget;
pub use stats::{Counter, DeviceStats, LATENCY_BUCKETS, Latencies, PollerStats, SessionStats};
pub use thread::{Seat, Sleep, StartError, start};
