//! The session socket: the messages between client and sidecar outside the lanes.
//!
//! A Unix socket of type SEQPACKET; each packet is one JSON message of at most [`PACKET_BYTES_MAX`]
//! bytes, with descriptors beside it. Owns the messages, their encoding and the handling of
//! descriptors, and the rules of identity documents. Never on a data path; has no notion of
//! sessions or pollers.
//!
//! The sidecar's input is hostile: unknown fields and variants are errors, surplus descriptors are
//! closed, nothing is read twice. A client's input may come from a newer sidecar of the same
//! protocol major: unknown fields are passed over.
#![forbid(unsafe_code)]

mod block;
mod channel;
mod config;
mod document;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gpu;
mod hello;
mod members;
mod message;
mod printable;
mod report;
mod spill;
mod store;
mod trace;
mod trouble;
mod troubles;
mod volume;

pub use block::{
    BlockInfo, BlockPage, EventInfo, EventKind, EventPage, KeyBlock, KeyFate, KeyReport, KeyState,
    KeyWorth, ListCursor, Remembered,
};
pub use channel::{Channel, FDS_MAX, Incoming, Packet, PacketBuffer};
pub use config::{ConfigEntry, ConfigReport, Reloaded};
pub use document::{DocumentError, read_document};
pub use error::{ChannelError, PACKET_BYTES_MAX};
pub use gpu::{
    GPU_FDS_MAX, GpuFragment, GpuInfo, GpuMechanism, GpuMemory, GpuRegionInfo, GpuReport, GpuRoute,
    GpuState, LEGACY_HANDLE_BYTES, LegacyHandle, StagingReport,
};
pub use hello::{Hello, LimitsInfo, PollerInfo, RefusalCode, SpinHints, Version, Welcome};
pub use members::{MemberChange, MembersChanged, StoreMemberInfo};
pub use message::{ClientMessage, ControlReply, ControlRequest, Hardware, Pages, SidecarMessage};
pub use printable::printable;
pub use report::{
    CallLatencyReport, ClientWaker, DeviceReport, DeviceState, DriveHealth, DriveReport,
    HistogramReport, IoCounts, IoLatencyReport, LatencyReport, PathReport, PollerReport,
    PoolMemoryHits, RegionsReport, SandboxReport, SessionLatencyReport, SessionReport,
    SidecarReport, SidecarState, StallReport, StatusReport, TargetReport, VolumeReport,
};
pub use spill::{ASK_BYTES_MAX, SPILL_BYTES_MAX, unspill, unspill_ask};
pub use store::{
    NamespaceInfo, NamespaceMemory, PoolReport, ShardReport, StoreInfo, VolumeContent,
};
pub use trace::{TraceInfo, TraceKey, TraceKind, TracePage, TraceSpent, TraceWork};
pub use trouble::{Severity, Trouble, TroubleCode};
pub use troubles::troubles;
pub use volume::{GeometryInfo, VolumeInfo};
