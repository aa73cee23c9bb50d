//! The messages after the first two.

use kvrail_ring::Status;
use serde::{Deserialize, Serialize};

use crate::block::{BlockPage, EventPage, KeyReport, ListCursor, key_text};
use crate::config::{ConfigEntry, Reloaded};
use crate::gpu::{GpuRegionInfo, GpuRoute};
use crate::hello::{Hello, RefusalCode, Welcome};
use crate::members::{MemberChange, MembersChanged};
use crate::report::StatusReport;
use crate::store::NamespaceInfo;
use crate::trace::TracePage;

/// Size of the pages behind an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pages {
    /// By the sidecar's configuration; by default 2 MiB where there are enough, else base pages,
    /// and the answer names them.
    #[default]
    Auto,
    /// Base pages of the machine.
    Base,
    /// 2 MiB hugepages or an error.
    Huge2MiB,
    /// 1 GiB hugepages or an error.
    Huge1GiB,
}

/// From a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientMessage {
    /// Comes back in the reply.
    pub seq: u64,
    /// The request.
    pub ask: ControlRequest,
}

/// A client's requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum ControlRequest {
    /// Let me in. First and only once. Reply: `Welcome` or `Refused`.
    Hello(Hello),
    /// Make an arena. Reply: `Arena` with its memory file.
    CreateArena {
        /// Bytes, rounded up to whole pages.
        bytes: u64,
        /// Which pages.
        pages: Pages,
    },
    /// Use my memory file, sealed against shrinking, growing and sealing, as an arena. Comes with
    /// one descriptor. Reply: `Arena` without one.
    ImportArena {
        /// Its exact size in bytes.
        bytes: u64,
    },
    /// Use memory of a GPU. Comes with a descriptor for each memory that is one, in their order.
    /// Reply: `GpuRegion`.
    AttachGpu(GpuRegionInfo),
    /// Forget an arena or a region of GPU memory. Reply: `Detached`, when nothing can touch it any
    /// more.
    DetachArena {
        /// Which.
        region: u32,
    },
    /// Make a queue. Reply: `Queue` with its descriptors. It is served once it is mapped.
    OpenQueue {
        /// Requests each of its lanes can hold, a power of two.
        depth: u32,
        /// An arena of this session with a page of 4 KiB for each request of the queue: the last
        /// bytes of blocks that are no multiple of a logical block go there. Without one, such
        /// blocks are INVALID.
        tails: Option<u32>,
    },
    /// I have mapped the queue's segment: seal it against holes, and serve it. Reply:
    /// `QueueServed`.
    QueueMapped {
        /// Which.
        queue: u32,
    },
    /// Forget a queue. Reply: `QueueClosed`, when all it had accepted is complete.
    CloseQueue {
        /// Which.
        queue: u32,
    },
    /// Open a namespace of a store, and make it if it is not there. Reply: `Namespace`, or an
    /// error that names the field of the identity which differs.
    OpenNamespace {
        /// The store.
        volume: u16,
        /// 1 to 64 bytes.
        name: String,
        /// Identity of its bytes: canonical JSON, at most 4 KiB.
        identity: String,
        /// Whether it may be made.
        create: bool,
    },
    /// Make all blocks of a namespace unreachable, for all clients, by one write. Reply:
    /// `Namespace` with its next uid.
    ClearNamespace {
        /// The store.
        volume: u16,
        /// Its name.
        name: String,
    },
    /// Forget a namespace and its blocks. Reply: `NamespaceRemoved`.
    RemoveNamespace {
        /// The store.
        volume: u16,
        /// Its name.
        name: String,
    },
    /// Which namespaces are there? Reply: `Namespaces`.
    ListNamespaces {
        /// The store.
        volume: u16,
    },
    /// Which blocks does a namespace have? Reply: `Blocks`, some of them.
    ListBlocks {
        /// The store.
        volume: u16,
        /// Name of the namespace.
        name: String,
        /// Where to go on; the default is the begin.
        from: ListCursor,
    },
    /// Read the evictions of all namespaces. Reply: `Events`.
    Events {
        /// The store.
        volume: u16,
        /// The position in the page before; `None`: from now on.
        since: Option<u64>,
    },
    /// Explain a key. Reply: `Key`.
    ExplainKey {
        /// The store.
        volume: u16,
        /// Name of the namespace.
        name: String,
        /// The key.
        #[serde(with = "key_text")]
        key: u128,
    },
    /// Let me see the presence tables of a store. Reply: `Presence` with their memory files.
    ShowPresence {
        /// The store.
        volume: u16,
    },
    /// Let me read the memory tiers of a store. Reply: `Tier` with their memory files, or an error
    /// for a client that may not read all of the store.
    ShowTier {
        /// The store.
        volume: u16,
    },
    /// Give me memory in which I name the blocks of memory tiers that I read in place, for all
    /// stores. For a client that this store's tiers are shown to, until it has mapped the memory.
    /// Reply: `Holds`.
    HoldBlocks {
        /// The store.
        volume: u16,
    },
    /// I have mapped the memory for holds: close it, and look there from now on. Reply:
    /// `HoldsServed`.
    HoldsMapped,
    /// Give me memory in which I count the latencies of my calls. Once in a session. Reply:
    /// `Latencies`.
    ShareLatencies,
    /// Let me watch when all transfers have ended, should this sidecar be killed. Reply:
    /// `Transfers`, or an error where nothing shows it.
    WatchTransfers,
    /// How is everything? Reply: `Status`.
    Status,
    /// Read the slow requests since the last read. The first read begins a trace, which ends when
    /// this session has not read it for 5 s. Reply: `Trace`.
    Trace {
        /// Threshold in nanoseconds; the same in every request.
        slow_ns: u64,
    },
    /// Read the slow requests of the past. For root and the sidecar's user only. Reply: `Trace`.
    SlowLog,
    /// Show the configuration in force. For root and the sidecar's user only. Reply: `Config`.
    ShowConfig,
    /// Read the configuration again. For root and the sidecar's user only. Reply: `Reloaded`, or an
    /// error with the reason why the configuration in force stays.
    Reload,
    /// Change the members of a store. For root and the sidecar's user only. Reply:
    /// `MembersChanged`.
    ChangeMembers {
        /// The store's name.
        store: String,
        /// The change.
        change: MemberChange,
    },
    /// I leave. Reply: none; the sidecar closes the socket.
    Bye,
    /// The request is in the first descriptor, a memory file of at least the seals SHRINK and
    /// WRITE, because it is longer than a packet; other descriptors belong to it.
    Spilled {
        /// Its length.
        bytes: u64,
    },
}

