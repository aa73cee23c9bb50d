//! Pollers: one pinned thread each, and the tick that moves requests from lanes to devices and
//! completions back.
//!
//! Owns accepted requests from the moment they are copied out of a lane until their completion is
//! posted. Never allocates, locks, logs or blocks after start (invariant 6), except to sleep in
//! one place; never reads configuration; never knows which device it drives.
#![forbid(unsafe_code)]

mod admission;
mod ages;
mod attaching;
mod back_ends;
mod bells;
mod block_reads;
mod completion_batch;
mod copier;
mod counter;
mod device_queue;
mod epoll;
mod executor;
mod front_end;
mod handle;
mod idle;
mod inflight;
mod intake;
mod lanes;
mod late_loss;
mod limits;
mod mailbox;
mod poller;
mod probes;
mod regions;
mod ringer;
mod scheduler;
mod segment_map;
mod sessions;
mod stats;
mod store_call;
mod store_page;
mod store_witness;
mod task;
mod teardown;
mod thread;
mod trace;

pub use back_ends::Route;
pub use bells::{QueueDoorbell, Ringer, Rung, Waking, WokenBy};
pub use copier::CopyQueues;
pub use counter::Counter;
pub use handle::PollerHandle;
pub use late_loss::LateLoss;
pub use limits::{
    DEVICES_MAX, HANDLES_MAX, LANES_MAX, REGIONS_MAX, SESSIONS_MAX, STORE_CALLS_MAX, SessionSlot,
    TenantSlot,
};
pub use mailbox::{
    CorruptBlock, DeviceFailure, LaneSeat, Mailbox, NOTICES_MAX, Notice, PollerCommand,
};
pub use poller::{Poller, Setup, SetupError, SleepOutcome, TickOutcome};
pub use ringer::RingerThread;
pub use scheduler::budget::{DeviceBudget, InFlightBytes};
pub use segment_map::{MAP_CELLS_MAX, MapCell, SegmentMap};
pub use stats::{
    DeviceStats, IoLatencies, Latencies, LatencyCounts, OperationKind, PollerStats, PoolStats,
    SessionStats, StoreStats,
};
pub use store_call::{
    LateSetup, Permit, STORE_OWNERS, SpaceRecord, StoreAsk, StoreCall, StoreSetup, TierSetup,
};
pub use store_page::{BlockRow, BlockRows, GoneRow, GoneRows, IN_MEMORY, StoreFound};
pub use store_witness::presence_witness;
pub use thread::{CpuBinding, PollerStartError, start};
pub use trace::{Spent, TraceEvent, TraceRing, Traced, TracedWork, Tracer};
