//! Client of the kvrail sidecar: attach, get memory, move KV blocks.
//!
//! Owns this process's half of a session: the socket, the arenas, and one queue for each thread
//! that moves data. Splits requests at stripe borders, sends each piece to the poller that owns
//! it, joins the completions. Never opens a device. Safe Rust: bytes are reached through a
//! [`Lease`], and a lease is either with the program or with a request in flight (invariant 2).
//!
//! ```no_run
//! use std::time::Duration;
//! use kvrail_client::{Client, Pages, Request, Status};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::attach("/run/kvrail/kvrail.sock")?;
//! let volume = client.volume("kv")?;
//! let arena = client.create_arena(64 << 20, Pages::Auto)?;
//! let mut queue = client.open_queue(128)?;
//!
//! let mut block = arena.lease(256 << 10)?;
//! block.fill(0xa5);
//! queue.submit(Request::write(&volume, 0, block))?;
//! let done = queue.wait(Duration::from_secs(10))?.expect("a write takes less than 10 s");
//! assert_eq!(done.status, Status::Ok);
//!
//! let mut block = done.lease.expect("the completion brings the lease back");
//! block.fill(0);
//! queue.submit(Request::read(&volume, 0, block))?;
//! let done = queue.wait(Duration::from_secs(10))?.expect("so does a read");
//! assert_eq!(done.status, Status::Ok);
//! assert!(done.lease.expect("full of data").iter().all(|byte| *byte == 0xa5));
//! arena.detach()?;
//! # Ok(())
//! # }
//! ```
//!
//! A process that forks must not use its client in the child: both would write the same lanes.
//! Control calls notice it and fail with [`ClientError::Forked`]; queues do not look.
#![forbid(unsafe_code)]

mod answers;
mod arena;
mod attach;
mod block_op;
mod block_ops;
mod block_request;
mod client;
mod control;
mod done;
mod error;
mod gpu;
mod holds;
mod identity;
mod inflight;
mod joins;
mod key;
mod lanes;
mod latencies;
mod lease;
mod listing;
mod lookup;
mod mapping;
mod memory_get;
mod opened;
mod presence;
mod queue;
mod request;
mod route;
mod session;
mod sink;
mod spin;
mod store;
mod submit;
mod submit_error;
mod submit_error_kind;
mod tables;
mod tag;
mod template;
#[cfg(test)]
mod tests;
mod tier;
mod view;
mod volume;
mod wait;

pub use arena::Arena;
pub use attach::AttachOptions;
pub use block_op::Verified;
pub use block_request::BlockRequest;
pub use client::Client;
pub use done::{BlockNote, Completed, Decline, Ticket};
pub use error::ClientError;
pub use gpu::{GpuCache, GpuMemory, GpuRange, GpuRegion};
pub use identity::{IDENTITY_BYTES_MAX, Identity, IdentityError};
pub use key::BlockKey;
pub use kvrail_layout::{FRAGMENTS_MAX, Fragment, LayoutError, MEMORIES_MAX};
pub use kvrail_protocol::{
    ConfigEntry, DocumentError, EventKind, GpuInfo, GpuMechanism, GpuRoute, KeyBlock, KeyFate,
    KeyReport, KeyState, KeyWorth, MemberChange, MembersChanged, NamespaceInfo, Pages, RefusalCode,
    Reloaded, Remembered, ShardReport, StatusReport, StoreMemberInfo, TraceInfo, TraceKey,
    TraceKind, TracePage, TraceSpent, TraceWork,
};
pub use kvrail_ring::{
    Class, Epoch, Geometry, METADATA_BYTES_MAX, Opcode, PollerIndex, Presence, Status,
};
pub use kvrail_store::{Chain, Priority};
pub use lease::Lease;
pub use listing::{Event, EventBatch, Events, ListPage, ListedBlock, Listing};
pub use lookup::{Found, Lookup, LookupExtent, PendingLookup, Recency};
pub use queue::Queue;
pub use request::Request;
pub use store::{Absent, Namespace, Store};
pub use submit::Submit;
pub use submit_error::SubmitError;
pub use submit_error_kind::SubmitErrorKind;
pub use view::View;
pub use volume::Volume;
pub use wait::Armed;

/// The README's program, compiled with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