impl ControlRequest {
    /// The first minor of the protocol that has it. An older sidecar ends a session that sends it,
    /// as it would for any packet that is no message.
    #[must_use]
    pub const fn minor(&self) -> u16 {
        match self {
            Self::Hello(_)
            | Self::CreateArena { .. }
            | Self::ImportArena { .. }
            | Self::AttachGpu(_)
            | Self::DetachArena { .. }
            | Self::OpenQueue { .. }
            | Self::QueueMapped { .. }
            | Self::CloseQueue { .. }
            | Self::OpenNamespace { .. }
            | Self::ClearNamespace { .. }
            | Self::RemoveNamespace { .. }
            | Self::ListNamespaces { .. }
            | Self::Status
            | Self::Bye
            | Self::Spilled { .. } => 0,
            Self::ListBlocks { .. }
            | Self::Events { .. }
            | Self::ExplainKey { .. }
            | Self::ShowPresence { .. }
            | Self::Trace { .. } => 1,
            Self::Reload => 3,
            Self::SlowLog | Self::ShowConfig => 4,
            Self::ShareLatencies => 5,
            Self::ChangeMembers { .. } => 6,
            Self::ShowTier { .. } | Self::HoldBlocks { .. } | Self::HoldsMapped => 8,
            Self::WatchTransfers => 9,
        }
    }

    /// Whether descriptors may belong to it.
    #[must_use]
    pub fn takes_fds(&self) -> bool {
        matches!(self, Self::ImportArena { .. } | Self::AttachGpu(_) | Self::Spilled { .. })
    }

    /// Descriptors that belong to it.
    #[must_use]
    pub fn fds(&self) -> usize {
        match self {
            Self::ImportArena { .. } => 1,
            Self::AttachGpu(region) => region.fds(),
            _ => 0,
        }
    }
}

/// From the sidecar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SidecarMessage {
    /// The answer to one request.
    Reply {
        /// The request's.
        seq: u64,
        /// The answer.
        answer: ControlReply,
    },
    /// The session ends; the socket is closed after this.
    Closing {
        /// Why.
        reason: String,
        /// Whether hardware may still move this session's bytes.
        hardware: Hardware,
    },
    /// The message is in the memory file that comes with this.
    Spilled {
        /// Its length.
        bytes: u64,
    },
}

/// State of the hardware at the end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hardware {
    /// Everything accepted was completed before: nothing moves any more.
    Settled,
    /// Requests may be in flight.
    MayBeActive,
}

/// The sidecar's answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ControlReply {
    /// You are in.
    Welcome(Box<Welcome>),
    /// You may not attach.
    Refused {
        /// The reason.
        code: RefusalCode,
        /// The reason and the remedy.
        message: String,
    },
    /// An arena is attached. Comes with its memory file if the sidecar made it.
    Arena {
        /// Its name in requests.
        region: u32,
        /// Its size.
        bytes: u64,
        /// Bytes of the pages behind it.
        page_bytes: u64,
        /// A remark for the operator, when other pages than the best ones were used.
        note: Option<String>,
    },
    /// A region of GPU memory is attached.
    GpuRegion {
        /// Its name in requests; their `layout_block` names a block, their `region_offset` the
        /// first byte within it.
        region: u32,
        /// Blocks of it.
        blocks: u32,
        /// Bytes of one block.
        block_bytes: u64,
        /// How bytes get there, for each volume.
        routes: Vec<GpuRoute>,
    },
    /// The arena or region is forgotten; nothing can touch it any more.
    Detached {
        /// Which.
        region: u32,
    },
    /// A queue to be mapped. Comes with: its segment, the client's bell, and one doorbell for each
    /// poller.
    Queue {
        /// Its number within the session.
        queue: u32,
        /// Bytes of the segment.
        segment_bytes: u64,
    },
    /// The queue is sealed and served.
    QueueServed {
        /// Which.
        queue: u32,
    },
    /// The queue is forgotten.
    QueueClosed {
        /// Which.
        queue: u32,
    },
    /// A namespace is open in this session.
    Namespace {
        /// Its number in requests, on every member.
        handle: u16,
        /// The uid in the checks of its blocks.
        uid: u64,
        /// Whether it was made just now.
        created: bool,
    },
    /// The namespace is forgotten.
    NamespaceRemoved,
    /// All namespaces of a store.
    Namespaces(Vec<NamespaceInfo>),
    /// Some blocks of a namespace.
    Blocks(BlockPage),
    /// Some of what is gone.
    Events(EventPage),
    /// The explanation of a key.
    Key(Box<KeyReport>),
    /// Presence tables, to be mapped for reading. Comes with a memory file for each that is there.
    Presence {
        /// Bytes of each member's; 0 where it has none.
        members: Vec<u64>,
    },
    /// Memory tiers, to be mapped for reading. Comes with a memory file for each that is there.
    Tier {
        /// Bytes of each member's; 0 where it has none.
        members: Vec<u64>,
    },
    /// Memory for what the client reads in place. Comes with its memory file.
    Holds {
        /// Its size.
        bytes: u64,
    },
    /// The memory for holds is closed; pollers look there.
    HoldsServed,
    /// Comes with the reading end of a pipe, which hangs up once the sidecar's process has ended
    /// and no device reads or writes memory for it any more.
    Transfers,
    /// Memory for latencies, which the sidecar reads from now on. Comes with its memory file.
    Latencies {
        /// Its size.
        bytes: u64,
    },
    /// How everything is.
    Status(Box<StatusReport>),
    /// Slow requests.
    Trace(TracePage),
    /// The configuration in force, by the alphabet.
    Config(Vec<ConfigEntry>),
    /// The configuration was read again.
    Reloaded(Reloaded),
    /// The store has other members.
    MembersChanged(MembersChanged),
    /// The request failed; the session goes on.
    Error {
        /// Which kind.
        #[serde(with = "status_name")]
        status: Status,
        /// The failure, the limit, and the remedy.
        message: String,
    },
}

/// A status as its name.
mod status_name {
    use kvrail_ring::Status;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(status: &Status, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(status.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Status, D::Error> {
        let name = String::deserialize(from)?;
        let known = Status::ALL.iter().copied().find(|status| status.name() == name);
        known.ok_or_else(|| D::Error::custom(format!("unknown status {name:?}")))
    }
}
